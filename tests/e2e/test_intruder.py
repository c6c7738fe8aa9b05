"""A stranger on the same machine, against a real job with all its processes."""

from __future__ import annotations

import contextlib
import hmac
import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from duetune.training.network_address import own_address
from duetune.training.tiny import build_tiny_model
from support import intruder
from support.accounts import accounted
from support.later import later
from support.live_home import LEFT_RUNNING, LiveHome
from support.tuning import progress, spec, unpublished

for name in ("torch", "peft", "transformers"):
    later(name)

pytestmark = [pytest.mark.live, pytest.mark.torch, pytest.mark.filterwarnings(LEFT_RUNNING)]


@pytest.fixture
def home():
    """In a folder that everyone may enter, so that only duetune's own modes keep strangers out."""
    place = Path(tempfile.mkdtemp(prefix="duetune-intruder-"))
    place.chmod(0o755)
    home = LiveHome(place)
    yield home
    home.close()
    shutil.rmtree(place, ignore_errors=True)


OURS, ANY = "0100007F", "00000000"


def listening(pids):
    """The ports of all networks on which these processes listen."""
    inodes = {}
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            row = line.split()
            if row[3] == "0A":
                inodes[f"socket:[{row[9]}]"] = row[1]
    found = set()
    for pid in pids:
        with contextlib.suppress(OSError):
            held = {str(entry.readlink()) for entry in Path(f"/proc/{pid}/fd").iterdir()}
            found |= {inodes[name] for name in held & inodes.keys()}
    return found


def adapter(row):
    output = Path(row.output)
    return {path.name: path.read_bytes() for path in output.glob("adapter_*")}


@pytest.mark.parametrize(
    "network",
    [
        {},
        pytest.param({"DUETUNE_BIND": "0.0.0.0"}, marks=pytest.mark.more),
        pytest.param({"DUETUNE_BIND": "0.0.0.0", "DUETUNE_TLS": "1"}, marks=pytest.mark.more),
    ],
    ids=["loopback", "network", "encrypted network"],
)
def test_a_stranger_can_neither_read_join_report_nor_stop(home, network):
    home.environment |= network
    model = build_tiny_model(home.folder / "model", hidden=32, layers=1, heads=2, seed=3)
    home.start_fleet(home.market((0.9, 2)), slot_wall_s=3.0, warm=True, emulated_microbatch=0.02)
    path = spec(home, model, checkpoint='{every: "1s"}')
    job = home.launch(path)
    folder = home.settings.folder(job)
    with unpublished(folder):
        home.until(lambda: list((folder / "checkpoints").glob("step-*")), "a checkpoint")
        # The provider, the coordinator and two members.
        home.until(lambda: len(listening(home.processes())) == 4, "four doors")
        attacked(home, job, folder)
        private(home, job)
    row = home.until_over(job)
    assert row.status == "SUCCEEDED", home.logs()
    accounted(home, job)
    assert progress(home, job)[-1].step == 30
    assert "stranger" not in home.logs()
    calm = home.until_over(home.launch(path))
    assert adapter(row) == adapter(calm)
    modules = json.loads(adapter(row)["adapter_config.json"])["target_modules"]
    assert modules == sorted(modules)


def attacked(home, job, folder):
    pids = home.processes()
    doors = listening(pids)
    web = int(home.fleet().fleet.status().url.rpartition(":")[2])
    everywhere = "DUETUNE_BIND" in home.environment
    found = {host: [] for host in ((OURS, ANY) if everywhere else (OURS,))}
    for host, _, port in (address.partition(":") for address in doors):
        found[host].append(int(port, 16))
    assert web in found[OURS], "the provider is on loopback, whatever the group does"
    if everywhere:
        assert len(found[ANY]) == 3, "the coordinator and two members"
    # A door on all interfaces is tried by each of them.
    hosts = {OURS: ["127.0.0.1"], ANY: ["127.0.0.1", "127.0.0.2", own_address()]}
    target = {
        "job": job,
        "nodes": [node.id for node in home.fleet_alive(job)],
        "doors": [
            (host, port) for kind, ports in found.items() for port in ports for host in hosts[kind]
        ],
        "web": web,
        "files": [str(place) for place in (home.path, folder, *folder.rglob("*"))],
        "pids": list(pids),
    }
    stranger = subprocess.Popen(
        [sys.executable, intruder.__file__],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        stranger.stdin.write(json.dumps(target) + "\n")
        stranger.stdin.flush()
        assert json.loads(stranger.stdout.readline()) == []
        assert pids.keys() <= home.processes().keys(), "all of them are still there"
        # A group that forms anew, for example on a busy machine, opens doors before it closes some.
        home.until(lambda: len(listening(home.processes())) == len(doors), "as many doors")
    finally:
        stranger.stdin.close()
        stranger.wait()
        stranger.stdout.close()


def private(home, job):
    """No secret is in an argument, a log or a file for others; all modes are the owner's alone."""
    token = json.loads((home.settings.fleet / "provider.json").read_text())["token"]
    secrets = [
        hmac.digest(token.encode(), f"{use} {job}".encode(), "sha256").hex()
        for use in ("group", "calls")
    ]
    shown = [line.encode() for line in home.processes().values()]
    folder = home.settings.folder(job)
    for path in (folder, *folder.rglob("*")):
        with contextlib.suppress(FileNotFoundError):
            mode = path.stat().st_mode & 0o777
            inside = path.parent != folder and folder in path.parents
            if inside or path.is_dir():
                assert mode in {0o700, 0o600}, f"{path}: {mode:o}"
            if path.is_file() and path.suffix != ".safetensors":
                shown.append(path.read_bytes())
    assert not [text for text in shown if any(each.encode() in text for each in (token, *secrets))]
