"""Decides when the leader saves a checkpoint, and writes it in a background thread.

The state is copied at the end of a step and written during the next steps. The interval follows
from the duration of a save and the loss rate of nodes (``hazard``). A failed save causes a warning
and training continues. The files are written by ``checkpoint``.
"""

from __future__ import annotations

import logging
import threading
import time
from typing import TYPE_CHECKING

from duetune.training.checkpoint import StaleEpoch
from duetune.training.hazard import checkpoint_interval, read_hazard

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    import torch

    from duetune.training.checkpoint import CheckpointStore, Json
    from duetune.training.transfer import State

_log = logging.getLogger(__name__)

# Seconds until the next attempt after a failed save; more often would fill the log.
_RETRY_S = 15.0
_TOUCH_S = 0.2


class Saver:
    """Saves the state of one member while it leads the group.

    - ``every_s``: the user's own interval in seconds, if any.
    - ``alone``: there is no group that names a leader.
    - ``saved_step``: the step of the newest checkpoint.
    - ``touch``: called while waiting.
    - ``warning``: why the last save failed; "" if it succeeded.
    - ``superseded``: a later launch has taken over from this process, which works alone.
    """

    def __init__(
        self,
        store: CheckpointStore,
        hazard_file: Path,
        *,
        every_s: float | None,
        alone: bool,
        saved_step: int,
        touch: Callable[[], None],
    ) -> None:
        self._store = store
        self._hazard_file = hazard_file
        self._every_s = every_s
        self._alone = alone
        self._touch = touch
        self._writing = threading.Thread()
        self._leads = False
        self._claimed = False
        self._confirmed = False
        self._save_s = 0.0
        self._failed_at: float | None = None
        self._last = time.monotonic()
        self.saved_step = saved_step
        self.warning = ""
        self.superseded = False

    def lead(self, *, leads: bool) -> None:
        """Set whether this member may save. Called whenever the group has formed."""
        if leads and not self._leads:
            # Claim at once, so that a former leader that wakes up later can save nothing.
            self._start(self._claim)
            self._last = time.monotonic()
        self._leads = self._confirmed = leads
        if not leads:
            self._claimed = False

    def save_if_due(self, state: State, *, asked: bool = False) -> None:
        """Copy the state and start writing it if a save is due or ``asked`` for.

        Called between two steps.
        """
        idle = self._confirmed and not self._writing.is_alive()
        if idle and state.step > self.saved_step and (asked or self._due()):
            self._begin(state)

    def pin(self, *steps: int) -> None:
        """Keep the checkpoints of these steps until the next call; step 0 stands for none."""
        self._store.pinned = frozenset(steps) - {0}

    def save_best(self, state: State, touch: Callable[[], None]) -> None:
        """Start to save the current step if it is not saved; ``wait`` waits until it is."""
        self.wait(touch)
        if self._confirmed and state.step > self.saved_step:
            self._begin(state)

    def save_now(self, state: State) -> None:
        """Save the current step unless it is saved, and wait for it. Called at the end."""
        self.wait()
        if self._confirmed and state.step > self.saved_step:
            self._begin(state)
            self.wait()

    def wait(self, touch: Callable[[], None] | None = None) -> None:
        """Wait until no save is running; ``touch`` is called meanwhile, in place of the usual."""
        while self._writing.is_alive():
            (touch or self._touch)()
            self._writing.join(_TOUCH_S)

    def _due(self) -> bool:
        now = time.monotonic()
        if self._failed_at is not None:
            return now - self._failed_at >= _RETRY_S
        mean = read_hazard(self._hazard_file)
        return now - self._last >= checkpoint_interval(self._save_s, mean, every=self._every_s)

    def _begin(self, state: State) -> None:
        with state.lock:
            step, document = state.step, state.document()
            arrays = {
                name: array.detach().to("cpu", copy=True) for name, array in state.arrays().items()
            }
        self._start(lambda: self._write(step, arrays, document))

    def _start(self, work: Callable[[], None]) -> None:
        self.wait()
        self._writing = threading.Thread(target=work, name="saver", daemon=True)
        self._writing.start()

    def _claim(self) -> None:
        """Become the only writer and look up the newest checkpoint; runs in a thread."""
        try:
            self._store.claim(alone=self._alone)
            self._claimed = True
            found = self._store.latest()
        except (OSError, StaleEpoch) as error:
            _log.warning("cannot save checkpoints yet: %s", error)
            self.superseded = self._alone and isinstance(error, StaleEpoch)
        else:
            if found is not None:
                self.saved_step = max(self.saved_step, found.step)

    def _write(self, step: int, arrays: dict[str, torch.Tensor], document: dict[str, Json]) -> None:
        began = time.monotonic()
        try:
            if not self._claimed:
                self._store.claim(alone=self._alone)
                self._claimed = True
            self._store.save(step, arrays, document)
        except StaleEpoch as error:
            # Another member leads now. Claim again only if the next quorum names this one.
            self._claimed = self._confirmed = False
            self.superseded = self._alone
            _log.warning("step %d was not saved: %s", step, error)
        except OSError as error:
            self._failed_at = time.monotonic()
            self.warning = f"step {step} could not be saved: {error}"
            _log.warning("%s; training continues", self.warning)
        else:
            self._save_s = time.monotonic() - began
            self._last = time.monotonic()
            self._failed_at = None
            self.saved_step = step
            self.warning = ""
