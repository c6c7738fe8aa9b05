"""A script for TRL's GRPOTrainer with a reward that likes short completions."""

from __future__ import annotations

import sys
from pathlib import Path

from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer

from duetune.training import elastic


def short(completions, **_):
    return [-len(text) / 10 for text in completions]


def main(model, steps, folder):
    trainer = GRPOTrainer(
        model=model,
        reward_funcs=short,
        args=GRPOConfig(
            output_dir=folder,
            max_steps=int(steps),
            save_steps=2,
            # A group of four completions needs two microbatches.
            per_device_train_batch_size=2,
            gradient_accumulation_steps=4,
            num_generations=4,
            max_completion_length=6,
            learning_rate=1e-3,
            logging_steps=1,
            bf16=False,
            report_to="none",
        ),
        train_dataset=Dataset.from_dict({"prompt": [f"After {n} comes " for n in range(24)]}),
    )
    batches = []
    generate = trainer._generate_and_score_completions

    def counted(rows):
        batches.append(len(rows))
        return generate(rows)

    trainer._generate_and_score_completions = counted
    code = elastic(trainer)
    with Path(f"{folder}.rows").open("a") as file:
        file.write(f"{max(batches)} ")
    return code


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
