"""Fine-tune a model with TRL's SFTTrainer and LoRA; the lines marked + are duetune's."""

from __future__ import annotations

import argparse
import sys

import torch
from datasets import load_dataset
from peft import LoraConfig
from trl import SFTConfig, SFTTrainer

from duetune.training import elastic  # +


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", required=True, help="a folder, or a name on the Hub")
    parser.add_argument("--data", required=True, help="a JSONL file with a field 'text'")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--save-steps", type=int, default=50)
    parser.add_argument("--folder", default="trainer", help="for the Trainer's own files")
    options = parser.parse_args()

    trainer = SFTTrainer(
        model=options.model,
        args=SFTConfig(
            output_dir=options.folder,
            max_steps=options.steps,
            save_steps=options.save_steps,
            save_total_limit=1,
            per_device_train_batch_size=2,  # a microbatch
            gradient_accumulation_steps=4,  # microbatches of a step, shared by all members
            max_length=256,
            learning_rate=1e-3,
            bf16=torch.cuda.is_available(),
            logging_steps=1,
            report_to="none",
        ),
        train_dataset=load_dataset("json", data_files=options.data, split="train"),
        peft_config=LoraConfig(r=8, target_modules="all-linear"),
    )
    return elastic(trainer)  # + instead of trainer.train()


if __name__ == "__main__":
    sys.exit(main())
