"""Ensures that only one process at a time publishes checkpoints, without locks.

A writer *claims* a new epoch, greater than every epoch claimed or published before. The claim is a
folder ``writers/<epoch>/``. Inside it is the only folder (the *place*) in which the writer prepares
checkpoints. Publishing is a rename out of that place. A new claim first appears, then removes the
folders of all older claims. This has four consequences:

1. *Claims are unique and grow.* A claim folder is made under a temporary name and renamed with its
   content. A rename onto a folder with content fails, so only one of two claimants gets a number.
   A claimant then checks again and gives up its number if a greater one has appeared. The greatest
   claim is never removed. So a removed number always has a greater one beside it, and cannot be
   held again.
2. *After ``claim`` has returned, no older writer publishes anything.* Its place is gone, so its
   rename fails and it gets ``StaleEpoch``. The file system decides which of the two renames comes
   first, so no outdated check is involved. If a removed number is claimed again, its place has
   another name, so the old writer cannot use it.
3. *If an old writer publishes nevertheless* (a network file system with an outdated cache), its
   checkpoint has the lower epoch. Readers take the greatest epoch first, so they never read it
   once the new writer has published. Until then it is a whole earlier state of this job, and
   continuing from it is correct.
4. *A crash at any point* leaves at most an unused claim or a folder with a temporary name. The next
   claim removes both.

A process that works alone (``alone``) has no quorum that names a leader. There the launch number
decides: a process may not claim after a later launch has. In a group the quorum decides, and any
member may lead. A member that was superseded claims again only after the quorum has confirmed it
as the leader.
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
from duetune.files import PRIVATE_FOLDER, make_folder, remove_tree, sync_folder

_CLAIM = re.compile(r"\d{6,15}")
_PLACE = re.compile(r"launch-(\d{6,15})\.[0-9a-f]+-[0-9a-f]{16}")
_TAKEN = frozenset({errno.ENOTEMPTY, errno.EEXIST})
_ABANDONED_S = 600.0


class StaleEpoch(DuetuneError):
    """Another process now writes this job's checkpoints; this one must publish nothing more."""

    code = "stale_epoch"
    exit_code = 4

    def __init__(self, epoch: int, newest: int) -> None:
        self.epoch = epoch
        self.newest = newest
        super().__init__(
            f"epoch {epoch} may no longer write checkpoints; epoch {newest} has taken over"
        )


class Claim(msgspec.Struct, frozen=True):
    """The right to publish as ``epoch``; ``place`` is the folder to prepare checkpoints in."""

    epoch: int
    place: Path


class Fence:
    """The claims on the checkpoints in ``folder``, for a process of launch ``launch``."""

    def __init__(self, folder: Path, launch: int) -> None:
        self._folder = folder / "writers"
        self._launch = launch

    def claim(self, *, published: int, alone: bool) -> Claim:
        """Claim an epoch above all claimed ones and ``published``; older claims end."""
        make_folder(self._folder)
        while True:
            newest = max(self._epochs(), default=0)
            launch = self._launch_of(newest)
            if alone and launch > self._launch:
                raise StaleEpoch(self._launch, launch)
            epoch = max(newest, published, self._launch - 1) + 1
            # The name records the greatest launch so far, even if an older launch leads.
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
        """Raise ``StaleEpoch`` if the claim has ended."""
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
        """Make the claim folder and return its place; None if another has the number now."""
        token = f"{os.getpid():x}-{secrets.token_hex(8)}"
        fresh = self._folder / f".new-{token}"
        place = f"launch-{launch:06d}.{token}"
        fresh.mkdir(mode=PRIVATE_FOLDER)
        try:
            (fresh / place).mkdir(mode=PRIVATE_FOLDER)
            sync_folder(fresh)
            fresh.rename(self._path(epoch))
        except FileNotFoundError:
            return None  # Another claimant removed it, because this process was suspended.
        except OSError as error:
            with contextlib.suppress(OSError):
                remove_tree(fresh)
            if error.errno in _TAKEN:
                return None
            raise
        return self._path(epoch) / place

    def _take_away(self, epoch: int) -> None:
        # Rename it first, so that its holder sees all of it or nothing.
        away = self._folder / f".gone-{epoch:06d}-{secrets.token_hex(8)}"
        with contextlib.suppress(FileNotFoundError):
            self._path(epoch).rename(away)
            remove_tree(away)

    def _sweep(self, epoch: int) -> None:
        """End all older claims and remove the leftovers of crashed claimants."""
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
