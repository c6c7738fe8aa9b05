"""What the page says about each experiment."""

from __future__ import annotations


def _text(lines: str) -> str:
    return " ".join(lines.split())


E1 = _text("""
Fastest over slowest valid configuration, among those that share all that is not free. The poster:
10.53x with four parameters, 40x over its whole space. The specification found a median of 8.3x
and at most 130x on IBM's rows, 8.1x and 31x within a GPU type.
""")

E2 = _text("""
A row counts as wrong if the probability to fit is on the wrong side of one half. All columns
after the third are of the rows that break no rule: the rest is trivial. `false valid`: of the
rows that do not fit, those said to; `false invalid` the reverse; `wrong at 0.8`: of the rows that
a scheduler would accept, those that do not fit. All answers of a kind of split are pooled.
`sample` is the 171 rows of LLMFineTuningBench; whoever learns from the rest of it also learns from
IBM's throughput table and the fms-acceleration benches, less any model that the split holds out.
It is a cluster sample of neighbouring rows, so random splits flatter everybody: the grouped ones
are the ones to judge by. `in-sample` predictors were trained on these very rows by their authors;
`refit` ones by their own code on the same rows as we are. 34 test rows in a split mean that one
row is 3%: the five folds judge every row equally often.
""")

E3 = _text("""
Errors of tokens/s. `refit` peers were trained by their own code on the same rows as we are, and
judged on the same held-out rows. `in-sample` peers are as their package ships them: the table is
the training part of Coastline's own split, so its shipped models have been fitted to every row
here, and Kavier's calibration to most of the same measurements. Random splits leave neighbours of
a factorial sweep on both sides; the grouped splits do not. On all rows duetune learns from all
(`no quarantine`), since rows are judged that its quarantine would keep out; with the quarantine,
as it comes, it declines to learn them, and its error on all rows says so.
""")

E4 = _text("""
15% of the rows are held out, the same for every strategy; the rest is the pool to choose from.
Active: first 25 of a Latin hypercube, then 25 at a time by the measure that `duetune profile` has
of what a run teaches (the width of its interval), divided by the root of what it costs, and spread
out. The root was chosen on IBM's table, among a quarter, a half, three quarters and one; all but
the last do about as well. A run costs three minutes on each of its GPUs, or what it took where we
measured it. Means over the repeats. Random choice of few runs is noisy: two neighbouring sizes
differ by a point or two by chance.
""")

E5 = _text("""
MAPE in % with 0 / 5 / 10 / 20 probes of it, drawn at random and the same for everybody; judged on
the rows that are never a probe. Means over the repeats. A single row can move these: groups are
small.
""")

E6 = _text("""
A cell is all measured configurations of one (model, method, sequence length), if there are eight
or more. Each source learns from a random half of the table and completes one job for each cell,
the fastest being best; it may choose among all measured configurations of the cell, or only among
those it has not seen. Regret is 1 - chosen / best tokens/s. All rows of IBM's table are valid, so
only tables with runs that failed can show an invalid choice. Undecided: no candidate was likely
enough (0.8) to fit.
""")

INTERVALS = _text("""
Seven folds, so that 14% are held out at a time, every row as often as every other. A GPU type
with few rows has a coarse figure whatever the number of splits: 20 rows can only say 85, 90 or
95%.
""")

STREAM = _text("""
The hybrid source begins with no history at all. Runs come in random order; it predicts the next
25, then `observe` gives it what they were.
""")

PEERS = _text("""
Kavier 0.5.3, coastline-recommender 0.3.0 and ado-autoconf 2.1.2 from PyPI, each in an environment
of its own; coastline brings ado-autoconf 1.9.7, whose wheel holds the classifier v3.1.
ado-autoconf 2.1.2 ships no model: it is trained here by its own functions and presets.
""")
