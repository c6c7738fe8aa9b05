"""Puts the reasons for the choices of a training plan into words; ``configure`` calls it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from duetune.jobs.question import whole_nodes
from duetune.jobs.step_time import Basis
from duetune.knowledge.advice import GIVEN
from duetune.knowledge.configurations.configuration_table import UNKNOWN_PARAMETERS

if TYPE_CHECKING:
    from duetune.jobs.site import Site
    from duetune.jobs.spec.job_spec import JobSpec
    from duetune.jobs.step_time import Pace
    from duetune.knowledge.estimate import Estimate
    from duetune.knowledge.facts.model_facts import ModelFacts


def member_reason(given: int | None, gpus: int, node: int | None = None) -> str:
    """Return why a member has so many GPUs; ``given`` is the number in the spec, if any, and
    ``node`` that of a node, if the fleet gives only whole ones.
    """
    if given is not None:
        return GIVEN
    if node is not None:
        return whole_nodes(node)
    return "one GPU holds the model" if gpus == 1 else "the model needs the memory of so many GPUs"


def other_reasons(spec: JobSpec, model: ModelFacts | None, max_gpus: int) -> dict[str, str]:
    """Return the reasons for the fields that do not depend on the recipe."""
    name, least, most = spec.gpus
    given_most = most is not None and max_gpus == most
    return {
        "accelerator": "the GPU of the fleet" if name is None else GIVEN,
        "min_gpus": GIVEN if least > 1 else "one GPU is enough",
        "max_gpus": GIVEN if given_most else "as many as the site has and as make a step faster",
        "global_batch": "microbatch times accumulation",
        "parameters": "unknown" if model is None else f"from {model.source}",
    }


def pace_reason(
    spec: JobSpec,
    site: Site,
    model: ModelFacts | None,
    pace: Pace,
    prospect: Estimate,
    runs: int,
) -> str:
    """Return what the step times rest on, in words."""
    match pace.basis:
        case Basis.MEASURED:
            return f"{runs} earlier runs of the same training"
        case Basis.EMULATED:
            return "the emulated GPU's time for a microbatch"
        case Basis.KNOWLEDGE | Basis.PHYSICS:
            reason = _evidence(spec, site, prospect)
        case _:
            reason = f"rule of thumb for the model's arithmetic on {site.accelerator}"
    if model is None:
        reason += f", assumed to have {UNKNOWN_PARAMETERS / 1e9:g} billion parameters"
    return reason


def length_reason(basis: Basis, length: int, *, known: bool) -> str:
    """Return the length of examples that a pace rests on, if it does."""
    if basis in {Basis.MEASURED, Basis.EMULATED}:
        return ""
    half = "" if known else ", assumed to be half of max_length"
    return f"; examples of about {length:,} tokens{half}"


def _evidence(spec: JobSpec, site: Site, prospect: Estimate) -> str:
    """Return the pace of one GPU, its interval, and the measurements behind it."""
    low, middle, high = prospect.tokens_per_s
    pace = f"{site.accelerator}: {middle:,.0f} tokens/s ({low:,.0f} to {high:,.0f})"
    if "gpu_model" in prospect.extrapolated:
        return f"{pace}; nothing was measured on {site.accelerator}: physics alone"
    count = prospect.support
    runs = f"{count or 'no'} measured run{'' if count < 2 else 's'} near it"
    unseen = {"model": spec.model, "method": "this method", "software": "this software"}
    missing = [str(words) for field, words in unseen.items() if field in prospect.extrapolated]
    nothing = f"; nothing was measured for {' or '.join(missing)}" if missing else ""
    return f"{pace}, {runs}{nothing}"
