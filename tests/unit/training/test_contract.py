from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from duetune.core import node_contract as words
from duetune.errors import InvalidInput
from duetune.training.worker_contract import Contract, Notice
from support.places import ROOT

PAGE = ROOT / "docs" / "how-to" / "own-command.md"


def environment(folder, **others):
    return {
        "DUETUNE_JOB_ID": "job-7",
        "DUETUNE_NODE_ID": "node-3",
        "DUETUNE_EPOCH": "12",
        "DUETUNE_JOB_DIR": str(folder),
        **others,
    }


def test_places_that_are_not_given_lie_in_the_folder_of_the_job(tmp_path):
    contract = Contract.from_environment(environment(tmp_path))
    assert (contract.job, contract.node, contract.epoch) == ("job-7", "node-3", 12)
    assert contract.checkpoints == tmp_path / "checkpoints"
    assert contract.output == tmp_path / "output"
    assert contract.progress_file == tmp_path / "progress.json"
    assert contract.hazard_file == tmp_path / "hazard.json"
    assert contract.notice_file == tmp_path / "notice-node-3.json"
    assert contract.progress_url is None
    assert contract.coordinator_file is None


def test_places_that_are_given_are_taken(tmp_path):
    given = environment(
        tmp_path,
        DUETUNE_CHECKPOINT_DIR="/elsewhere/kept",
        DUETUNE_OUTPUT_DIR="/elsewhere/out",
        DUETUNE_NOTICE_FILE="/elsewhere/notice",
        DUETUNE_HAZARD_FILE="/elsewhere/hazard",
        DUETUNE_PROGRESS_FILE="/elsewhere/progress",
        DUETUNE_COORDINATOR_FILE="/elsewhere/address",
    )
    contract = Contract.from_environment(given)
    assert contract.checkpoints == Path("/elsewhere/kept")
    assert contract.output == Path("/elsewhere/out")
    assert contract.notice_file == Path("/elsewhere/notice")
    assert contract.hazard_file == Path("/elsewhere/hazard")
    assert contract.progress_file == Path("/elsewhere/progress")
    assert contract.coordinator_file == Path("/elsewhere/address")


def test_progress_goes_to_the_address_only_where_no_file_is_given(tmp_path):
    url = "http://127.0.0.1:9/progress"
    remote = Contract.from_environment(environment(tmp_path, DUETUNE_PROGRESS_URL=url))
    assert remote.progress_file is None
    assert remote.progress_url == url
    both = environment(tmp_path, DUETUNE_PROGRESS_URL=url, DUETUNE_PROGRESS_FILE="/p.json")
    assert Contract.from_environment(both).progress_file == Path("/p.json")


@pytest.mark.parametrize(
    "variable", ["DUETUNE_JOB_ID", "DUETUNE_NODE_ID", "DUETUNE_EPOCH", "DUETUNE_JOB_DIR"]
)
@pytest.mark.parametrize("empty", [True, False])
def test_what_is_missing_is_named(tmp_path, variable, empty):
    given = environment(tmp_path)
    del given[variable]
    if empty:
        given[variable] = ""
    with pytest.raises(InvalidInput, match=variable):
        Contract.from_environment(given)


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("DUETUNE_EPOCH", "-1"),
        ("DUETUNE_EPOCH", "2.5"),
        ("DUETUNE_EPOCH", "9" * 40),
        ("DUETUNE_NODE_ID", "../../etc"),
        ("DUETUNE_JOB_ID", "a/b"),
        ("DUETUNE_PROGRESS_URL", "file:///etc/passwd"),
    ],
)
def test_nonsense_is_refused(tmp_path, variable, value):
    with pytest.raises(InvalidInput, match=variable):
        Contract.from_environment(environment(tmp_path, **{variable: value}))


def test_a_process_knows_whether_duetune_has_started_it(tmp_path):
    assert Contract.given(environment(tmp_path))
    assert not Contract.given({"HOME": "/root"})


def test_the_page_for_users_names_every_variable_and_status():
    text = PAGE.read_text(encoding="utf-8")
    for name in vars(words).values():
        if isinstance(name, str) and name.startswith("DUETUNE_"):
            assert f"`{name}`" in text
    for status in (words.DONE, words.LEFT, words.HOPELESS):
        assert f"| {status} |" in text


def test_taking_part_does_not_import_torch():
    code = "import sys, duetune.training; print('torch' in sys.modules, 'numpy' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "False"]


def test_no_notice_until_the_file_is_there(tmp_path):
    file = tmp_path / "notice.json"
    notice = Notice(file)
    assert not notice.given
    assert notice.taken_at is None
    file.write_text('{"taken_at": 1234.5}')
    assert notice.given
    assert notice.taken_at == 1234.5


def test_a_notice_is_not_taken_back(tmp_path):
    file = tmp_path / "notice.json"
    file.touch()
    notice = Notice(file)
    assert notice.given
    file.unlink()
    assert notice.given


@pytest.mark.parametrize(
    "content", [b"", b"{", b"[]", b'{"taken_at": "soon"}', b"{}", b'{"\xf2": 1}']
)
def test_a_notice_that_cannot_be_read_is_a_notice_still(tmp_path, content):
    file = tmp_path / "notice.json"
    file.write_bytes(content)
    assert Notice(file).given
    assert Notice(file).taken_at is None


def test_sigterm_is_a_notice_and_is_given_back(tmp_path):
    before = signal.getsignal(signal.SIGTERM)
    with Notice(tmp_path / "none") as notice:
        assert not notice.given
        os.kill(os.getpid(), signal.SIGTERM)
        assert notice.given
        assert notice.taken_at is None
    assert signal.getsignal(signal.SIGTERM) == before


def test_outside_the_main_thread_only_the_file_counts(tmp_path):
    before = signal.getsignal(signal.SIGTERM)
    made = []
    thread = threading.Thread(target=lambda: made.append(Notice(tmp_path / "n").install()))
    thread.start()
    thread.join()
    assert signal.getsignal(signal.SIGTERM) == before
    assert not made[0].given
    (tmp_path / "n").touch()
    assert made[0].given
