"""Addresses of doors, and a machine's own address."""

from __future__ import annotations

import socket

import pytest

from duetune.errors import InvalidInput
from duetune.training import network_address
from duetune.training.network_address import Endpoint, Interface, own_address, plain_host


@pytest.mark.parametrize(
    "address", ["tcp://127.0.0.1:80", "tls://[fd00::2]:443", "tcp://node-1.example:65535"]
)
def test_an_address_is_read_as_it_is_written(address):
    assert str(Endpoint.of(address)) == address
    assert "[" not in Endpoint.of(address).host


@pytest.mark.parametrize("text", ["", "127.0.0.1:80", "http://a:1", "tcp://a", "tcp://:1"])
def test_what_is_no_address_is_refused(text):
    with pytest.raises(ValueError, match="not an address of a door"):
        Endpoint.of(text)


def test_the_own_address_is_that_of_the_way_to_the_other():
    assert own_address("127.0.0.1") == "127.0.0.1"
    assert own_address("tcp://127.0.0.7:1234") == "127.0.0.1"
    if socket.has_dualstack_ipv6():
        assert own_address("tcp://[::1]:1234") == "::1"


def test_without_a_route_the_name_of_the_machine_decides(monkeypatch):
    monkeypatch.setattr(network_address, "_routed", lambda _host: "")
    monkeypatch.setattr(socket, "gethostname", lambda: "127.0.0.9")
    assert own_address() == "127.0.0.9"
    monkeypatch.setattr(socket, "gethostname", lambda: "no such name.invalid")
    assert own_address() == "127.0.0.1"
    assert own_address(v6=True) == "::1"


def test_one_host_has_one_spelling():
    assert plain_host("::ffff:10.0.0.1") == "10.0.0.1"
    assert plain_host("fe80:0::1%eth0") == "fe80::1"
    assert plain_host("node-1") == "node-1"


def test_the_interface_comes_from_the_environment(monkeypatch):
    assert Interface.from_environment({}) == Interface("127.0.0.1")
    found = Interface.from_environment(
        {"DUETUNE_BIND": "0.0.0.0", "DUETUNE_ADVERTISE": "10.0.0.3", "DUETUNE_TLS": "1"}
    )
    assert found == Interface("0.0.0.0", "10.0.0.3", tls=True)
    assert found.host == "10.0.0.3"
    monkeypatch.setattr(network_address, "own_address", lambda *, v6: "fd00::2" if v6 else "10.9")
    assert [Interface(bind).host for bind in ("0.0.0.0", "::", "10.0.0.1")] == [
        "10.9",
        "fd00::2",
        "10.0.0.1",
    ]
    with pytest.raises(InvalidInput, match="DUETUNE_TLS"):
        Interface.from_environment({"DUETUNE_TLS": "maybe"})


def test_only_loopback_is_local():
    assert all(Interface(bind).is_local for bind in ("127.0.0.1", "127.0.0.2", "::1", "localhost"))
    assert not any(Interface(bind).is_local for bind in ("0.0.0.0", "::", "10.0.0.1", "node-1"))


@pytest.mark.parametrize("bind", ["192.0.2.77", "no such name.invalid"])
def test_an_address_of_another_machine_is_refused_in_one_line(bind):
    with pytest.raises(InvalidInput, match=r"DUETUNE_BIND.*an address of this machine"):
        Interface(bind).listener(0)
