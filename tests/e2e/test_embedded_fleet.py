"""The provider with real processes: what it starts, what it takes, and what is left of it."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from http.client import HTTPConnection
from pathlib import Path
from urllib.parse import urlsplit

import msgspec
import pytest

from duetune.core.fleet import Launch, Limit, NodeKind, NodeState, Release, Task
from duetune.core.progress import Progress
from duetune.errors import FleetError, InvalidInput
from duetune.fleets.embedded import (
    EmbeddedFleet,
    FleetFaults,
    FleetSettings,
    processes,
    provider_status,
    start_provider,
    stop_provider,
)
from duetune.testing import constant_market, market_of
from support.patience import PATIENCE_S, slowness, until

pytestmark = pytest.mark.live

QUICK = FleetSettings(
    speed=600.0, grant_delay_s=0.01, notice_s=0.3, release_grace_s=60.0, preload=""
)
LONG = ("sleep", "600")
# A process in a session of its own that nobody is the parent of.
DAEMON = "setsid sh -c 'setsid sh -c \"echo \\$\\$ > daemon; sleep 600\" & exit 0'"

WORKER = """
import json, os, signal, sys, time
LOADED = []

def preload():
    LOADED.append(os.getpid())

def main():
    mode = os.environ["MODE"]
    with open("started", "a") as file:
        file.write(f"{os.getpid()} {LOADED}\\n")
    print("hello", mode, flush=True)
    if mode == "environment":
        json.dump(dict(os.environ), open("environment.json", "w"))
        return 0
    if mode == "crash":
        raise RuntimeError("as asked")
    if mode == "leave":
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(75))
    time.sleep(600)
"""


class Home:
    """Everything of one test: its fleets, its job's folder, and patience."""

    def __init__(self, folder):
        self.folder = folder
        self.place = folder / "fleet"
        self.job = folder / "job"
        self.job.mkdir()
        (folder / "modules").mkdir()
        (folder / "modules" / "trial_worker.py").write_text(WORKER)
        self.fleet: EmbeddedFleet | None = None

    def start(self, settings=QUICK, market=None):
        self.fleet = start_provider(self.place, settings, market or constant_market(available=4))
        return self.fleet

    def launch(self, node="n", *, job="job", kind=NodeKind.SPOT, **task):
        environment = {"PYTHONPATH": str(self.folder / "modules"), **task.pop("environment", {})}
        work = Task(folder=str(self.job), environment=environment, **task)
        self.fleet.apply([Launch(node, job, kind, 7, work)])

    def script(self, text, node="n", **options):
        self.launch(node, command=("sh", "-c", text), **options)

    def module(self, mode, node="n", **options):
        environment = {"MODE": mode}
        self.launch(node, module="trial_worker", environment=environment, **options)

    def node(self, name="n", job="job"):
        (found,) = [node for node in self.fleet.observe(job).nodes if node.id == name]
        return found

    def ended(self, name="n"):
        until(lambda: not self.node(name).state.alive)
        return self.node(name)

    def log(self, name="n"):
        file = self.job / "logs" / f"{name}.log"
        return file.read_text() if file.exists() else ""

    def pid(self, name):
        """What a worker has written into the file of that name."""
        file = self.job / name
        until(lambda: file.exists() and file.read_text().endswith("\n"))
        return int(file.read_text().split()[0])

    def money_for(self, wall_s, job="job"):
        """Limits the job so that its one spot node can run for so long."""
        spent = sum(node.billed for node in self.fleet.observe(job).nodes)
        self.fleet.apply([Limit(job, spent + 0.4 / 1800 * QUICK.speed * wall_s)])

    def provider_pid(self):
        return provider_status(self.place).pid


def call(url, body=None):
    """Status and content of an answer."""
    parts = urlsplit(url)
    connection = HTTPConnection(parts.hostname, parts.port, timeout=PATIENCE_S)
    try:
        connection.request("GET" if body is None else "POST", parts.path, body)
        answer = connection.getresponse()
        return answer.status, json.loads(answer.read())
    finally:
        connection.close()


def listener(port, pids):
    """Which of the processes listens on that port of loopback, and of no other network."""
    table = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    sockets = {
        f"socket:[{row[9]}]" for row in table if row[1] == f"0100007F:{port:04X}" and row[3] == "0A"
    }
    for pid in pids:
        with contextlib.suppress(OSError):
            if sockets & {str(entry.readlink()) for entry in Path(f"/proc/{pid}/fd").iterdir()}:
                return pid
    return None


def alive(pid):
    return pid in {each.pid for each in processes.running()}


@pytest.fixture
def home(tmp_path):
    made = Home(tmp_path)
    yield made
    stop_provider(made.place)
    left = set(processes.marked(made.place)) & {each.pid for each in processes.running()}
    assert not left, "processes are left behind"


def test_a_worker_finds_the_contract_in_its_environment(home, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,5")
    home.start()
    home.module("environment")
    assert home.ended().reason == "finished"
    found = json.loads((home.job / "environment.json").read_text())
    expected = {
        "DUETUNE_JOB_ID": "job",
        "DUETUNE_NODE_ID": "n",
        "DUETUNE_EPOCH": "7",
        "DUETUNE_JOB_DIR": str(home.job),
        "DUETUNE_CHECKPOINT_DIR": str(home.job / "checkpoints"),
        "DUETUNE_OUTPUT_DIR": str(home.job / "output"),
        "DUETUNE_PROGRESS_FILE": str(home.job / "progress.json"),
        "DUETUNE_HAZARD_FILE": str(home.job / "hazard.json"),
        "DUETUNE_NOTICE_FILE": str(home.job / "notice-n.json"),
        "CUDA_VISIBLE_DEVICES": "4",
        "MODE": "environment",
    }
    assert {name: found.get(name) for name in expected} == expected
    assert not {"DUETUNE_COORDINATOR_FILE", "DUETUNE_JOB_SECRET"} & found.keys()
    assert "hello environment" in home.log()


@pytest.mark.parametrize(
    ("code", "state", "reason"),
    [
        (0, NodeState.RELEASED, "finished"),
        (75, NodeState.RELEASED, "released"),
        (78, NodeState.RELEASED, "hopeless"),
    ],
)
def test_an_exit_that_is_final_ends_the_node(home, code, state, reason):
    home.start()
    home.script(f"exit {code}")
    node = home.ended()
    assert (node.state, node.reason) == (state, reason)


def test_a_command_that_does_not_exist_is_hopeless(home):
    home.start()
    home.launch(command=("no-such-command",))
    assert home.ended().reason == "hopeless"
    assert "cannot start 'no-such-command'" in home.log()


def test_a_worker_that_crashes_is_started_again(home):
    home.start()
    home.script("echo attempt; test -e tried && exit 0; touch tried; kill -9 $$")
    assert home.ended().reason == "finished"
    assert home.log().count("attempt") == 2
    assert "ended with code -9; restarting in 0.5 s" in home.log()


def test_what_a_crashed_worker_leaves_behind_ends_before_the_next_one_starts(home):
    home.start()
    home.script(
        f"test -e daemon && exec sleep 600; {DAEMON}; until test -s daemon; do :; done; exit 1"
    )
    daemon = home.pid("daemon")
    until(lambda: "restarting" in home.log())
    assert not alive(daemon)
    assert home.node().state is NodeState.RUNNING


def test_a_module_that_raises_is_a_crash_with_its_traceback_in_the_log(home):
    home.start()
    home.module("crash")
    until(lambda: home.log().count("RuntimeError: as asked") >= 2)
    assert home.node().state is NodeState.RUNNING


def test_a_worker_without_a_sign_of_life_is_started_again(home):
    home.start(msgspec.structs.replace(QUICK, heartbeat_timeout_s=0.3))
    home.script(
        "echo $$ >> pids; test $(wc -l < pids) = 2 && exit 0; "
        "touch $DUETUNE_JOB_DIR/heartbeats/$DUETUNE_NODE_ID; exec sleep 600"
    )
    assert home.ended().reason == "finished"
    assert "no heartbeat" in home.log()


def test_a_worker_is_not_blamed_for_time_in_which_its_agent_stood_still_too(home):
    home.start(msgspec.structs.replace(QUICK, heartbeat_timeout_s=1.0))
    home.script(
        "while true; do touch $DUETUNE_JOB_DIR/heartbeats/$DUETUNE_NODE_ID; echo $$ > pid; "
        "sleep 0.05; done"
    )
    until((home.job / "pid").exists)
    worker = int((home.job / "pid").read_text())
    agent = int(Path(f"/proc/{worker}/stat").read_text().rpartition(")")[2].split()[1])
    for number in (signal.SIGSTOP, signal.SIGCONT):
        # The agent looks first: the file is then older than the limit.
        os.kill(agent, number)
        os.kill(worker, number)
        time.sleep(1.5)
    assert "no heartbeat" not in home.log()
    assert home.node().state is NodeState.RUNNING


def test_whoever_never_gave_a_sign_of_life_is_left_alone(home):
    home.start(msgspec.structs.replace(QUICK, heartbeat_timeout_s=0.1))
    home.script("echo up > up; exec sleep 600")
    until((home.job / "up").exists)
    time.sleep(0.5)
    assert home.log() == ""
    assert home.node().state is NodeState.RUNNING


def test_notice_comes_by_file_signal_report_and_address(home):
    home.start(msgspec.structs.replace(QUICK, notice_s=60.0))
    home.script(
        "trap 'echo signalled > signalled' TERM; echo $DUETUNE_NOTICE_URL > url; "
        "while true; do sleep 0.05; done"
    )
    until((home.job / "url").exists)
    url = (home.job / "url").read_text().strip()
    assert call(url)[0] == 404
    home.money_for(3.0 * slowness())
    until(lambda: home.node().notice_at is not None)
    node = home.node()
    until((home.job / "signalled").exists)
    taken_at = home.fleet.clock.wall_time(node.notice_at)
    written = json.loads((home.job / "notice-n.json").read_text())["taken_at"]
    assert written == pytest.approx(taken_at, abs=1e-3)
    status, answer = call(url)
    assert status == 200
    assert answer["taken_at"] == pytest.approx(taken_at, abs=1e-3)
    lost = home.ended()
    assert (lost.state, lost.reason) == (NodeState.LOST, "limit")
    assert lost.ended_at == node.notice_at


def test_who_leaves_after_notice_is_not_charged_further(home):
    home.start(msgspec.structs.replace(QUICK, notice_s=2 * PATIENCE_S))
    home.module("leave")
    until((home.job / "started").exists)
    home.money_for(PATIENCE_S)
    node = home.ended()
    assert (node.state, node.reason) == (NodeState.LOST, "limit, worker left after notice")
    assert node.ended_at < node.notice_at


def test_a_node_is_taken_with_all_that_it_has_started(home):
    home.start(msgspec.structs.replace(QUICK, notice_s=0.0))
    home.script(
        "trap '' TERM; sleep 600 & echo $! > child; "
        f"setsid sh -c 'echo $$ > session; sleep 600' & {DAEMON}; wait"
    )
    pids = [home.pid(name) for name in ("child", "session", "daemon")]
    assert all(alive(pid) for pid in pids)
    home.fleet.apply([Limit("job", 0.0)])
    assert home.ended().state is NodeState.LOST
    until(lambda: not any(alive(pid) for pid in pids))


def test_an_agent_that_is_killed_takes_its_node_with_it(home):
    home.start()
    home.script(f"{DAEMON}; echo $$ $PPID > me; exec sleep 600")
    worker, apart = home.pid("me"), home.pid("daemon")
    agent = int((home.job / "me").read_text().split()[1])
    os.kill(agent, signal.SIGKILL)
    node = home.ended()
    assert (node.state, node.reason) == (NodeState.LOST, "node died")
    until(lambda: not alive(worker) and not alive(apart))


def test_a_release_asks_first(home):
    home.start()
    home.script(
        "trap 'echo left > left; exit 75' TERM; echo up > up; while true; do sleep 0.05; done"
    )
    until((home.job / "up").exists)
    home.fleet.apply([Release("n", "job")])
    assert home.node().state is NodeState.RELEASED
    until((home.job / "left").exists)
    assert (home.job / "notice-n.json").exists()


def test_a_release_that_is_not_heeded_ends_the_worker_anyway(home):
    home.start(msgspec.structs.replace(QUICK, release_grace_s=0.3))
    home.script("trap '' TERM; echo $$ > me; while true; do sleep 0.05; done")
    worker = home.pid("me")
    home.fleet.apply([Release("n", "job")])
    until(lambda: not alive(worker))


def test_a_killed_provider_takes_its_nodes_along_and_keeps_its_book(home):
    fleet = home.start()
    fleet.apply([Limit("job", 1000.0), Release("unborn", "job")])
    home.script("setsid sh -c 'echo $$ > apart; sleep 600' & echo $$ > me; exec sleep 600")
    worker, apart = home.pid("me"), home.pid("apart")
    until(lambda: home.node().billed > 0)
    seen = home.node().billed
    os.kill(home.provider_pid(), signal.SIGKILL)
    until(lambda: not alive(worker) and not alive(apart))
    with pytest.raises(FleetError, match="does not answer") as caught:
        fleet.observe("job")
    assert caught.value.retry
    before = fleet.clock.now()
    with (home.place / "ledger.jsonl").open("a") as ledger:
        ledger.write('{"type":"node","no')  # as if it had died while writing
    home.start()
    passed = fleet.clock.now() - before
    assert 0 <= passed < QUICK.speed * PATIENCE_S, "the market's clock goes on as it did"
    node = home.node()
    assert (node.state, node.reason) == (NodeState.LOST, "the fleet was restarted")
    assert node.started_at < node.ended_at <= before
    assert node.billed >= seen, "what was told is not undone"
    time.sleep(0.1)
    assert home.node() == node
    home.launch("unborn", command=LONG)
    assert home.node("unborn").state is NodeState.REFUSED
    home.launch("m", command=LONG)
    until(lambda: home.node("m").state is NodeState.RUNNING)


def test_a_stopped_fleet_starts_anew_without_forgetting(home):
    slow = msgspec.structs.replace(QUICK, speed=20.0)
    fleet = home.start(slow, market_of([0.1, 0.2, 0.3, 0.4], [1, 2, 3, 4]))
    home.launch(command=LONG)
    until(lambda: home.node().state is NodeState.RUNNING)
    before = fleet.now()
    assert stop_provider(home.place)
    assert provider_status(home.place) is None
    assert not stop_provider(home.place)
    fleet = start_provider(home.place, slow)
    after = fleet.now()
    assert after.slot.spot_price == 0.1, "the market begins anew"
    assert after.at >= before.at
    assert after.index > before.index
    passed = (after.slot_began - before.slot_began) / before.slot_s
    assert passed == pytest.approx(after.index - before.index)
    assert home.node().reason == "the fleet was stopped"


def test_an_answer_that_is_lost_does_not_make_two_nodes(home):
    faults = FleetFaults(lost_replies=(1,))
    home.start(msgspec.structs.replace(QUICK, faults=faults))
    with pytest.raises(FleetError) as caught:
        home.launch(command=LONG)
    assert caught.value.retry
    home.launch(command=LONG)
    assert [node.id for node in home.fleet.observe("job").nodes] == ["n"]


def test_the_same_fleet_is_found_and_another_one_is_refused(home):
    first = home.start()
    again = home.start()
    assert again.status().pid == first.status().pid
    other = msgspec.structs.replace(QUICK, speed=60.0, seed=5)
    with pytest.raises(InvalidInput, match=r"'speed, seed' is not allowed.*stop it first"):
        home.start(other)
    with pytest.raises(InvalidInput, match="'market' is not allowed"):
        home.start(market=constant_market(available=5))


def test_a_fleet_without_a_market_is_refused(home):
    with pytest.raises(InvalidInput, match="market is required"):
        start_provider(home.place, QUICK)
    with pytest.raises(FleetError, match="no fleet is running"):
        EmbeddedFleet(home.place)


def test_two_who_start_at_once_get_the_same_fleet(home):
    code = (
        "import sys; from duetune.fleets.embedded import *; from duetune.testing import *; "
        "import msgspec; settings = msgspec.json.decode(sys.argv[2], type=FleetSettings); "
        "print(start_provider(sys.argv[1], settings, constant_market()).status().pid)"
    )
    command = [sys.executable, "-c", code, str(home.place), msgspec.json.encode(QUICK).decode()]
    both = [subprocess.Popen(command, stdout=subprocess.PIPE) for _ in range(2)]
    said = [each.communicate(timeout=PATIENCE_S)[0].strip() for each in both]
    assert said[0] == said[1] != b""


def test_strangers_are_not_answered(home):
    fleet = home.start()
    url = provider_status(home.place).url
    assert url.startswith("http://127.0.0.1:")
    for path in ("/status", "/jobs/job/nodes", "/nothing"):
        assert call(f"{url}{path}")[0] == 401
    assert (home.place / "provider.json").stat().st_mode & 0o777 == 0o600
    assert home.place.stat().st_mode & 0o777 == 0o700
    with pytest.raises(FleetError, match=r"node: '\.\./n' is not allowed") as caught:
        fleet.apply([Launch("../n", "job", NodeKind.SPOT, 1, Task("/tmp", command=LONG))])  # noqa: S108
    assert not caught.value.retry


def test_a_command_may_send_its_progress(home):
    home.start()
    home.script("echo $DUETUNE_PROGRESS_URL > url; exec sleep 600")
    until(lambda: (home.job / "url").exists() and (home.job / "url").read_text().strip())
    url = (home.job / "url").read_text().strip()
    report = msgspec.json.encode(Progress(step=3, total_steps=9))
    assert call(url, report)[0] == 200
    written = (home.job / "progress.json").read_bytes()
    assert msgspec.json.decode(written, type=Progress).step == 3
    assert call(url, b'{"step": "many"}')[0] == 422
    assert call(f"{url}x", report)[0] == 401


def test_a_stop_leaves_nothing_behind(home):
    home.start(msgspec.structs.replace(QUICK, release_grace_s=0.3))
    home.script("trap '' TERM; echo $$ > stubborn; while true; do sleep 0.05; done", "a")
    home.script("setsid sh -c 'echo $$ > apart; sleep 600' & wait", "b")
    pids = [home.pid("stubborn"), home.pid("apart")]
    assert set(pids) <= set(processes.marked(home.place))
    pids.append(home.provider_pid())
    assert stop_provider(home.place)
    assert not any(alive(pid) for pid in pids)
    assert not (home.place / "provider.json").exists()


def test_a_group_has_a_coordinator_as_long_as_it_has_nodes(home):
    home.start(msgspec.structs.replace(QUICK, coordinator_linger_s=0.2))
    home.script("echo $DUETUNE_COORDINATOR_FILE > file; exec sleep 600", "a", coordinated=True)
    home.script("exec sleep 600", "b", coordinated=True)
    until(lambda: (home.job / "file").exists() and (home.job / "file").read_text().strip())
    file = Path((home.job / "file").read_text().strip())
    until(file.exists)

    def coordinator():
        address = urlsplit(file.read_text())
        assert address.hostname == "127.0.0.1"
        return listener(address.port, processes.marked(home.place))

    until(coordinator)
    first = coordinator()
    os.kill(first, signal.SIGKILL)
    until(lambda: coordinator() not in {None, first})
    home.fleet.apply([Release("a", "job")])
    time.sleep(0.5)
    assert coordinator() is not None, "one node still lives"
    home.fleet.apply([Release("b", "job")])
    until(lambda: coordinator() is None)


WARM = msgspec.structs.replace(QUICK, preload="trial_worker")


@pytest.fixture
def warm(home, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(home.folder / "modules"))
    home.start(WARM)
    until(lambda: home.fleet.status().warm == "ready")
    return home


def starts(home):
    """Process id of every worker that was started, and who loaded the module for it."""
    file = home.job / "started"
    lines = file.read_text().splitlines() if file.exists() else []
    return [(int(line.split()[0]), json.loads(line.partition(" ")[2])) for line in lines]


def test_workers_are_forks_of_what_was_loaded_once(warm):
    warm.module("leave", "a")
    warm.module("leave", "b")
    until(lambda: len(starts(warm)) == 2)
    (_, first), (_, second) = starts(warm)
    assert len(first) == 1
    assert first == second
    assert "hello leave" in warm.log("a")
    warm.fleet.apply([Release("a", "job")])
    until(lambda: sum(alive(pid) for pid, _ in starts(warm)) == 1)


def test_without_the_zygote_workers_start_cold_and_it_comes_back(warm):
    warm.module("sleep", "a")
    until(lambda: len(starts(warm)) == 1)
    (worker, (zygote,)) = starts(warm)[0]
    os.kill(zygote, signal.SIGKILL)
    until(lambda: warm.fleet.status().warm != "ready")
    assert alive(worker), "its nodes live on"
    warm.module("sleep", "b")
    until(lambda: len(starts(warm)) == 2)
    until(lambda: warm.fleet.status().warm == "ready")
    warm.module("sleep", "c")
    until(lambda: len(starts(warm)) == 3)
    assert starts(warm)[2][1] not in ([], [zygote])
    os.kill(worker, signal.SIGKILL)
    until(lambda: len(starts(warm)) == 4)
    assert starts(warm)[3][1] == [zygote], "an agent keeps what it has loaded"


def test_a_module_that_cannot_be_loaded_is_no_obstacle(home):
    home.start(msgspec.structs.replace(QUICK, preload="no_such_module_anywhere"))
    home.module("environment")
    assert home.ended().reason == "finished"
    until(lambda: home.fleet.status().warm == "none")


def test_the_market_takes_a_node_at_the_boundary_of_a_slot(home):
    slower = msgspec.structs.replace(QUICK, speed=QUICK.speed / slowness())
    fleet = home.start(slower, market_of([0.4] * 3, [1, 0, 0]))
    began = fleet.now().slot_began
    home.script("trap '' TERM; echo $$ > me; while true; do sleep 0.05; done")
    node = home.ended()
    assert (node.state, node.reason) == (NodeState.LOST, "capacity")
    assert node.ended_at == began + 1800
