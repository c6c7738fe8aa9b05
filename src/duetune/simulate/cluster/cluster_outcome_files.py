"""What came of a simulation, on disk: a table of jobs, and a log of rounds. Both say of every line
in what kind of world it was, so that nobody takes what was emulated for measured.
"""

from __future__ import annotations

import csv
from typing import TYPE_CHECKING

import msgspec

from duetune.simulate.cluster.cluster_outcome import JobOutcome

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import TextIO

    from duetune.simulate.cluster.cluster_outcome import ClusterOutcome


def write_jobs(outcome: ClusterOutcome, world: str, file: TextIO) -> None:
    """A row for each job; moments in seconds since the simulation began."""
    rows = csv.writer(file, lineterminator="\n")
    rows.writerow((*JobOutcome.__struct_fields__, "jct_s", "queued_s", "late", "world"))
    for each in outcome.jobs:
        values = (*msgspec.structs.astuple(each), each.jct_s, each.queued_s, each.late, world)
        rows.writerow(["" if value is None else value for value in values])


def write_rounds(
    outcome: ClusterOutcome, world: str, partitions: Sequence[str], file: TextIO
) -> None:
    """A line of JSON for each round; GPUs by name of partition, in use and there."""
    for each in outcome.rounds:
        line = {
            "at_s": each.at_s,
            "world": world,
            "used": dict(zip(partitions, each.used, strict=True)),
            "there": dict(zip(partitions, each.there, strict=True)),
            "running": each.running,
            "waiting": each.waiting,
            "changes": [
                {
                    "job": change.job,
                    "what": change.what,
                    "partition": partitions[change.partition],
                    "gpus": change.gpus,
                }
                for change in each.changes
            ],
        }
        file.write(msgspec.json.encode(line).decode() + "\n")
