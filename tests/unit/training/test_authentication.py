"""Doors and their secret, over real sockets."""

from __future__ import annotations

import contextlib
import hmac
import socket
import threading

import pytest

from duetune.errors import InvalidInput
from duetune.training import authentication
from duetune.training.authentication import Door, Refused, dial, job_secret, receive, send
from support.patience import PATIENCE_S, until

SECRET = b"the secret of this job, and of no other"


def echo(connection):
    send(connection, receive(connection) + b"!")
    return False


@pytest.fixture
def door():
    made = Door("127.0.0.1", 0, SECRET, echo)
    yield made
    made.close()


def ask(address, secret=SECRET):
    with dial(address, secret, PATIENCE_S) as connection:
        send(connection, b"hello")
        return receive(connection)


def port_of(address):
    return int(address.rpartition(":")[2])


def test_who_knows_the_secret_is_served_and_nobody_else(door):
    assert ask(door.address) == b"hello!"
    for wrong in (b"", SECRET[:-1], SECRET + b"x"):
        with pytest.raises(ConnectionError):
            ask(door.address, wrong)


def test_a_stranger_who_just_talks_gets_no_answer(door):
    for words in (b"GET /state/3 HTTP/1.1\r\n\r\n" * 8, bytes(64)):
        with socket.create_connection(("127.0.0.1", port_of(door.address))) as stranger:
            stranger.settimeout(PATIENCE_S)
            stranger.sendall(words)
            heard = b""
            with contextlib.suppress(ConnectionError):
                while more := stranger.recv(4096):
                    heard += more
            assert len(heard) == 40, "a greeting and a random number, nothing else"


def test_secrets_are_compared_in_constant_time(door, monkeypatch):
    compared = []

    def compare(one, other):
        compared.append((one, other))
        return hmac_compare(one, other)

    hmac_compare = hmac.compare_digest
    monkeypatch.setattr(authentication.hmac, "compare_digest", compare)
    ask(door.address)
    assert len(compared) == 2, "each side checks the other"


def test_a_stranger_at_the_door_of_a_dead_process_learns_nothing_and_is_found_out():
    heard = []

    def pretend(listener):
        connection, _ = listener.accept()
        with connection:
            connection.sendall(b"duetune1" + bytes(32))
            heard.append(connection.recv(64))
            connection.sendall(bytes(32))

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=pretend, args=(listener,))
        thread.start()
        with pytest.raises(Refused, match="does not know the job's secret"):
            dial(f"tcp://127.0.0.1:{listener.getsockname()[1]}", SECRET, PATIENCE_S)
        thread.join()
    assert SECRET not in heard[0]


def test_answers_cannot_be_passed_on_to_another_door(door):
    """A stranger between a member and a door forwards everything, and is refused."""

    def forward(listener):
        connection, _ = listener.accept()
        with (
            connection,
            socket.create_connection(("127.0.0.1", port_of(door.address))) as onward,
        ):
            connection.sendall(onward.recv(40))
            onward.sendall(connection.recv(64))
            with contextlib.suppress(ConnectionError):
                connection.sendall(onward.recv(32))

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=forward, args=(listener,))
        thread.start()
        with pytest.raises(ConnectionError):
            dial(f"tcp://127.0.0.1:{listener.getsockname()[1]}", SECRET, PATIENCE_S)
        thread.join()


def test_strangers_who_say_nothing_do_not_keep_members_out(door):
    strangers = [socket.create_connection(("127.0.0.1", port_of(door.address))) for _ in range(100)]
    try:
        assert ask(door.address) == b"hello!"
        until(lambda: len(door._strangers) <= 32, "the end of the oldest ones")
    finally:
        for stranger in strangers:
            stranger.close()


def test_a_secret_that_is_missing_or_short_is_refused_without_showing_it():
    assert job_secret({"DUETUNE_JOB_SECRET": "s" * 32}) == b"s" * 32
    for environ in ({}, {"DUETUNE_JOB_SECRET": "too short"}):
        with pytest.raises(InvalidInput, match="DUETUNE_JOB_SECRET") as caught:
            job_secret(environ)
        assert "too short" not in str(caught.value)
