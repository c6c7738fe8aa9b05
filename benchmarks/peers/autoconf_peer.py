"""ado-autoconf 2.1.2: its own training of classifier and throughput regressor on our rows.

The package ships no model: it trains on the full LLMFineTuningBench from the Hugging Face Hub on
first use. Here it trains on the rows of a split, by its own functions and presets; the regressor's
time limit, 15 minutes by default, is in the request.
"""

from __future__ import annotations

import logging
import tempfile
import time
import warnings
from pathlib import Path

import pandas as pd
from protocol import Answer, reason, reply, request

warnings.simplefilter("ignore")
logging.disable(logging.CRITICAL)

from autoconf.throughput_recommender import build_regressor, load_regressor  # noqa: E402
from autoconf.utils.autoconf_build.ml_classifier import (  # noqa: E402
    DEFAULT_PRESET_QUALITY,
    filter_valid_with_hard_logic,
    fit_tabular_predictor,
)
from autoconf.utils.config_mapper import map_valid_model_name  # noqa: E402

FEATURES = ["model_name", "method", "number_gpus", "gpu_model", "tokens_per_sample", "batch_size"]


def main() -> None:
    asked = request()
    frame = pd.DataFrame(asked["rows"])
    frame["model_name"] = [map_valid_model_name(name) for name in frame["model_name"]]
    answer = Answer()
    fit = classified if asked["task"] == "validity" else regressed
    try:
        refits, seconds = [], []
        for split in asked["splits"]:
            with tempfile.TemporaryDirectory() as folder:
                began = time.perf_counter()
                predict = fit(frame.iloc[split], Path(folder), asked.get("time_limit", 900))
                seconds.append(time.perf_counter() - began)
                refits.append(predict(frame))
        answer.add("refit", "autoconf 2.1.2", refits)
        answer.add("seconds_to_fit", "autoconf 2.1.2", sum(seconds) / len(seconds))
    except Exception as error:  # noqa: BLE001 - whatever a peer does, the benchmark goes on
        answer.add("unavailable", "autoconf 2.1.2, refit", reason(error))
    reply(answer)


def classified(train: pd.DataFrame, folder: Path, _limit: float) -> object:
    rows = filter_valid_with_hard_logic(train.assign(is_valid=train["is_valid"].astype(int)))
    predictor = fit_tabular_predictor(rows, 1.0, DEFAULT_PRESET_QUALITY, folder / "model")[0]

    def predict(frame: pd.DataFrame) -> list[float]:
        likely = predictor.predict_proba(frame[FEATURES], as_multiclass=False).to_numpy()
        kept = (frame["batch_size"] % frame["number_gpus"] == 0).to_numpy()
        return [float(p) if k else 0.0 for p, k in zip(likely, kept, strict=True)]

    return predict


def regressed(train: pd.DataFrame, folder: Path, limit: float) -> object:
    train.assign(is_valid=1).to_csv(folder / "dataset.csv", index=False)
    build_regressor(
        model_root=folder,
        data_root_dir=folder,
        file_name="dataset.csv",
        fit_options={
            "presets": "good",
            "excluded_model_types": ["GBM"],
            "time_limit": limit,
            "num_bag_folds": 5,
        },
    )
    predictor = load_regressor(model_root=folder)[0]
    return lambda frame: predictor.predict(frame[FEATURES]).astype(float).tolist()


if __name__ == "__main__":
    main()
