"""Who may publish checkpoints: one writer at a time, without locks.

A writer *claims* a fresh epoch, greater than every epoch claimed or published before. The claim is
a folder ``writers/<epoch>/`` and in it the one place where its holder prepares what it will
publish. Publishing is a rename from there into the open. A new claim first appears, then takes the
folders of all older claims away. Hence:

1. *Claims are unique and grow.* A claim folder is made elsewhere and renamed into place with its
   content; a rename onto a folder with content fails, so of two that want one number one wins. A
   claimant looks again afterwards and gives up its number if a greater one has appeared. The
   greatest claim is never taken away, so a number that was taken away once has a greater one
   beside it and cannot be held again.
2. *Once ``claim`` has returned, no older writer publishes anything.* Its place is gone, so its
   rename has no source and it gets ``StaleEpoch``. Which of the two renames comes first is
   settled by the file system, not by a check that could be out of date. A number claimed again
   after it was taken away has a place of another name, so an old holder cannot slip into it.
3. *Should it be possible after all* (a network file system that acts on what it remembers of a
   folder), its checkpoint has the lower epoch, and readers take the greatest epoch first: as soon
   as the new writer has published, the old one's is never read. Until then it is a whole state of
   this job's own past, and going on from it is right.
4. *A crash at any point* leaves at most a claim nobody holds or a folder with a temporary name; the
   next claim takes both away.

A process that works alone has no quorum to say who leads, so there the launch decides: it may not
claim after a later launch has (``alone``). In a group the quorum decides, any member may lead and
launches do not count; who finds itself superseded claims again only when the quorum has confirmed
it as the leader.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import secrets
import time
from pathlib import Path

import msgspec

from duetune.errors import DuetuneError
from duetune.files import make_folder, remove_tree, sync_folder

_CLAIM = re.compile(r"\d{6,15}")
_PLACE = re.compile(r"launch-(\d{6,15})\.[0-9a-f]+-[0-9a-f]{16}")
_TAKEN = frozenset({errno.ENOTEMPTY, errno.EEXIST})
_ABANDONED_S = 600.0


class StaleEpoch(DuetuneError):
    """Somebody else writes this job's checkpoints now: publish nothing more."""

    code = "stale_epoch"
    exit_code = 4

    def __init__(self, epoch: int, newest: int) -> None:
        self.epoch = epoch
        self.newest = newest
        super().__init__(
            f"epoch {epoch} may not write checkpoints any more; epoch {newest} has taken over"
        )


class Claim(msgspec.Struct, frozen=True):
    """The right to publish as ``epoch``; ``place`` is where to prepare it."""

    epoch: int
    place: Path


class Fence:
    """The claims on the checkpoints in one folder."""

    def __init__(self, folder: Path, launch: int) -> None:
        self._folder = folder / "writers"
        self._launch = launch

    def claim(self, *, published: int, alone: bool) -> Claim:
        """Claim an epoch above all others and above ``published``; older claims end."""
        make_folder(self._folder)
        while True:
            newest = max(self._epochs(), default=0)
            launch = self._launch_of(newest)
            if alone and launch > self._launch:
                raise StaleEpoch(self._launch, launch)
            epoch = max(newest, published, self._launch - 1) + 1
            # The greatest launch so far stays on record, whoever leads.
            place = self._take(epoch, max(launch, self._launch))
            if place is None:
                continue
            if max(self._epochs(), default=0) > epoch:
                self._take_away(epoch)
                continue
            sync_folder(self._folder)
            self._sweep(epoch)
            return Claim(epoch=epoch, place=place)

    def check(self, claim: Claim) -> None:
        """``StaleEpoch`` if the claim has ended."""
        newest = max(self._epochs(), default=0)
        if newest > claim.epoch or not claim.place.is_dir():
            raise StaleEpoch(claim.epoch, newest)

    def _epochs(self) -> list[int]:
        try:
            names = [path.name for path in self._folder.iterdir()]
        except FileNotFoundError:
            return []
        return [int(name) for name in names if _CLAIM.fullmatch(name)]

    def _path(self, epoch: int) -> Path:
        return self._folder / f"{epoch:06d}"

    def _launch_of(self, epoch: int) -> int:
        try:
            names = [path.name for path in self._path(epoch).iterdir()]
        except OSError:
            return 0
        return max(
            (int(found[1]) for name in names if (found := _PLACE.fullmatch(name))), default=0
        )

    def _take(self, epoch: int, launch: int) -> Path | None:
        """Make the claim folder with its place in it; None if the number was taken meanwhile."""
        token = f"{os.getpid():x}-{secrets.token_hex(8)}"
        fresh = self._folder / f".new-{token}"
        place = f"launch-{launch:06d}.{token}"
        fresh.mkdir()
        try:
            (fresh / place).mkdir()
            sync_folder(fresh)
            fresh.rename(self._path(epoch))
        except FileNotFoundError:
            return None  # Swept as abandoned, because this process stood still for so long.
        except OSError as error:
            with contextlib.suppress(OSError):
                remove_tree(fresh)
            if error.errno in _TAKEN:
                return None
            raise
        return self._path(epoch) / place

    def _take_away(self, epoch: int) -> None:
        # By rename, so that the holder sees it whole or not at all; then for good.
        away = self._folder / f".gone-{epoch:06d}-{secrets.token_hex(8)}"
        with contextlib.suppress(FileNotFoundError):
            self._path(epoch).rename(away)
            remove_tree(away)

    def _sweep(self, epoch: int) -> None:
        """End all older claims and remove what crashed claimants have left."""
        for older in self._epochs():
            if older < epoch:
                self._take_away(older)
        for path in self._folder.iterdir():
            left = path.name.startswith(".new-") and _abandoned(path)
            if left or path.name.startswith(".gone-"):
                remove_tree(path)


def _abandoned(path: Path) -> bool:
    try:
        return time.time() - path.stat().st_mtime > _ABANDONED_S
    except OSError:
        return False
