"""The measured tables of the knowledge benchmark: how they are read, and what is odd in them."""

from __future__ import annotations

import csv
import functools
import itertools
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from duetune.interop.import_runs.recognise import import_history
from duetune.knowledge.configurations.configuration_rules import broken
from duetune.knowledge.history import History
from duetune.knowledge.model.quality import implied_mfu
from duetune.knowledge.observation import RunOutcome
from duetune.market.datasets import data_folder

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from duetune.knowledge.configurations.configuration import Configuration


ROOT = Path(__file__).resolve().parent.parent
OWN = ROOT / "src" / "duetune" / "knowledge" / "data"
"""Our own measurements on an H200: a folder of CSV files."""

PUBLIC = {
    "ibm": "ibm_sft_throughput.csv",
    "sample": "llmfinetuningbench_sample.csv",
    "fms": "fms_acceleration_a100_bench.csv",
}
CLUSTER_NAMES = {
    "A100-80GB": "NVIDIA-A100-SXM4-80GB",
    "A100-80GB-PCIe": "NVIDIA-A100-80GB-PCIe",
    "H100-PCIe": "NVIDIA-H100-PCIe",
    "H100": "NVIDIA-H100-80GB-HBM3",
    "H200": "NVIDIA-H200",
}
DTYPES = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32"}


def absent(name: str) -> str | None:
    """Return why a table cannot be read, or None if it can."""
    places = _places(name)
    if places and all(place.is_file() for place in places):
        return None
    if name == "own":
        return f"there are no measurements of our own in {OWN.relative_to(ROOT)}"
    return f"{PUBLIC[name]} is not in {data_folder()}/config; DUETUNE_DATA names another folder"


@functools.cache
def table(name: str) -> History:
    """Return a measured table as a history."""
    read = [import_history(place)[0] for place in _places(name)]
    return History(each for part in read for each in part)


def _places(name: str) -> list[Path]:
    if name == "own":
        return sorted(OWN.glob("*.csv"))
    return [data_folder() / "config" / PUBLIC[name]]


def valid_rows(history: History) -> NDArray[np.int64]:
    """Return the rows whose throughput was measured."""
    fitted = history.outcome == RunOutcome.VALID
    return np.flatnonzero(fitted & np.isfinite(history.tokens_per_s))


def plausible_rows(history: History) -> NDArray[np.int64]:
    """Return the measured rows that imply no more arithmetic than the GPU has."""
    odd = {each.observation.key for each in history.quarantined}
    rows = valid_rows(history).tolist()
    return np.array([row for row in rows if history[row].key not in odd], np.int64)


def tried_rows(history: History) -> NDArray[np.int64]:
    """Return the plausible rows including those that ran out of memory."""
    odd = {each.observation.key for each in history.quarantined}
    ran_out = np.flatnonzero(history.outcome == RunOutcome.OOM).tolist()
    kept = [row for row in ran_out if history[row].key not in odd]
    return np.union1d(plausible_rows(history), np.array(kept, np.int64))


def labelled_rows(history: History) -> NDArray[np.int64]:
    """Return the rows that say whether the configuration works."""
    labels = (RunOutcome.VALID, RunOutcome.OOM, RunOutcome.REJECTED)
    return np.flatnonzero(np.isin(history.outcome, labels))


def groups(history: History, *fields: str) -> NDArray[np.str_]:
    """Return a label per row, equal where all these fields are equal."""
    return np.array(
        [
            " | ".join(str(getattr(each.configuration, field)) for field in fields)
            for each in history
        ]
    )


def without_cap(history: History) -> NDArray[np.str_]:
    """Return a label per row, equal for runs that differ only in the allowed GPU memory."""
    return np.array([each.configuration.replace(memory_cap_gb=0.0).key for each in history])


def peer_row(configuration: Configuration) -> dict[str, object]:
    """Return a configuration in the columns of IBM's tables."""
    gpu = configuration.gpu_model
    precision = str(configuration.precision).removesuffix("-mixed")
    return {
        "model_name": configuration.model,
        "method": str(configuration.method),
        "gpu_model": CLUSTER_NAMES.get(gpu, gpu),
        "number_nodes": configuration.num_nodes,
        "number_gpus": configuration.num_gpus,
        "tokens_per_sample": configuration.tokens_per_sample,
        "batch_size": configuration.batch_size,
        "torch_dtype": DTYPES[precision],
        "enable_roce": int(configuration.interconnect == "roce"),
    }


def peer_rows(name: str) -> list[dict[str, object]]:
    """Return all rows of a public table, with models named as in its file."""
    (place,) = _places(name)
    with place.open(newline="", encoding="utf-8") as file:
        raw = list(csv.DictReader(file))
    rows = []
    for each in table(name):
        row = peer_row(each.configuration)
        written = raw[int(each.provenance.rsplit(":", 1)[1]) - 1]
        row["model_name"] = written.get("model_name") or written["model_name_or_path"]
        row["is_valid"] = int(each.outcome is RunOutcome.VALID)
        row["dataset_tokens_per_second"] = each.tokens_per_s
        row["train_runtime"] = each.runtime_s
        rows.append(row)
    return rows


FREE_OF_DTYPE = (
    *("model", "method", "gpu_model", "num_nodes", "num_gpus", "tokens_per_sample", "batch_size"),
)


def anomalies(*, public: bool, own: bool) -> list[str]:
    """Return what is odd in the tables, counted again in every run."""
    lines = []
    if public:
        lines += _ibm(table("ibm"))
        lines += _sample(table("sample"))
    if own:
        lines += _own(table("own"))
    return lines


def _ibm(history: History) -> list[str]:
    mfu = implied_mfu(history.configurations, history.tokens_per_s)
    odd = {each.observation.key for each in history.quarantined}
    kinds: dict[str, int] = {}
    for each in history:
        if each.key in odd:
            it = each.configuration
            kind = f"{it.model} {it.method} {it.precision} on {it.gpu_model}"
            kinds[kind] = kinds.get(kind, 0) + 1
    told = ", ".join(f"{count} of {kind}" for kind, count in kinds.items())
    return [
        (
            f"`ibm_sft_throughput.csv`: {len(odd)} of {len(history)} rows imply more than 85% of "
            f"the GPU's peak, {int(np.sum(mfu > 1))} more than 100% ({told})."
        ),
        *_twins(history),
        *_falling(history),
    ]


def _twins(history: History) -> list[str]:
    """Say how far paces of rows that differ only in precision are apart."""
    group = groups(history, *FREE_OF_DTYPE)
    ratios = []
    for name in np.unique(group):
        rows = np.flatnonzero(group == name)
        paces = history.tokens_per_s[rows]
        if len(rows) > 1 and np.isfinite(paces).all():
            ratios.append(float(paces.max() / paces.min()))
    if not ratios:
        return []
    return [
        (
            f"{len(ratios)} configurations were measured in bfloat16 and in float16: one is up to "
            f"{max(ratios):.1f} times as fast as the other (median {np.median(ratios):.2f}), on "
            "GPUs where both have the same peak. A predictor that does not see the precision "
            "cannot be right on them."
        )
    ]


def _falling(history: History) -> list[str]:
    """Count pairs whose throughput falls by a fifth or more while only the batch grows."""
    group = groups(
        history,
        "model",
        "method",
        "gpu_model",
        "num_gpus",
        "tokens_per_sample",
        "precision",
        "software",
    )
    batch = history.configurations.number("batch_size")
    rows = valid_rows(history)
    falls, pairs = [], 0
    for name in np.unique(group[rows]):
        mine = rows[group[rows] == name]
        mine = mine[np.argsort(batch[mine])]
        for one, two in itertools.pairwise(mine):
            if batch[two] > batch[one]:
                pairs += 1
                change = history.tokens_per_s[two] / history.tokens_per_s[one]
                if change < 0.8:
                    falls.append(float(change))
    if not falls:
        return []
    return [
        (
            f"In {len(falls)} of {pairs} pairs of neighbouring batch sizes a larger batch is "
            f"slower by a fifth or more, down to {min(falls):.2f} times: memory near its limit, or "
            "another load."
        )
    ]


def _sample(history: History) -> list[str]:
    passing = broken(history.configurations) < 0
    rejected = history.outcome == RunOutcome.REJECTED
    group = groups(
        history, "model", "method", "gpu_model", "num_gpus", "tokens_per_sample", "batch_size"
    )
    valid = history.outcome == RunOutcome.VALID
    conflicts = [name for name in np.unique(group) if len(np.unique(valid[group == name])) > 1]
    return [
        (
            f"`llmfinetuningbench_sample.csv`: {int((~passing).sum())} of {len(history)} rows "
            f"break a rule, {int(rejected.sum())} of them are labelled rejected; "
            f"{len(conflicts)} of AutoConf's six-field configurations are both valid and invalid, "
            "by settings that those six fields do not show."
        ),
    ]


def _own(history: History) -> list[str]:
    odd = len(history.quarantined)
    failed = int(np.sum(history.outcome == RunOutcome.FAILED))
    return [
        (
            f"Our own table: {len(history)} rows, {odd} of them implausible, {failed} failed for "
            "another reason than memory."
        ),
        *_falling(history),
    ]
