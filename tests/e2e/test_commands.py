"""Each command through its whole stack: what it prints, writes and refuses."""

from __future__ import annotations

import csv
import json
from datetime import UTC, datetime, timedelta

import numpy as np
import pytest

from duetune.cli import app as program
from duetune.cli import main, options, select, simulate, tournament
from duetune.core.job import Job, linear_throughput
from duetune.registry.policies import GROUPS, POLICIES, SELECTORS


@pytest.fixture(autouse=True)
def _plain_terminal(monkeypatch, tmp_path):
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.delenv("DUETUNE_DEBUG", raising=False)
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def duetune(capsys):
    """Runs the program; gives its status, standard output and standard error."""

    def call(*arguments):
        status = main(arguments)
        captured = capsys.readouterr()
        return status, captured.out, captured.err

    return call


@pytest.fixture
def document(duetune):
    def call(*arguments):
        status, out, err = duetune(*arguments, "--json")
        assert status == 0, err
        return json.loads(out)

    return call


@pytest.fixture
def refused(duetune):
    """Runs what must be refused; gives the one line that says why."""

    def call(*arguments, status=2):
        found, out, err = duetune(*arguments)
        assert found == status, err
        assert out == ""
        assert err.startswith("duetune: ")
        assert err.count("\n") == 1
        return err

    return call


def write_trace(path, *, rows=120, start=datetime(2026, 1, 1, tzinfo=UTC), spot=None):
    spot = np.full(rows, 0.9) if spot is None else spot
    with path.open("w") as file:
        file.write("time,spot_usd_gpu_h,on_demand_usd_gpu_h,available\n")
        for slot in range(rows):
            moment = (start + timedelta(minutes=30 * slot)).isoformat()
            file.write(f"{moment},{spot[slot]},3.0,{slot % 9}\n")
    return str(path)


SMALL = ("--work", "30", "--deadline", "8", "--max-gpus", "6")
FEW = ("--jobs", "12", "--markets-count", "2")


class TestSimulate:
    def test_every_slot_is_shown_and_the_end_summed_up(self, duetune):
        status, out, _ = duetune("simulate", "--policy", "on_demand", *SMALL)
        assert status == 0
        for words in ("slot", "$/GPU-h", "on-dem", "charge", "why", "of optimum", "100%"):
            assert words in out
        assert "holding 4 GPUs on-demand until the end meets the" in out
        assert "optimum (dynamic)" in out

    def test_the_document_adds_up(self, document):
        said = document("simulate", "--policy", "ahap", "--seed", "7")
        assert list(said) == [
            *("command", "version", "seed", "forecast", "market", "start", "job", "outcome"),
            *("fraction_of_optimum", "upper_bound", "optimum", "on_demand"),
        ]
        outcome = said["outcome"]
        charges = sum(entry["charge"] for entry in outcome["entries"])
        assert charges == pytest.approx(outcome["cost"])
        assert outcome["utility"] == pytest.approx(outcome["value"] - outcome["cost"])
        assert outcome["utility"] <= said["optimum"]["utility"] + 1e-9
        share = outcome["utility"] / said["optimum"]["utility"]
        assert said["fraction_of_optimum"] == pytest.approx(share)

    def test_the_default_job_is_worth_half_more_than_on_demand(self, document):
        job = document("simulate")["job"]
        assert (job["work"], job["deadline"], job["min_gpus"]) == (160, 20, 1)
        assert len(job["throughput"]) == 13
        assert job["value"] == 1.5 * 160 * 1.5

    def test_the_same_seed_gives_the_same_bytes(self, duetune):
        arguments = ("simulate", "--forecast", "noisy:fixed-heavy:1", "--seed", "3", "--json")
        assert duetune(*arguments) == duetune(*arguments)
        assert duetune(*arguments)[1] != duetune(*arguments, "--seed", "4")[1]

    def test_a_plot_is_written(self, duetune, tmp_path):
        status, out, _ = duetune("simulate", *SMALL, "--plot", "run.png")
        assert status == 0
        assert out.endswith("Plot: run.png\n")
        assert [path.name for path in tmp_path.iterdir()] == ["run.png"]

    def test_job_options_reach_the_job(self, document):
        job = document(
            *("simulate", "--work", "30", "--deadline", "8", "--value", "99", "--min-gpus", "2"),
            *("--max-gpus", "6", "--budget", "50", "--hard-deadline-factor", "2"),
            *("--grow", "0.8", "--shrink", "0.85", "--preempted", "0.7", "--composition"),
        )["job"]
        expected = Job(work=30, deadline=8, value=99, throughput=linear_throughput(6), budget=50)
        assert job["throughput"] == list(expected.throughput)
        assert (job["value"], job["budget"], job["min_gpus"]) == (99, 50, 2)
        assert job["hard_deadline_factor"] == 2
        assert job["reconfiguration"] == {
            "grow": 0.8,
            "shrink": 0.85,
            "preempted": 0.7,
            "key": "composition",
        }

    def test_a_job_from_a_file(self, document, tmp_path):
        wish = {"work": 8, "deadline": 6, "value": 40, "throughput": [0, 1, 1.9, 2.7], "name": "x"}
        (tmp_path / "job.json").write_text(json.dumps(wish))
        job = document("simulate", "--job", "job.json")["job"]
        assert {field: job[field] for field in wish} == wish

    def test_a_synthetic_market_is_as_long_as_the_job(self, document):
        said = document("simulate", "--start", "700", *SMALL, "--policy", "on_demand")
        assert said["start"] == 700
        assert said["market"]["slots"] == 712

    def test_a_trace_is_read_resampled_and_started_from_its_first_slot(self, document, tmp_path):
        trace = write_trace(tmp_path / "prices.csv")
        said = document("simulate", "--trace", trace, "--slot-hours", "1", *SMALL)
        assert said["market"]["name"] == "prices"
        assert said["market"]["slots"] == 60
        assert said["market"]["slot_hours"] == 1
        assert said["start"] == 0


class TestDeadline:
    @pytest.mark.parametrize(
        ("text", "slots"),
        [
            *(("12", 12), ("10h", 20), ("90m", 3), ("100min", 3), ("1d", 48), ("1h30m", 3)),
            *(("2026-01-01T05:00Z", 10), ("2026-01-01T05:10:00+00:00", 10), ("2026-01-02", 48)),
        ],
    )
    def test_slots_durations_and_times_are_understood(self, document, tmp_path, text, slots):
        trace = write_trace(tmp_path / "prices.csv")
        said = document("simulate", "--trace", trace, "--work", "2", "--deadline", text)
        assert said["job"]["deadline"] == slots

    def test_a_time_counts_from_when_the_job_begins(self, document, tmp_path):
        trace = write_trace(tmp_path / "prices.csv")
        arguments = ("--start", "4", "--work", "2", "--deadline", "2026-01-01T05:00Z")
        assert document("simulate", "--trace", trace, *arguments)["job"]["deadline"] == 6

    @pytest.mark.parametrize("text", ["0", "-3"])
    def test_slots_before_now_are_refused(self, refused, text):
        line = refused("simulate", "--deadline", text)
        assert f"deadline: {text} is not allowed; expected at least one slot from now" in line

    @pytest.mark.parametrize("text", ["2025-12-31T23:00Z", "2026-01-01T00:00Z"])
    def test_a_time_before_now_is_refused(self, refused, tmp_path, text):
        line = refused("simulate", "--trace", write_trace(tmp_path / "a.csv"), "--deadline", text)
        assert f"deadline: '{text}' is not allowed; expected a time after 2026-01-01" in line

    @pytest.mark.parametrize("text", ["soon", "10 h", "h", "1.5", "10h-", "29m", "²"])
    def test_anything_else_is_refused(self, refused, text):
        assert "deadline: " in refused("simulate", "--deadline", text)

    def test_a_time_needs_a_trace_with_times(self, refused):
        assert "has no times" in refused("simulate", "--deadline", "2026-01-01T00:00Z")


class TestRefusals:
    @pytest.mark.parametrize(
        ("arguments", "words"),
        [
            (["--min-gpus", "8", "--max-gpus", "4"], "min_gpus: 8 is not allowed; expected from 1"),
            (["--max-gpus", "0"], "max_gpus: 0"),
            (["--budget", "-5"], "budget: -5.0 is not allowed; expected dollars, zero or more"),
            (["--work", "nan"], "work: nan"),
            (["--value", "-1"], "value: -1.0"),
            (["--grow", "0"], "reconfiguration.grow: 0.0"),
            (["--hard-deadline-factor", "0.5"], "hard_deadline_factor: 0.5"),
            (["--start", "-1"], "start: -1"),
            (["--seed", "-1"], "seed: -1"),
            (["--policy", "ahap:x"], "policy: 'ahap:x'"),
            (["--policy", "baselines"], "policy: 'baselines'"),
            (["--forecast", "oracle"], "forecast: 'oracle'"),
            (["--market", "bull"], "market: 'bull' is not allowed; expected one of diurnal"),
            (["--slot-hours", "0"], "slot_hours: 0.0"),
            (["--trace", "missing.csv"], "trace file: 'missing.csv'"),
            (["--trace", "a.csv", "--market", "outage"], "cannot be used together"),
            (["--market", "outage", "--market", "diurnal"], "takes one market"),
            (["--pool", "x"], "--pool needs --trace"),
            (["--min-gpus", "few"], "'few' is not a valid integer"),
            (["--plot", "missing/run.png"], "--plot: 'missing/run.png'"),
            (["--plot", "run.gif"], "ends in .png or .svg or .pdf"),
            (["--job", "missing.json"], "job file: 'missing.json'"),
            (["--job", "missing.json", "--work", "3"], "--work cannot be used with --job"),
        ],
    )
    def test_a_bad_option_is_one_line(self, refused, arguments, words):
        assert words in refused("simulate", *arguments)

    def test_a_price_that_is_no_number_is_refused(self, refused, tmp_path):
        prices = np.full(120, 0.9)
        prices[3] = np.nan
        line = refused("simulate", "--trace", write_trace(tmp_path / "a.csv", spot=prices))
        assert "spot_usd_gpu_h" in line
        assert "row 4" in line
        assert "nan" in line

    @pytest.mark.parametrize("rows", [None, 0])
    def test_an_empty_trace_is_refused(self, refused, tmp_path, rows):
        if rows is None:
            (tmp_path / "a.csv").write_text("")
        else:
            write_trace(tmp_path / "a.csv", rows=rows)
        assert "trace file: 'a.csv'" in refused("simulate", "--trace", "a.csv")

    def test_a_trace_shorter_than_the_job_is_refused(self, refused, tmp_path):
        trace = write_trace(tmp_path / "a.csv", rows=10)
        assert "a longer trace" in refused("simulate", "--trace", trace)
        assert "start: 99" in refused("simulate", "--trace", trace, "--start", "99")

    def test_an_unknown_pool_is_not_found(self, refused, tmp_path):
        trace = write_trace(tmp_path / "a.csv")
        assert "no pool named 'x'" in refused("simulate", "--trace", trace, "--pool", "x", status=3)

    def test_what_a_trace_lacks_is_named_by_its_option(self, refused, tmp_path):
        (tmp_path / "a.json").write_text('{"SpotPriceHistory": []}')
        assert "--on-demand-price" in refused("simulate", "--trace", "a.json")
        line = refused("simulate", "--trace", "a.json", "--on-demand-price", "3")
        assert "--available" in line

    def test_prices_of_instances_are_shown_per_gpu(self, document, refused, tmp_path):
        def given(instance_type):
            changes = [
                {
                    "AvailabilityZone": "us-east-1a",
                    "InstanceType": instance_type,
                    "SpotPrice": "24.0",
                    "Timestamp": f"2025-01-0{day}T00:00:00Z",
                }
                for day in (1, 2)
            ]
            (tmp_path / "aws.json").write_text(json.dumps({"SpotPriceHistory": changes}))
            return ("--trace", "aws.json", "--on-demand-price", "9", "--available", "8")

        ran = document("simulate", *given("p5.48xlarge"), *SMALL, "--policy", "maximal_spot")
        assert {slot["spot_price"] for slot in ran["outcome"]["entries"]} == {1.5}
        assert "--gpus-per-instance is required" in refused("simulate", *given("p9.large"), *SMALL)
        ran = document("simulate", *given("p9.large"), *SMALL, "--gpus-per-instance", "6")
        assert {slot["spot_price"] for slot in ran["outcome"]["entries"]} == {2.0}

    @pytest.mark.parametrize(
        ("text", "words"),
        [
            ("{", "job file: 'job.json' is not allowed; expected JSON"),
            ("[]", "job: [] is not allowed; expected a mapping of fields"),
            (
                '{"work": 3}',
                "job deadline is required; expected a whole number",
            ),
            ('{"worke": 3}', "job field: 'worke' is not allowed; expected one of work, deadline"),
            (
                '{"work": 3, "deadline": 2.5, "value": 1, "throughput": [0, 1]}',
                "job deadline: 2.5 is not allowed; expected a whole number",
            ),
            (
                '{"work": 3, "deadline": 2, "value": 1, "throughput": [0, "x"]}',
                "job throughput[1]: 'x' is not allowed; expected a number",
            ),
            (
                '{"work": 3, "deadline": 2, "value": 1, "throughput": [0, 1], "min_gpus": 2}',
                "min_gpus: 2",
            ),
            ('{"reconfiguration": {"gro": 1}}', "job reconfiguration field: 'gro'"),
        ],
    )
    def test_a_bad_job_file_names_the_field(self, refused, tmp_path, text, words):
        (tmp_path / "job.json").write_text(text)
        assert words in refused("simulate", "--job", "job.json")

    def test_a_plot_is_refused_before_the_work_begins(self, refused, monkeypatch):
        monkeypatch.setattr(tournament, "policies_named", None)
        monkeypatch.setattr(select, "policies_named", None)
        assert "--plot" in refused("tournament", "--plot", "missing/a.png")
        assert "--plot" in refused("select", "--plot", "missing/a.png")
        assert "--csv" in refused("tournament", "--csv", "missing/a.csv")
        monkeypatch.setattr(options, "market_named", None)
        assert "--plot" in refused("optimum", "--plot", "missing/a.png")


class TestOptimum:
    def test_the_plan_and_how_sure_it_is(self, duetune):
        status, out, err = duetune("optimum", *SMALL)
        assert status == 0
        assert "upper bound" in out
        assert err.startswith("dynamic: ")

    def test_both_methods_agree(self, document, tmp_path):
        said = document("optimum", *SMALL, "--method", "both", "--plot", "best.png")
        dynamic, milp = said["optima"]
        assert (dynamic["method"], milp["method"]) == ("dynamic", "milp")
        assert dynamic["utility"] == pytest.approx(milp["utility"], abs=1e-6)
        assert said["gaps"] == pytest.approx([0, 0], abs=1e-6)
        assert (tmp_path / "best.png").exists()

    def test_the_integer_program_refuses_what_it_cannot_do(self, duetune):
        status, _, err = duetune("optimum", *SMALL, "--method", "milp", "--composition")
        assert status == 2
        assert "reconfiguration.key" in err


class TestTournament:
    def test_policies_are_ranked(self, duetune):
        status, out, err = duetune("tournament", *FEW, "--policies", "baselines,ahanp,ahap")
        assert status == 0
        assert "12 jobs on synthetic-diurnal-0, synthetic-diurnal-1; forecast last" in out
        for words in ("mean utility", "of optimum", "gap closed", "on time", "offline optimum"):
            assert words in out
        assert "policy-slots in" in err

    def test_the_document_is_ranked_and_repeatable(self, duetune, document):
        said = document("tournament", *FEW)
        utilities = [row["mean_utility"] for row in said["standings"]]
        assert utilities == sorted(utilities, reverse=True)
        assert utilities[0] <= said["mean_optimum"]
        assert said["policy_slots"] > 0
        again = duetune("tournament", *FEW, "--json", "--workers", "1")[1]
        assert json.loads(again) == said

    def test_without_optimum_nothing_is_compared_with_it(self, document, duetune):
        said = document("tournament", *FEW, "--no-optimum")
        assert said["mean_optimum"] is None
        assert {row["fraction_of_optimum"] for row in said["standings"]} == {None}
        assert "offline optimum" not in duetune("tournament", *FEW, "--no-optimum")[1]

    def test_every_policy_on_every_job_can_be_written(self, duetune, document, tmp_path):
        status, out, _ = duetune(
            *("tournament", *FEW, "--policies", "baselines", "--csv", "rows.csv"),
            *("--plot", "policies.png"),
        )
        assert status == 0
        assert "Rows: rows.csv\nPlot: policies.png\n" in out
        with (tmp_path / "rows.csv").open() as file:
            rows = list(csv.DictReader(file))
        assert len(rows) == 12 * 3
        mean = np.mean([float(row["utility"]) for row in rows if row["policy"] == "on_demand"])
        said = document("tournament", *FEW, "--policies", "baselines")
        row = next(row for row in said["standings"] if row["policy"] == "on_demand")
        assert mean == pytest.approx(row["mean_utility"])
        assert all(float(row["utility"]) <= float(row["optimum"]) + 1e-6 for row in rows)

    def test_traces_and_kinds_may_be_several(self, document, tmp_path):
        write_trace(tmp_path / "a.csv")
        write_trace(tmp_path / "b.csv")
        traces = ("--trace", "a.csv", "--trace", "b.csv", "--policies", "on_demand")
        said = document("tournament", "--jobs", "5", *traces)
        assert [market["name"] for market in said["markets"]] == ["a", "b"]
        kinds = ("--market", "outage", "--market", "diurnal", "--policies", "on_demand")
        assert len(document("tournament", *FEW, *kinds)["markets"]) == 4

    def test_jobs_can_be_drawn_from_a_mix_of_ones_own(self, document, refused, tmp_path):
        (tmp_path / "mix.json").write_text('{"deadline": [4, 4], "max_gpus": [3, 3]}')
        said = document("tournament", *FEW, "--mix", "mix.json", "--policies", "on_demand")
        assert said["policy_slots"] <= 12 * 6
        (tmp_path / "mix.json").write_text('{"deadline": [4, "x"]}')
        assert "mix deadline[1]: 'x'" in refused("tournament", "--mix", "mix.json")
        (tmp_path / "mix.json").write_text('{"deadline": [4]}')
        assert "mix deadline: [4] is not allowed; expected a list of length 2" in refused(
            "tournament", "--mix", "mix.json"
        )

    @pytest.mark.parametrize(
        ("arguments", "words"),
        [
            (["--jobs", "0"], "jobs: 0"),
            (["--markets-count", "0"], "markets_count: 0"),
            (["--workers", "0"], "'--workers'"),
            (["--policies", "on_demand,"], "policy: ''"),
            (["--policies", "nope"], "or a group: baselines, paper, pool"),
        ],
    )
    def test_bad_options_are_refused(self, refused, arguments, words):
        assert words in refused("tournament", *arguments)


class TestSelect:
    @pytest.mark.parametrize("selector", ["hedge", "adahedge", "fixed_share", "fixed_share:20"])
    def test_a_selector_learns_within_its_bound(self, document, selector):
        few = ("--jobs", "40", "--markets-count", "2", "--policies", "baselines,ahanp,ahap")
        said = document("select", *few, "--selector", selector)
        summary = said["summary"]
        assert said["policies"] == 5
        assert summary["regret"] <= summary["bound"]
        assert summary["expected_utility"] <= summary["best_fixed"]["mean_utility"] + 1e-9
        assert sum(each["weight"] for each in summary["weights"]) == pytest.approx(1)
        assert [row["name"] for row in summary["baselines"]] == [
            *("on_demand", "maximal_spot", "uniform_progress")
        ]

    def test_the_summary_and_the_plot(self, duetune, tmp_path):
        arguments = ("select", *FEW, "--policies", "ahanp,ahap", "--plot", "weights.png")
        status, out, _ = duetune(*arguments)
        assert status == 0
        for words in ("selected", "best fixed: ", "baseline: on_demand", "Regret", "Weights now"):
            assert words in out
        assert (tmp_path / "weights.png").exists()

    def test_an_unknown_selector_is_refused(self, refused):
        assert "selector: 'exp3'" in refused("select", "--selector", "exp3")


class TestListings:
    def test_every_listed_policy_and_market_has_a_line(self, duetune):
        status, out, _ = duetune("policies")
        assert status == 0
        for listed in (*POLICIES, *GROUPS, *SELECTORS):
            assert listed.name in out
            assert listed.meaning in out
        status, out, _ = duetune("markets")
        assert status == 0
        assert "diurnal" in out
        assert "Parquet" in out

    def test_without_a_command_there_is_help(self, duetune):
        status, out, _ = duetune()
        assert status == 0
        assert out.startswith("Usage: duetune")


class TestTrouble:
    @pytest.fixture
    def broken(self, monkeypatch):
        def fail(error):
            def policy_named(_):
                raise error

            monkeypatch.setattr(simulate, "policy_named", policy_named)

        return fail

    def test_a_bug_is_one_line_that_asks_to_report_it(self, refused, broken):
        broken(KeyError("shoe"))
        line = refused("simulate", status=70)
        assert "unexpected KeyError: 'shoe'" in line
        assert "report" in line

    @pytest.mark.parametrize("arguments", [("--debug", "simulate"), ("simulate", "--debug")])
    def test_debug_shows_where(self, duetune, broken, arguments):
        broken(KeyError("shoe"))
        status, _, err = duetune(*arguments)
        assert status == 70
        assert "Traceback" in err

    def test_debug_from_the_environment(self, duetune, broken, monkeypatch):
        broken(KeyError("shoe"))
        monkeypatch.setenv("DUETUNE_DEBUG", "1")
        assert "Traceback" in duetune("simulate")[2]

    def test_an_interrupt_has_its_own_status(self, duetune, broken):
        broken(KeyboardInterrupt())
        status, out, err = duetune("simulate")
        assert status == program.INTERRUPTED == 130
        assert out == ""
        assert err.strip() == ""
