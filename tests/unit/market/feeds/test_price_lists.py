"""Published price lists: the lowest prices per GPU, from gpuhunt's own reader of a small list."""

from __future__ import annotations

import threading

import pytest

from duetune.errors import FleetError, InvalidInput
from duetune.market.feeds import price_lists
from duetune.market.feeds.price_lists import PriceLists, Wanted
from support.places import ASSETS


class Offered:
    def __init__(self, price, gpus=1, *, spot=False, location="east-1"):
        self.price, self.gpu_count, self.spot, self.location = price, gpus, spot, location


def listed(*offers, region=None):
    return PriceLists(Wanted("gcp", "H100", region), lambda _: offers)


def test_the_lowest_price_per_gpu_counts():
    quote = listed(Offered(8, 8, spot=True), Offered(2, spot=True), Offered(24, 8)).quote(0.0)
    assert quote == (1.0, 3.0, None)


def test_a_region_may_be_named():
    offers = (Offered(2, spot=True), Offered(3), Offered(1, spot=True, location="west-1"))
    assert listed(*offers, region="east").quote(0.0).spot_usd_gpu_h == 2
    with pytest.raises(InvalidInput, match=r"region of the offers feed: 'north'.*east-1, west-1"):
        listed(*offers, region="north").quote(0.0)


def test_what_cannot_be_used_is_one_line():
    with pytest.raises(InvalidInput, match=r"provider of the offers feed: 'nobody'.*aws, azure"):
        PriceLists(Wanted("nobody", "H100"), lambda _: ())
    with pytest.raises(InvalidInput, match="not sold spot"):
        listed(Offered(3)).quote(0.0)

    def broken(_):
        raise OSError("https://secret@host")

    with pytest.raises(FleetError, match=r"cannot be read: OSError$"):
        PriceLists(Wanted("gcp", "H100"), broken).quote(0.0)


def test_lists_that_do_not_come_are_given_up(monkeypatch):
    monkeypatch.setattr(price_lists, "ANSWER_S", 0.01)
    wait = threading.Event()
    try:
        with pytest.raises(FleetError, match=r"not come within 0\.01 s"):
            PriceLists(Wanted("gcp", "H100"), lambda _: wait.wait(60)).quote(0.0)
    finally:
        wait.set()


@pytest.mark.filterwarnings("ignore")
def test_gpuhunt_reads_a_list(monkeypatch):
    pytest.importorskip("gpuhunt")
    monkeypatch.setenv(price_lists.LOCAL, str(ASSETS / "feeds"))
    assert PriceLists(Wanted("gcp", "H100")).quote(0.0) == (2.5, 11.0, None)
    assert PriceLists(Wanted("gcp", "H100", "us-central1")).quote(0.0).spot_usd_gpu_h == 3.0
    with pytest.raises(InvalidInput, match="A100"):
        PriceLists(Wanted("gcp", "A100")).quote(0.0)
