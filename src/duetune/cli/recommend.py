"""``duetune recommend``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from duetune.cli.context import Answer, print_answer, waiting
from duetune.home import Home

if TYPE_CHECKING:
    from duetune.knowledge.advice import Advice

NOTHING_FITS = 1


class RecommendAnswer(Answer, frozen=True, kw_only=True):
    """``probe`` is the space of the one run that would teach most, as `duetune profile` reads it;
    None where no run would.
    """

    name: str
    source: str
    advice: Advice
    probe: str | None = None


@click.command()
@click.argument("spec", metavar="[JOB.YAML]", required=False)
@click.option("--model", metavar="MODEL", help="Instead of a job spec, or another than it has.")
@click.option("--method", help="full, lora, qlora, ...  [default: lora, full below 1B parameters]")
@click.option("--seq", type=int, metavar="TOKENS", help="Of each sequence.  [default: 1024]")
@click.option("--batch", type=int, metavar="N", help="Sequences of one step.  [default: 16]")
@click.option(
    "--objective",
    metavar="WHAT",
    help="deadline (in time at least cost), fastest, gpu-hours or balanced.  "
    "[default: deadline if there is one, else gpu-hours]",
)
@click.option("--gpus", metavar="LIST", help="What there is: A100-80GB:8,L40S:4.")
@click.option("--price", metavar="LIST", help="Dollars per GPU and hour: A100-80GB=1.2,L40S=0.8.")
@click.option("--tokens", metavar="N", help="The work: 2e8, 200M.  [default: from the dataset]")
@click.option("--deadline", metavar="WHEN", help="6h, 2d, or a moment.")
@click.option(
    "--precision",
    help="bf16, fp16, fp32, bf16-mixed or fp16-mixed.  [default: what duetune's trainer does]",
)
@click.option(
    "--sharding", metavar="HOW", help="any, ddp, fsdp.  [default: ddp, as duetune's trainer]"
)
@click.option("--software", metavar="NAME", help="What trains.  [default: duetune's trainer]")
@click.option("--top", type=int, default=5, show_default=True, help="How many alternatives.")
@click.option(
    "--source",
    default="hybrid",
    show_default=True,
    help="Of knowledge; 'duetune history sources' lists them.",
)
@click.option(
    "--probe", metavar="FILE", help="Write the run that would teach most, for 'duetune profile'."
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document instead.")
def recommend(
    spec: str | None, source: str, probe: str | None, as_json: bool, **chosen: object
) -> int:
    """Fill in what a job leaves open: a configuration that fits, is on time and costs least.

    Shows why each field is what it is, alternatives with 90% intervals, what that rests on, and
    what one more measurement would teach. Nothing is started. The exit status is 1 if nothing fits.
    """
    import msgspec

    from duetune.cli.advice_format import FITTING
    from duetune.jobs.advice_request import Wanted
    from duetune.jobs.next_run_file import probe_text, write_probe
    from duetune.knowledge.advice import asked_model

    if spec is None and chosen["model"] is None:
        raise click.UsageError("a job spec or --model is needed")
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
