"""Doors and their secret, over real sockets."""

from __future__ import annotations

import contextlib
import hmac
import socket
import ssl
import sys
import threading

import pytest

from duetune.errors import InvalidInput
from duetune.training import authentication
from duetune.training.authentication import Door, Refused, dial, job_secret, receive, send
from duetune.training.encryption import DoorCertificate, dialled
from duetune.training.network_address import Interface
from support.patience import PATIENCE_S, until

SECRET = b"the secret of this job, and of no other"


def echo(connection):
    send(connection, receive(connection) + b"!")
    return False


@pytest.fixture
def open_door():
    made = []

    def make(*args, **fields):
        made.append(Door(Interface(*args, **fields), SECRET, echo))
        return made[-1]

    yield make
    for each in made:
        each.close()


@pytest.fixture
def door(open_door):
    return open_door()


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


def elsewhere(address, host):
    """The same door by another address of this machine."""
    scheme, _, rest = address.partition("://")
    return f"{scheme}://{host}:{rest.rpartition(':')[2]}"


@pytest.mark.parametrize("tls", [False, True])
def test_a_door_on_all_interfaces_is_reached_by_each_of_them(open_door, tls):
    door = open_door("0.0.0.0", "127.0.0.2", tls)
    assert door.address.startswith("tls://127.0.0.2:" if tls else "tcp://127.0.0.2:")
    for host in ("127.0.0.2", "127.0.0.1"):
        assert ask(elsewhere(door.address, host)) == b"hello!"


@pytest.mark.skipif(not socket.has_dualstack_ipv6(), reason="no IPv6")
def test_a_door_for_both_families_is_reached_by_both(open_door):
    door = open_door("::", "::1")
    assert door.address.startswith("tcp://[::1]:")
    for host in ("[::1]", "127.0.0.1", "127.0.0.2"):
        assert ask(elsewhere(door.address, host)) == b"hello!"


def test_answers_cannot_be_passed_on_to_another_interface(open_door):
    """A stranger has the same port of another address and forwards everything."""
    door = open_door("127.0.0.1")
    with socket.create_server(("127.0.0.2", port_of(door.address))) as listener:
        thread = threading.Thread(target=relay, args=(listener, door.address))
        thread.start()
        with pytest.raises(ConnectionError):
            ask(elsewhere(door.address, "127.0.0.2"))
        thread.join()


def relay(listener, address):
    connection, _ = listener.accept()
    with connection, socket.create_connection(("127.0.0.1", port_of(address))) as onward:
        pass_on(connection, onward)


def pass_on(connection, onward):
    """The handshake of one connection, in the order in which it happens."""
    with contextlib.suppress(OSError):
        connection.sendall(onward.recv(40))
        onward.sendall(connection.recv(64))
        connection.sendall(onward.recv(32))


def test_a_machine_that_dies_without_a_word_is_noticed_on_an_idle_connection(door):
    with dial(door.address, SECRET, PATIENCE_S) as connection:
        assert connection.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
        if sys.platform == "linux":
            idle, interval, count = (
                connection.getsockopt(socket.IPPROTO_TCP, option)
                for option in (socket.TCP_KEEPIDLE, socket.TCP_KEEPINTVL, socket.TCP_KEEPCNT)
            )
            assert idle + interval * count < 10
            assert not connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT)
            authentication.expect_reader(connection)
            limit_ms = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT)
            assert limit_ms == 10_000


def test_nothing_of_an_encrypted_connection_can_be_read(open_door):
    door, heard = open_door(tls=True), []

    def listen_in(listener):
        connection, _ = listener.accept()
        onward = socket.create_connection(("127.0.0.1", port_of(door.address)))
        with connection, onward:
            back = threading.Thread(target=copy, args=(onward, connection))
            back.start()
            copy(connection, onward)
            back.join()

    def copy(one, other):
        with contextlib.suppress(OSError):
            while content := one.recv(4096):
                heard.append(content)
                other.sendall(content)
            other.shutdown(socket.SHUT_WR)

    # The stranger has the same port of another address; the proofs must not fail for that here.
    with (
        pytest.MonkeyPatch.context() as patch,
        socket.create_server(("127.0.0.2", port_of(door.address))) as listener,
    ):
        patch.setattr(authentication, "plain_host", lambda _host: "one machine")
        thread = threading.Thread(target=listen_in, args=(listener,))
        thread.start()
        assert ask(elsewhere(door.address, "127.0.0.2")) == b"hello!"
        thread.join()
    assert heard
    assert b"hello" not in b"".join(heard)
    assert b"duetune1" not in b"".join(heard)


def test_a_stranger_who_decrypts_in_the_middle_is_refused(open_door, monkeypatch):
    door = open_door(tls=True)
    # Even if the addresses were the same, as they are for who controls the network.
    monkeypatch.setattr(authentication, "plain_host", lambda _host: "one machine")

    def decrypt(listener):
        connection, _ = listener.accept()
        certificate = DoorCertificate()
        encrypted = certificate.around(connection)
        with encrypted:
            certificate.shown(encrypted)
            onward, _ = dialled(
                socket.create_connection(("127.0.0.1", port_of(door.address)), PATIENCE_S)
            )
            with onward:
                pass_on(encrypted, onward)

    with socket.create_server(("127.0.0.2", port_of(door.address))) as listener:
        thread = threading.Thread(target=decrypt, args=(listener,))
        thread.start()
        with pytest.raises(ConnectionError):
            ask(elsewhere(door.address, "127.0.0.2"))
        thread.join()


def test_a_door_that_encrypts_has_no_other_way_in(open_door, monkeypatch):
    monkeypatch.setattr(authentication, "_HANDSHAKE_S", 0.2)
    door = open_door(tls=True)
    with pytest.raises(OSError, match=r"timed out|ended early|reset"):
        dial(door.address.replace("tls:", "tcp:"), SECRET, PATIENCE_S)
    for wrong in (b"", SECRET + b"x"):
        with pytest.raises(ConnectionError):
            ask(door.address, wrong)
    with socket.create_connection(("127.0.0.1", port_of(door.address)), PATIENCE_S) as stranger:
        stranger.sendall(b"GET / HTTP/1.1\r\n\r\n")
        with contextlib.suppress(ConnectionError):
            assert b"duetune" not in stranger.recv(4096)


def test_old_tls_is_refused(open_door):
    door = open_door(tls=True)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    with (
        socket.create_connection(("127.0.0.1", port_of(door.address)), PATIENCE_S) as plain,
        pytest.raises(OSError),
    ):
        context.wrap_socket(plain)


def test_encryption_without_its_library_is_refused_in_one_line(monkeypatch):
    monkeypatch.setitem(sys.modules, "cryptography", None)
    with pytest.raises(InvalidInput, match=r"DUETUNE_TLS.*pip install 'duetune\[tls\]'"):
        DoorCertificate()
