"""What every benchmark does with its figures: a table on screen, a page in docs, a JSON line."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

RESULTS = Path(__file__).resolve().parent.parent / "docs" / "results"


def arguments(description: str) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--quick", action="store_true", help="a smaller version, for a first look")
    parser.add_argument("--seed", type=int, default=2026)
    parser.add_argument("--no-write", action="store_true", help="print only, leave docs/ alone")
    return parser


def markdown_table(header: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """A table that reads well as text and renders as Markdown; numbers to the right."""
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


def publish(page: str, title: str, command: str, parts: Sequence[str], *, write: bool) -> None:
    """Print the parts and, unless it is only a look, write them to ``docs/results``."""
    print("\n\n".join(parts))
    if write:
        RESULTS.mkdir(parents=True, exist_ok=True)
        text = "\n\n".join([f"# {title}", f"Made by `{command}`.", *parts])
        (RESULTS / page).write_text(text + "\n", encoding="utf-8")


def finish(figures: dict[str, object]) -> None:
    """The last line of every benchmark."""
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
