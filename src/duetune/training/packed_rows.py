"""Lays rows end to end instead of padding them, and shares a step's rows among members.

A microbatch is a budget of tokens. All functions are pure: given the same rows, every member
computes the same microbatches and the same shares. ``batches`` says which rows a step has.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from collections.abc import Sequence

    from duetune.training.tokens import TokenizedRows

Places = NDArray[np.int64]
"""Places of rows in a list of rows."""


def microbatches(lengths: Places, budget: int, at_least: int = 1) -> list[Places]:
    """Return the rows of each microbatch, by first-fit-decreasing; a longer row is alone.

    If there are fewer than ``at_least`` microbatches, the longest ones are halved. Every step
    calls this with the lengths of its rows.
    """
    bins: list[list[int]] = []
    room: list[int] = []
    for place in _longest_first(lengths):
        length = int(lengths[place])
        chosen = next((number for number, free in enumerate(room) if free >= length), None)
        if chosen is None:
            bins.append([])
            room.append(budget)
            chosen = len(bins) - 1
        bins[chosen].append(place)
        room[chosen] -= length
    while len(bins) < at_least:
        sizes = [int(lengths[rows].sum()) if len(rows) > 1 else 0 for rows in bins]
        if not any(sizes):
            break
        largest = int(np.argmax(sizes))
        whole = bins[largest]
        bins[largest : largest + 1] = [whole[::2], whole[1::2]]
    return [np.array(rows, dtype=np.int64) for rows in bins]


def shares(lengths: Places, paces: Sequence[float]) -> list[Places]:
    """Return what each member computes: the longest first, to the member that would end first.

    ``paces`` are the members' tokens per second. One that is 0 is not known; it counts as the
    mean of the others.
    """
    known = [pace for pace in paces if pace > 0]
    usual = sum(known) / len(known) if known else 1.0
    speeds = [pace if pace > 0 else usual for pace in paces]
    loads = [0] * len(speeds)
    found: list[list[int]] = [[] for _ in speeds]
    for place in _longest_first(lengths):
        length = int(lengths[place])
        ends = [(load + length) / speed for load, speed in zip(loads, speeds, strict=True)]
        chosen = ends.index(min(ends))
        found[chosen].append(place)
        loads[chosen] += length
    return [np.array(sorted(rows), dtype=np.int64) for rows in found]


class PackedRows(msgspec.Struct, frozen=True):
    """Rows laid end to end.

    - ``positions``: the place of each token in its own row.
    - ``lengths``: the tokens of each row.
    - ``predicting``: the tokens whose next token counts in the loss; ``targets`` are those.
    """

    ids: NDArray[np.int64]
    positions: NDArray[np.int64]
    lengths: NDArray[np.int64]
    predicting: NDArray[np.int64]
    targets: NDArray[np.int64]


def laid_end_to_end(data: TokenizedRows, rows: Places) -> PackedRows:
    """Return the rows as one sequence. The first token of a row is never predicted."""
    pieces = [data.row(int(row)) for row in rows]
    lengths = np.array([len(ids) for ids, _ in pieces], dtype=np.int64)
    ids = np.concatenate([ids for ids, _ in pieces]).astype(np.int64)
    counts = np.concatenate([counts for _, counts in pieces])
    begins = np.cumsum(lengths) - lengths
    counts[begins] = False
    counted = np.flatnonzero(counts)
    positions = np.arange(len(ids), dtype=np.int64) - np.repeat(begins, lengths)
    return PackedRows(ids, positions, lengths, counted - 1, ids[counted])


def _longest_first(lengths: Places) -> list[int]:
    """Return the places by falling length; equal lengths keep their order."""
    return [int(place) for place in np.argsort(-lengths, kind="stable")]
