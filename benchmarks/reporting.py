"""What every benchmark does with its figures: print tables, write a page, end with a JSON line.

A page in ``docs/results`` is short: the question, the command, the main tables, the pictures and
the findings. Long tables go to a second page, ``NAME-details.md``.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING

from duetune.plots.style import save_figure

if TYPE_CHECKING:
    from collections.abc import Sequence

    from matplotlib.figure import Figure

RESULTS = Path(__file__).resolve().parent.parent / "docs" / "results"


def arguments(description: str) -> argparse.ArgumentParser:
    """Return a parser with the options that all benchmarks share."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--quick", action="store_true", help="a smaller version, for a first look")
    parser.add_argument("--seed", type=int, default=2026)
    parser.add_argument("--no-write", action="store_true", help="print only, leave docs/ alone")
    return parser


def markdown_table(header: str | Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """Return a table that reads well as text and renders as Markdown, numbers to the right.

    A header in one string is separated by `` | ``.
    """
    header = header.split(" | ") if isinstance(header, str) else header
    cells = [[_cell(value) for value in row] for row in rows]
    widths = [
        max(len(line[place]) for line in [list(header), *cells]) for place in range(len(header))
    ]
    numeric = [
        all(isinstance(row[place], int | float) for row in rows) and bool(rows)
        for place in range(len(header))
    ]
    lines = [_line(header, widths, numeric)]
    marks = [
        "-" * (width - 1) + (":" if right else "-")
        for width, right in zip(widths, numeric, strict=True)
    ]
    lines.append("| " + " | ".join(marks) + " |")
    lines += [_line(row, widths, numeric) for row in cells]
    return "\n".join(lines)


def section(
    heading: str, text: str, header: str | Sequence[str], rows: Sequence[Sequence[object]]
) -> list[str]:
    """Return the parts of a section with one table, or none if it has no rows."""
    return [heading, text, markdown_table(header, rows)] if rows else []


def low_to_high(values: Sequence[float], form: str) -> str:
    """Return the range of values as text, or one value if both ends read the same."""
    low, high = format(min(values), form), format(max(values), form)
    return low if low == high else f"{low} to {high}"


def rounded(value: float | None) -> float | None:
    """Return a figure for the JSON line, with four digits."""
    return None if value is None else round(value, 4)


def save_pictures(pictures: dict[str, Figure]) -> list[str]:
    """Write pictures to ``docs/results`` and return the names of their files."""
    RESULTS.mkdir(parents=True, exist_ok=True)
    for name, figure in pictures.items():
        save_figure(figure, RESULTS / name)
    return list(pictures)


def bullets(lines: Sequence[str]) -> str:
    """Return a Markdown list."""
    return "\n".join(f"- {line}" for line in lines)


def publish(
    name: str,
    title: str,
    question: str,
    parts: Sequence[str],
    *,
    write: bool,
    details: Sequence[str] = (),
) -> None:
    """Print the parts and, if ``write``, write them to ``docs/results/NAME.md``.

    ``details`` are long tables with their headings. They become ``NAME-details.md``.
    """
    print("\n\n".join([question, *parts, *details]))
    if not write:
        return
    RESULTS.mkdir(parents=True, exist_ok=True)
    command = f"Made by `python benchmarks/{name.replace('-', '_')}.py`."
    more = f" All tables are in the [details]({name}-details.md)." if details else ""
    pages = {name: [f"# {title}", question, command + more, *parts]}
    if details:
        back = f"The long tables of [{title.lower()}]({name}.md). {command}"
        pages[f"{name}-details"] = [f"# {title}: details", back, *details]
    for page, text in pages.items():
        (RESULTS / f"{page}.md").write_text("\n\n".join(text) + "\n", encoding="utf-8")


def finish(figures: dict[str, object]) -> None:
    """Print the figures as one JSON line, the last line of every benchmark."""
    print(json.dumps(figures), flush=True)


def _cell(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.3g}" if abs(value) < 1 else f"{value:,.2f}"
    if isinstance(value, int):
        return f"{value:,}"
    return str(value)


def _line(cells: Sequence[str], widths: Sequence[int], numeric: Sequence[bool]) -> str:
    padded = [
        cell.rjust(width) if right else cell.ljust(width)
        for cell, width, right in zip(cells, widths, numeric, strict=True)
    ]
    return "| " + " | ".join(padded) + " |"
