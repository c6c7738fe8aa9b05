"""When the leader saves, and what happens when it cannot."""

from __future__ import annotations

import shutil
import threading

import pytest

from duetune.training import saver as saving
from duetune.training.checkpoint import CheckpointStore
from duetune.training.saver import Saver
from support.later import later

pytestmark = pytest.mark.torch

torch = later("torch")


class State:
    def __init__(self, step=1):
        self.lock = threading.Lock()
        self.step = step
        self.values = torch.arange(4.0)

    def arrays(self):
        return {"values": self.values}

    def document(self):
        return {"step": self.step}


def saver(folder, every_s=1e-9):
    store = CheckpointStore(folder, epoch=1)
    return Saver(
        store,
        folder / "hazard.json",
        every_s=every_s,
        alone=False,
        saved_step=0,
        touch=lambda: None,
    )


def newest(folder):
    found = CheckpointStore(folder, epoch=0).latest()
    return None if found is None else found.step


def lead(one):
    one.lead(leads=True)
    one.wait()


def test_only_the_leader_saves_and_each_step_once(tmp_path):
    one, state = saver(tmp_path), State(3)
    one.save_if_due(state)
    one.save_now(state)
    assert newest(tmp_path) is None
    lead(one)
    one.save_if_due(state)
    one.wait()
    assert one.saved_step == newest(tmp_path) == 3
    path = CheckpointStore(tmp_path, epoch=0).latest().path
    before = path.stat().st_mtime_ns
    one.save_now(state)
    assert path.stat().st_mtime_ns == before


def test_the_state_is_saved_as_it_was_when_the_step_ended(tmp_path):
    one, state = saver(tmp_path), State(3)
    lead(one)
    one.save_if_due(state)
    state.values += 100
    one.wait()
    arrays, _ = CheckpointStore(tmp_path, epoch=0).latest().load()
    assert torch.equal(arrays["values"], torch.arange(4.0))


def test_nothing_is_saved_before_it_is_time_but_on_leaving_it_is(tmp_path):
    one, state = saver(tmp_path, every_s=1e6), State(3)
    lead(one)
    one.save_if_due(state)
    one.wait()
    assert newest(tmp_path) is None
    one.save_now(state)
    assert newest(tmp_path) == 3


def test_a_new_leader_knows_what_the_last_one_saved(tmp_path):
    first, second = saver(tmp_path), saver(tmp_path)
    lead(first)
    first.save_now(State(7))
    lead(second)
    assert second.saved_step == 7


def test_a_former_leader_saves_no_more_until_it_leads_again(tmp_path):
    former, present = saver(tmp_path), saver(tmp_path)
    lead(former)
    lead(present)
    former.save_now(State(3))
    assert newest(tmp_path) is None
    # Without word from the group it does not even try.
    former.save_now(State(4))
    assert newest(tmp_path) is None
    present.save_now(State(5))
    former.lead(leads=True)
    former.save_now(State(6))
    assert newest(tmp_path) == 6


def test_a_failed_save_is_told_and_tried_again(tmp_path, monkeypatch):
    monkeypatch.setattr(saving, "_RETRY_S", 0.0)
    folder = tmp_path / "checkpoints"
    folder.write_text("in the way")
    one, state = saver(folder), State(3)
    lead(one)
    one.save_if_due(state)
    one.wait()
    assert "step 3 could not be saved" in one.warning
    folder.unlink()
    state.step = 4
    one.save_if_due(state)
    one.wait()
    assert one.warning == ""
    assert newest(folder) == 4
    shutil.rmtree(folder)


def test_the_best_state_is_saved_at_once_and_stays_until_a_better_one(tmp_path):
    one, touched = saver(tmp_path), []
    lead(one)
    for step in (1, 2, 3, 4):
        state = State(step)
        if step == 1:
            one.pin(0, step)
            one.save_best(state, lambda: touched.append(1))
            one.wait(lambda: touched.append(1))
            assert newest(tmp_path) == 1
        else:
            one.save_now(state)
    store = CheckpointStore(tmp_path, epoch=0)
    assert store.at(1) is not None
    assert store.at(2) is None
    one.pin(4)
    one.save_now(State(5))
    assert [store.at(step) is not None for step in (1, 3, 4, 5)] == [False, False, True, True]
