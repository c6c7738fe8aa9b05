"""The common style of all figures: colour-blind safe colours, no ornament, no global state."""

from __future__ import annotations

import contextlib
import importlib.util
from typing import TYPE_CHECKING, Final

from duetune.errors import MissingExtra
from duetune.files import checked_target, whole_file

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure
    from matplotlib.typing import RcKeyType

# Okabe and Ito, "Color Universal Design" (2008).
BLUE: Final = "#0072B2"
ORANGE: Final = "#E69F00"
GREEN: Final = "#009E73"
RED: Final = "#D55E00"
SKY: Final = "#56B4E9"
PINK: Final = "#CC79A7"
YELLOW: Final = "#F0E442"
INK: Final = "#222222"
GREY: Final = "#8C8C8C"
PALE: Final = "#D9D9D9"

SPOT, ON_DEMAND = BLUE, ORANGE
FORMATS = (".png", ".svg", ".pdf")
DOTS_PER_INCH = 120

_STYLE: dict[RcKeyType, object] = {
    "font.family": "DejaVu Sans",
    "font.size": 11.0,
    "axes.titlesize": 13.0,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.titlepad": 10.0,
    "axes.labelsize": 11.0,
    "axes.labelcolor": INK,
    "axes.edgecolor": GREY,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "axes.grid": True,
    "grid.color": PALE,
    "grid.linewidth": 0.7,
    "text.color": INK,
    "xtick.color": INK,
    "ytick.color": INK,
    "legend.frameon": False,
    "legend.borderaxespad": 0.8,
    "legend.fontsize": 10.0,
    "lines.linewidth": 1.8,
    "svg.hashsalt": "duetune",
}


def require_matplotlib() -> None:
    """Raise ``MissingExtra`` without matplotlib; called before long work that ends in a figure."""
    if importlib.util.find_spec("matplotlib") is None:
        raise MissingExtra("a plot", "plot")


def checked_plot(path: Path | str, field: str = "plot") -> Path:
    """Return ``path`` after checking that a figure can be drawn and written there."""
    target = checked_target(path, field, FORMATS)
    require_matplotlib()
    return target


@contextlib.contextmanager
def house_style() -> Iterator[None]:
    """Apply the common style to what is drawn inside; usable as a context or a decorator."""
    require_matplotlib()
    import matplotlib as mpl

    with mpl.rc_context(_STYLE):
        yield


def new_figure(width: float, height: float) -> Figure:
    """Return a new figure, with its size in inches; pyplot's shared state is not touched."""
    require_matplotlib()
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), dpi=DOTS_PER_INCH, layout="constrained")


def styled_axes(
    figure: Figure, rows: int = 1, *, heights: tuple[float, ...] = (1.0,), share_x: bool = False
) -> list[Axes]:
    """Return one column of axes, from top to bottom."""
    ratios = {"height_ratios": heights}
    grid = figure.subplots(rows, 1, sharex=share_x, squeeze=False, gridspec_kw=ratios)
    return [axes for row in grid for axes in row]


def save_figure(figure: Figure, path: Path | str) -> Path:
    """Write a figure in the format of its suffix and return the path.

    The file is written whole or not at all. The same figure gives the same bytes.
    """
    target = checked_plot(path)
    dateless = {".svg": {"Date": None}, ".pdf": {"CreationDate": None}}
    with whole_file(target, "plot") as part, house_style():
        figure.savefig(part, metadata=dateless.get(target.suffix.lower()), facecolor="white")
    return target


def plain(text: str) -> str:
    """Return text in which dollar signs are escaped; matplotlib takes a pair of them for
    mathematics.
    """
    return text.replace("$", r"\$")


def legend_beside(axes: Axes, *, reverse: bool = False) -> None:
    """Draw the legend to the right of the axes, where it covers nothing."""
    axes.legend(loc="center left", bbox_to_anchor=(1.0, 0.5), handlelength=1.6, reverse=reverse)


def whole_numbers(axis: Axis) -> None:
    """Put the ticks of an axis of counts at whole numbers only."""
    from matplotlib.ticker import MaxNLocator

    axis.set_major_locator(MaxNLocator(integer=True))


def note(axes: Axes, text: str) -> None:
    """Write a remark in the middle of axes that have nothing else to show."""
    box = {"facecolor": "white", "edgecolor": "none", "pad": 3.0}
    where = axes.transAxes
    axes.text(0.5, 0.5, text, transform=where, ha="center", va="center", color=INK, bbox=box)
