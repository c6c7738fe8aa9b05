"""A live job on a machine under load: never given up in silence, and saved by the terms named."""

from __future__ import annotations

from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from duetune.core.events import Amend, Doubt, Status
from duetune.core.job import linear_throughput
from duetune.testing import market_of
from support.harness import Room
from support.invariants import check_over

POLICIES = ("ahap", "ahanp", "maximal_spot", "on_demand", "uniform_progress", "rubato", "spot_only")
RESCUES = 8


def room_under_load(data):
    """A job whose pace changes with the load of the machine, with any terms a user may give."""
    length = 90
    counts = data.draw(st.lists(st.sampled_from([0, 0, 1, 2, 4]), min_size=6, max_size=6))
    prices = data.draw(st.lists(st.sampled_from([0.2, 0.5, 0.9]), min_size=6, max_size=6))
    room = Room(market_of(prices * (length // 6), counts * (length // 6)))
    gpus = data.draw(st.integers(1, 4))
    deadline = data.draw(st.integers(3, 10))
    load = data.draw(st.sampled_from([0.3, 0.6, 0.9]))
    value = data.draw(st.sampled_from([None, 1.0, 8.0, 60.0]))
    steps = round(30 * gpus * deadline * load)
    event = room.submission(
        policy=data.draw(st.sampled_from(POLICIES)),
        steps=steps,
        deadline=deadline,
        throughput=linear_throughput(gpus, slope=30.0),
        value=steps / 10 if value is None else value,
        budget=data.draw(st.sampled_from([None, None, 2.0, 10.0])),
        hard_deadline_factor=data.draw(st.sampled_from([1.0, 1.5])),
    )
    event = replace(event, soft=value is None, value_given=value is not None)
    room.journal.append("job", [event], expected=0)
    room.training.add("job", event.job, steps)
    room.budgets["job"] = [event.job.budget]
    for moment in data.draw(st.lists(st.integers(0, deadline), max_size=4)):
        pace = data.draw(st.sampled_from([0.2, 0.5, 1.0]))
        room.at(moment + 0.5, lambda pace=pace: setattr(room.training, "pace", pace))
    return room


def check_told(room):
    """A job that holds nothing although its deadline slips away says that it is given up."""
    state = room.state()
    decided = room.decisions()
    if state.status is not Status.RUNNING or not decided or state.wanted.total:
        return
    target = state.target or state.job.deadline
    left = state.job.work - state.progress_at_slot
    if state.slot + state.job.fewest_slots(left) > target + 1:
        assert state.given_up is not None, decided[-1]


@settings(max_examples=20, phases=[Phase.explicit, Phase.reuse, Phase.generate])
@given(data=st.data())
def test_no_job_is_given_up_in_silence(data):
    room = room_under_load(data)
    room.run(slots=70, each=lambda: check_told(room))
    if room.state().status.final:
        check_over(room)


@settings(max_examples=20, phases=[Phase.explicit, Phase.reuse, Phase.generate])
@given(data=st.data())
def test_the_terms_that_are_named_save_the_job(data):
    room = room_under_load(data)
    rescues = []

    def amend():
        lost = room.state().given_up
        if lost is None or room.state().status.final or len(rescues) >= RESCUES:
            return
        if rescues and rescues[-1][0] == room.state().slot:
            return
        rescues.append((room.state().slot, lost))
        room.script.clear()  # the load does not change after that
        room.budgets["job"].append(lost.budget)
        room.ask(Amend(deadline=lost.deadline, budget=lost.budget, value=lost.value))

    room.run(slots=80, each=amend)
    spot_only = any(lost.because is Doubt.SPOT_ONLY for _, lost in rescues)
    # A hard deadline may end a job that runs, if the machine got slower after the last measurement.
    ran = room.status() is Status.FAILED and room.decisions()[-1].given_up is None
    assert room.status() is Status.SUCCEEDED or spot_only or ran, (room.state().reason, rescues)
