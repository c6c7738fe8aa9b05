"""Tables for notebooks: what the ``_repr_html_`` of results is made of."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence


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
