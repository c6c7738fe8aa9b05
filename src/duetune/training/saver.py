"""When the leader saves, and that a save that fails costs a warning, not the training.

The state is copied at a step's end and written beside the next steps. How often follows from how
long a save takes and how often nodes are lost (Young and Daly).
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

# After a failed save: soon enough to matter, seldom enough not to fill the log.
_RETRY_S = 15.0
_TOUCH_S = 0.2


class Saver:
    """``every_s`` is the user's own interval. ``alone``: there is no group to say who leads.
    ``touch`` is called while waiting.
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
        self._writing: threading.Thread | None = None
        self._leads = False
        self._claimed = False
        self._confirmed = False
        self._save_s = 0.0
        self._failed_at: float | None = None
        self._last = time.monotonic()
        self.saved_step = saved_step
        self.warning = ""

    def lead(self, *, leads: bool) -> None:
        """Called whenever the group has formed: the quorum's word on who may save."""
        if leads and not self._leads:
            # At once, so that a former leader that wakes up late finds itself replaced.
            self._start(self._claim)
            self._last = time.monotonic()
        self._leads = self._confirmed = leads
        if not leads:
            self._claimed = False

    def save_if_due(self, state: State) -> None:
        """Between two steps: copy the state and let it be written, if it is time to."""
        if not self._confirmed or self._busy() or state.step <= self.saved_step or not self._due():
            return
        self._begin(state)

    def save_now(self, state: State) -> None:
        """The last chance: write what is not yet written, and wait for it."""
        self.wait()
        if self._confirmed and state.step > self.saved_step:
            self._begin(state)
            self.wait()

    def wait(self) -> None:
        """Until nothing is being written."""
        while self._writing is not None and self._writing.is_alive():
            self._touch()
            self._writing.join(_TOUCH_S)

    def _due(self) -> bool:
        now = time.monotonic()
        if self._failed_at is not None:
            return now - self._failed_at >= _RETRY_S
        mean = read_hazard(self._hazard_file)
        return now - self._last >= checkpoint_interval(self._save_s, mean, every=self._every_s)

    def _busy(self) -> bool:
        return self._writing is not None and self._writing.is_alive()

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
        try:
            self._store.claim(alone=self._alone)
            self._claimed = True
            found = self._store.latest()
        except (OSError, StaleEpoch) as error:
            _log.warning("may not save yet: %s", error)
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
            # Somebody else leads by now. If the next quorum says otherwise, claim again.
            self._claimed = self._confirmed = False
            _log.warning("step %d is not saved: %s", step, error)
        except OSError as error:
            self._failed_at = time.monotonic()
            self.warning = f"step {step} could not be saved: {error}"
            _log.warning("%s; training goes on", self.warning)
        else:
            self._save_s = time.monotonic() - began
            self._last = time.monotonic()
            self._failed_at = None
            self.saved_step = step
            self.warning = ""
