"""Import the throughput tables of llm-foundry: MPT from 125M to 70B, full training with FSDP.

All of them store parameters in 32 bits. FP8 is not a precision here; it is part of the software
name.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from duetune.interop.import_runs.vocabulary import known_gpu, sharding_named
from duetune.knowledge.configurations.configuration import (
    Attention,
    Configuration,
    Interconnect,
    Method,
    Precision,
)
from duetune.knowledge.facts.model_registry import model_name
from duetune.knowledge.history import History
from duetune.knowledge.model.quality import noted
from duetune.knowledge.observation import Observation, Origin, RunOutcome
from duetune.knowledge.text_tables import ImportedRuns

if TYPE_CHECKING:
    from duetune.knowledge.text_tables import Table, TableRow

COLUMNS = frozenset(
    ("Model", "SeqLen (T)", "# GPUs", "GPU", "MicroBatchSize", "GradAccum", "Throughput (T/s)")
)
"""The columns by which such a table is recognised."""

GPUS_PER_NODE = 8


def llm_foundry_history(table: Table) -> ImportedRuns:
    """Return the observations of such a table, and the rows left out."""
    history, left_out = table.observed(_observation)
    return ImportedRuns(History(noted(list(history))), left_out)


def _observation(row: TableRow) -> Observation:
    """Return the observation of one row."""
    gpus = row.whole("# GPUs")
    nodes = -(-gpus // GPUS_PER_NODE)
    fp8 = "fp8" in row.text("Precision").casefold()
    return Observation(
        configuration=Configuration(
            model=model_name(f"mosaicml/mpt-{row.needed('Model')}"),
            method=Method.FULL,
            gpu_model=known_gpu("GPU", row.needed("GPU")),
            num_gpus=gpus,
            num_nodes=nodes,
            batch_size=row.whole("MicroBatchSize") * gpus,
            tokens_per_sample=row.whole("SeqLen (T)"),
            grad_accum=row.whole("GradAccum", 1),
            precision=Precision.BF16_MIXED,
            sharding=sharding_named(row.text("Sharding Strategy"), gpus, nodes),
            grad_checkpoint=row.flag("Activation Checkpointing"),
            attention=Attention.FLASH,
            interconnect=Interconnect.ROCE if nodes > 1 else Interconnect.AUTO,
            software="llm-foundry fp8" if fp8 else "llm-foundry",
        ),
        outcome=RunOutcome.VALID,
        tokens_per_s=row.number_of("Throughput (T/s)"),
        origin=Origin.IMPORT,
        provenance=row.provenance,
        protocol=row.text("section"),
    )
