"""One kind of observation: those of jobs move to a table that has room for all others."""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING

import sqlalchemy as sa
from alembic import op

if TYPE_CHECKING:
    from collections.abc import Mapping

revision = "0002"
down_revision: str | None = "0001"
branch_labels: str | None = None
depends_on: str | None = None

_OUTCOMES = {"measured": "valid", "out_of_memory": "oom", "failed": "failed"}
_MIXED = {"bf16": "bf16-mixed", "fp16": "fp16-mixed"}
_SOFTWARE = ("duetune", "torch", "torchft", "transformers", "peft")

_DEFAULTS: dict[str, object] = {
    "method": "lora",
    "num_gpus": 1,
    "batch_size": 1,
    "tokens_per_sample": 1024,
    "num_nodes": 1,
    "grad_accum": 1,
    "precision": "bf16",
    "sharding": "none",
    "grad_checkpoint": True,
    "lora_rank": 8,
    "lora_targets": "attention",
    "optimiser": "adamw",
    "attention": "sdpa",
    "fast_kernels": False,
    "fast_moe": 0,
    "interconnect": "auto",
    "memory_cap_gb": 0.0,
    "software": "",
    "measured_at": 0.0,
    "origin": "import",
    "provenance": "",
    "cluster": "",
    "protocol": "",
    "error": "",
    "weight": 1.0,
    "flags": [],
}

_old = sa.table(
    "observations",
    *(
        sa.column(name)
        for name in (
            *("job", "gpus", "model", "method", "gpu", "microbatch", "global_batch"),
            *("sequence_length", "precision", "steps_per_s", "tokens_per_s", "measured_at"),
            "outcome",
        )
    ),
    sa.column("versions", sa.JSON),
)


def upgrade() -> None:
    new = op.create_table(
        "measurements",
        sa.Column("key", sa.Text, primary_key=True),
        sa.Column("measured_at", sa.Double, nullable=False),
        sa.Column("origin", sa.Text, nullable=False),
        sa.Column("provenance", sa.Text, nullable=False),
        sa.Column("model", sa.Text, nullable=False),
        sa.Column("gpu_model", sa.Text, nullable=False),
        sa.Column("method", sa.Text, nullable=False),
        sa.Column("num_gpus", sa.Integer, nullable=False),
        sa.Column("outcome", sa.Text, nullable=False),
        sa.Column("configuration_key", sa.Text, nullable=False),
        sa.Column("document", sa.Text, nullable=False),
    )
    op.create_index("measurements_by_model", "measurements", ["model"])
    op.create_index("measurements_by_provenance", "measurements", ["provenance"])
    found = op.get_bind().execute(sa.select(_old)).mappings().all()
    if found:
        op.bulk_insert(
            new, [_row({str(name): value for name, value in each.items()}) for each in found]
        )
    op.drop_table("observations")


def downgrade() -> None:
    raise NotImplementedError("what was measured is never thrown away")


def _row(old: Mapping[str, object]) -> dict[str, object]:
    document = _document(old)
    configuration = document["configuration"]
    assert isinstance(configuration, dict)
    return {
        "key": _key({**_told(document), "configuration": _told(configuration)}),
        "configuration_key": _key(_told(configuration)),
        "document": _text(document),
        **{name: document[name] for name in ("measured_at", "origin", "provenance", "outcome")},
        **{name: configuration[name] for name in ("model", "gpu_model", "method", "num_gpus")},
    }


def _document(old: Mapping[str, object]) -> dict[str, object]:
    """As it was written when this revision was made: it must not follow later changes."""
    gpus, microbatch, rows, length = (
        _whole(old[name]) for name in ("gpus", "microbatch", "global_batch", "sequence_length")
    )
    microbatches = -(-rows // microbatch)
    rounds = -(-microbatches // gpus)
    rate, tokens = _number(old["steps_per_s"]), _number(old["tokens_per_s"])
    outcome = _OUTCOMES.get(str(old["outcome"]), "failed")
    flags: list[str] = []
    if outcome == "valid" and not tokens:
        # Tokens were not counted. Without a pace, either, nothing is known of the run.
        tokens, outcome = (rate * rows * length, "valid") if rate else (None, "stopped")
        flags = ["assumed_length"] if rate else []
    full = old["method"] == "full"
    precision = str(old["precision"])
    # An emulated GPU or a processor keeps its name: nothing is known by it, so nothing is learnt.
    configuration = {
        "model": old["model"],
        "method": "full" if full else "lora",
        "gpu_model": "CPU" if old["gpu"] == "cpu" else old["gpu"],
        "num_gpus": gpus,
        "batch_size": microbatch * gpus,
        "tokens_per_sample": length,
        "num_nodes": gpus,
        "grad_accum": rounds,
        "precision": _MIXED.get(precision, precision) if full else precision,
        "sharding": "ddp" if gpus > 1 else "none",
        "grad_checkpoint": False,
        "lora_rank": 8 if full else 16,
        "lora_targets": "attention" if full else "all-linear",
        "optimiser": "adamw",
        "attention": "sdpa",
        "fast_kernels": False,
        "fast_moe": 0,
        "interconnect": "tcp" if gpus > 1 else "auto",
        "memory_cap_gb": 0.0,
        "software": _software(old["versions"]),
    }
    return {
        "configuration": configuration,
        "outcome": outcome,
        "tokens_per_s": tokens if outcome == "valid" else None,
        "step_s": 1 / rate / rounds if rate and outcome == "valid" else None,
        "peak_memory_gb": None,
        "gpu_utilisation": None,
        "power_w": None,
        "runtime_s": None,
        "steps": None,
        "measured_at": old["measured_at"],
        "origin": "production",
        "provenance": f"job {old['job']}",
        "cluster": "",
        "protocol": f"steps of {rows} rows",
        "error": "",
        "weight": 1.0,
        "flags": flags,
    }


def _told(record: dict[str, object]) -> dict[str, object]:
    """Without what had its default then: keys are of the rest."""
    return {
        name: value
        for name, value in record.items()
        if value is not None and (name not in _DEFAULTS or value != _DEFAULTS[name])
    }


def _software(versions: object) -> str:
    told = versions if isinstance(versions, dict) else {}
    order = [*(name for name in _SOFTWARE if name in told)]
    order += sorted(name for name in told if name not in _SOFTWARE)
    return ", ".join(f"{name} {told[name]}" for name in order)


def _whole(value: object) -> int:
    return max(1, int(str(value)))


def _number(value: object) -> float | None:
    return float(value) if isinstance(value, int | float) and value > 0 else None


def _text(document: dict[str, object]) -> str:
    return json.dumps(document, sort_keys=True, separators=(",", ":"), ensure_ascii=False)


def _key(document: dict[str, object]) -> str:
    return hashlib.blake2b(_text(document).encode(), digest_size=8).hexdigest()
