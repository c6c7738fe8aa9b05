"""``duetune profile``: measure configurations on this machine's GPU."""

from __future__ import annotations

from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click
import msgspec

from duetune.cli.context import print_answer
from duetune.cli.json_output import JsonDocument
from duetune.errors import InvalidInput

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from duetune.knowledge.measure.campaign import CampaignProgress
    from duetune.knowledge.measure.preparation import CampaignPlan, CampaignRequest
    from duetune.knowledge.observation import Observation

PLANNED_MINUTES = 30.0


class Planned(JsonDocument, frozen=True, kw_only=True):
    """The answer of ``--plan --json``; ``left_out`` counts the skipped configurations by reason."""

    space: str
    configurations: int
    models: tuple[str, ...]
    gpu: str
    software: str
    already: int
    left_out: dict[str, int]
    expected_count: int
    expected_s: float


class Profiled(JsonDocument, frozen=True, kw_only=True):
    """The answer of ``--json``; ``before`` counts the runs that the file had already."""

    space: str
    out: str
    gpu: str
    software: str
    mode: str
    before: int
    done: int
    valid: int
    oom: int
    failed: int
    elapsed_s: float


@click.command()
@click.argument("space", metavar="SPACE")
@click.option(
    "--out", metavar="FILE", help="Append the results to this file, one JSON document per line."
)
@click.option(
    "--minutes",
    type=float,
    metavar="MINUTES",
    help="Stop after this time; --minutes or --count is required.",
)
@click.option(
    "--count", type=int, metavar="COUNT", help="Stop after this number of configurations."
)
@click.option(
    "--mode",
    default="active",
    metavar="MODE",
    help="Which to run next: active (most information per second), random or latin-hypercube.",
)
@click.option(
    "--history",
    multiple=True,
    metavar="FILE",
    help="Known runs (JSON lines or CSV): they are learned from and not repeated. May be repeated.",
)
@click.option(
    "--resume/--no-resume",
    default=True,
    help="Continue an existing output file, or refuse it.",
)
@click.option(
    "--device",
    default="cuda",
    metavar="DEVICE",
    help="cuda, or cpu to try the command without a GPU.",
)
@click.option(
    "--most-seconds",
    type=float,
    metavar="SECONDS",
    help="Skip configurations that are expected to take longer.  [default: 8]",
)
@click.option(
    "--until-flat",
    is_flag=True,
    help="Stop when 50 more runs improve predictions by less than 0.2 points.",
)
@click.option(
    "--plan",
    is_flag=True,
    help="Show the number of configurations and the expected time; run nothing.",
)
@click.option(
    "--seed",
    type=int,
    default=0,
    metavar="N",
    help="Seed of the random numbers.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document instead.")
def profile(
    space: str,
    out: str | None,
    history: tuple[str, ...],
    resume: bool,
    most_seconds: float | None,
    plan: bool,
    as_json: bool,
    **chosen: object,
) -> None:
    """Measure configurations on the GPU of this machine.

    SPACE is a file that describes the configurations, or a campaign that comes with duetune: h200
    or quick. Each configuration runs a few real fine-tuning steps on a model with random weights,
    so nothing is downloaded. The result is its tokens per second and peak memory, or that it ran
    out of memory. A memory cap emulates a smaller card.
    """
    from duetune.files import output_file
    from duetune.knowledge.measure.preparation import CampaignRequest, PreparedCampaign

    if out is None and not plan:
        raise click.UsageError("--out FILE is required: the results are written there")
    if out is not None:
        output_file("out", out)
    path = Path(out or "profile.jsonl")
    if path.exists() and not resume and not plan:
        raise InvalidInput("out", str(path), "a new file, because of --no-resume")
    if plan and chosen["minutes"] is None and chosen["count"] is None:
        chosen["minutes"] = PLANNED_MINUTES
    if most_seconds is not None:
        chosen["most_s"] = most_seconds
    request = msgspec.structs.replace(CampaignRequest(space=space, out=path), **chosen)
    prepared = PreparedCampaign(request, _known(history))
    if plan:
        known = _known((str(path),)) if path.exists() else []
        _show_plan(request, prepared.plan(known), as_json=as_json)
        return
    bar = _Bar(request)
    campaign = prepared.campaign(bar.report)
    with bar.shown(quiet=as_json):
        done = campaign.run()
    answer = Profiled(
        command="profile",
        seed=request.seed,
        space=space,
        out=str(path),
        gpu=prepared.gpu,
        software=prepared.software,
        mode=request.mode,
        before=done.before,
        done=done.done,
        valid=done.valid,
        oom=done.oom,
        failed=done.failed,
        elapsed_s=round(done.elapsed_s, 1),
    )
    if as_json:
        print_answer(answer)
        return
    click.echo(
        f"{answer.done} configurations on {answer.gpu}: {answer.valid} valid, {answer.oom} out of"
        f" memory, {answer.failed} failed; {answer.before + answer.done} in {answer.out}."
    )


def _known(paths: tuple[str, ...]) -> list[Observation]:
    from duetune.knowledge.history_files import read_history
    from duetune.knowledge.measure.campaign_file import read_observations

    found: list[Observation] = []
    for path in paths:
        found += read_history(path) if path.endswith(".csv") else read_observations(Path(path))
    return found


def _show_plan(request: CampaignRequest, plan: CampaignPlan, *, as_json: bool) -> None:
    from duetune.cli.context import duration_words

    document = Planned(
        command="profile --plan",
        seed=request.seed,
        space=request.space,
        configurations=plan.cardinality,
        models=plan.models,
        gpu=plan.gpu,
        software=plan.software,
        already=plan.already,
        left_out=plan.left_out,
        expected_count=plan.expected_count,
        expected_s=round(plan.expected_s, 1),
    )
    if as_json:
        print_answer(document)
        return
    click.echo(
        f"{plan.cardinality:,} configurations of {len(plan.models)} models on {plan.gpu}"
        f" ({plan.software})"
    )
    for model in plan.models:
        click.echo(f"  {model}")
    for reason, count in plan.left_out.items():
        click.echo(f"Skipped, about {count:,}: {reason}.")
    known = f"; {plan.already:,} are known already" if plan.already else ""
    click.echo(
        f"About {plan.expected_count:,} would run in {duration_words(plan.expected_s)},"
        f" {plan.seconds_each:.1f} s each{known}."
    )


class _Bar:
    """A progress bar over the number of configurations, or over time if there is no number."""

    def __init__(self, request: CampaignRequest) -> None:
        self._by_count = request.count is not None
        minutes = request.minutes or 0.0
        self._total = 60 * minutes if request.count is None else float(request.count)
        self._update: Callable[[CampaignProgress], None] = lambda _: None

    def report(self, progress: CampaignProgress) -> None:
        self._update(progress)

    @contextmanager
    def shown(self, *, quiet: bool) -> Iterator[None]:
        from rich.console import Console
        from rich.progress import BarColumn, TextColumn, TimeRemainingColumn
        from rich.progress import Progress as Bar

        bar = Bar(
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.fields[counts]}"),
            TimeRemainingColumn(),
            console=Console(stderr=True),
            transient=True,
            disable=quiet,
        )
        with bar:
            task = bar.add_task("starting", total=self._total, counts="")

            def update(progress: CampaignProgress) -> None:
                rate = 60 * progress.done / max(progress.elapsed_s, 1e-9)
                bar.update(
                    task,
                    completed=progress.done if self._by_count else progress.elapsed_s,
                    description=progress.running.rsplit("/", 1)[-1] or "done",
                    counts=f"{progress.done} done, {progress.valid} valid, {progress.oom} oom,"
                    f" {progress.failed} failed, {rate:.0f}/min",
                )

            self._update = update
            yield
