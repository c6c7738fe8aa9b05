from __future__ import annotations

import numpy as np
import pytest

from duetune.market.forecast.pool_looks import PoolLooks


def test_a_look_is_certain_and_fades_and_tells_nothing_of_other_pools():
    looks = PoolLooks(3, 1.0)
    unknown = looks.chances.copy()
    looks.see(0, up=True)
    looks.see(1, up=False)
    assert looks.chances == pytest.approx([1.0, 0.0, unknown[2]], abs=1e-9)
    fading = [looks.chances]
    for _ in range(3):
        looks.advance(4)
        fading.append(looks.chances)
    table = np.array(fading)
    assert (np.diff(table[:, 0]) < 0).all()
    assert (np.diff(table[:, 1]) > 0).all()
    assert table[:, 2] == pytest.approx(unknown[2], abs=0.02)


def test_the_chance_of_the_next_tick_is_what_advancing_gives():
    looks = PoolLooks(2, 1.0)
    looks.see(0, up=True)
    looks.advance(3)
    up, down = looks.next_chances(up=True), looks.next_chances(up=False)
    expected = looks.chances * up + (1 - looks.chances) * down
    looks.advance(1)
    assert looks.chances == pytest.approx(expected)


def test_spells_that_were_seen_to_be_short_or_long_are_believed_to_be():
    looks = PoolLooks(2, 1.0)
    for tick in range(60):
        looks.see(0, up=tick % 2 == 0)
        looks.see(1, up=tick < 50)
        looks.advance(1)
    rates = looks.rates
    assert rates.goes[0] > rates.goes[1]
    assert rates.comes[0] > rates.comes[1]
    assert rates.goes_spread[0] < PoolLooks(1, 1.0).rates.goes_spread[0]
