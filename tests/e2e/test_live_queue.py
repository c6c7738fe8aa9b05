"""Two real jobs on one small fleet: one makes room for the other, and both finish."""

from __future__ import annotations

import json

import pytest

from duetune.core.events import Decided, Ended, Observed
from duetune.registry.policies import policy_named
from duetune.settings import load_settings
from duetune.simulate.journal_replay import redecided
from duetune.training.tiny import build_tiny_model
from support.accounts import accounted
from support.later import later
from support.live_home import LEFT_RUNNING, LiveHome
from support.tuning import progress, spec

later("torchft")

pytestmark = [pytest.mark.live, pytest.mark.torch, pytest.mark.filterwarnings(LEFT_RUNNING)]

GPUS = 2


@pytest.fixture
def home(tmp_path):
    home = LiveHome(tmp_path)
    home.path.mkdir()
    (home.path / "config.toml").write_text(f"[queue]\ngpus = {GPUS}\n")
    home.settings = load_settings(home.environment)
    yield home
    home.close()


def most_at_once(nodes):
    """Nodes that were billed at the same time."""
    changes = sorted(
        change
        for node in nodes
        if node.started_at is not None
        for change in ((node.started_at, 1), (node.ended_at, -1))
    )
    held = most = 0
    for _, change in changes:
        held += change
        most = max(most, held)
    return most


def test_a_fine_tune_makes_room_for_a_more_urgent_one_and_goes_on_from_its_checkpoint(
    home, tmp_path_factory
):
    folder = tmp_path_factory.mktemp("model")
    model = build_tiny_model(folder, hidden=32, layers=1, heads=2, seed=3)
    home.start_fleet(
        home.market((0.9, 2 * GPUS)), slot_wall_s=3.0, warm=True, emulated_microbatch=0.1
    )
    batch = {"per_device_train_batch_size": 2, "gradient_accumulation_steps": 4}
    training = json.dumps({"max_steps": 24, **batch})
    first = home.launch(spec(home, model, name="first", training=training))
    home.until_step(first, 3)
    urgent = home.launch(
        spec(
            home,
            model,
            name="urgent",
            priority=10,
            training=json.dumps({"max_steps": 30, **batch}),
            resources='{accelerators: "CPU:2"}',
        )
    )
    home.until(lambda: home.job(first).share == 0, "the first to wait")
    # As long as the urgent one runs.
    words = f"all jobs together may hold 2 GPUs, {urgent} has 2", f"others {urgent} has 2"

    def said():
        shown = " ".join(home.run("status", first).stdout.split())
        return all(each in shown for each in words)

    home.until(said, "who has the GPUs")
    queue = home.json("queue")["jobs"]
    assert {row["name"]: row["priority"] for row in queue} == {"first": 0, "urgent": 10}
    assert "of 2" in home.run("queue").stdout
    for job in (urgent, first):
        assert home.until_over(job).status == "SUCCEEDED", home.logs()
    nodes = [*accounted(home, first), *accounted(home, urgent)]
    assert most_at_once(nodes) <= GPUS
    story = [recorded.event for recorded in home.story(first)]
    waits = [each for each in story if isinstance(each, Decided) and "waits: " in each.reason]
    assert waits
    assert waits[0].allocation.total == 0
    (end,) = [each for each in home.story(urgent) if isinstance(each.event, Ended)]
    assert waits[-1].at <= end.event.at
    # What was done before is not done again: it was saved when the nodes were given back.
    reported = [each.step for each in progress(home, first)]
    assert reported == sorted(reported)
    assert reported[-1] == 24
    assert home.json("status", first)["status"]["lost_steps"] == 0
    for job in (first, urgent):
        again = redecided(home.story(job), policy_named)
        assert again
        assert all(each.same for each in again)
    explained = home.json("explain", first)["explanation"]["slots"]
    assert [each["share"] for each in explained].count(0) == len(waits)
    assert all(each.wish is not None for each in story if isinstance(each, Observed))


def test_a_queue_that_makes_no_sense_and_a_project_without_gpus_are_refused_by_name(home):
    (home.path / "config.toml").write_text(
        "[queue]\ngpus = 3\n[queue.quotas]\nvision = 2\nold = 0\n"
    )
    none = home.run("plan", home.spec(project="old"), status=2).stderr
    assert none == (
        "duetune: project: 'old' is not allowed; expected a project with a quota above 0; "
        "queue.quotas.old is 0\n"
    )
    (home.path / "config.toml").write_text('[queue]\ngpus = 3\nplanner = "oracle"\n')
    unknown = home.run("plan", home.spec(), status=2).stderr
    assert unknown.startswith("duetune: queue.planner: 'oracle' is not allowed; expected one of ")
    assert home.run("controller", "start", status=2).stderr == unknown
    assert not (home.path / "fleet").exists(), "nothing was started"
    (home.path / "config.toml").write_text('[queue]\nplanner = "sia:0"\n')
    assert home.run("controller", "start", status=2).stderr.startswith(
        "duetune: queue.planner: 'sia:0' is not allowed; expected sia[:POWER]"
    )
