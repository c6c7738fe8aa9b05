"""Kavier 0.5.3: an analytic simulator with published calibrations, and its own fit on our rows.

The batch is passed as it is in the table, total over all GPUs, since that is what the calibration
was fitted to (``calibration.engine`` reads the column unchanged).
"""

from __future__ import annotations

import contextlib
import io
import time
import warnings

import pandas as pd
from kavier import training
from kavier.sdk.training import calibration
from kavier.sdk.training.calibration.engine import calibrate, calibration_override
from protocol import Answer, reply, request

warnings.simplefilter("ignore")


def main() -> None:
    asked = request()
    rows = asked["rows"]
    answer = Answer()
    for name, label in (("default", "kavier"), ("4model", "kavier, its 4-model calibration")):
        began = time.perf_counter()
        calibration.use_calibration(name)
        answer.add("seconds_to_load", label, time.perf_counter() - began)
        answer.timed(label, lambda: predicted(rows), repeat=asked.get("repeat", 1))
    refits, seconds = [], []
    for split in asked.get("splits", []):
        began = time.perf_counter()
        with contextlib.redirect_stderr(io.StringIO()):
            fitted = calibrate(pd.DataFrame([{**rows[index], "is_valid": 1.0} for index in split]))
        seconds.append(time.perf_counter() - began)
        with calibration_override(fitted):
            refits.append(predicted(rows))
    if refits:
        answer.add("refit", "kavier", refits)
        answer.add("seconds_to_fit", "kavier", sum(seconds) / len(seconds))
    reply(answer)


def predicted(rows: list[dict[str, object]]) -> list[float | None]:
    jobs = [
        {
            "model": row["model_name"],
            "gpu": row["gpu_model"],
            "method": row["method"],
            "seq_len": row["tokens_per_sample"],
            "batch_size": row["batch_size"],
            "num_gpus": row["number_gpus"] // row["number_nodes"],
            "num_nodes": row["number_nodes"],
        }
        for row in rows
    ]
    try:
        return training.performance(jobs)["train_tokens_per_second"].tolist()
    except KeyError:
        return [_one(job) for job in jobs]


def _one(job: dict[str, object]) -> float | None:
    """A model or GPU that Kavier does not know costs that row only."""
    try:
        return float(training.performance(job)["train_tokens_per_second"].iloc[0])
    except KeyError:
        return None


if __name__ == "__main__":
    main()
