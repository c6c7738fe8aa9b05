from __future__ import annotations

import math
import os
from pathlib import Path

import msgspec
import numpy as np
import pytest

from duetune.errors import InvalidInput
from duetune.knowledge.configurations.configuration import Configuration, Method, Precision
from duetune.knowledge.history import History
from duetune.knowledge.history_files import COLUMNS, history_of, read_history, write_history
from duetune.knowledge.observation import Observation, Origin, RunOutcome
from duetune.knowledge.text_tables import read_table

LLAMA = "meta-llama/Llama-3.2-3B"


def seen(outcome=RunOutcome.VALID, tokens_per_s=1000.0, provenance="", **configuration):
    return Observation(
        configuration=Configuration(**({"model": LLAMA, "gpu_model": "A100-80GB"} | configuration)),
        outcome=outcome,
        tokens_per_s=tokens_per_s if outcome is RunOutcome.VALID else None,
        provenance=provenance,
    )


def test_an_empty_history_has_empty_columns():
    history = History.empty()
    assert len(history) == 0
    assert len(history.configurations) == 0
    assert history.tokens_per_s.shape == history.outcome.shape == (0,)
    assert history.plausible == history.labelled == history
    assert history.quarantined == ()


def test_columns_are_in_the_order_of_the_observations():
    history = History([seen(batch_size=4), seen(RunOutcome.OOM, batch_size=8)])
    assert history.outcome.tolist() == ["valid", "oom"]
    assert history.tokens_per_s[0] == 1000
    assert math.isnan(history.tokens_per_s[1])
    assert np.isnan(history.peak_memory_gb).all()
    assert history.weight.tolist() == [1, 1]
    assert history.configurations.number("batch_size").tolist() == [4, 8]


def test_columns_cannot_be_changed():
    history = History([seen()])
    with pytest.raises(ValueError, match="read-only"):
        history.tokens_per_s[0] = 1


def test_the_snapshot_is_that_of_the_set():
    one, other = seen(batch_size=1), seen(batch_size=2)
    assert History([one, other]).snapshot == History([other, one, one]).snapshot
    assert History([one]).snapshot != History([one, other]).snapshot
    assert History.empty().snapshot == History([]).snapshot


def test_nothing_is_taken_in_twice():
    history = History([seen(provenance="a")])
    more = history.plus([seen(provenance="a"), seen(provenance="b"), seen(provenance="b")])
    assert [each.provenance for each in more] == ["a", "b"]
    assert len(history) == 1
    assert more.plus([seen(provenance="b")]) is more


def test_some_are_taken_by_mask_or_position():
    history = History([seen(batch_size=size) for size in (1, 2, 4)])
    assert [each.configuration.batch_size for each in history.take([2, 0])] == [4, 1]
    assert len(history.take(np.array([True, False, True]))) == 2
    assert len(history.take([])) == 0


def test_failed_and_stopped_runs_are_no_labels():
    history = History([seen(outcome) for outcome in RunOutcome])
    assert history.labelled.outcome.tolist() == ["valid", "rejected", "oom"]


def test_implausible_rows_are_kept_apart_with_the_reason():
    # 312 TFLOP/s at 6 * 3.21e9 FLOP per token: 16,200 tokens/s at most.
    history = History([seen(method=Method.FULL), seen(tokens_per_s=17_000.0, method=Method.FULL)])
    assert history.plausible.tokens_per_s.tolist() == [1000]
    (odd,) = history.quarantined
    assert odd.observation.tokens_per_s == 17_000
    assert odd.reason == "implausible: 105% of the GPU's peak"


@pytest.mark.parametrize("flag", ["implausible", "misdescribed"])
def test_what_was_flagged_before_stays_out(flag):
    flagged = msgspec.structs.replace(seen(), flags=("few-steps", flag))
    history = History([flagged])
    assert len(history.plausible) == 0
    assert history.quarantined[0].reason.startswith(flag)


def test_what_ran_on_no_real_gpu_is_not_learnt_from():
    history = History([seen(gpu_model="emulated"), seen(gpu_model="CPU"), seen(gpu_model="L4")])
    assert [each.configuration.gpu_model for each in history.plausible] == ["L4"]
    reasons = [each.reason for each in history.quarantined]
    assert reasons == ["the GPU is emulated", "there was no GPU"]


FULL_ROW = Observation(
    configuration=Configuration(
        model=LLAMA,
        method=Method.QLORA,
        gpu_model="H100",
        num_gpus=4,
        num_nodes=2,
        precision=Precision.BF16_MIXED,
        grad_checkpoint=False,
        fast_kernels=True,
        memory_cap_gb=24.5,
        software='trl "1.0", torch',
    ),
    outcome=RunOutcome.VALID,
    tokens_per_s=1 / 3,
    peak_memory_gb=17.25,
    steps=20,
    measured_at=1.7e9,
    origin=Origin.CAMPAIGN,
    provenance="by hand",
    error="one\ntwo",
    flags=("mem_saturated", "x"),
)


def test_what_is_written_is_read_back(tmp_path):
    history = History([FULL_ROW, seen(RunOutcome.OOM, provenance="a")])
    write_history(tmp_path / "h.csv", history)
    again = read_history(tmp_path / "h.csv")
    assert again == history
    assert again.snapshot == history.snapshot
    assert [path.name for path in tmp_path.iterdir()] == ["h.csv"]


def test_a_short_file_is_enough(tmp_path):
    text = "model,gpu_model,outcome,batch_size,tokens_per_s\nllama3.2-3b,a100_80gb,valid,8.0,100\n"
    (tmp_path / "h.csv").write_text(text, "utf-8")
    (only,) = read_history(tmp_path / "h.csv")
    assert only.configuration == Configuration(model=LLAMA, gpu_model="A100-80GB", batch_size=8)
    assert only.provenance == "h.csv:1"


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ("m,L4,valid,fast", r"^tokens_per_s in row 2 of h.csv: 'fast' is not allowed"),
        ("m,L4,valid,-5", r"^tokens_per_s in row 2 of h.csv: -5.0 .*above 0"),
        ("m,L4,valid,inf", r"^tokens_per_s in row 2 of h.csv: inf .*above 0"),
        ("m,L4,valid,", r"^tokens_per_s in row 2 of h.csv is required; .*the run was valid"),
        ("m,L4,well,1", r"^outcome in row 2 of h.csv: 'well' .*one of valid, rejected, oom"),
        (",L4,valid,1", r"^model in row 2 of h.csv"),
        ("m,L4,valid", r"^row in row 2 of h.csv: '3 fields'.*4, as in the header"),
    ],
)
def test_a_bad_row_is_named(tmp_path, row, message):
    path = tmp_path / "h.csv"
    path.write_text(f"model,gpu_model,outcome,tokens_per_s\na,L4,valid,1\n{row}\n", "utf-8")
    with pytest.raises(InvalidInput, match=message):
        read_history(path)
    history, left_out = history_of(read_table(path))
    assert len(history) == 1
    assert [each.row for each in left_out] == [2]


@pytest.mark.parametrize("number", ["0", "-1", "1.5"])
def test_counts_are_whole_numbers_from_one_on(tmp_path, number):
    path = tmp_path / "h.csv"
    path.write_text(f"model,gpu_model,outcome,num_gpus\na,b,oom,{number}\n", "utf-8")
    with pytest.raises(InvalidInput, match=r"^num_gpus in row 1 of h.csv"):
        read_history(path)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "this one is empty"),
        ("a,b\n", "columns of h.csv"),
        ("model,gpu_model,outcome,toks\n", "toks.*only model"),
        ("model,gpu_model\n", "also outcome"),
        ("model,model\n", "different names"),
    ],
)
def test_other_files_are_refused(tmp_path, text, message):
    (tmp_path / "h.csv").write_text(text, "utf-8")
    with pytest.raises(InvalidInput, match=message):
        read_history(tmp_path / "h.csv")


def test_a_missing_file_and_one_that_cannot_be_written_are_told(tmp_path):
    with pytest.raises(InvalidInput, match="a readable CSV file"):
        read_history(tmp_path / "none.csv")
    with pytest.raises(InvalidInput, match="a file to write"):
        write_history(tmp_path / "none" / "h.csv", History.empty())


@pytest.mark.parametrize("name", ["", "folder", "pipe", "/dev/null", "none/h.csv", "loop"])
def test_what_is_no_file_is_never_replaced(tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "loop").symlink_to("loop")
    before = {each.name: each.lstat().st_mode for each in tmp_path.iterdir()}
    with pytest.raises(InvalidInput, match="file"):
        write_history(name, History.empty())
    assert {each.name: each.lstat().st_mode for each in tmp_path.iterdir()} == before
    assert not Path("/dev/null").is_file()


def test_a_link_is_written_through(tmp_path):
    (tmp_path / "link.csv").symlink_to("real.csv")
    write_history(tmp_path / "link.csv", History.empty())
    assert (tmp_path / "link.csv").is_symlink()
    assert read_history(tmp_path / "real.csv") == History.empty()


def test_a_peak_beyond_the_card_refuses_the_file_and_a_little_more_does_not(tmp_path):
    path = tmp_path / "h.csv"
    text = "model,gpu_model,outcome,peak_memory_gb\nmine,A100-80GB,valid,{}\n"
    path.write_text(text.format(88), "utf-8")
    assert len(read_history(path)) == 1
    path.write_text(text.format(9999), "utf-8")
    with pytest.raises(InvalidInput, match="GB of the card"):
        read_history(path)


def test_columns_are_all_fields():
    assert set(COLUMNS) == {
        *Configuration.__struct_fields__,
        *Observation.__struct_fields__,
    } - {"configuration"}
