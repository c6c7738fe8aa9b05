"""Earlier runs of the same thing, from the observations."""

from __future__ import annotations

from typing import TYPE_CHECKING

from duetune.quote.pace import MeasuredPace

if TYPE_CHECKING:
    from collections.abc import Sequence

    from duetune.spec.schema import JobSpec
    from duetune.store.observations import Observation


def measured_paces(observations: Sequence[Observation], spec: JobSpec) -> tuple[MeasuredPace, ...]:
    """What is known of the spec's model."""
    return tuple(
        MeasuredPace(
            subject=each.model,
            accelerator=each.gpu,
            gpus=each.gpus,
            step_s=1 / each.steps_per_s,
            method=each.method,
            microbatch=each.microbatch,
            accumulation=-(-each.global_batch // each.microbatch),
            max_length=each.sequence_length,
        )
        for each in observations
        if each.model == spec.model and each.steps_per_s
    )
