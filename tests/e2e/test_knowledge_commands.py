"""``duetune fits``, ``recommend`` and ``history`` through their whole stack."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from duetune.cli import main
from duetune.knowledge.configurations.configuration import Configuration
from duetune.knowledge.configurations.space_files import read_space
from duetune.knowledge.history import History
from duetune.knowledge.history_files import read_history, write_history
from duetune.knowledge.measure.trials import unmeasurable
from duetune.knowledge.observation import Observation, RunOutcome
from duetune.registry import sources

MODEL = "meta-llama/Llama-3.2-1B"
FITS = ("fits", "llama3.2-1b", "--gpu", "A100-80GB", "--seq", "1024", "--batch", "4")
ASKED = ("recommend", "--model", "llama3.1-8b", "--gpus", "A100-80GB:4,L40S:4")


@pytest.fixture(autouse=True)
def _nothing_shipped(monkeypatch, tmp_path):
    """So that the model need not be fitted: that takes seconds."""
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("DUETUNE_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("DUETUNE_DEBUG", raising=False)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sources, "shipped_history", History.empty)


@pytest.fixture
def duetune(capsys):
    def call(*arguments):
        status = main(arguments)
        captured = capsys.readouterr()
        return status, captured.out, captured.err

    return call


def runs(count=4, **fields):
    found = []
    for power in range(count):
        one = Configuration(model=MODEL, gpu_model="A100-80GB", batch_size=2**power)
        values = {
            "outcome": RunOutcome.VALID,
            "tokens_per_s": 9000.0 + power,
            "peak_memory_gb": 9.0,
        }
        found.append(Observation(configuration=one.replace(software="x 1"), **(values | fields)))
    return found


def test_fits_says_yes_and_how_much_room_there_is(duetune):
    status, out, err = duetune(*FITS)
    assert (status, err) == (0, "")
    assert out.startswith("Yes, it fits")
    for word in ("logits", "at the peak", "room for", "batch", "no run was measured"):
        assert word in out
    assert max(len(line) for line in out.splitlines()) <= 100


def test_fits_says_no_and_what_would_help(duetune):
    status, out, _ = duetune(*FITS, "--method", "full", "--batch", "1", "--memory-gb", "9")
    assert status == 1
    assert out.startswith("No, it does not fit")
    assert "it would fit with" in out
    assert "method lora" in out


def test_fits_says_it_all_as_json(duetune):
    status, out, _ = duetune(*FITS, "--no-checkpointing", "--rank", "64", "--json")
    document = json.loads(out)["fits"]
    assert status == 0
    assert document["verdict"] == "yes"
    assert document["configuration"]["grad_checkpoint"] is False
    assert document["configuration"]["lora_rank"] == 64
    low, middle, high = document["estimate"]["memory_gb"]
    assert 0 < low < middle < high < document["capacity_gb"]


def test_fits_names_a_rule_that_is_broken(duetune):
    status, out, _ = duetune(*FITS, "--gpus", "3")
    assert status == 1
    assert "same number of sequences" in out


def test_fits_knows_a_model_by_its_config(duetune, tmp_path):
    facts = {"model_type": "llama", "hidden_size": 64, "num_hidden_layers": 2, "vocab_size": 500}
    (tmp_path / "tiny").mkdir()
    (tmp_path / "tiny" / "config.json").write_text(json.dumps(facts))
    for place in ("tiny", "tiny/config.json"):
        status, out, _ = duetune("fits", place, "--gpu", "T4", "--precision", "fp16")
        assert status == 0
        assert "tiny" in out


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("fits", "mistrall", "--gpu", "H100"), "Mistral"),
        (("fits", "llama3.1-8b", "--gpu", "H300"), "H200"),
        (("fits", "llama3.1-8b", "--gpu", "H100", "--method", "magic"), "qlora"),
        (("fits", "llama3.1-8b", "--gpu", "H100", "--batch", "-1"), "batch"),
        (("fits", "llama3.1-8b", "--gpu", "H100", "--batch", "0"), "batch: 0"),
        (("fits", "llama3.1-8b", "--gpu", "H100", "--rank", "0"), "rank: 0"),
        (("fits", "llama3.1-8b", "--gpu", "H100", "--seq", "0"), "seq: 0"),
        ((*ASKED, "--deadline", "6h"), "--tokens"),
        (("history", "import", "x", "--given", "nope=3"), "gpu_model"),
        (("history", "import", "x", "--given", "gpu_model=Q9"), "H100"),
        (("history", "import", "x", "--given", "num_gpus=x"), "whole number"),
        (("history", "export", ""), "name of a file"),
        (("history", "export", "/dev/null"), "something else"),
        (("profile", "quick", "--count", "1", "--out", ""), "name of a file"),
        (("profile", "quick", "--count", "1", "--out", "no/p.jsonl"), "in a folder that exists"),
        (("fits", "llama3.1-8b", "--gpu", "H100", "--targets", "q_proj,v_proj"), "all-linear"),
        (("recommend",), "--model"),
        (("recommend", "nothing.yaml"), "nothing.yaml"),
        ((*ASKED, "--objective", "deadline"), "deadline"),
        ((*ASKED, "--source", "tea-leaves"), "hybrid"),
        (("history", "import", "nothing.csv"), "nothing.csv"),
        (("history", "import", "x", "--given", "gpu"), "gpu_model=H100"),
    ],
)
def test_what_cannot_be_is_one_line_and_makes_nothing(duetune, tmp_path, arguments, words):
    status, out, err = duetune(*arguments)
    assert (status, out) == (2, "")
    assert words in err
    assert err.count("\n") == 1
    assert not (tmp_path / "home").exists()


def test_a_gpu_without_bfloat16_computes_in_float16_and_that_is_said(duetune):
    for method, precision in (("lora", "fp16"), ("full", "fp16-mixed")):
        fits = ("fits", "HuggingFaceTB/SmolLM2-135M", "--gpu", "T4", "--method", method)
        _, out, _ = duetune(*fits)
        assert f"Assumed: {precision}: a T4 cannot compute in bfloat16" in out
        _, out, _ = duetune(*fits, "--json")
        assert json.loads(out)["fits"]["configuration"]["precision"] == precision
        asked = ("recommend", "--model", "smollm2-135m", "--gpus", "T4:1", "--method", method)
        _, out, _ = duetune(*asked, "--json")
        chosen = json.loads(out)["advice"]["candidates"][0]["configuration"]
        assert chosen["precision"] == precision


def test_a_damaged_database_is_said(duetune, tmp_path):
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "duetune.db").write_bytes(b"no database" * 999)
    for arguments in (FITS, ASKED, ("history", "show")):
        status, out, err = duetune(*arguments)
        assert (status, out) == (2, "")
        assert "SQLite database" in err


def test_a_full_disk_behind_the_output_is_one_line():
    program = "from duetune.cli import main; raise SystemExit(main())"
    command = [sys.executable, "-c", program, "history", "sources"]
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr == "duetune: no space left on the device for the output\n"


@pytest.mark.parametrize("arguments", [(*ASKED, "--tokens", "1M"), ("history", "show")])
def test_a_narrow_screen_is_readable(duetune, monkeypatch, arguments):
    write_history("known.csv", runs(1))
    duetune("history", "import", "known.csv")
    monkeypatch.setenv("COLUMNS", "60")
    status, out, _ = duetune(*arguments, *(("--source", "analytic") * (arguments[0] != "history")))
    assert status == 0
    assert max(len(line) for line in out.splitlines()) <= 60
    # Words are not broken into columns of a few letters.
    assert ("Llama-3.2-1B" if arguments[0] == "history" else "A100-80GB") in out


def test_rows_that_cannot_be_true_are_left_out_and_contradictions_counted(duetune, tmp_path):
    (tmp_path / "odd.csv").write_text(
        "model,gpu_model,outcome,tokens_per_s,peak_memory_gb\n"
        "llama3.2-1b,Q999,valid,5000,9\nllama3.2-1b,H100,oom,5000,\n"
        "llama3.2-1b,H100,valid,5000,9999\nllama3.2-1b,H100,valid,5000,9\n"
        "llama3.2-1b,H100,valid,900,9\n"
    )
    status, out, _ = duetune("history", "import", "odd.csv")
    assert status == 0
    assert "2 rows, 2 new" in out
    assert "1 configuration with contradicting runs" in out
    for row in ("row 1: gpu_model", "row 2: tokens_per_s", "row 3: peak_memory_gb"):
        assert row in out
    assert duetune("history", "import", "odd.csv", "--given", "gpu_model=H100")[0] == 2


def test_an_import_of_which_nothing_can_be_used_is_bad_input(duetune, tmp_path):
    (tmp_path / "odd.csv").write_text(
        "model,gpu_model,outcome,tokens_per_s\nllama3.2-1b,Q999,valid,9\n"
    )
    for more in ((), ("--json",)):
        status, out, _ = duetune("history", "import", "odd.csv", *more)
        assert status == 2
        assert "row 1: gpu_model" in out


def test_a_peak_below_the_weights_is_kept_but_not_learnt_from(duetune, tmp_path):
    (tmp_path / "light.csv").write_text(
        "model,gpu_model,outcome,tokens_per_s,peak_memory_gb\nllama3.1-8b,H100,valid,5000,2\n"
    )
    status, out, _ = duetune("history", "import", "light.csv")
    assert status == 0
    assert "1 kept but not used for estimates: 1 peak below the weights." in out


def test_recommend_fills_in_a_job(duetune, tmp_path):
    rows = "".join(json.dumps({"text": f"row {n}"}) + "\n" for n in range(200))
    (tmp_path / "rows.jsonl").write_text(rows)
    (tmp_path / "job.yaml").write_text(
        "model: Qwen/Qwen2.5-7B\ndataset: rows.jsonl\ndeadline: 8h\n"
        "resources: {accelerators: 'A100-80GB:1..4'}\n"
        "training: {max_length: 512, num_train_epochs: 1}\n"
    )
    status, out, err = duetune("recommend", "job.yaml")
    assert (status, err) == (0, "")
    assert "due in 8h" in out
    for line in ("tokens_per_sample  512", "grad_checkpoint", "on time", "Time of a micro-step"):
        assert line in out
    assert "190 examples of about 2 tokens each, estimated from their characters" in " ".join(
        out.split()
    )
    assert "no run was measured, so physics with default constants is used" in out
    assert max(len(line) for line in out.splitlines()) <= 100


def test_assumptions_speak_of_the_packed_rows_that_were_looked_up(duetune):
    write_history("runs.csv", runs())
    assert duetune("history", "import", "runs.csv")[0] == 0
    for asked in (FITS, ("recommend", "--model", MODEL, "--gpus", "A100-80GB:1")):
        status, out, _ = duetune(*asked)
        assert status == 0
        assert "no run with packed rows was measured" in " ".join(out.split())
        assert "padded rows" not in out


def test_recommend_as_json_has_candidates_reasons_and_assumptions(duetune):
    status, out, _ = duetune(*ASKED, "--tokens", "1M", "--deadline", "1h", "--json")
    advice = json.loads(out)["advice"]
    assert status == 0
    assert advice["objective"] == "deadline"
    scores = [each["score"] for each in advice["candidates"]]
    assert scores == sorted(scores, reverse=True)
    chosen = advice["candidates"][0]
    low, middle, high = chosen["estimate"]["tokens_per_s"]
    assert low < middle < high
    assert chosen["on_time"] > 0.5
    assert all(each["reason"] for each in advice["choices"])
    assert advice["assumptions"]
    assert advice["limits"]["inventory"] == {"A100-80GB": 4, "L40S": 4}


def test_recommend_writes_the_run_that_would_teach_most(duetune, tmp_path):
    status, out, _ = duetune(*ASKED, "--probe", "probe.yaml", "--gpus", "A100-80GB:1,L40S:1")
    assert status == 0
    points = list(read_space(tmp_path / "probe.yaml").points())
    assert len(points) == 1
    assert points[0].num_gpus == 1
    assert "duetune profile probe.yaml" in out
    # The profiler takes it where Liger's kernels are installed.
    assert points[0].fast_kernels
    assert unmeasurable(points[0].replace(fast_kernels=False)) is None


def test_recommend_names_the_nearest_miss_where_nothing_fits(duetune):
    status, out, err = duetune(
        *("recommend", "--model", "llama3.1-70b", "--method", "full", "--gpus", "L4:1")
    )
    assert (status, err) == (1, "")
    for words in ("Nothing fits.", "Nearest: 1 x L4", "No single change"):
        assert words in out


def test_history_is_taken_in_shown_and_written(duetune):
    write_history("runs.csv", [*runs(), *runs(1, outcome=RunOutcome.OOM, tokens_per_s=None)])
    status, out, _ = duetune("history", "import", "runs.csv")
    assert status == 0
    assert "5 rows, 5 new, 0 known already" in out
    status, out, _ = duetune("history", "import", "runs.csv", "--json")
    assert json.loads(out)["taken"][0]["new"] == 0
    _, out, _ = duetune("history", "show", "--model", "llama3.2-1b", "--json")
    (known,) = json.loads(out)["known"]
    assert (known["runs"], known["valid"], known["oom"]) == (5, 4, 1)
    assert known["tokens_per_s"] == 9003
    status, out, _ = duetune("history", "show")
    assert MODEL in out
    assert "5 are from this home" in out
    assert duetune("history", "export", "again.csv")[0] == 0
    assert read_history("again.csv").snapshot == read_history("runs.csv").snapshot


def test_rows_that_are_not_understood_are_named_and_the_rest_is_taken(duetune, tmp_path):
    write_history("runs.csv", runs())
    lines = (tmp_path / "runs.csv").read_text().splitlines()
    lines[2] = lines[2].replace("valid", "splendid")
    (tmp_path / "runs.csv").write_text("\n".join(lines) + "\n")
    status, out, _ = duetune("history", "import", "runs.csv")
    assert status == 0
    assert "3 new" in out
    assert "row 2: outcome: 'splendid'" in out


def test_one_bad_file_leaves_the_history_as_it_was(duetune, tmp_path):
    write_history("runs.csv", runs())
    (tmp_path / "bad.csv").write_text("a,b\n1,2\n")
    status, _, err = duetune("history", "import", "runs.csv", "bad.csv")
    assert status == 2
    assert "bad.csv" in err
    assert not (tmp_path / "home").exists()


def test_what_is_imported_is_what_answers_rest_on(duetune):
    write_history("runs.csv", runs())
    duetune("history", "import", "runs.csv")
    asked = (*FITS, "--rank", "8", "--targets", "attention", "--software", "x 1")
    status, out, _ = duetune(*asked, "--json")
    estimate = json.loads(out)["fits"]["estimate"]
    assert status == 0
    assert estimate["measured"] is True
    assert estimate["memory_gb"][1] == pytest.approx(9.0)
    assert "Llama-3.2-1B lora, 1 x A100-80GB, 4 x 1024" in duetune(*asked)[1]


def test_what_profile_wrote_is_taken_in(duetune, tmp_path):
    import msgspec  # noqa: PLC0415 - for this test only

    lines = b"\n".join(msgspec.json.encode(each) for each in runs())
    (tmp_path / "rows.jsonl").write_bytes(lines + b"\n")
    status, out, _ = duetune("history", "import", "rows.jsonl")
    assert status == 0
    assert "4 new" in out


def test_a_model_that_was_never_measured_is_not_found(duetune):
    write_history("runs.csv", runs())
    duetune("history", "import", "runs.csv")
    status, _, err = duetune("history", "show", "--model", "gemma-2b")
    assert status == 3
    assert MODEL in err


def test_an_empty_history_is_shown_as_such(duetune, tmp_path):
    assert "No runs were measured" in duetune("history", "show")[1]
    assert not (tmp_path / "home").exists()


def test_sources_are_listed(duetune):
    status, out, _ = duetune("history", "sources")
    assert status == 0
    for name in ("hybrid", "analytic", "noisy:MAPE[:BIAS]:SOURCE"):
        assert name in out
    assert "hybrid" in json.loads(duetune("history", "sources", "--json")[1])["sources"]
