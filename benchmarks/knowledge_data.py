"""The measured tables of the benchmark, and their rows as the peers want them."""

from __future__ import annotations

import csv
import functools
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from duetune.interop.import_runs.recognise import import_history
from duetune.knowledge.history import History
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
    """Why a table cannot be read, or None if it can."""
    places = _places(name)
    if places and all(place.is_file() for place in places):
        return None
    if name == "own":
        return f"there are no measurements of our own in {OWN.relative_to(ROOT)}"
    return f"{PUBLIC[name]} is not in {data_folder()}/config; DUETUNE_DATA names another folder"


@functools.cache
def table(name: str) -> History:
    read = [import_history(place)[0] for place in _places(name)]
    return History(each for part in read for each in part)


def _places(name: str) -> list[Path]:
    if name == "own":
        return sorted(OWN.glob("*.csv"))
    return [data_folder() / "config" / PUBLIC[name]]


def valid_rows(history: History) -> NDArray[np.int64]:
    """Those whose throughput was measured."""
    fitted = history.outcome == RunOutcome.VALID
    return np.flatnonzero(fitted & np.isfinite(history.tokens_per_s))


def plausible_rows(history: History) -> NDArray[np.int64]:
    """Of those, the ones that ask for no more arithmetic than the GPU has."""
    odd = {each.observation.key for each in history.quarantined}
    rows = valid_rows(history).tolist()
    return np.array([row for row in rows if history[row].key not in odd], np.int64)


def labelled_rows(history: History) -> NDArray[np.int64]:
    """Those that say whether the configuration works."""
    labels = (RunOutcome.VALID, RunOutcome.OOM, RunOutcome.REJECTED)
    return np.flatnonzero(np.isin(history.outcome, labels))


def groups(history: History, *fields: str) -> NDArray[np.str_]:
    """A name for each row, the same where all these fields are."""
    return np.array(
        [
            " | ".join(str(getattr(each.configuration, field)) for field in fields)
            for each in history
        ]
    )


def without_cap(history: History) -> NDArray[np.str_]:
    """The same for the same run with less or more of the GPU's memory allowed."""
    return np.array([each.configuration.replace(memory_cap_gb=0.0).key for each in history])


def peer_row(configuration: Configuration) -> dict[str, object]:
    """In the columns of IBM's tables."""
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
    """All rows of a public table, the models named as in its file."""
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
