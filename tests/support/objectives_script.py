"""A script for TRL's other Trainers: grpo, rloo, reward or orpo, a model, steps and a folder."""

from __future__ import annotations

import sys
from pathlib import Path

import trl
from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification, AutoTokenizer
from trl.experimental import orpo

from duetune.training import elastic

ROWS = [
    {"prompt": f"After {n} comes ", "chosen": f"{n + 1}.", "rejected": f"{n - 1}!"}
    for n in range(24)
]


def short(completions, **_):
    """A reward for short completions."""
    return [-len(text) / 10 for text in completions]


def trainer_for(objective, model, common):
    rows = Dataset.from_list(ROWS)
    given = {"train_dataset": rows, "processing_class": AutoTokenizer.from_pretrained(model)}
    match objective:
        case "reward":
            scored = AutoModelForSequenceClassification.from_pretrained(model, num_labels=1)
            return trl.RewardTrainer(scored, trl.RewardConfig(**common), **given)
        case "orpo":
            causal = AutoModelForCausalLM.from_pretrained(model)
            return orpo.ORPOTrainer(causal, orpo.ORPOConfig(max_length=64, **common), **given)
    # A group of four completions needs two microbatches.
    common |= {"num_generations": 4, "max_completion_length": 6}
    given["train_dataset"] = rows.select_columns(["prompt"])
    if objective == "grpo":
        return trl.GRPOTrainer(model, short, trl.GRPOConfig(**common), **given)
    return trl.RLOOTrainer(model, short, trl.RLOOConfig(**common), **given)


def main(objective, model, steps, folder):
    common = {
        "output_dir": folder,
        "max_steps": int(steps),
        "save_steps": 2,
        "per_device_train_batch_size": 2,
        "gradient_accumulation_steps": 4,
        "learning_rate": 1e-3,
        "logging_steps": 1,
        "bf16": False,
        "report_to": "none",
    }
    trainer = trainer_for(objective, model, common)
    if hasattr(trainer, "_generate_and_score_completions"):
        generate = trainer._generate_and_score_completions

        def noted(rows):
            with Path(f"{folder}.rows").open("a") as file:
                file.write(f"{len(rows)} ")
            return generate(rows)

        trainer._generate_and_score_completions = noted
    return elastic(trainer)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
