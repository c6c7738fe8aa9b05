"""``duetune history``: what was measured."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click
import msgspec

from duetune.cli.context import Answer, Home, json_option, print_answer
from duetune.errors import InvalidInput

if TYPE_CHECKING:
    from duetune.interop.measurement_files import Taken
    from duetune.knowledge.history import History


QUARANTINE = {"implausible": "would have used more arithmetic than the GPU has"}


class Known(msgspec.Struct, frozen=True, kw_only=True):
    """All runs of one model, GPU and method. ``tokens_per_s`` is the best of them for each GPU."""

    model: str
    gpu: str
    method: str
    runs: int
    valid: int
    oom: int
    quarantined: int
    tokens_per_s: float | None


class ImportAnswer(Answer, frozen=True, kw_only=True):
    taken: tuple[Taken, ...]
    known: int


class ExportAnswer(Answer, frozen=True, kw_only=True):
    file: str
    rows: int


class ShowAnswer(Answer, frozen=True, kw_only=True):
    """``shipped`` runs of ``runs`` come with duetune."""

    runs: int
    shipped: int
    snapshot: str
    known: tuple[Known, ...]


class SourcesAnswer(Answer, frozen=True, kw_only=True):
    sources: dict[str, str]


@click.group()
def history() -> None:
    """What was measured: here, by others, and what comes with duetune.

    Advice rests on it. Jobs that run here add to it by themselves.
    """


@history.command("import")
@click.argument("paths", metavar="PATH...", nargs=-1, required=True)
@click.option(
    "--given",
    multiple=True,
    metavar="FIELD=VALUE",
    help="What a run does not tell, such as gpu_model=H100; may be repeated.",
)
@json_option
def import_(paths: tuple[str, ...], given: tuple[str, ...], as_json: bool) -> int:
    """Take measurements in: tables (CSV, Parquet), runs of MLflow, W&B or the HF Trainer, and what
    'duetune profile' wrote. All of it, or nothing if a file cannot be read.
    """
    from duetune.interop.measurement_files import read_places, take_in

    fields = _fields(given)
    home = Home()
    read = read_places(paths, fields)
    taken = take_in(home.store, read)
    known = len(home.store.observations.history())
    if as_json:
        print_answer(ImportAnswer(command="history import", taken=taken, known=known))
        return _status(taken)
    for each in taken:
        old = each.read - each.new
        parts = [f"{each.new:,} new", f"{old:,} known already"]
        click.echo(f"{each.place}: {each.read:,} rows, {', '.join(parts)}.")
        if each.contradicting:
            click.echo(
                f"  Of {each.contradicting:,} configuration{'s' * (each.contradicting > 1)} there"
                " are runs that contradict each other: some are more than 3 times as fast."
            )
        if each.quarantined:
            why = "; ".join(
                f"{count:,} {QUARANTINE.get(why, why)}"
                for why, count in each.quarantine_reasons.items()
            )
            click.echo(f"  {each.quarantined:,} kept but not learnt from: {why}.")
        if each.left_out:
            click.echo(f"  {each.left_out:,} left out:")
            for reason in each.left_out_reasons:
                click.echo(f"    {reason}")
            if each.left_out > len(each.left_out_reasons):
                click.echo(f"    and {each.left_out - len(each.left_out_reasons):,} more")
    click.echo(f"The history of this home has {known:,} runs.")
    return _status(taken)


def _status(taken: tuple[Taken, ...]) -> int:
    """2, as for any bad input, if there was something and none of it could be used."""
    useless = any(each.left_out for each in taken) and not any(each.read for each in taken)
    return InvalidInput.exit_code if useless else 0


@history.command()
@click.argument("file", metavar="FILE")
@click.option("--all", "everything", is_flag=True, help="With what comes with duetune.")
@json_option
def export(file: str, everything: bool, as_json: bool) -> None:
    """Write what was measured or imported here as CSV, or as Parquet if FILE ends so."""
    from duetune.interop.measurement_files import export_measurements

    found = _known(everything=everything)
    export_measurements(file, found)
    if as_json:
        print_answer(ExportAnswer(command="history export", file=file, rows=len(found)))
        return
    click.echo(f"{len(found):,} runs in {file}.")


@history.command()
@click.option("--model", metavar="NAME", help="Of one model only.")
@json_option
def show(model: str | None, as_json: bool) -> None:
    """What is known, by model, GPU and method."""
    from duetune.knowledge.facts.model_registry import model_name
    from duetune.knowledge.history import History
    from duetune.registry.sources import shipped_history

    found = _known(everything=True)
    if model is not None:
        wish = model_name(model)
        mine = [each for each in found if each.configuration.model in {model, wish}]
        if not mine:
            _refuse(model, found)
        found = History(mine)
    known = _grouped(found)
    shipped = shipped_history().keys
    own = sum(each.key not in shipped for each in found)
    if as_json:
        print_answer(
            ShowAnswer(
                command="history show",
                runs=len(found),
                shipped=len(found) - own,
                snapshot=found.snapshot,
                known=known,
            )
        )
        return
    _show(known, len(found), own)


@history.command()
@json_option
def sources(as_json: bool) -> None:
    """The sources of knowledge by name."""
    from duetune.registry.sources import sources_listed

    listed = sources_listed()
    if as_json:
        named = {each.name: each.meaning for each in listed}
        print_answer(SourcesAnswer(command="history sources", sources=named))
        return
    from duetune.cli.catalogue import print_listing

    print_listing("Sources of knowledge (recommend --source)", listed)


def _fields(given: tuple[str, ...]) -> dict[str, str]:
    found = {}
    for each in given:
        field, equals, value = each.partition("=")
        if not (field and equals and value):
            raise InvalidInput("given", each, "a field and its value, such as gpu_model=H100")
        found[field.strip()] = value.strip()
    return found


def _known(*, everything: bool) -> History:
    from duetune.knowledge.history import History
    from duetune.registry.sources import site_history
    from duetune.store.home_store import existing_store

    store = existing_store(Home().settings)
    if everything:
        return site_history(store)
    return History.empty() if store is None else store.observations.history()


def _refuse(model: str, found: History) -> None:
    import difflib

    from duetune.errors import NotFound

    names = sorted({each.configuration.model for each in found})
    near = difflib.get_close_matches(model, names, n=5, cutoff=0.3)
    raise NotFound("measured model", model, ", ".join(near or names[:10]))


def _grouped(found: History) -> tuple[Known, ...]:
    from duetune.knowledge.observation import RunOutcome

    odd = {each.observation.key for each in found.quarantined}
    groups: dict[tuple[str, str, str], list[int]] = {}
    for place, each in enumerate(found):
        one = each.configuration
        groups.setdefault((one.model, one.gpu_model, one.method.value), []).append(place)
    known = []
    for (model, gpu, method), places in sorted(groups.items()):
        runs = [found[place] for place in places]
        paces = [
            run.tokens_per_s / run.configuration.num_gpus
            for run in runs
            if run.tokens_per_s is not None and run.key not in odd
        ]
        known.append(
            Known(
                model=model,
                gpu=gpu,
                method=method,
                runs=len(runs),
                valid=sum(run.outcome is RunOutcome.VALID for run in runs),
                oom=sum(run.outcome is RunOutcome.OOM for run in runs),
                quarantined=sum(run.key in odd for run in runs),
                tokens_per_s=max(paces, default=None),
            )
        )
    return tuple(known)


def _show(known: tuple[Known, ...], runs: int, own: int) -> None:
    from rich.markup import escape

    from duetune.cli.advice_format import NARROW, number
    from duetune.cli.tables import console, new_table

    screen = console()
    if not known:
        screen.print("Nothing was measured.")
        return
    narrow = screen.width < NARROW
    columns = ["model", "GPU", "method", "runs", "valid", "out of memory", "odd"]
    columns = columns[:4] if narrow else columns
    pace_column = "tok/s" if narrow else "best tok/s a GPU"
    table = new_table(*columns, pace_column, left=("model", "GPU", "method"))
    for each in known:
        pace = "-" if each.tokens_per_s is None else number(each.tokens_per_s)
        counts = [str(count or "-") for count in (each.valid, each.oom, each.quarantined)]
        model = each.model.rsplit("/", 1)[-1] if narrow else each.model
        shown = () if narrow else counts
        table.add_row(escape(model), escape(each.gpu), each.method, str(each.runs), *shown, pace)
    screen.print(table)
    screen.print()
    screen.print(f"{runs:,} runs: {runs - own:,} come with duetune, {own:,} are of this home.")
