"""How much is run of each experiment, and on which rows."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import numpy as np

from duetune.knowledge.observation import RunOutcome
from knowledge_baselines import OURS, OURS_UNFILTERED
from knowledge_data import plausible_rows, table, valid_rows

if TYPE_CHECKING:
    from numpy.typing import NDArray


class Scale(msgspec.Struct, frozen=True, kw_only=True):
    """Numbers of random splits and of repeats; 0 leaves an experiment out."""

    splits: int
    grouped: bool
    folds: int
    sizes: tuple[int, ...]
    random: int
    chosen: int
    transfers: int
    streams: int
    stream_rows: int
    choices: int
    coverage: int


SIZES = (25, 50, 75, 100, 150, 200, 300, 400)
PUBLIC = Scale(
    splits=5,
    grouped=True,
    folds=3,
    sizes=SIZES,
    random=10,
    chosen=5,
    transfers=2,
    streams=3,
    stream_rows=400,
    choices=10,
    coverage=5,
)
# To fit our own table takes three times as long, and it has more rows to be judged on.
OWN = Scale(
    splits=5,
    grouped=True,
    folds=0,
    sizes=(25, 50, 100, 200, 400),
    random=4,
    chosen=2,
    transfers=1,
    streams=2,
    stream_rows=600,
    choices=4,
    coverage=1,
)
QUICK = Scale(
    splits=2,
    grouped=False,
    folds=0,
    sizes=(25, 50, 100, 200),
    random=2,
    chosen=0,
    transfers=0,
    streams=1,
    stream_rows=200,
    choices=1,
    coverage=1,
)


class Population(msgspec.Struct, frozen=True):
    """Rows whose throughput is judged, and who of ours is judged on them."""

    table: str
    label: str
    subject: str
    scale: Scale

    @property
    def rows(self) -> NDArray[np.int64]:
        history = table(self.table)
        return valid_rows(history) if self.subject == OURS_UNFILTERED else plausible_rows(history)

    @property
    def tried(self) -> NDArray[np.int64]:
        """With those that ran out of memory."""
        return np.union1d(self.rows, np.flatnonzero(table(self.table).outcome == RunOutcome.OOM))


ALL_LABEL, PLAUSIBLE_LABEL, OWN_LABEL = "ibm, all rows", "ibm, plausible rows", "own H200"


def populations(*, public: bool, own: bool, quick: bool) -> list[Population]:
    found = []
    if public:
        scale = QUICK if quick else PUBLIC
        found.append(Population("ibm", ALL_LABEL, OURS_UNFILTERED, scale))
        found.append(Population("ibm", PLAUSIBLE_LABEL, OURS, scale))
    if own:
        found.append(Population("own", OWN_LABEL, OURS, QUICK if quick else OWN))
    return found
