"""The coordinator's door: where it listens, and how it ends."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import msgspec
import pytest

from duetune.errors import InvalidInput
from duetune.training.authentication import dial, receive, send
from duetune.training.coordinator import Coordinator, _interface, main
from duetune.training.coordinator_client import Ask, Beat
from duetune.training.group_times import QuorumTimes
from duetune.training.membership import Member
from duetune.training.network_address import Interface
from support.patience import PATIENCE_S, until

SECRET = b"the secret of this job, and of no other"


def test_its_end_ends_the_connections_of_members_that_beat_and_that_wait(tmp_path):
    coordinator = Coordinator(SECRET, tmp_path, times=QuorumTimes(PATIENCE_S, PATIENCE_S))
    quorum = coordinator._quorum
    beating, waiting = (dial(coordinator.address, SECRET, PATIENCE_S) for _ in range(2))
    with beating, waiting, ThreadPoolExecutor(2) as pool:
        # Another member lives and has not asked, so the question is not answered.
        send(beating, msgspec.json.encode(Beat("other")))
        until(lambda: quorum._living, "the heartbeat")
        send(waiting, msgspec.json.encode(Ask(Member(id="a", address="", step=0))))
        until(lambda: quorum._asked, "the question")
        answers = [pool.submit(receive, connection) for connection in (beating, waiting)]
        coordinator.close()
        for answer in answers:
            assert isinstance(answer.exception(PATIENCE_S), ConnectionError)


def test_it_listens_where_the_environment_or_the_command_says():
    environ = {"DUETUNE_BIND": "127.0.0.2", "DUETUNE_TLS": "1"}
    assert _interface(None, environ) == (Interface("127.0.0.2", tls=True), 0)
    assert _interface("127.0.0.3:70", environ) == (Interface("127.0.0.3", tls=True), 70)
    assert _interface("[::1]:70", {}) == (Interface("::1"), 70)
    with pytest.raises(InvalidInput, match="ADDRESS:PORT"):
        _interface("127.0.0.3", {})


@pytest.mark.parametrize("wrong", [{"DUETUNE_BIND": "192.0.2.77"}, {"DUETUNE_QUORUM_JOIN_S": "x"}])
def test_a_wrong_setting_ends_it_with_one_line(monkeypatch, capsys, tmp_path, wrong):
    for name, value in {"DUETUNE_JOB_SECRET": "x" * 32, "DUETUNE_JOB_DIR": str(tmp_path)}.items():
        monkeypatch.setenv(name, value)
    (variable,) = wrong
    monkeypatch.setenv(variable, wrong[variable])
    monkeypatch.setattr("signal.signal", lambda *_: None)
    assert main(["--address-file", str(tmp_path / "address")]) == 2
    assert variable in capsys.readouterr().err
    assert not (tmp_path / "address").exists()
