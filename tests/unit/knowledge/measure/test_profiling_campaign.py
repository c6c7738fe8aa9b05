"""The campaign with a worker that measures nothing: what it keeps, repeats and survives."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from duetune.errors import DuetuneError, InvalidInput
from duetune.knowledge.configurations.configuration import Configuration
from duetune.knowledge.measure.batch_run import Running
from duetune.knowledge.measure.campaign import Budget, Campaign, Label
from duetune.knowledge.measure.campaign_file import CampaignFile, read_observations
from duetune.knowledge.measure.trials import Batch, write_batch
from duetune.knowledge.measure.worker_messages import Timing, TrialResult
from duetune.knowledge.observation import Observation, RunOutcome
from support.patience import PATIENCE_S, slowness, until
from support.places import SUPPORT

pytestmark = pytest.mark.live

PRETEND = (sys.executable, str(SUPPORT / "pretend_worker.py"))
DIES, RUNS_OUT, HANGS, POISONS, SLOW = 13, 17, 19, 23, 29


def configuration(tokens, batch=1):
    return Configuration(
        model="Qwen/Qwen2.5-0.5B",
        gpu_model="H200",
        tokens_per_microbatch=1000 * batch,
        tokens_per_sample=tokens,
    )


def batch_of(*configurations, seconds=0.1):
    size = len(configurations)
    return Batch(configurations=configurations, seconds=(seconds,) * size, start_s=0.0)


class Scripted:
    """Chooses what it is told, and remembers what it was asked."""

    def __init__(self, *batches):
        self.batches = list(batches)
        self.asked = []

    def choose(self, observations, taken, room):
        self.asked.append((len(observations), frozenset(taken), room))
        while self.batches:
            batch = self.batches.pop(0)
            left = [each for each in batch.configurations if each.key not in taken]
            if left:
                return batch_of(*left, seconds=batch.seconds[0])
        return None


def run(out, *batches, budget=None, worker=PRETEND, hang_s=60.0, chooser=None, **more):
    chooser = chooser or Scripted(*batches)
    running = Running(worker=worker, hang_s=hang_s, device="cpu")
    campaign = Campaign(out, chooser, running, budget or Budget(), **more)
    return campaign.run()


def outcomes(out):
    found = read_observations(out)
    return {each.configuration.tokens_per_sample: str(each.outcome) for each in found}


def test_every_result_is_an_observation_with_its_origin(tmp_path):
    out = tmp_path / "rows.jsonl"
    label = Label(provenance="a test", cluster="one H200")
    done = run(out, batch_of(configuration(64), configuration(RUNS_OUT)), label=label)
    assert (done.done, done.valid, done.oom, done.failed) == (2, 1, 1, 0)
    small, large = sorted(
        read_observations(out), key=lambda each: -each.configuration.tokens_per_sample
    )
    assert small.outcome is RunOutcome.VALID
    assert small.tokens_per_s == 1000
    assert small.steps == 3
    assert (small.origin, small.provenance, small.cluster) == ("campaign", "a test", "one H200")
    assert "warm-up" in small.protocol
    assert large.outcome is RunOutcome.OOM
    assert large.peak_memory_gb is None
    assert not (tmp_path / "rows.jsonl.work").exists()


def test_what_the_file_or_the_history_has_is_not_run_again(tmp_path):
    out = tmp_path / "rows.jsonl"
    rows = [configuration(tokens) for tokens in (64, 128, 256)]
    run(out, batch_of(*rows[:1]))
    elsewhere = tmp_path / "elsewhere.jsonl"
    run(elsewhere, batch_of(rows[1]))
    done = run(out, batch_of(*rows), history=read_observations(elsewhere))
    assert (done.before, done.done) == (1, 1)
    assert sorted(outcomes(out)) == [64, 256]


def test_a_configuration_that_kills_the_worker_is_the_only_one_that_fails(tmp_path):
    out = tmp_path / "rows.jsonl"
    done = run(out, batch_of(*(configuration(tokens) for tokens in (8, DIES, 64, 128))))
    assert (done.valid, done.failed) == (3, 1)
    assert outcomes(out)[DIES] == "failed"
    (culprit,) = [each for each in read_observations(out) if each.outcome is RunOutcome.FAILED]
    assert "signal 9" in culprit.error
    assert "crashed" in culprit.flags


def test_a_lost_gpu_ends_the_worker_and_another_does_the_rest(tmp_path):
    out = tmp_path / "rows.jsonl"
    done = run(out, batch_of(*(configuration(tokens) for tokens in (8, POISONS, 64))))
    assert (done.valid, done.failed) == (2, 1)
    assert outcomes(out)[POISONS] == "failed"


def test_a_worker_that_hangs_is_killed_and_its_configuration_fails(tmp_path):
    out = tmp_path / "rows.jsonl"
    rows = batch_of(*(configuration(tokens) for tokens in (8, HANGS, 64)))
    done = run(out, rows, hang_s=1.0 * slowness())
    assert (done.valid, done.failed) == (2, 1)
    (culprit,) = [each for each in read_observations(out) if each.outcome is RunOutcome.FAILED]
    assert culprit.error.startswith("Hang")


def test_workers_that_never_start_end_the_campaign_with_their_last_words(tmp_path):
    with pytest.raises(DuetuneError, match="no module named torch"):
        run(tmp_path / "rows.jsonl", batch_of(configuration(8)), worker=(*PRETEND, "dead"))
    assert read_observations(tmp_path / "rows.jsonl") == []


def test_time_that_is_up_lets_the_current_trial_end_and_starts_no_other(tmp_path):
    out = tmp_path / "rows.jsonl"
    slow = [configuration(SLOW, batch) for batch in range(1, 101)]
    time_s = 2.5 * slowness()  # the worker has to start within it; a trial takes a second
    # Believed to be quick, so that the campaign does not leave them out beforehand.
    done = run(out, batch_of(*slow, seconds=0.001), budget=Budget(seconds=time_s))
    assert 1 <= done.done <= time_s + 1
    assert len(read_observations(out)) == done.done


def test_a_batch_is_cut_to_what_fits_into_the_time_and_the_count(tmp_path):
    rows = [configuration(64, batch) for batch in range(1, 9)]
    dear = batch_of(*rows, seconds=100.0)
    done = run(tmp_path / "time.jsonl", dear, budget=Budget(seconds=350.0))
    assert done.done == 3
    done = run(tmp_path / "count.jsonl", batch_of(*rows), budget=Budget(count=2))
    assert done.done == 2


def test_the_next_batch_is_chosen_while_the_current_one_runs(tmp_path):
    first = [configuration(SLOW, batch) for batch in (1, 2)]
    chooser = Scripted(batch_of(*first), batch_of(configuration(64)))
    run(tmp_path / "rows.jsonl", chooser=chooser)
    (_, _, _), (seen, taken, room), *_ = chooser.asked
    assert seen == 1
    assert taken == {each.key for each in first}
    assert room.running == "Qwen/Qwen2.5-0.5B"


def test_the_campaign_ends_early_once_it_is_satisfied(tmp_path):
    batches = [batch_of(configuration(64, batch)) for batch in (1, 2, 3)]
    done = run(tmp_path / "rows.jsonl", *batches, satisfied=lambda seen: len(seen) >= 2)
    assert done.done == 2


def test_a_torn_last_line_is_dropped_and_the_file_goes_on(tmp_path):
    out = tmp_path / "rows.jsonl"
    run(out, batch_of(configuration(64), configuration(128)))
    whole = out.read_bytes()
    out.write_bytes(whole[:-40])
    done = run(out, batch_of(configuration(64), configuration(128)))
    assert (done.before, done.done) == (1, 1)
    assert sorted(outcomes(out)) == [64, 128]


def test_a_last_line_that_is_whole_but_not_ended_is_not_glued_to_the_next(tmp_path):
    out = tmp_path / "rows.jsonl"
    run(out, batch_of(configuration(64)))
    out.write_bytes(out.read_bytes().rstrip(b"\n"))
    run(out, batch_of(configuration(64), configuration(128)))
    assert sorted(outcomes(out)) == [64, 128]


def test_a_line_that_is_no_observation_refuses_the_file(tmp_path):
    out = tmp_path / "rows.jsonl"
    run(out, batch_of(configuration(64)))
    out.write_bytes(b'{"configuration": 1}\n' + out.read_bytes())
    with pytest.raises(InvalidInput, match="line 1"):
        CampaignFile(out)


def test_what_a_killed_campaign_had_measured_is_found_again(tmp_path):
    out = tmp_path / "rows.jsonl"
    rows = (configuration(64), configuration(128))
    folder = tmp_path / "rows.jsonl.work"
    folder.mkdir()
    batch = folder / "000001-1.batch.jsonl"
    write_batch(batch, rows, device="cpu", seed=0, timing=Timing())
    result = TrialResult(
        id=rows[0].key,
        outcome="valid",
        measured_at=1.0,
        runtime_s=1.0,
        tokens_per_s=5.0,
        step_s=1.0,
        steps=1,
    )
    torn = json.dumps({"event": "started", "id": rows[1].key})[:-5]
    (folder / "000001-1.results.jsonl").write_text(result.line() + "\n" + torn)
    done = run(out, batch_of(*rows))
    assert (done.before, done.done) == (1, 1)
    assert read_observations(out)[0].tokens_per_s == 5.0


_DRIVER = """
import sys
from pathlib import Path
from {this} import *
rows = [configuration(SLOW, batch) for batch in range(1, 60)]
try:
    run(Path({out!r}), batch_of(*rows))
except KeyboardInterrupt:
    sys.exit(130)
"""


@pytest.fixture
def driver(tmp_path):
    """A campaign of many slow trials as a process, once its first result is written."""
    out = tmp_path / "rows.jsonl"
    here = Path(__file__)
    process = subprocess.Popen(
        [sys.executable, "-c", _DRIVER.format(this=here.stem, out=str(out))],
        cwd=here.parent,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
    )
    until(lambda: out.exists() and out.read_bytes().count(b"\n") >= 1, "the first result")
    yield process, out
    process.kill()
    process.wait()


def test_ctrl_c_leaves_a_good_file_and_no_worker(driver):
    process, out = driver
    process.send_signal(signal.SIGINT)
    assert process.wait(PATIENCE_S) == 130
    found = read_observations(out)
    assert found
    assert out.read_bytes().endswith(b"\n")
    assert not out.with_name("rows.jsonl.work").exists()
    assert {each.outcome for each in found} == {RunOutcome.VALID}


def test_a_campaign_that_is_killed_goes_on_where_it_was(driver):
    process, out = driver
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    before = len(read_observations(out))
    rows = [configuration(SLOW, batch) for batch in range(1, before + 2)]
    done = run(out, batch_of(*rows))
    keys = [each.configuration.key for each in read_observations(out)]
    assert len(keys) == len(set(keys)) >= before + 1
    assert done.done <= 1


def test_observations_are_written_as_they_are_read(tmp_path):
    out = tmp_path / "rows.jsonl"
    run(out, batch_of(configuration(64)))
    (line,) = out.read_bytes().splitlines()
    assert msgspec.json.encode(msgspec.json.decode(line, type=Observation)) == line
