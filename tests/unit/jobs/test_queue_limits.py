"""A job is quoted for no more GPUs than it can ever hold."""

from __future__ import annotations

import pytest

from duetune.errors import InvalidInput
from duetune.jobs.configure import configure
from duetune.settings import QueueSettings, load_settings
from support.quoted import SITE, spec_with, terms_of

QUEUE = QueueSettings(gpus=3, quotas={"vision": 2, "large": 9})


def test_the_lowest_limit_counts_and_is_named():
    assert QUEUE.limit("") == (3, "queue.gpus")
    assert QUEUE.limit("vision") == (2, "queue.quotas.vision")
    assert QUEUE.limit("large") == (3, "queue.gpus")
    assert QueueSettings(quotas={"vision": 2}).limit("speech") is None


def test_a_job_that_could_use_more_is_planned_for_what_there_is_and_told():
    wide = terms_of(spec_with())
    site = SITE.within(*QUEUE.limit("vision"))
    cut = terms_of(spec_with(), site=site)
    assert wide.job.max_gpus > cut.job.max_gpus == 2
    assert not wide.notes
    (note,) = cut.notes
    assert note.startswith("queue.quotas.vision allows at most 2 GPUs at once")
    enough = terms_of(spec_with(resources={"accelerators": "auto:1..2"}), site=site)
    assert not enough.notes
    assert SITE.within(SITE.max_gpus, "queue.gpus") == SITE


def test_a_job_that_needs_more_is_refused():
    spec = spec_with(resources={"accelerators": "auto:3"})
    with pytest.raises(InvalidInput, match=r"at most 2: queue\.quotas\.vision allows no more"):
        configure(spec, SITE.within(*QUEUE.limit("vision")))


def test_the_queue_is_set_up_in_the_home(tmp_path):
    (tmp_path / "config.toml").write_text(
        '[queue]\ngpus = 8\nplanner = "edf"\n[queue.quotas]\nvision = 4\n'
    )
    queue = load_settings({"DUETUNE_HOME": str(tmp_path)}).queue
    assert queue == QueueSettings(gpus=8, planner="edf", quotas={"vision": 4})


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("gpus = 0", r"queue\.gpus: 0 is not allowed; expected a whole number of GPUs, 1 or more"),
        ("gpus = 2.5", r"queue\.gpus: 2\.5 is not allowed; expected a whole number$"),
        ("gpus = true", r"queue\.gpus: True is not allowed; expected a whole number$"),
        ("gpu = 2", r"queue field: 'gpu' .* expected one of planner, gpus, quotas$"),
        ("quotas = 3", r"queue\.quotas: 3 is not allowed; expected a mapping of fields$"),
        ("quotas = {a = 1, b = true}", r"queue\.quotas\.b: True .* expected a whole number$"),
        ("quotas = {vision = -1}", r"queue\.quotas\.vision: -1 .* 0 or more$"),
        ('quotas = {"" = 1}', r"queue\.quotas project: '' .* expected 1 to 63 letters"),
        ('quotas = {"a b" = 1}', r"queue\.quotas project: 'a b' .* expected 1 to 63 letters"),
    ],
)
def test_a_queue_that_cannot_be_is_refused_by_name(tmp_path, text, words):
    (tmp_path / "config.toml").write_text(f"[queue]\n{text}\n")
    with pytest.raises(InvalidInput, match=rf"^config\.toml {words}"):
        load_settings({"DUETUNE_HOME": str(tmp_path)})
