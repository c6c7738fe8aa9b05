"""Sums over links between members in one process."""

from __future__ import annotations

import itertools
import socket
from concurrent.futures import ThreadPoolExecutor

import pytest

from duetune.training.encryption import DoorCertificate, dialled
from support.later import later
from support.patience import PATIENCE_S

pytestmark = pytest.mark.torch

torch = later("torch")
collective = later("duetune.training.collective")


def encrypted():
    """A pair of connections as a door and who dials it have them."""
    certificate = DoorCertificate()
    with socket.create_server(("127.0.0.1", 0)) as listener, ThreadPoolExecutor(1) as pool:
        client = pool.submit(lambda: dialled(socket.create_connection(listener.getsockname()))[0])
        server = certificate.around(listener.accept()[0])
        certificate.shown(server)
        return server, client.result(PATIENCE_S)


@pytest.fixture(params=[socket.socketpair, encrypted], ids=["plain", "encrypted"])
def mesh(request):
    made = []

    def make(world, stall_s=PATIENCE_S):
        links = [{} for _ in range(world)]
        for one, other in itertools.combinations(range(world), 2):
            links[one][other], links[other][one] = request.param()
        made.extend(
            collective.LinkedCollective(rank, links[rank], stall_s) for rank in range(world)
        )
        return made[-world:]

    yield make
    for each in made:
        each.abort()


def together(members, work):
    with ThreadPoolExecutor(len(members)) as pool:
        return list(pool.map(work, members, range(len(members))))


# Far more than a socket's buffer holds, fewer than there are members, and none.
@pytest.mark.parametrize("shape", [(7, 150_001), (2,), (0,)])
@pytest.mark.parametrize("world", [2, 3])
def test_parts_are_gathered_and_added_in_the_order_of_ranks(mesh, world, shape):
    parts = [torch.rand(shape, generator=torch.Generator().manual_seed(n)) for n in range(world)]
    expected = torch.zeros(shape)
    for part in parts:
        expected += part

    def work(member, rank):
        gathered = member.gather(parts[rank])
        total = parts[rank].clone()
        member.add_up(total)
        return gathered, total

    for gathered, total in together(mesh(world), work):
        assert all(torch.equal(one, other) for one, other in zip(gathered, parts, strict=True))
        assert torch.equal(total, expected)


def test_a_member_that_is_an_operation_ahead_loses_nothing(mesh):
    """Its next parts come while the other one has not begun to wait for them."""
    one, other = mesh(2)
    with ThreadPoolExecutor(1) as pool:
        for number in range(200):
            parts = [torch.tensor([number]), torch.tensor([7])]
            ahead = pool.submit(lambda sent: [one.gather(part) for part in sent], parts)
            assert other.gather(torch.tensor([-1]))[0].tolist() == [number]
            assert other.gather(torch.tensor([-2]))[0].tolist() == [7]
            assert [part.tolist() for _, part in ahead.result(PATIENCE_S)] == [[-1], [-2]]


def test_members_in_different_operations_notice(mesh):
    def work(member, rank):
        with pytest.raises(ConnectionError, match="another operation"):
            member.gather(torch.zeros(4 + rank))

    together(mesh(2), work)


def test_a_closed_link_ends_an_operation_at_once_and_a_silent_one_in_time(mesh):
    one, other = mesh(2)
    other.abort()
    with pytest.raises(OSError, match=r"closed|reset|Broken"):
        one.gather(torch.zeros(1_000_000))
    silent, _ = mesh(2, stall_s=0.05)
    with pytest.raises(TimeoutError):
        silent.gather(torch.zeros(4))


def test_an_operation_that_runs_can_be_aborted(mesh):
    one, _ = mesh(2)
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(one.gather, torch.zeros(4))
        one.abort()
        assert isinstance(running.exception(PATIENCE_S), OSError | ValueError)
