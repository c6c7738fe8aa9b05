"""Figures, for the command line, the benchmarks and notebooks.

Each function returns a matplotlib figure of its own; ``save_figure`` writes it. Matplotlib is an
optional part (``pip install 'duetune[plot]'``) and is imported when the first figure is made.
"""

from duetune.plots.allocation import allocation_figure
from duetune.plots.learning_curves import (
    draw_regret,
    draw_weights,
    regret_figure,
    selection_figure,
    weights_figure,
)
from duetune.plots.policy_bars import policies_figure
from duetune.plots.style import (
    checked_plot,
    house_style,
    new_figure,
    require_matplotlib,
    save_figure,
    styled_axes,
)
from duetune.plots.timeline import timeline_figure

__all__ = [
    "allocation_figure",
    "checked_plot",
    "draw_regret",
    "draw_weights",
    "house_style",
    "new_figure",
    "policies_figure",
    "regret_figure",
    "require_matplotlib",
    "save_figure",
    "selection_figure",
    "styled_axes",
    "timeline_figure",
    "weights_figure",
]
