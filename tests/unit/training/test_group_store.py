"""The store that rank 0 holds for the others, over doors that ask for the secret."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest

from duetune.training.network_address import Interface
from support.later import later
from support.patience import PATIENCE_S

pytestmark = pytest.mark.torch

torch = later("torch")
c10d = later("torch._C._distributed_c10d")
group_store = later("duetune.training.group_store")
transfer = later("duetune.training.transfer")

SECRET = b"the secret of this job, and of no other"
WORLD = 3


class Nothing:
    lock = threading.Lock()
    step = 0


def together(work):
    with ThreadPoolExecutor(WORLD) as pool:
        return list(pool.map(work, range(WORLD)))


@pytest.fixture(params=[False, True], ids=["plain", "tls"])
def stores(request):
    interface = Interface(tls=request.param)
    doors = [transfer.MemberDoor(interface, SECRET, Nothing(), lambda: True) for _ in range(WORLD)]
    addresses = [door.address for door in doors]

    def meet(rank):
        links = doors[rank].links("group", rank, addresses, PATIENCE_S, first_only=True)
        assert set(links) == ({0} if rank else {1, 2})
        return group_store.GroupStore(links, PATIENCE_S)

    made = together(meet)
    yield made
    for store in made:
        store.close()
    for door in doors:
        door.close()


def test_all_members_see_the_same_keys(stores):
    first, second, third = stores
    second.set("unique id", b"\x00\xff")
    assert [store.get("unique id") for store in stores] == [b"\x00\xff"] * 3
    assert third.check(["unique id"])
    assert not third.check(["unique id", "another"])
    assert [store.add("count", 2) for store in stores] == [2, 4, 6]
    assert third.compare_set("new", "", "a") == b"a"
    assert first.compare_set("new", "", "b") == b"a"
    assert second.compare_set("new", "a", "c") == b"c"
    assert third.compare_set("absent", "x", "y") == b"x"
    assert first.num_keys() == 3
    assert second.delete_key("new")
    assert not first.delete_key("new")


def test_a_key_is_waited_for_and_the_wait_ends(stores):
    first, second, third = stores
    with ThreadPoolExecutor(2) as pool:
        found = pool.submit(second.get, "late")
        waited = pool.submit(third.wait, ["late"], timedelta(seconds=PATIENCE_S))
        first.set("late", "now")
        assert found.result(PATIENCE_S) == b"now"
        waited.result(PATIENCE_S)
    with pytest.raises(TimeoutError, match="nobody has set never"):
        third.wait(["never"], timedelta(seconds=0.02))
    third.set_timeout(timedelta(seconds=0.02))
    with pytest.raises(TimeoutError):
        third.get("never")


def test_who_has_left_ends_the_waiting_of_the_others(stores):
    first, second, _ = stores
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(second.get, "never")
        first.close()
        assert isinstance(waiting.exception(PATIENCE_S), OSError)
    assert not second.check(["never"]), "NCCL's own threads must not fail"


def test_process_groups_of_torch_meet_in_it(stores):
    """Gloo's, because NCCL needs GPUs; both use the store in the same way."""

    def add_up(rank):
        store = c10d.PrefixStore("group", stores[rank])
        group = c10d.ProcessGroupGloo(store, rank, WORLD, timedelta(seconds=PATIENCE_S))
        part = torch.full((4,), float(rank + 1))
        group.allreduce([part]).wait()
        return part

    assert [part.tolist() for part in together(add_up)] == [[6.0] * 4] * WORLD
