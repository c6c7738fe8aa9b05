"""Checks what the demo promises: the job, its deadline and bill, and the adapter in plain peft.

python check.py job     prints the id of the latest job
python check.py JOB     checks it
"""

from __future__ import annotations

import json
import logging
import subprocess
import sys
import warnings
from pathlib import Path

PROGRAM = [sys.executable, "-m", "duetune.cli"]
HELD_OUT = 64


def answer(*words: str) -> dict:
    """Return the JSON answer of a duetune command."""
    done = subprocess.run([*PROGRAM, *words, "--json"], capture_output=True, check=True)  # noqa: S603
    return json.loads(done.stdout)


def latest() -> str:
    """Return the id of the latest job."""
    return answer("queue", "--all")["jobs"][0]["id"]


def check(job: str) -> None:
    """Print the outcome of a job and fail if a promise is broken."""
    row = answer("status", job)["status"]["job"]
    runs = {run["policy"]: run for run in answer("explain", job)["explanation"]["whole_runs"]}
    on_demand = runs["on_demand"]
    optimum = next(run for name, run in runs.items() if name.startswith("optimum"))
    spare_h = (row["deadline_at"] - row["finished_at"]) / 3600
    print(f"{row['status']}, {spare_h:.1f} h before the deadline, {row['preemptions']} preemptions")
    print(f"bill ${row['cost']:.2f}")
    print(f"  on-demand only   ${on_demand['cost']:.2f}")
    print(f"  offline optimum  ${optimum['cost']:.2f}, which pays whole slots")
    base, tuned = losses(Path("out/demo/model"), Path(row["output"]))
    print(f"loss on {HELD_OUT} rows it never saw: {base:.3f} before, {tuned:.3f} after")
    assert row["status"] == "SUCCEEDED"
    assert spare_h >= 0
    assert row["preemptions"] >= 2
    assert row["cost"] < on_demand["cost"]
    assert tuned < base
    print("Timeline: out/demo.png")


def losses(model: Path, adapter: Path) -> tuple[float, float]:
    """Return the loss of the base model and with the adapter, by transformers and peft alone."""
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    import torch  # noqa: PLC0415
    from peft import PeftModel  # noqa: PLC0415
    from transformers import AutoModelForCausalLM, AutoTokenizer  # noqa: PLC0415
    from transformers.utils import logging as progress  # noqa: PLC0415

    progress.disable_progress_bar()
    torch.manual_seed(0)
    tokenizer = AutoTokenizer.from_pretrained(adapter)
    base = AutoModelForCausalLM.from_pretrained(model)
    tuned = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(model), adapter)
    rows = fresh_rows()
    return loss(base, tokenizer, rows), loss(tuned, tokenizer, rows)


def fresh_rows() -> list[str]:
    """Return rows of the same kind from another seed, without those in the dataset."""
    import make_dataset  # noqa: PLC0415

    known = set(Path(__file__).with_name("support.jsonl").read_text("utf-8").splitlines())
    rows = [row for row in make_dataset.rows(seed=99, count=200) if row not in known][:HELD_OUT]
    return [json.loads(row)["prompt"] + json.loads(row)["completion"] for row in rows]


def loss(model: object, tokenizer: object, rows: list[str]) -> float:
    """Return the mean loss of a model on these rows."""
    import torch  # noqa: PLC0415

    total = 0.0
    with torch.no_grad():
        for text in rows:
            tokens = tokenizer(text, return_tensors="pt")
            total += float(model(**tokens, labels=tokens["input_ids"]).loss)
    return total / len(rows)


if __name__ == "__main__":
    if sys.argv[1] == "job":
        print(latest())
    else:
        check(sys.argv[1])
