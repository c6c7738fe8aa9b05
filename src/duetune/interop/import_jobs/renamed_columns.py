"""Rows of LLaMA-Factory whose columns or tags were renamed in ``dataset_info.json``, as messages.

Rows with the usual names need no conversion: ``duetune.training.dataset_rows`` reads them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from duetune.errors import InvalidInput
from duetune.training.records import read_records

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

ALPACA, SHAREGPT = "alpaca", "sharegpt"
_COLUMNS = {
    ALPACA: {
        "prompt": "instruction",
        "query": "input",
        "response": "output",
        "system": "system",
        "history": "history",
    },
    SHAREGPT: {"messages": "conversations", "system": "system"},
}
_TAGS = {
    "role_tag": "from",
    "content_tag": "value",
    "user_tag": "human",
    "assistant_tag": "gpt",
    "system_tag": "system",
}
_OPENAI = {
    "role_tag": "role",
    "content_tag": "content",
    "user_tag": "user",
    "assistant_tag": "assistant",
    "system_tag": "system",
}


class RenamedColumns(msgspec.Struct, frozen=True):
    """The names of an entry of ``dataset_info.json``; those that it does not give are usual."""

    formatting: str = ALPACA
    columns: dict[str, str] = {}
    tags: dict[str, str] = {}

    @property
    def usual(self) -> bool:
        """Return whether the trainer reads the rows as they are."""
        if not self.convertible:
            return False
        names, tags = self._names(), self._all_tags()
        if self.formatting == ALPACA:
            return names == _COLUMNS[ALPACA] and "history" not in self.columns
        if names["system"] != "system":
            return False
        given = (names["messages"], tags)
        return given in (("conversations", _TAGS), ("messages", _OPENAI))

    @property
    def convertible(self) -> bool:
        """Return whether ``messages`` can read the rows."""
        return (
            self.formatting in _COLUMNS
            and self.columns.keys() <= _COLUMNS[self.formatting].keys()
            and self.tags.keys() <= _TAGS.keys()
        )

    def messages(self, place: Path) -> Iterator[bytes]:
        """Yield every row of a file as a line of JSON with ``messages``; an import calls it."""
        names = self._names()
        for record in read_records(place):
            if not isinstance(record.content, dict):
                raise InvalidInput(record.where, record.content, "an object")
            row = {role: record.content.get(column) for role, column in names.items()}
            turns = self._instruction(row) if self.formatting == ALPACA else self._turns(row)
            if not turns:
                allowed = f"an object with {', '.join(names.values())}"
                raise InvalidInput(record.where, record.content, allowed)
            if row["system"]:
                turns.insert(0, ("system", row["system"]))
            messages = [{"role": role, "content": content} for role, content in turns]
            yield msgspec.json.encode({"messages": messages}) + b"\n"

    def _instruction(self, row: dict[str, object]) -> list[tuple[str, object]]:
        if not (row["prompt"] and row["response"]):
            return []
        turns: list[tuple[str, object]] = []
        history = row["history"] if "history" in self.columns else None
        for pair in history if isinstance(history, list) else ():
            if not isinstance(pair, list) or len(pair) != 2:
                return []
            turns += zip(("user", "assistant"), pair, strict=True)
        query = f"{row['prompt']}\n{row['query']}" if row["query"] else row["prompt"]
        return [*turns, ("user", query), ("assistant", row["response"])]

    def _turns(self, row: dict[str, object]) -> list[tuple[str, object]]:
        tags = self._all_tags()
        roles = {tags[f"{role}_tag"]: role for role in ("user", "assistant", "system")}
        turns = row["messages"] if isinstance(row["messages"], list) else []
        found = [
            (str(turn.get(tags["role_tag"])), turn.get(tags["content_tag"]))
            for turn in turns
            if isinstance(turn, dict)
        ]
        return [(roles.get(role, role), content) for role, content in found]

    def _names(self) -> dict[str, str]:
        return _COLUMNS[self.formatting] | self.columns

    def _all_tags(self) -> dict[str, str]:
        return _TAGS | self.tags
