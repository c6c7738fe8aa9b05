"""Tables for notebooks, which the ``_repr_html_`` of results is made of, and curves as text."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

_BLOCKS = "▁▂▃▄▅▆▇█"


def html_table(header: Sequence[str], rows: Iterable[Sequence[object]], title: str = "") -> str:
    """Return an HTML table; every cell is escaped."""
    caption = f"<caption>{escape(title)}</caption>" if title else ""
    head = "".join(f"<th>{escape(name)}</th>" for name in header)
    body = "".join(
        f"<tr>{''.join(f'<td>{escape(str(cell))}</td>' for cell in row)}</tr>" for row in rows
    )
    return f"<table>{caption}<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def html_fields(fields: Mapping[str, object], title: str = "") -> str:
    """Return a table of two columns, a name and its value in each row."""
    return html_table(("", ""), fields.items(), title)


def sparkline(values: Sequence[float]) -> str:
    """Return a curve as one line of text; empty if there are fewer than two values."""
    if len(values) < 2:
        return ""
    low, span = min(values), max(values) - min(values)
    top = len(_BLOCKS) - 1
    return "".join(_BLOCKS[round((value - low) / span * top) if span else 0] for value in values)
