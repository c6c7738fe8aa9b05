"""``duetune recommend``: choose the fields that a job spec leaves open."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from duetune.cli.context import Answer, print_answer, waiting
from duetune.home import Home

if TYPE_CHECKING:
    from duetune.knowledge.advice import Advice

NOTHING_FITS = 1


class RecommendAnswer(Answer, frozen=True, kw_only=True):
    """The answer of ``--json``.

    ``probe`` is the space file of the run that would improve the choice most, for
    `duetune profile`; None if no run would.
    """

    name: str
    source: str
    advice: Advice
    probe: str | None = None


@click.command()
@click.argument("spec", metavar="[JOB.YAML]", required=False)
@click.option("--model", metavar="MODEL", help="The model; replaces that of the job spec.")
@click.option(
    "--method",
    metavar="NAME",
    help="full, lora, qlora, ...  [default: full below 1B parameters if that fits, else lora]",
)
@click.option("--seq", type=int, metavar="TOKENS", help="Tokens of each sequence.  [default: 1024]")
@click.option(
    "--batch", type=int, metavar="N", help="Sequences of one optimiser step.  [default: 16]"
)
@click.option(
    "--objective",
    metavar="NAME",
    help="deadline (on time at the least cost), fastest, gpu-hours (fewest) or balanced.  "
    "[default: deadline if there is one, else gpu-hours]",
)
@click.option("--gpus", metavar="LIST", help="Available GPUs: A100-80GB:8,L40S:4.")
@click.option("--price", metavar="LIST", help="Dollars per GPU-hour: A100-80GB=1.2,L40S=0.8.")
@click.option(
    "--tokens", metavar="N", help="Tokens to train on: 2e8, 200M.  [default: from the dataset]"
)
@click.option("--deadline", metavar="WHEN", help="6h, 2d4h, or a date and time.")
@click.option(
    "--precision",
    metavar="NAME",
    help="bf16, fp16, fp32, bf16-mixed or fp16-mixed.  [default: that of duetune's trainer]",
)
@click.option(
    "--sharding",
    metavar="NAME",
    help="How GPUs share the state: any, ddp, fsdp.  [default: as duetune's trainer]",
)
@click.option(
    "--software",
    metavar="NAME",
    help="The trainer, by its name in the history.  [default: duetune's trainer]",
)
@click.option("--top", type=int, default=5, metavar="N", help="Number of alternatives.")
@click.option(
    "--source",
    default="hybrid",
    metavar="NAME",
    help="The source of knowledge; 'duetune history sources' lists them.",
)
@click.option(
    "--probe",
    metavar="FILE",
    help="Write the most useful next measurement to this file, for 'duetune profile'.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document instead.")
def recommend(
    spec: str | None, source: str, probe: str | None, as_json: bool, **chosen: object
) -> int:
    """Choose the fields that a job spec leaves open, so that the job fits, is on time and is cheap.

    Shows the reason for each field, alternatives with 90% intervals, the evidence, and which single
    measurement would help most. Without JOB.YAML, --model is required. Nothing is started. The exit
    status is 1 if nothing fits.
    """
    import msgspec

    from duetune.cli.advice_format import FITTING
    from duetune.jobs.advice_request import Wanted
    from duetune.jobs.next_run_file import probe_text, write_probe
    from duetune.knowledge.advice import asked_model

    if spec is None and chosen["model"] is None:
        raise click.UsageError("a job spec or --model is required")
    home = Home()
    job = None if spec is None else home.spec(spec)
    with waiting(FITTING):
        advice = home.recommend(msgspec.convert(chosen, Wanted), job, source=source)
    text = None if advice.lesson is None else probe_text(advice.lesson.run)
    if probe is not None and text is not None:
        write_probe(probe, text)
    name = asked_model(str(chosen["model"])) if job is None else job.name
    if as_json:
        print_answer(
            RecommendAnswer(
                command="recommend", name=name, source=source, advice=advice, probe=text
            )
        )
    else:
        from duetune.cli.recommend_tables import show_advice

        show_advice(name, advice, probe)
    return 0 if advice.candidates else NOTHING_FITS
