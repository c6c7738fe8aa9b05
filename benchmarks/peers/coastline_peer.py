"""Coastline 0.3.0: the predictors that its wheel ships, and its ``tune`` on our rows.

The batch is passed as it is in the table: its models were trained on that column. Its validity
check is AutoConf 1.9.7 with the model v3.1 of that wheel, trained on all of LLMFineTuningBench.
"""

from __future__ import annotations

import logging
import os
import tempfile
import time
import warnings
from pathlib import Path

import pandas as pd
from protocol import Answer, reason, reply, request

warnings.simplefilter("ignore")
logging.disable(logging.CRITICAL)
os.environ.setdefault("TABPFN_DISABLE_TELEMETRY", "1")
os.environ.setdefault("TABPFN_NO_BROWSER", "1")

from coastline.sdk.models.context import SystemContext  # noqa: E402 - after the settings
from coastline.sdk.models.workload import WorkloadSpec  # noqa: E402
from coastline.sdk.policies import PolicyFactory  # noqa: E402
from coastline.sdk.predictors.performance.data_driven import ml_common  # noqa: E402
from coastline.sdk.predictors.performance.data_driven.tune import tune  # noqa: E402

SHIPPED = (
    *("intelligent", "catboost", "xgboost", "lightgbm", "bayesian_ridge", "deep_learning"),
    *("knn", "random_forest", "gaussian_process", "svr", "tabpfn"),
)
# Its other model that can be tuned, TabPFN, needs weights that are not in the wheel.
REFIT = ("xgboost",)


def main() -> None:
    asked = request()
    rows = asked["rows"]
    jobs = [workload(row) for row in rows]
    answer = Answer()
    for name in asked.get("models", SHIPPED):
        run_shipped(name, jobs, answer, asked.get("repeat", 1))
    if asked.get("validity"):
        validity(rows, answer)
    for name in REFIT:
        if asked.get("splits"):
            refit(name, rows, asked["splits"], jobs, answer)
    reply(answer)


def workload(row: dict[str, object]) -> WorkloadSpec:
    return WorkloadSpec(
        llm_model=row["model_name"],
        fine_tuning_method=row["method"],
        gpu_model=row["gpu_model"],
        tokens_per_sample=row["tokens_per_sample"],
        batch_size=row["batch_size"],
        gpus_per_node=row["number_gpus"] // row["number_nodes"],
        number_of_nodes=row["number_nodes"],
        torch_dtype=row.get("torch_dtype"),
        enable_roce=bool(row.get("enable_roce", 0)),
    )


def predicted(predictor: object, jobs: list[WorkloadSpec]) -> list[float | None]:
    context = SystemContext.for_gpus([jobs[0].gpu_model], max_gpus=64, gpus_per_node=8)
    answers = [predictor.predict(job, context) for job in jobs]
    return [None if answer is None else answer.predicted_throughput for answer in answers]


def run_shipped(name: str, jobs: list[WorkloadSpec], answer: Answer, repeat: int) -> None:
    label = f"coastline {name}"
    try:
        began = time.perf_counter()
        predictor = PolicyFactory.throughput_predictor({"performance": name})
        first = predicted(predictor, jobs[:1])
        answer.add("seconds_to_load", label, time.perf_counter() - began)
        if first == [None]:
            answer.add("unavailable", label, "it gives no prediction for the first row")
            return
        answer.timed(label, lambda: predicted(predictor, jobs), repeat=repeat)
    except Exception as error:  # noqa: BLE001 - whatever a peer does, the others still run
        answer.add("unavailable", label, reason(error))


def refit(
    name: str,
    rows: list[dict[str, object]],
    splits: list[list[int]],
    jobs: list[WorkloadSpec],
    answer: Answer,
) -> None:
    label = f"coastline {name}"
    refits, seconds = [], []
    try:
        for split in splits:
            with tempfile.TemporaryDirectory() as folder:
                table = Path(folder) / "train.csv"
                pd.DataFrame([rows[index] for index in split]).to_csv(table, index=False)
                began = time.perf_counter()
                target = Path(folder) / "custom" / f"{name}.pkl"
                tune(str(table), model=name, output=str(target), on_step=lambda _: None)
                seconds.append(time.perf_counter() - began)
                ml_common.PORTFOLIO_DIR = Path(folder)
                predictor = PolicyFactory.throughput_predictor({"performance": name})
                refits.append(predicted(predictor, jobs))
    except Exception as error:  # noqa: BLE001
        answer.add("unavailable", f"{label}, refit", reason(error))
        return
    answer.add("refit", label, refits)
    answer.add("seconds_to_fit", label, sum(seconds) / len(seconds))


def validity(rows: list[dict[str, object]], answer: Answer) -> None:
    """Probabilities of AutoConf's classifier, 0 where its rule rejects."""
    label = "autoconf 1.9.7, model v3.1"
    try:
        from autoconf.min_gpu_recommender import load_model  # noqa: PLC0415 - takes seconds
        from autoconf.utils.config_mapper import map_valid_model_name  # noqa: PLC0415

        began = time.perf_counter()
        predictor = load_model("3.1.0")
        answer.add("seconds_to_load", label, time.perf_counter() - began)
        frame = pd.DataFrame(rows)[
            [
                *("model_name", "method", "number_gpus", "gpu_model"),
                *("tokens_per_sample", "batch_size"),
            ]
        ]
        frame["model_name"] = [map_valid_model_name(name) for name in frame["model_name"]]
        began = time.perf_counter()
        likely = predictor.predict_proba(frame, as_multiclass=False).to_numpy()
        seconds = time.perf_counter() - began
        kept = (frame["batch_size"] % frame["number_gpus"] == 0).to_numpy()
        answer.add(
            "shipped", label, [float(p) if k else 0.0 for p, k in zip(likely, kept, strict=True)]
        )
        answer.add("seconds_per_point", label, seconds / len(frame))
    except Exception as error:  # noqa: BLE001
        answer.add("unavailable", label, reason(error))


if __name__ == "__main__":
    main()
