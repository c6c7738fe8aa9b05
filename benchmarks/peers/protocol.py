"""What every adapter does: read a request of the benchmark, answer it, time itself.

Adapters run in the environment of their peer, so they import nothing of duetune. A request has
``rows`` (configurations with the columns of IBM's tables and, where measured, what came out) and
``splits`` (for each, the indices to train on). The answer has, for every model by name, predictions
of all rows as the package ships it (``shipped``), and of all rows after training on each split
(``refit``); ``unavailable`` says what could not be run and why.
"""

from __future__ import annotations

import json
import sys
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable


class Answer:
    def __init__(self) -> None:
        self.content: dict[str, dict[str, object]] = {
            "shipped": {},
            "refit": {},
            "unavailable": {},
            "seconds_per_point": {},
            "seconds_to_load": {},
            "seconds_to_fit": {},
        }

    def add(self, part: str, name: str, value: object) -> None:
        self.content[part][name] = value

    def timed(self, name: str, predict: Callable[[], list[float | None]], repeat: int = 1) -> None:
        """Predict as shipped; seconds per point are the best of ``repeat`` rounds."""
        best = float("inf")
        for _ in range(repeat):
            began = time.perf_counter()
            predicted = predict()
            best = min(best, time.perf_counter() - began)
        self.add("shipped", name, predicted)
        self.add("seconds_per_point", name, best / max(1, len(predicted)))


def request() -> dict[str, list[dict[str, object]]]:
    with open(sys.argv[1], encoding="utf-8") as file:  # noqa: PTH123 - two lines without pathlib
        return json.load(file)


def reply(answer: Answer) -> None:
    with open(sys.argv[2], "w", encoding="utf-8") as file:  # noqa: PTH123
        json.dump(answer.content, file)


def reason(error: Exception) -> str:
    """Its first sentence: the rest is about this machine."""
    said = str(error).strip().splitlines() or [type(error).__name__]
    return said[0].split(". ")[0][:200]
