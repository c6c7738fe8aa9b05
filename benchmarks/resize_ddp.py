"""What ``torchrun`` runs in the benchmark of resizes: the same model, data and steps with DDP.

torchrun restarts it at every change of members, and it continues from its own checkpoint.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from duetune.training.batches import BatchPlan
from duetune.training.packed_rows import microbatches
from duetune.training.task import read_task
from duetune.training.tokens import tokenized_dataset
from duetune.training.trained_model import load_model, load_tokenizer, summed_loss

SAVE_EVERY = 5


def main() -> None:
    folder = Path(sys.argv[1])
    task, device = read_task(folder), torch.device("cpu")
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    data = tokenized_dataset(task.dataset, load_tokenizer(task), task.max_length, folder / "tokens")
    rows = np.arange(len(data))
    inner = load_model(task, device)
    trained = [parameter for parameter in inner.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=task.learning_rate)
    checkpoint, step = folder / "checkpoint.pt", 0
    if checkpoint.exists():
        saved = torch.load(checkpoint, weights_only=True)
        inner.load_state_dict(saved["model"], strict=False)
        optimizer.load_state_dict(saved["optimizer"])
        step = saved["step"]
    model = DistributedDataParallel(inner)
    plan = BatchPlan(len(rows), task.batch_rows, task.seed)
    while step < (task.max_steps or 0):
        chosen = plan.rows_of(step)
        targets = data.targets(chosen)
        batches = microbatches(data.lengths(chosen), task.microbatch_tokens, task.microbatches)
        mine = list(range(rank, len(batches), world))
        for number in mine:
            began = time.monotonic()
            model.require_backward_grad_sync = number == mine[-1]
            # DDP takes the mean over members, where the sum is wanted.
            loss = summed_loss(model, data, chosen[batches[number]], device, None) * world / targets
            loss.backward()
            rest = began + (task.emulated_microbatch_s or 0.0) - time.monotonic()
            time.sleep(max(0.0, rest))
        optimizer.step()
        optimizer.zero_grad()
        step += 1
        if rank == 0:
            tell(folder, step, world)
            if step % SAVE_EVERY == 0:
                save(checkpoint, inner, optimizer, step)


def tell(folder: Path, step: int, world: int) -> None:
    with (folder / "steps.jsonl").open("a") as file:
        file.write(json.dumps({"at": time.time(), "step": step, "world": world}) + "\n")


def save(path: Path, model: torch.nn.Module, optimizer: torch.optim.Optimizer, step: int) -> None:
    names = {name for name, parameter in model.named_parameters() if parameter.requires_grad}
    state = {name: value for name, value in model.state_dict().items() if name in names}
    temporary = path.with_suffix(f".{os.getpid()}")
    torch.save({"model": state, "optimizer": optimizer.state_dict(), "step": step}, temporary)
    temporary.replace(path)


if __name__ == "__main__":
    main()
