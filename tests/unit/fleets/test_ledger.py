"""What survives the provider: its book, the bills in it, and its clock."""

from __future__ import annotations

import msgspec
import pytest

from duetune.core.fleet import Launch, Limit, Node, NodeKind, NodeState, Release, Task
from duetune.errors import FleetError
from duetune.fleets.embedded import FleetSettings
from duetune.fleets.embedded.bill_ledger import Cancelled, Changed, Closed, Ledger, read_story
from duetune.fleets.embedded.cloud_settings import Order
from duetune.fleets.embedded.provider_service import open_cloud
from duetune.fleets.embedded.replay import save_market
from duetune.testing import constant_market, market_of
from duetune.wall_clock import ClockReading

WALL = 1_700_000_000.75
SETTINGS = FleetSettings(speed=10.0, grant_delay_s=0.0, notice_s=0.0)
TASK = Task(folder="/nonexistent", command=("true",))
NODE = Node("a", "job", NodeKind.SPOT, NodeState.RUNNING, 5.0, started_at=6.0)


def order_for(folder, market=None, settings=SETTINGS):
    trace = constant_market() if market is None else market
    return Order(settings, trace.name, save_market(folder, trace))


def later(seconds=0.0, *, step=0.0, boot="first"):
    """The machine's clocks so many seconds after the beginning, the wall clock set by ``step``."""
    return ClockReading(WALL + seconds + step, 500.0 + seconds, boot)


def opened(folder, order, now):
    """A provider's beginning, and its ledger closed again as by a kill."""
    with Ledger(folder) as ledger:
        return open_cloud(folder, order, ledger, now)


def running_node(cloud, folder, moment):
    """A node that runs since ``moment``, in the book as the provider writes it."""
    cloud.apply(Launch("a", "job", NodeKind.SPOT, 1, TASK), moment)
    with Ledger(folder) as ledger:
        ledger.append([Changed(record.node) for record in cloud.changed.values()])


def test_what_is_written_is_read_back(tmp_path):
    with Ledger(tmp_path) as ledger:
        ledger.append(
            [Changed(NODE), Limit("job", 5.0), Limit("other", 1.0), Cancelled("job", "x")]
        )
        ledger.append([Changed(msgspec.structs.replace(NODE, billed=0.5)), Limit("other", None)])
        ledger.append([])
        ledger.append([Closed(99.0)])
    story = read_story(tmp_path)
    assert story.nodes == {("job", "a"): msgspec.structs.replace(NODE, billed=0.5)}
    assert story.limits == {"job": 5.0}
    assert story.cancelled == {("job", "x")}
    assert (story.closed, story.last_at) == (True, 99.0)


def test_an_empty_folder_has_no_story(tmp_path):
    assert read_story(tmp_path).opened is None


@pytest.mark.parametrize("cut", [1, 5, 40])
def test_a_last_line_that_was_cut_off_does_not_count(tmp_path, cut):
    with Ledger(tmp_path) as ledger:
        ledger.append([Changed(NODE), Limit("job", 5.0)])
    whole = ledger.path.read_bytes()
    first = whole.index(b"\n") + 1
    ledger.path.write_bytes(whole[: first + min(cut, len(whole) - first - 1)])
    assert read_story(tmp_path).limits == {}
    assert set(read_story(tmp_path).nodes) == {("job", "a")}
    with Ledger(tmp_path) as again:
        again.append([Limit("job", 7.0)])
    assert read_story(tmp_path).limits == {"job": 7.0}


def test_damage_elsewhere_is_not_passed_over(tmp_path):
    with Ledger(tmp_path) as ledger:
        ledger.append([Changed(NODE)])
    ledger.path.write_bytes(b"{nonsense\n" + ledger.path.read_bytes())
    with pytest.raises(FleetError, match=r"line 1 of .* is damaged"):
        read_story(tmp_path)


def test_a_signs_of_life_outdates_the_lines(tmp_path):
    with Ledger(tmp_path) as ledger:
        ledger.append([Changed(NODE)])
        ledger.note_alive(1234567.25)
        ledger.note_alive(1234568.5)
    assert read_story(tmp_path).last_at == 1234568.5
    (tmp_path / "heartbeat").write_bytes(b"")
    assert read_story(tmp_path).last_at == 6.0


def test_the_clock_begins_at_a_whole_second_with_the_first_slot(tmp_path):
    market = market_of([0.1, 0.2, 0.3], [1, 2, 3])
    order = order_for(tmp_path, market, msgspec.structs.replace(SETTINGS, first_slot=1))
    cloud, begin = opened(tmp_path, order, later())
    assert begin.anchor.market_time(later()) == begin.began == 1_700_000_000.0
    assert begin.anchor.market_time(later(6)) == begin.began + 60
    report = cloud.replay.report(begin.began)
    assert (report.index, report.slot.spot_price) == (1, 0.2)


def test_after_a_kill_nodes_are_lost_when_they_were_last_known_to_live(tmp_path):
    order = order_for(tmp_path)
    cloud, begin = opened(tmp_path, order, later())
    running_node(cloud, tmp_path, begin.began + 100)
    with Ledger(tmp_path) as ledger:
        ledger.append([Limit("job", 8.0), Cancelled("job", "never")])
        ledger.note_alive(begin.began + 1000)
    after, again = opened(tmp_path, order, later(500))
    assert again == begin, "clock and market go on"
    (node,) = after.report("job").nodes
    assert (node.state, node.reason) == (NodeState.LOST, "the fleet was restarted")
    assert node.ended_at == begin.began + 1000
    assert node.billed == pytest.approx(0.4 * 900 / 1800)
    assert after.limits == {"job": 8.0}
    after.apply(Launch("never", "job", NodeKind.SPOT, 1, TASK), begin.began + 5000)
    assert after.find("never").state is NodeState.REFUSED
    third, _ = opened(tmp_path, order, later(900))
    assert third.report("job").nodes[0] == node, "once is enough"


@pytest.mark.parametrize("step", [600.0, -600.0])
def test_a_wall_clock_that_is_set_does_not_move_the_market(tmp_path, step):
    order = order_for(tmp_path)
    cloud, begin = opened(tmp_path, order, later())
    assert begin.anchor.market_time(later(6, step=step)) == begin.began + 60
    running_node(cloud, tmp_path, begin.began)
    after, again = opened(tmp_path, order, later(90, step=step))
    assert again == begin
    assert again.anchor.market_time(later(90)) == begin.began + 900
    after.advance(again.anchor.market_time(later(100, step=step)))
    assert after.at == begin.began + 1000


def test_after_a_restart_of_the_machine_wall_time_says_how_long_it_took(tmp_path):
    order = order_for(tmp_path)
    _, begin = opened(tmp_path, order, later())
    with Ledger(tmp_path) as ledger:
        ledger.note_alive(begin.began + 1000)
    restarted = ClockReading(WALL + 200, 3.0, "second")
    _, again = opened(tmp_path, order, restarted)
    assert again.began == begin.began
    assert again.anchor.market_time(restarted) == begin.began + 2000
    wrong = ClockReading(WALL - 9e8, 3.0, "third")
    _, third = opened(tmp_path, order, wrong)
    assert third.anchor.market_time(wrong) == begin.began + 1000, "no clock goes back"


def test_after_a_kill_what_was_only_requested_is_refused(tmp_path):
    order = order_for(tmp_path, settings=msgspec.structs.replace(SETTINGS, grant_delay_s=60.0))
    cloud, begin = opened(tmp_path, order, later())
    running_node(cloud, tmp_path, begin.began + 1)
    after, _ = opened(tmp_path, order, later(5))
    (node,) = after.report("job").nodes
    assert (node.state, node.billed) == (NodeState.REFUSED, 0.0)


def test_other_settings_after_a_kill_do_not_change_an_old_bill(tmp_path):
    cloud, begin = opened(tmp_path, order_for(tmp_path), later())
    running_node(cloud, tmp_path, begin.began)
    with Ledger(tmp_path) as ledger:
        ledger.note_alive(begin.began + 900)
    dear = order_for(tmp_path, constant_market(spot_price=9.0))
    after, second = opened(tmp_path, dear, later(1000))
    assert after.report("job").nodes[0].billed == pytest.approx(0.2)
    assert second.began >= begin.anchor.market_time(later(1000))
    assert after.replay.report(second.began).slot.spot_price == 9.0


def test_after_a_stop_the_market_begins_anew_on_the_same_grid_of_slots(tmp_path):
    market = market_of([0.1, 0.2, 0.3], [1, 2, 3])
    order = order_for(tmp_path, market)
    _, begin = opened(tmp_path, order, later())
    with Ledger(tmp_path) as ledger:
        ledger.append([Closed(begin.began + 2000)])
    cloud, second = opened(tmp_path, order, later(1000))
    assert second.began == begin.began + 6 * 1800, "10,000 s later, at the next boundary"
    assert second.anchor.market_time(later(1000)) == second.began
    report = cloud.replay.report(second.began)
    assert (report.index, report.slot.spot_price) == (6, 0.1)


def test_a_released_unknown_and_a_limit_reach_the_book_through_the_desk(tmp_path):
    from duetune.fleets.embedded.desk import Desk  # noqa: PLC0415

    order = order_for(tmp_path)
    with Ledger(tmp_path) as ledger:
        cloud, begin = open_cloud(tmp_path, order, ledger, later())
        desk = Desk(cloud, ledger, begin.anchor, lambda: None)
        desk.apply(
            [Limit("job", 5.0), Release("x", "job"), Launch("a", "job", NodeKind.SPOT, 1, TASK)]
        )
        told = desk.observe("job").nodes
        story = read_story(tmp_path)
    assert story.limits == {"job": 5.0}
    assert story.cancelled == {("job", "x")}
    assert story.nodes["job", "a"].state is told[0].state
