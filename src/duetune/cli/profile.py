"""``duetune profile``."""

from __future__ import annotations

from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click
import msgspec

from duetune.cli.json_output import JsonDocument, print_document
from duetune.errors import InvalidInput

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from duetune.knowledge.measure.campaign import CampaignProgress
    from duetune.knowledge.measure.preparation import CampaignPlan, CampaignRequest
    from duetune.knowledge.observation import Observation

PLANNED_MINUTES = 30.0


class Planned(JsonDocument, frozen=True, kw_only=True):
    """``left_out`` says how many configurations of the space are not run, and why."""

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
    """``before`` were in the file already."""

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
@click.option("--out", metavar="FILE", help="What was measured, one JSON document a line.")
@click.option("--minutes", type=float, metavar="MINUTES", help="Stop after so long.")
@click.option("--count", type=int, metavar="COUNT", help="Stop after so many configurations.")
@click.option(
    "--mode",
    default="active",
    show_default=True,
    metavar="MODE",
    help="active (what teaches most per second), random or latin-hypercube.",
)
@click.option(
    "--history",
    multiple=True,
    metavar="FILE",
    help="Known already: learnt from, and not run again.",
)
@click.option(
    "--resume/--no-resume",
    default=True,
    show_default=True,
    help="Go on with FILE if it is there, or refuse to.",
)
@click.option(
    "--device", default="cuda", show_default=True, metavar="DEVICE", help="cuda, or cpu to try it."
)
@click.option(
    "--most-seconds",
    type=float,
    metavar="SECONDS",
    help="Leave out configurations expected to take longer each.  [default: 8]",
)
@click.option("--until-flat", is_flag=True, help="Stop once more runs hardly teach anything.")
@click.option(
    "--plan", is_flag=True, help="Say what it would be (of half an hour, unless said); run nothing."
)
@click.option(
    "--seed", type=int, default=0, show_default=True, help="For all that is drawn by chance."
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

    SPACE is a file that says which there are, or a campaign that comes with duetune: h200, quick.
    Each is run for a few real steps of fine-tuning on a model with random weights: nothing is
    downloaded. What runs out of memory is noted as such; smaller cards are emulated by a cap.
    """
    from duetune.files import output_file
    from duetune.knowledge.measure.preparation import CampaignRequest, PreparedCampaign

    if out is None and not plan:
        raise click.UsageError("--out FILE is needed: what was measured is written there")
    if out is not None:
        output_file("out", out)
    path = Path(out or "profile.jsonl")
    if path.exists() and not resume and not plan:
        raise InvalidInput("out", str(path), "a file that is not there yet, with --no-resume")
    if plan and chosen["minutes"] is None and chosen["count"] is None:
        chosen["minutes"] = PLANNED_MINUTES
    if most_seconds is not None:
        chosen["most_s"] = most_seconds
    wish = msgspec.structs.replace(CampaignRequest(space=space, out=path), **chosen)
    prepared = PreparedCampaign(wish, _known(history))
    if plan:
        known = _known((str(path),)) if path.exists() else []
        _show_plan(wish, prepared.plan(known), as_json=as_json)
        return
    bar = _Bar(wish)
    campaign = prepared.campaign(bar.report)
    with bar.shown(quiet=as_json):
        done = campaign.run()
    answer = Profiled(
        command="profile",
        seed=wish.seed,
        space=space,
        out=str(path),
        gpu=prepared.gpu,
        software=prepared.software,
        mode=wish.mode,
        before=done.before,
        done=done.done,
        valid=done.valid,
        oom=done.oom,
        failed=done.failed,
        elapsed_s=round(done.elapsed_s, 1),
    )
    if as_json:
        print_document(answer)
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


def _show_plan(wish: CampaignRequest, plan: CampaignPlan, *, as_json: bool) -> None:
    from duetune.cli.context import duration_words

    document = Planned(
        command="profile --plan",
        seed=wish.seed,
        space=wish.space,
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
        print_document(document)
        return
    click.echo(
        f"{plan.cardinality:,} configurations of {len(plan.models)} models on {plan.gpu}"
        f" ({plan.software})"
    )
    for model in plan.models:
        click.echo(f"  {model}")
    for reason, count in plan.left_out.items():
        click.echo(f"Left out, about {count:,}: {reason}.")
    known = f"; {plan.already:,} are known already" if plan.already else ""
    click.echo(
        f"About {plan.expected_count:,} would be run in {duration_words(plan.expected_s)},"
        f" {plan.seconds_each:.1f} s each{known}."
    )


class _Bar:
    """Of what is done, or of the time if there is no count."""

    def __init__(self, wish: CampaignRequest) -> None:
        self._by_count = wish.count is not None
        self._total = 60 * (wish.minutes or 0.0) if wish.count is None else float(wish.count)
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
            TextColumn("{task.fields[told]}"),
            TimeRemainingColumn(),
            console=Console(stderr=True),
            transient=True,
            disable=quiet,
        )
        with bar:
            task = bar.add_task("starting", total=self._total, told="")

            def update(progress: CampaignProgress) -> None:
                rate = 60 * progress.done / max(progress.elapsed_s, 1e-9)
                bar.update(
                    task,
                    completed=progress.done if self._by_count else progress.elapsed_s,
                    description=progress.running.rsplit("/", 1)[-1] or "done",
                    told=f"{progress.done} done, {progress.valid} valid, {progress.oom} oom,"
                    f" {progress.failed} failed, {rate:.0f}/min",
                )

            self._update = update
            yield
