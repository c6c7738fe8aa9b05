"""``duetune cluster`` through its whole stack."""

from __future__ import annotations

import csv
import functools
import json
import os
import re
import shutil

import click
import pytest

from duetune.cli import main
from duetune.cli.cluster import cluster
from duetune.errors import InvalidInput
from duetune.plots import cluster_figures
from duetune.registry import clusters
from support.examples import EXAMPLE, printed
from support.places import ROOT
from support.small_cluster import MODEL, STOCK, small_world

PAGE = ROOT / "docs" / "reference" / "cli.md"
HOW_TO = ROOT / "docs" / "how-to" / "simulate-a-cluster.md"
NODES = ("--nodes", "large=2x4:A100-80GB", "--nodes", "small=2x2:L40S")
ONE = ("simulate", "--planner", "fifo", "--source", "oracle", *NODES, "--jobs", "6")
FEW = ("compare", "--planners", "fifo,srt", "--sources", "random,oracle", *NODES, "--jobs", "4")
NOTHING_ALLOWED = (
    "partitions: [{gpu_model: A100-80GB, nodes: 1, gpus_per_node: 1}]\nquotas: {idle: 0}\n"
)
OF_NOBODY = (
    "name,submitted_s,model,method,tokens_per_sample,tokens,project\n"
    f"a,0,{MODEL},lora,1024,5e6,idle\n"
)
known = functools.cache(small_world)


@pytest.fixture(autouse=True)
def _plain_terminal(monkeypatch, tmp_path):
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("DUETUNE_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("DUETUNE_DEBUG", raising=False)
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def _small(monkeypatch):
    """A world that is there at once."""
    monkeypatch.setattr(clusters, "world_named", lambda *_, **__: known())


@pytest.fixture
def duetune(_small, capsys):
    def call(*arguments):
        status = main(["cluster", *arguments])
        captured = capsys.readouterr()
        assert status == 0, captured.err
        return captured.out

    return call


@pytest.fixture
def refused(_small, capsys):
    def call(*arguments):
        status = main(["cluster", *arguments])
        captured = capsys.readouterr()
        assert status == 2, captured.err
        assert captured.out == ""
        assert captured.err.startswith("duetune: ")
        assert captured.err.count("\n") == 1
        return captured.err

    return call


class TestSimulate:
    def test_the_figures_are_shown_with_what_they_are_of(self, duetune):
        out = duetune(*ONE)
        assert out.startswith("12 GPUs: 2 x 4 A100-80GB, 2 x 2 L40S\n")
        assert "6 jobs, 24 jobs/h at random; fifo with oracle" in out
        assert "replay: " in out
        assert "job completion time" in out

    def test_everything_is_written_that_was_asked_for(self, duetune, tmp_path):
        out = duetune(
            *(*ONE, "--csv", "jobs.csv", "--trace", "rounds.jsonl"),
            *("--jobs-csv", "workload.csv", "--plot", "run.png"),
        )
        assert out.endswith(
            "Jobs: jobs.csv\nRounds: rounds.jsonl\nWorkload: workload.csv\nPlot: run.png\n"
        )
        rows = list(csv.DictReader((tmp_path / "jobs.csv").read_text().splitlines()))
        assert [row["name"] for row in rows] == [f"job-{n}" for n in range(1, 7)]
        assert {row["world"] for row in rows} == {"replay"}
        rounds = [json.loads(line) for line in (tmp_path / "rounds.jsonl").read_text().splitlines()]
        assert set(rounds[0]["used"]) == {"large", "small"}
        assert sum(len(each["changes"]) for each in rounds) == 12
        assert (tmp_path / "run.png").read_bytes().startswith(b"\x89PNG")

    def test_a_published_workload_repeats_the_run(self, duetune):
        first = json.loads(duetune(*ONE, "--slack", "2:5", "--jobs-csv", "w.csv", "--json"))
        again = json.loads(duetune(*ONE[:-2], "--workload", "w.csv", "--seed", "9", "--json"))
        assert first["figures"]["missed"] is not None
        assert first["figures"] == again["figures"]
        assert again["arrivals"] == "w.csv"

    def test_jobs_may_come_in_bursts_but_not_those_of_a_file(self, duetune, capsys):
        said = json.loads(duetune(*ONE, "--burst", "3", "--jobs-csv", "w.csv", "--json"))
        assert said["arrivals"].endswith("jobs/h at random, 3 at once")
        assert main(["cluster", *ONE[:-2], "--workload", "w.csv", "--burst", "3"]) == 2
        assert "--burst and --workload cannot be used together" in capsys.readouterr().err

    def test_the_document_says_what_it_is_of(self, duetune):
        said = json.loads(duetune(*ONE, "--json"))
        assert list(said) == [
            *("command", "version", "seed", "planner", "source", "world", "gpus", "arrivals"),
            "figures",
        ]
        assert said["world"]["how"] == "replay"
        assert said["gpus"] == 12
        assert said == json.loads(duetune(*ONE, "--json"))

    def test_a_cluster_file_with_a_market_and_a_trace_of_arrivals(self, duetune, tmp_path):
        for each in ("cluster.yaml", "arrivals.csv"):
            shutil.copy(ROOT / "examples" / "cluster" / each, tmp_path / each)
        out = duetune(
            *("simulate", "--planner", "edf", "--source", "oracle", "--cluster", "cluster.yaml"),
            *("--workload", "arrivals.csv", "--jobs", "8", "--slack", "1:3", "--rigid"),
        )
        assert "4 x 8 A100-80GB (spot), 4 x 4 L40S (on-demand)" in out
        assert "8 jobs, arrivals.csv; edf with oracle" in out
        assert "of the deadlines were missed" in out

    def test_a_world_may_be_a_table_of_paces(self, duetune):
        folder = ROOT / "examples" / "cluster"
        files = ("--paces", folder / "paces.csv", "--cluster", folder / "pace-cluster.yaml")
        jobs = ("--workload", folder / "pace-jobs.csv", "--jobs", "4")
        shown = duetune("simulate", "--planner", "sia", *map(str, (*files, *jobs)))
        assert "4 jobs, pace-jobs.csv; sia with oracle" in shown
        assert "pace table: 135 configurations, 3 kinds of job" in shown
        lines = [line.split("  ")[0].strip() for line in shown.splitlines()]
        assert lines.index("GPU-hours per job") == lines.index("job completion time") + 1

    def test_an_emulation_is_called_one_everywhere(self, monkeypatch, capsys, tmp_path):
        calls = []
        truth = clusters.world_named
        monkeypatch.setattr(
            clusters, "world_named", lambda *a, **o: calls.append(a) or truth(*a, **o)
        )
        arguments = (*ONE[:-1], "3", "--world", "physics", "--csv", "jobs.csv", "--learn")
        assert main(["cluster", *arguments]) == 0
        assert calls[0][0] == "physics"
        assert "emulated by physics alone, not measured: " in capsys.readouterr().out
        assert "emulated by physics alone" in (tmp_path / "jobs.csv").read_text()
        assert not (tmp_path / "home").exists()

    @pytest.mark.parametrize(
        ("arguments", "words"),
        [
            (("--planner", "nope"), "planner: 'nope' is not allowed; expected one of fifo"),
            (("--source", "nope"), "source: 'nope' is not allowed; expected one of default"),
            (("--source", "noisy:x:oracle"), "source: 'noisy:x:oracle'"),
            (("--load", "0"), "load: 0.0 is not allowed; expected jobs per hour"),
            (("--burst", "0.5"), "burst: 0.5 is not allowed; expected jobs that arrive at once"),
            (("--burst", "nan"), "burst: nan is not allowed; expected jobs that arrive at once"),
            (("--nodes", "4x"), "nodes: '4x' is not allowed"),
            (("--cluster", "no.yaml"), "--cluster and --nodes cannot be used together"),
            (("--workload", "no.csv"), "workload: 'no.csv' is not allowed"),
            (("--slack", "3:1"), "slack: '3:1' is not allowed; expected LOW:HIGH"),
            (("--start-s", "-1"), "start_s: -1.0 is not allowed"),
            (("--round-s", "0"), "round_s: 0.0 is not allowed"),
            (("--jobs", "0"), "'--jobs'"),
            (("--rigid",), "--rigid needs --workload"),
            (("--history", "no.csv"), "history: 'no.csv' is not allowed"),
            (("--world", "physics", "--history", "x"), "--history needs --world"),
            (("--paces", "no.csv"), "paces: 'no.csv' is not allowed"),
            (("--paces", "x", "--world", "physics"), "--paces cannot be used with --world"),
            (("--paces", "x", "--source", "hybrid"), "source: 'hybrid' is not allowed"),
            (("--seed", "-1"), "seed: -1 is not allowed"),
            (("--plot", "x.doc"), "--plot: 'x.doc' is not allowed"),
            (("--csv", "x.txt"), "--csv: 'x.txt' is not allowed"),
            (("--trace", "x.txt"), "--trace: 'x.txt' is not allowed"),
            (("--jobs-csv", "no/j.csv"), "expected a file in a folder that exists"),
        ],
    )
    def test_what_cannot_be_is_refused_in_one_line(self, refused, tmp_path, arguments, words):
        assert words in refused(*ONE, *arguments)
        assert not list(tmp_path.iterdir())

    @pytest.mark.parametrize(
        ("arguments", "words"),
        [
            (("--csv", "x.csv", "--jobs-csv", "x.csv"), "--jobs-csv: 'x.csv' .* that of --csv$"),
            (("--csv", "w.csv"), "--csv: 'w.csv' .* another file than that of --workload$"),
            (("--jobs-csv", "link.csv"), "--jobs-csv: 'link.csv' .* that of --workload$"),
            (("--csv", "h.csv", "--history", "./h.csv"), "--csv: 'h.csv' .* that of --history$"),
            (("--plot", "c.png", "--cluster", "c.png"), "--plot: 'c.png' .* that of --cluster$"),
        ],
    )
    def test_no_file_is_written_over_another(self, refused, tmp_path, arguments, words):
        (tmp_path / "w.csv").write_text("kept")
        (tmp_path / "link.csv").symlink_to("w.csv")
        assert re.search(words, refused("simulate", "--workload", "w.csv", *arguments).strip())
        assert (tmp_path / "w.csv").read_text() == "kept"
        assert {each.name for each in tmp_path.iterdir()} == {"w.csv", "link.csv"}

    def test_nor_over_a_market_that_the_cluster_has(self, refused, tmp_path):
        (tmp_path / "m.csv").write_text("kept")
        (tmp_path / "c.yaml").write_text(
            "partitions:\n  - {name: s, gpu_model: L40S, nodes: 1, gpus_per_node: 1, tenure: spot,"
            " trace: m.csv}\n"
        )
        said = refused("simulate", "--cluster", "c.yaml", "--csv", "m.csv").strip()
        assert said.endswith("another file than that of --cluster")
        assert (tmp_path / "m.csv").read_text() == "kept"

    def test_when_no_job_is_done_nothing_is_made_up(self, duetune, tmp_path):
        (tmp_path / "none.yaml").write_text(NOTHING_ALLOWED)
        (tmp_path / "w.csv").write_text(OF_NOBODY)
        given = ("--cluster", "none.yaml", "--workload", "w.csv", "--plot", "x.png")
        out = duetune("simulate", "--planner", "fifo", "--source", "oracle", *given)
        assert "nan" not in out
        assert re.search(r"job completion time +- +- +-\n", out)
        assert out.startswith("1 GPU: 1 x 1 A100-80GB\n1 job, w.csv; fifo with oracle\n")
        said = " ".join(out.split())
        assert "1 of 1 job never finished: the source knows no configuration that fits" in said
        assert (tmp_path / "x.png").is_file()
        several = ("compare", "--planners", "fifo,srt", "--sources", "oracle", "--seeds", "2")
        out = duetune(*several, *given)
        assert "nan" not in out
        assert "fifo with oracle: 2 of 2 jobs never finished; its completion times" in out

    @pytest.mark.usefixtures("_small")
    def test_a_picture_that_cannot_be_drawn_leaves_no_other_file(self, monkeypatch, tmp_path):
        def broken(*_, **__):
            raise InvalidInput("picture", "x", "y")

        monkeypatch.setattr(cluster_figures, "cluster_figure", broken)
        assert main(["cluster", *ONE, "--csv", "x.csv", "--plot", "x.png"]) == 2
        assert not list(tmp_path.iterdir())


class TestCompare:
    def test_every_planner_and_source_stands_beside_the_first(self, duetune, tmp_path):
        out = duetune(
            *(*FEW, "--load", "20,60", "--seeds", "2", "--plot", "lines.svg", "--csv", "rows.csv")
        )
        assert "20 jobs/h: 4 jobs, 2 seeds" in out
        assert "60 jobs/h: 4 jobs, 2 seeds" in out
        assert out.count("fifo     random") == 2
        assert len(re.findall(r"mean JCT +GPU-h +shorter by", out)) == 2
        rows = list(csv.DictReader((tmp_path / "rows.csv").read_text().splitlines()))
        assert len(rows) == 2 * 2 * 2 * 2
        assert {row["seed"] for row in rows} == {"0", "1"}
        assert "<svg" in (tmp_path / "lines.svg").read_text()

    def test_the_document_has_intervals(self, duetune):
        said = json.loads(duetune(*FEW, "--seeds", "2", "--slack", "2", "--json"))
        first, second, *_ = said["settings"]
        assert said["seeds"] == 2
        assert first["setting"] == {"planner": "fifo", "source": "random", "load": 24.0}
        assert first["reduction"] is None
        assert second["setting"]["source"] == "oracle"
        interval = second["reduction_interval"]
        assert interval["low"] <= second["reduction"] <= interval["high"]

    def test_a_workload_needs_no_load(self, duetune, tmp_path):
        rows = "".join(f"j{n},{60 * n},x,1,1\n" for n in range(3))
        (tmp_path / "sia.csv").write_text("name,time,application,num_replicas,batch_size\n" + rows)
        out = duetune(*FEW[:-2], "--workload", "sia.csv", "--seeds", "1", "--plot", "bars.png")
        assert "\n3 jobs, 1 seed\n" in out
        assert (tmp_path / "bars.png").is_file()

    @pytest.mark.parametrize(
        ("arguments", "words"),
        [
            (("--load", "12,x"), "load: '12,x' is not allowed"),
            (("--load", "-1"), "load: '-1' is not allowed"),
            (("--planners", "fifo,nope"), "planner: 'nope' is not allowed"),
            (("--sources", "oracle,"), "source: '' is not allowed"),
            (("--seeds", "0"), "'--seeds'"),
        ],
    )
    def test_what_cannot_be_is_refused_in_one_line(self, refused, arguments, words):
        assert words in refused(*FEW, *arguments)


def test_planners_lists_what_can_be_named(duetune):
    out = duetune("planners")
    assert "  fifo:backfill" in out
    assert "  hybrid" in out


def test_the_page_has_every_command_and_option():
    text = PAGE.read_text(encoding="utf-8")
    section = text[text.index("## duetune cluster") :]
    for name, command in cluster.commands.items():
        assert f"duetune cluster {name}" in section
        for parameter in command.params:
            if isinstance(parameter, click.Option):
                assert f"`{parameter.opts[0]}" in text, f"{parameter.opts[0]} of {name}"


def test_the_example_of_the_how_to_prints_what_it_says(capsys):
    text = HOW_TO.read_text(encoding="utf-8")
    (example,) = EXAMPLE.finditer(text)
    now = printed(example["arguments"], capsys)
    if os.environ.get("DUETUNE_UPDATE_DOCS"):
        start, end = example.span("output")
        HOW_TO.write_text(text[:start] + now + text[end:], encoding="utf-8")
    else:
        assert now == example["output"]


def test_the_how_to_shows_commands_that_there_are():
    text = HOW_TO.read_text(encoding="utf-8")
    options = {
        option
        for command in cluster.commands.values()
        for parameter in command.params
        for option in parameter.opts
    }
    shown = re.findall(r"^    duetune cluster .*(?:\n      .*)*", text, re.MULTILINE)
    assert len(shown) >= 4
    for each in shown:
        assert set(re.findall(r"--[a-z-]+", each)) <= options, each


def test_the_stock_of_the_tests_is_that_of_their_nodes():
    stock = clusters.cluster_of_nodes(NODES[1::2])
    assert [each.gpus for each in stock.partitions] == [each.gpus for each in STOCK.partitions]
