from __future__ import annotations

import csv

import pytest

from duetune.errors import InvalidInput
from duetune.interop.measurement_files import export_measurements, import_measurements
from duetune.knowledge.configurations.configuration import Configuration
from duetune.knowledge.history import History
from duetune.knowledge.observation import Observation, RunOutcome

HISTORY = History(
    [
        Observation(
            configuration=Configuration(
                model="org/model", gpu_model="H100", fast_kernels=True, memory_cap_gb=24.5
            ),
            outcome=RunOutcome.VALID,
            tokens_per_s=1 / 3,
            flags=("a", "b"),
            provenance="one",
        ),
        Observation(
            configuration=Configuration(model="org/model", gpu_model="H100", num_gpus=2),
            outcome=RunOutcome.OOM,
            steps=3,
            provenance="two",
        ),
    ]
)


@pytest.mark.parametrize("name", ["h.csv", "h.parquet"])
@pytest.mark.parametrize("history", [HISTORY, History.empty()], ids=["some", "none"])
def test_what_is_exported_is_imported_again(tmp_path, name, history):
    pytest.importorskip("polars")
    export_measurements(tmp_path / name, history)
    assert import_measurements(tmp_path / name) == (history, ())
    assert [path.name for path in tmp_path.iterdir()] == [name]


def test_tables_of_others_may_be_parquet_too(tmp_path):
    polars = pytest.importorskip("polars")
    columns = {
        "model_name": ["llama3.2-3b"],
        "method": ["lora"],
        "gpu_model": ["L40S"],
        "number_gpus": [2],
        "tokens_per_sample": [512],
        "batch_size": [4],
        "is_valid": [True],
        "dataset_tokens_per_second": [1234.5],
    }
    polars.DataFrame(columns).write_parquet(tmp_path / "table.parquet")
    with (tmp_path / "table.csv").open("w", encoding="utf-8", newline="") as file:
        csv.writer(file).writerows([columns, [values[0] for values in columns.values()]])
    (one,), _ = import_measurements(tmp_path / "table.parquet")
    (other,), _ = import_measurements(tmp_path / "table.csv")
    assert one.configuration == other.configuration
    assert one.tokens_per_s == other.tokens_per_s == 1234.5


@pytest.mark.parametrize("name", ["none.parquet", "broken.parquet"])
def test_a_parquet_file_that_cannot_be_read_is_told(tmp_path, name):
    pytest.importorskip("polars")
    (tmp_path / "broken.parquet").write_bytes(b"PAR1 nonsense")
    with pytest.raises(InvalidInput, match=r"^history: .* file") as told:
        import_measurements(tmp_path / name)
    # The message may shorten a long path.
    assert str(told.value.value).endswith(name)
