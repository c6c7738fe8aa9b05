"""Figures for the command line, the benchmarks and notebooks.

Each function returns a new matplotlib figure; ``save_figure`` writes it to a file. The figures of
clusters, forecasts and markets are in their own modules here. Matplotlib is optional (``pip install
'duetune[plot]'``) and is imported when the first figure is made.
"""

from duetune.plots.job_figures import allocation_figure, timeline_figure
from duetune.plots.policy_figures import (
    draw_regret,
    draw_weights,
    policies_figure,
    regret_figure,
    selection_figure,
    weights_figure,
)
from duetune.plots.style import (
    checked_plot,
    house_style,
    new_figure,
    require_matplotlib,
    save_figure,
    styled_axes,
)
from duetune.plots.training_figures import loss_figure

__all__ = [
    "allocation_figure",
    "checked_plot",
    "draw_regret",
    "draw_weights",
    "house_style",
    "loss_figure",
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
