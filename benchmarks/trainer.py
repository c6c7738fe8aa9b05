"""Trained tokens per second and peak memory of one GPU: our trainer next to Hugging Face's.

All train the same models (random weights, by configuration) on the same rows: 32 a step, lengths
log-normal with a median of 300 tokens, cut at 2,048. Padding is not counted. Every measurement runs
in a process of its own, and is written to ``--out`` as soon as it is there. Without a GPU a small
version runs. It needs torch, transformers, accelerate, peft and msgspec only; Liger, bitsandbytes
and TRL are measured where they are installed.
"""

from __future__ import annotations

import argparse
import gc
import importlib
import importlib.util
import json
import math
import multiprocessing
import os
import sys
import tempfile
import time
import traceback
from collections import deque
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import msgspec
import numpy as np
import torch
import transformers

from duetune.training.task import TrainingMethod, TrainingPrecision, TrainingTask
from duetune.training.tiny import build_tiny_model
from duetune.training.tokens import TokenizedRows

if TYPE_CHECKING:
    from collections.abc import Sequence

ROWS, MICROBATCH, LONGEST, MEDIAN = 32, 8, 2048, 300
WARM_UP = 2
PEAK_FLOPS = {"H200": 989e12, "H100": 989e12, "A100": 312e12, "L4": 121e12}
"""Dense bf16 operations per second, by a part of the GPU's name."""

SHAPES = {
    "8B": {"hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32},
    "1B": {
        "hidden_size": 2048,
        "intermediate_size": 8192,
        "num_hidden_layers": 16,
        "tie_word_embeddings": True,
    },
    "tiny": {
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "vocab_size": 512,
    },
}
COMMON = {
    "vocab_size": 128256,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "max_position_embeddings": 8192,
    "rope_theta": 500000.0,
}
OURS, PADDED, LIGER, TRL = "duetune", "HF Trainer", "HF Trainer + Liger", "TRL packing"
SYSTEMS = (OURS, PADDED, LIGER, TRL)


class Case(NamedTuple):
    """What is trained: a shape of model, a method, and whether activations are recomputed."""

    model: str
    method: str
    checkpointing: bool = False

    @property
    def name(self) -> str:
        """Return the name in tables."""
        return f"{self.model} {self.method}{', checkpointing' if self.checkpointing else ''}"


GPU_CASES = (
    Case("1B", "lora"),
    Case("1B", "lora", checkpointing=True),
    Case("1B", "full"),
    Case("8B", "lora"),
    Case("8B", "lora", checkpointing=True),
    Case("8B", "qlora", checkpointing=True),
)
CPU_CASES = (Case("tiny", "lora"), Case("tiny", "lora", checkpointing=True), Case("tiny", "full"))


class Skipped(Exception):
    """This measurement cannot be made here; the message is the reason."""


def main() -> int:
    """Measure what ``--out`` does not have yet, print the summary, or write a report."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, help="write every measurement here, one per line")
    parser.add_argument("--resume", action="store_true", help="keep what --out has already")
    parser.add_argument("--report", type=Path, nargs="+", help="write the page from such files")
    parser.add_argument("--cases", help="only cases whose name contains this")
    parser.add_argument("--systems", nargs="+", choices=SYSTEMS, default=SYSTEMS)
    parser.add_argument("--steps", type=int, help="timed steps; 10, or 4 for 8B")
    parser.add_argument("--limit-s", type=float, default=100.0, help="seconds per measurement")
    options = parser.parse_args()
    if options.report:
        rows = [json.loads(line) for file in options.report for line in file.open()]
        write_page(rows)
    else:
        rows = measured(options)
    print(json.dumps(summary(rows)))
    return 0


def measured(options: argparse.Namespace) -> list[dict[str, object]]:
    """Return one row per case and system, each measured in a process of its own."""
    importlib.import_module("transformers.models.llama.modeling_llama")
    # Asking torch would use CUDA, see ``apart``.
    gpu = Path("/dev/nvidia0").exists()
    rows: list[dict[str, object]] = []
    if options.out and options.out.exists() and options.resume:
        rows = [json.loads(line) for line in options.out.open()]
    elif options.out:
        options.out.write_text("")
    done = {(row["case"], row["system"]) for row in rows}
    for case in GPU_CASES if gpu else CPU_CASES:
        for system in options.systems:
            if (case.name, system) in done or (options.cases or "") not in case.name:
                continue
            steps = options.steps or (4 if case.model == "8B" else 10)
            row = apart(case, system, steps, options.limit_s)
            rows.append(row)
            print(json.dumps(row), flush=True)
            if options.out:
                with options.out.open("a") as file:
                    file.write(json.dumps(row) + "\n")
    return rows


def apart(case: Case, system: str, steps: int, limit_s: float) -> dict[str, object]:
    """Return a measurement made by a forked process, which has the slow imports already.

    A process that has used CUDA cannot be forked. PEFT imports bitsandbytes, which uses it, so
    those are imported in the child.
    """
    with tempfile.TemporaryDirectory() as folder:
        result = Path(folder) / "row.json"
        way = "spawn" if torch.cuda.is_initialized() else "fork"
        child = multiprocessing.get_context(way).Process(
            target=in_child, args=(case, system, steps, Path(folder), result)
        )
        began = time.monotonic()
        child.start()
        child.join(limit_s)
        if child.is_alive():
            child.kill()
            child.join()
        row: dict[str, object] = {"case": case.name, "system": system}
        if result.exists():
            row |= json.loads(result.read_text())
        else:
            row["problem"] = f"ended with {child.exitcode} after {limit_s:.0f} s at most"
        row["wall_s"] = round(time.monotonic() - began, 1)
        return row


def in_child(case: Case, system: str, steps: int, folder: Path, result: Path) -> None:
    """Measure and write the row."""
    os.environ.update(HF_HUB_OFFLINE="1", TRANSFORMERS_VERBOSITY="error", WANDB_DISABLED="true")
    try:
        row = measure(case, system, steps, folder)
    except torch.OutOfMemoryError:
        row = {"problem": "out of memory"}
    except (Skipped, ImportError) as reason:
        row = {"problem": f"not measured: {reason}"}
    except Exception as error:  # noqa: BLE001 - the next measurement goes on
        traceback.print_exc()
        row = {"problem": f"{type(error).__name__}: {error}"[:300]}
    result.write_text(json.dumps(row))


def measure(case: Case, system: str, steps: int, folder: Path) -> dict[str, object]:
    """Train and return tokens per second, peak memory and what the machine is."""
    cuda = torch.cuda.is_available()
    device = torch.device("cuda" if cuda else "cpu")
    config = transformers.LlamaConfig(**(COMMON | SHAPES[case.model]))
    config.architectures = ["LlamaForCausalLM"]
    config.save_pretrained(folder)
    longest = LONGEST if cuda else LONGEST // 16
    data = rows_of((WARM_UP + steps) * ROWS, config.vocab_size, longest, seed=7)
    full = case.method == TrainingMethod.FULL
    task = TrainingTask(
        model=str(folder),
        dataset="",
        method=TrainingMethod(case.method),
        max_steps=WARM_UP + steps,
        per_device_train_batch_size=MICROBATCH,
        global_batch=ROWS,
        max_length=longest,
        learning_rate=1e-4,
        precision=(TrainingPrecision.BF16 if full or cuda else TrainingPrecision.FP32),
        gradient_checkpointing=case.checkpointing,
        lora_r=16,
    )
    if task.method is TrainingMethod.QLORA and importlib.util.find_spec("bitsandbytes") is None:
        raise Skipped("bitsandbytes is not installed")
    if system == LIGER and (not cuda or importlib.util.find_spec("liger_kernel") is None):
        raise Skipped("liger-kernel needs CUDA" if not cuda else "liger-kernel is not installed")
    watch = Stopwatch(device)
    if system == OURS:
        losses, note = ours(task, data, device, watch)
    else:
        losses, note = theirs(task, data, device, watch, system, folder)
    parameters = case_parameters(config)
    tokens_per_s = watch.tokens_per_s
    per_token = (6 if full else 4) * parameters
    name = torch.cuda.get_device_name() if cuda else "CPU"
    peak = next((rate for part, rate in PEAK_FLOPS.items() if part in name), None)
    return {
        "tokens_per_s": round(tokens_per_s, 1),
        "utilisation": round(tokens_per_s * per_token / peak, 4) if peak else None,
        "peak_gb": round(torch.cuda.max_memory_reserved() / 1e9, 1) if cuda else None,
        "first_loss": round(losses[0], 4),
        "last_loss": round(losses[-1], 4),
        "steps": steps,
        "machine": name,
        "software": f"torch {torch.__version__}, transformers {transformers.__version__}",
        "note": note,
    }


class Stopwatch:
    """Measures tokens per second from the end of the warm-up on."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._steps = self._tokens = 0
        self._began = self._ended = math.nan

    def stepped(self, tokens: int) -> None:
        """Record the end of a step of ``tokens`` tokens."""
        if self._device.type == "cuda":
            torch.cuda.synchronize()
        self._steps += 1
        if self._steps == WARM_UP:
            self._began = time.perf_counter()
        elif self._steps > WARM_UP:
            self._tokens += tokens
            self._ended = time.perf_counter()

    @property
    def tokens_per_s(self) -> float:
        """Return the pace of the timed steps."""
        return self._tokens / (self._ended - self._began)


def ours(
    task: TrainingTask, data: TokenizedRows, device: torch.device, watch: Stopwatch
) -> tuple[list[float], str]:
    """Train as a single member of a group does."""
    from duetune.training.shared_state import SharedState  # noqa: PLC0415 - see apart
    from duetune.training.trained_model import load_model  # noqa: PLC0415

    with device:  # Draw the weights on the GPU, which takes seconds instead of minutes.
        model = load_model(task, device)
    gc.collect()
    state = SharedState(task, model, data, np.arange(len(data)), device)
    for _ in range(state.total_steps):
        before = state.known.tokens
        state.update(state.contribution(0, [0.0], lambda: None)[0])
        watch.stepped(state.known.tokens - before)
    return list(state.known.losses), state.way


def theirs(
    task: TrainingTask,
    data: TokenizedRows,
    device: torch.device,
    watch: Stopwatch,
    system: str,
    folder: Path,
) -> tuple[list[float], str]:
    """Train the same model with the Trainer of transformers or TRL."""
    from duetune.training.adapters import load_base, with_adapter  # noqa: PLC0415 - see apart

    total = task.max_steps or 0
    task = msgspec.structs.replace(task, use_liger_kernel=False, attn_implementation="sdpa")
    with device:
        base = load_base(task, device)
        model = with_adapter(task, base) if task.adapts else base
    if task.gradient_checkpointing and task.adapts:
        model.enable_input_require_grads()
    fields = {
        "output_dir": str(folder / "out"),
        "max_steps": total,
        "per_device_train_batch_size": MICROBATCH,
        "gradient_accumulation_steps": ROWS // MICROBATCH,
        "learning_rate": task.learning_rate,
        "bf16": device.type == "cuda",
        "use_cpu": device.type == "cpu",
        "optim": "adamw_torch_fused" if device.type == "cuda" else "adamw_torch",
        "gradient_checkpointing": task.gradient_checkpointing,
        "gradient_checkpointing_kwargs": {"use_reentrant": False},
        "logging_steps": 1,
        "report_to": [],
        "save_strategy": "no",
        "disable_tqdm": True,
        "use_liger_kernel": system != PADDED and device.type == "cuda",
    }
    rows = [data.row(number)[0].astype(np.int64).tolist() for number in range(len(data))]
    if system == TRL:
        trainer = trl_trainer(model, fields, rows, folder)
    else:
        trainer = transformers.Trainer(
            model=model,
            args=transformers.TrainingArguments(**fields),
            train_dataset=[{"input_ids": row, "labels": row} for row in rows],
            data_collator=padded,
        )
    count_tokens(trainer, watch)
    trainer.remove_callback(transformers.PrinterCallback)
    trainer.train()
    losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    return losses, ""


def count_tokens(trainer: transformers.Trainer, watch: Stopwatch) -> None:
    """Tell ``watch`` of every step of a Trainer and of its tokens, without padding."""
    collate, batches = trainer.data_collator, deque[int]()

    def counted(examples: list[dict[str, list[int]]]) -> dict[str, torch.Tensor]:
        batches.append(sum(len(example["input_ids"]) for example in examples))
        return collate(examples)

    class Steps(transformers.TrainerCallback):
        def on_step_end(self, args, state, control, **_):  # noqa: ANN001, ANN003, ANN202, ARG002
            # Batches that are only read ahead stay for the next step.
            watch.stepped(sum(batches.popleft() for _ in range(args.gradient_accumulation_steps)))

    trainer.data_collator = counted
    trainer.add_callback(Steps())


def trl_trainer(
    model: torch.nn.Module,
    fields: dict[str, object],
    rows: Sequence[list[int]],
    folder: Path,
) -> transformers.Trainer:
    """Return TRL's trainer with packed rows: one microbatch with as many tokens as ours a step."""
    for package in ("trl", "datasets"):
        if importlib.util.find_spec(package) is None:
            raise Skipped(f"{package} is not installed")
    import datasets  # noqa: PLC0415
    import trl  # noqa: PLC0415

    # TRL asks for a tokenizer, which rows of tokens do not need.
    named = build_tiny_model(folder / "tokenizer")
    length = MICROBATCH * max(len(row) for row in rows)
    fields |= {"per_device_train_batch_size": 1, "gradient_accumulation_steps": 1}
    return trl.SFTTrainer(
        model=model,
        args=trl.SFTConfig(**fields, packing=True, max_length=length),
        train_dataset=datasets.Dataset.from_dict({"input_ids": rows}),
        processing_class=transformers.AutoTokenizer.from_pretrained(named),
    )


def padded(rows: Sequence[dict[str, list[int]]]) -> dict[str, torch.Tensor]:
    """Return a batch padded to its longest row."""
    longest = max(len(row["input_ids"]) for row in rows)

    def filled(name: str, value: int) -> torch.Tensor:
        return torch.tensor([row[name] + [value] * (longest - len(row[name])) for row in rows])

    mask = [[1] * len(row["input_ids"]) + [0] * (longest - len(row["input_ids"])) for row in rows]
    return {
        "input_ids": filled("input_ids", 0),
        "labels": filled("labels", -100),
        "attention_mask": torch.tensor(mask),
    }


def rows_of(count: int, vocabulary: int, longest: int, seed: int) -> TokenizedRows:
    """Return random rows with the lengths of instruction data; all tokens count."""
    random = np.random.default_rng(seed)
    drawn = random.lognormal(math.log(MEDIAN * longest / LONGEST), 0.8, count)
    lengths = np.clip(drawn, 8, longest).astype(np.int64)
    begins = np.concatenate([[0], np.cumsum(lengths)])
    ids = random.integers(0, vocabulary, begins[-1]).astype(np.int32)
    return TokenizedRows(ids, np.ones(len(ids), dtype=np.bool_), begins)


def case_parameters(config: transformers.LlamaConfig) -> int:
    """Return the number of parameters, the head counted once where it is tied."""
    with torch.device("meta"):
        model = transformers.AutoModelForCausalLM.from_config(config)
    return sum(parameter.numel() for parameter in model.parameters())


def summary(rows: Sequence[dict[str, object]]) -> dict[str, dict[str, object]]:
    """Return the ratios to the other trainers, the utilisation and the memory of ours, by case."""
    pace = {
        (row["case"], row["system"]): float(str(row["tokens_per_s"]))
        for row in rows
        if "tokens_per_s" in row
    }

    def ratios(system: str) -> dict[str, object]:
        return {
            str(case): round(own / pace[case, system], 2)
            for (case, name), own in pace.items()
            if name == OURS and (case, system) in pace
        }

    own = [row for row in rows if row["system"] == OURS and "tokens_per_s" in row]
    return {
        "ratio_to_hf_trainer": ratios(PADDED),
        "ratio_to_hf_liger": ratios(LIGER),
        "model_flops_utilisation": {str(row["case"]): row["utilisation"] for row in own},
        "peak_gb": {str(row["case"]): row["peak_gb"] for row in own},
    }


def write_page(rows: Sequence[dict[str, object]]) -> None:
    """Write ``docs/results/trainer.md``."""
    from reporting import markdown_table, publish  # noqa: PLC0415 - needs matplotlib

    found = {(row["case"], row["system"]): row for row in rows}

    def cell(case: object, system: str) -> str:
        row = found.get((case, system), {"problem": "not measured"})
        if "tokens_per_s" not in row:
            return str(row["problem"]).partition(":")[0]
        memory = "" if row["peak_gb"] is None else f" ({row['peak_gb']:.0f} GB)"
        return f"{row['tokens_per_s']:,.0f}{memory}"

    cases = list(dict.fromkeys(row["case"] for row in rows))
    systems = [name for name in SYSTEMS if any(row["system"] == name for row in rows)]
    figures = summary(rows)
    table = markdown_table(
        ["model, method", *systems, "ratio to HF Trainer", "utilisation"],
        [
            [
                case,
                *(cell(case, system) for system in systems),
                figures["ratio_to_hf_trainer"].get(str(case), "-"),
                figures["model_flops_utilisation"].get(str(case)) or "-",
            ]
            for case in cases
        ],
    )
    one = next(row for row in rows if "machine" in row)
    ratios = [float(str(value)) for value in figures["ratio_to_hf_trainer"].values()]
    least = f"{min(ratios):.1f} to {max(ratios):.1f}" if ratios else "an unknown number of"
    question = (
        f"Trained tokens per second and peak reserved memory on one {one['machine']} "
        f"({one['software']}), 32 rows a step, lengths log-normal with a median of 300 tokens, cut "
        f"at 2,048. duetune trains {least} times as fast as the Trainer of transformers with "
        "padded rows, on the same machine in the same run. Utilisation is the share of the dense "
        "bf16 rate, with 4 operations per parameter and token for adapters and 6 for all weights."
    )
    limits = (
        "Machines of this kind differ by a third between runs, above all in the speed of their "
        "CPU, so only ratios within a run count. The losses of all trainers agree. TRL's packing "
        "needs a FlashAttention package, which that machine does not have: not measured."
    )
    command = (
        "```bash\npython benchmarks/trainer.py --out rows.jsonl\n"
        "python benchmarks/trainer.py --report rows.jsonl\n```"
    )
    publish("trainer", "Trainer speed", question, [table, limits, command], write=True)


if __name__ == "__main__":
    sys.exit(main())
