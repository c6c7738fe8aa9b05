"""Figures are drawn, legible and written whole; summaries add up."""

from __future__ import annotations

import contextlib
import importlib.util
import struct

import numpy as np
import pytest

from duetune import plots
from duetune.core.decision import Allocation
from duetune.core.job import Job, linear_throughput
from duetune.core.market import MarketTrace
from duetune.errors import InvalidInput, MissingExtra
from duetune.files import checked_target, whole_file
from duetune.market.forecast import ForecastSource
from duetune.plots.policy_figures import chosen_bars, family
from duetune.policies.baselines import MaximalSpot, OnDemandOnly
from duetune.policies.select import AdaHedge, run_selection
from duetune.policies.solve.dynamic import offline_optimum
from duetune.simulate.episode import simulate
from duetune.simulate.summary import Standing, dollars, replay, selection_summary, standings
from duetune.simulate.tournament import Tournament
from duetune.training.metrics import MetricRow

JOB = Job(work=20, deadline=6, value=60, throughput=linear_throughput(4))


@pytest.fixture(scope="module")
def trace():
    available = np.array([4, 4, 1, 0, 3, 4, 4, 4, 2, 4])
    return MarketTrace.single(np.linspace(0.3, 0.8, 10), available, 1.5, name="small")


@pytest.fixture(scope="module")
def outcome(trace):
    return simulate(JOB, trace, MaximalSpot(), ForecastSource())


def standing(policy, utility, **fields):
    usual = {"low": utility - 1, "high": utility + 1, "mean_cost": 1.0, "on_time": 1.0}
    return Standing(policy=policy, mean_utility=utility, spot_share=0.5, **(usual | fields))


def tournament(utility, policies, optimum=None):
    utility = np.array(utility, dtype=float)
    whole = np.ones(utility.shape, np.int64)
    return Tournament(
        policies=policies,
        utility=utility,
        cost=10 - utility,
        finished=np.where(utility > 0, 3, 0),
        slots=3 * whole,
        spot_slots=3 * whole,
        on_demand_slots=whole,
        deadline=np.full(len(utility), 5),
        optimum=None if optimum is None else np.array(optimum, dtype=float),
        upper_bound=None if optimum is None else np.array(optimum, dtype=float),
    )


@pytest.fixture(scope="module")
def run():
    utilities = np.random.default_rng(0).random((300, 9)) + np.arange(9) / 20
    return run_selection(utilities, AdaHedge(9), np.random.default_rng(1))


def width_of(path):
    head = path.read_bytes()[:24]
    assert head.startswith(b"\x89PNG")
    return struct.unpack(">I", head[16:20])[0]


def texts(figure):
    return " ".join(
        text.get_text() for axes in figure.axes for text in (*axes.texts, axes.title)
    ) + " ".join(axes.get_xlabel() + axes.get_ylabel() for axes in figure.axes)


class TestFigures:
    def test_an_allocation_shows_policy_money_and_time(self, outcome, trace, tmp_path):
        figure = plots.allocation_figure(outcome, JOB, trace)
        path = plots.save_figure(figure, tmp_path / "run.png")
        assert 1200 <= width_of(path) <= 1600
        assert len(figure.axes) == 3
        said = texts(figure)
        title = figure.axes[0].get_title(loc="left")
        assert "maximal_spot" in title
        assert f"cost \\{dollars(outcome.cost)}" in title
        assert f"utility \\{dollars(outcome.utility)}" in title
        assert "slot" in title
        for label in ("GPUs", "$/GPU-h", "Work done (%)", "slots of 30 min", "deadline"):
            assert label in said

    @pytest.mark.parametrize(
        ("fields", "words"),
        [
            ({"work": 18.0, "deadline": 4, "value": 500.0}, "late: slot 5, due in 4"),
            ({"work": 60.0, "value": 1.0}, "not finished"),
        ],
    )
    def test_a_run_that_is_late_or_never_done_says_so(self, trace, fields, words):
        known = {"work": 20.0, "deadline": 6, "value": 60.0}
        job = Job(throughput=linear_throughput(4), **(known | fields))
        figure = plots.allocation_figure(
            simulate(job, trace, OnDemandOnly(), ForecastSource()), job, trace
        )
        assert words in figure.axes[0].get_title(loc="left")

    def test_policies_stand_best_first_with_the_optimum_as_a_line(self, tmp_path):
        rows = [standing("on_demand", 5.0), standing("ahap:5:1:0.6:0.5", 9.0, low=8.0)]
        figure = plots.policies_figure(rows, optimum=10.0, jobs=50)
        labels = [label.get_text() for label in figure.axes[0].get_yticklabels()]
        assert labels == ["ahap:5:1:0.6:0.5", "on_demand"]
        assert "offline optimum" in texts(figure)
        assert width_of(plots.save_figure(figure, tmp_path / "policies.png")) == 1440

    def test_negative_utilities_can_be_drawn(self, tmp_path):
        figure = plots.policies_figure([standing("on_demand", -5.0)])
        assert figure.axes[0].get_xlim()[0] < -6
        plots.save_figure(figure, tmp_path / "loss.png")

    def test_selection_shows_the_heaviest_arms_and_states_the_slope(self, run, tmp_path):
        names = [f"policy-{arm}" for arm in range(9)]
        figure = plots.selection_figure(run, names, title="Weights")
        above, below = figure.axes
        legend = [text.get_text() for text in above.get_legend().get_texts()]
        assert "policy-8" in legend
        assert "other (3)" in legend
        assert any("slope" in text.get_text() for text in below.get_legend().get_texts())
        assert below.get_xscale() == below.get_yscale() == "log"
        assert width_of(plots.save_figure(figure, tmp_path / "select.png")) == 1440

    def test_weights_and_regret_can_be_drawn_alone(self, run, tmp_path):
        plots.save_figure(plots.weights_figure(run, list("abcdefghi")), tmp_path / "w.svg")
        plots.save_figure(plots.regret_figure(run, unit="share"), tmp_path / "r.pdf")

    def test_few_jobs_and_one_arm_can_be_drawn(self, tmp_path):
        run = run_selection(np.ones((2, 1)), AdaHedge(1), np.random.default_rng(0))
        plots.save_figure(plots.selection_figure(run, ["only"]), tmp_path / "one.png")

    def test_utilities_that_are_all_alike_have_no_slope(self, tmp_path):
        run = run_selection(np.ones((9, 2)), AdaHedge(2), np.random.default_rng(0))
        plots.save_figure(plots.regret_figure(run), tmp_path / "flat.png")
        played = tournament(np.ones((9, 2)), ("a", "b"))
        assert selection_summary(run, played).slope is None

    def test_the_style_does_not_leak(self, outcome, trace):
        import matplotlib as mpl  # noqa: PLC0415

        before = dict(mpl.rcParams)
        plots.allocation_figure(outcome, JOB, trace)
        assert dict(mpl.rcParams) == before

    def test_the_same_figure_gives_the_same_bytes(self, outcome, trace, tmp_path):
        for suffix in ("png", "svg"):
            pictures = [tmp_path / f"{name}.{suffix}" for name in "ab"]
            for path in pictures:
                plots.save_figure(plots.allocation_figure(outcome, JOB, trace), path)
            assert pictures[0].read_bytes() == pictures[1].read_bytes()

    def test_without_matplotlib_the_message_says_what_to_install(self, monkeypatch, tmp_path):
        monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
        with pytest.raises(MissingExtra, match=r"duetune\[plot\]"):
            plots.checked_plot(tmp_path / "a.png")
        with pytest.raises(MissingExtra):
            plots.new_figure(1, 1)


class TestFamilies:
    def test_parameters_do_not_make_a_family(self):
        assert family("ahap:5:1:0.6:0.5:refuse:virtual") == "ahap"
        assert family("guarded:ahanp:1e-05") == "guarded:ahanp"
        assert family("uniform_progress:gang") == "uniform_progress"
        assert family("on_demand") == "on_demand"

    def test_few_policies_are_all_shown(self):
        rows = [standing(f"p{number}", float(number)) for number in range(5)]
        assert [bar.label for bar in chosen_bars(rows)] == ["p4", "p3", "p2", "p1", "p0"]

    def test_of_many_the_best_median_and_worst_of_each_family(self):
        rows = [standing(f"ahap:{number}", float(number)) for number in range(101)]
        rows += [standing("on_demand", 200.0), standing("ahanp:0.3", 0.5)]
        bars = chosen_bars(rows)
        assert [bar.standing.policy for bar in bars] == [
            *("on_demand", "ahap:100", "ahap:50", "ahanp:0.3", "ahap:0")
        ]
        assert bars[1].label == "ahap:100\nbest of 101 ahap"


class TestFiles:
    def test_a_file_appears_whole_or_not_at_all(self, tmp_path):
        target = tmp_path / "table.csv"
        target.write_text("old")
        with contextlib.suppress(RuntimeError), whole_file(target, "--csv") as part:
            part.write_text("half")
            raise RuntimeError
        assert target.read_text() == "old"
        with whole_file(target, "--csv") as part:
            part.write_text("new")
        assert target.read_text() == "new"
        assert list(tmp_path.iterdir()) == [target]

    @pytest.mark.parametrize(
        ("name", "message"),
        [
            ("missing/a.png", "a folder that exists"),
            ("a.txt", "ends in .png"),
            ("folder.png", "this is a folder"),
            ("a.png/b.png", "a folder that exists"),
        ],
    )
    def test_what_cannot_be_written_is_refused_beforehand(self, tmp_path, name, message):
        (tmp_path / "folder.png").mkdir()
        (tmp_path / "a.png").write_text("")
        with pytest.raises(InvalidInput, match=message):
            checked_target(tmp_path / name, "--plot", (".png",))

    def test_a_folder_that_takes_no_files_is_refused(self):
        with pytest.raises(InvalidInput, match="can be written"):
            checked_target("/proc/a.png", "--plot", (".png",))


class TestSummaries:
    def test_standings_are_ranked_and_add_up(self):
        played = tournament(
            [[2.0, 4.0, -1.0], [4.0, 6.0, 3.0]], ("on_demand", "ahap", "bad"), [6.0, 8.0]
        )
        best, second, third = standings(played)
        assert [row.policy for row in (best, second, third)] == ["ahap", "on_demand", "bad"]
        assert best.mean_utility == 5
        assert best.fraction_of_optimum == pytest.approx(5 / 7)
        assert best.gap_closed == pytest.approx((5 - 3) / (7 - 3))
        assert second.gap_closed == 0
        assert third.on_time == 0.5
        assert best.spot_share == 0.75
        # Both jobs are exactly 2 below their optimum: nothing is uncertain about the distance.
        assert best.low == best.high == 5

    def test_without_optimum_or_baseline_nothing_is_claimed(self):
        alone = standings(tournament([[1.0]], ("ahap",)))[0]
        assert alone.fraction_of_optimum is None
        assert alone.gap_closed is None
        assert alone.low == alone.high == 1.0
        assert standings(tournament([[1.0]], ("ahap",), [2.0]))[0].gap_closed is None
        assert standings(tournament([[1.0]], ("ahap",), [0.0]))[0].fraction_of_optimum is None

    def test_the_replayed_optimum_is_the_optimum(self, trace):
        best = offline_optimum(JOB, trace.window(0, JOB.hard_deadline))
        run = replay(best, JOB, trace)
        assert run.utility == pytest.approx(best.utility)
        assert run.finished == best.finished
        assert tuple(entry.allocation for entry in run.entries) == best.plan

    def test_a_plan_to_do_nothing_can_be_replayed(self, trace):
        worthless = Job(work=20, deadline=6, value=0, throughput=linear_throughput(4))
        best = offline_optimum(worthless, trace.window(0, worthless.hard_deadline))
        run = replay(best, worthless, trace)
        assert run.cost == 0
        assert {entry.allocation for entry in run.entries} == {Allocation()}

    def test_a_selection_is_summed_up(self):
        utility = np.tile([1.0, 3.0, 2.0], (10, 1))
        run = run_selection(utility[:, :2], AdaHedge(2), np.random.default_rng(0))
        summary = selection_summary(run, tournament(utility, ("a", "b", "on_demand")))
        assert summary.best_fixed.name == "b"
        assert summary.best_fixed.mean_utility == 3
        assert [row.name for row in summary.baselines] == ["on_demand"]
        assert summary.selected.late_utility == 3
        assert summary.regret == pytest.approx(10 * (3 - summary.expected_utility))
        assert summary.regret <= summary.bound
        assert summary.weights[0].policy == "b"

    def test_dollars_are_written_as_people_write_them(self):
        amounts = (0, 1.5, -2, 1234.567, -0.001)
        words = ["$0.00", "$1.50", "-$2.00", "$1,234.57", "$0.00"]
        assert [dollars(amount) for amount in amounts] == words


def test_losses_are_drawn_from_the_metrics(tmp_path):
    rows = [
        MetricRow(
            step=step,
            loss=2 / step,
            members=1 + step // 50,
            tokens_per_s=1000.0 if step > 1 else None,
            eval_loss=2.1 / step if step % 20 == 0 else None,
        )
        for step in range(1, 101)
    ]
    figure = plots.loss_figure("tune", rows)
    losses, speed, _ = figure.axes
    assert losses.get_title(loc="left") == "tune — step 100, loss 0.020, evaluation loss 0.021"
    (measured,) = (line for line in losses.lines if line.get_label() == "evaluation loss")
    assert list(measured.get_xdata()) == [20, 40, 60, 80, 100]
    assert speed.get_xlim() == (0, 100)
    assert plots.save_figure(figure, tmp_path / "loss.png").stat().st_size > 1000
    # One loss, no loss: there is something to see at any time.
    plots.save_figure(plots.loss_figure("tune", rows[:1]), tmp_path / "one.png")
    plots.save_figure(plots.loss_figure("tune", []), tmp_path / "none.png")
