"""``duetune history``: import, export and show measured runs."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click
import msgspec

from duetune.cli.context import Answer, json_option, print_answer
from duetune.errors import InvalidInput
from duetune.home import Home

if TYPE_CHECKING:
    from duetune.interop.measurement_files import Taken
    from duetune.knowledge.history import History


QUARANTINE = {"implausible": "faster than the GPU's peak arithmetic allows"}


class Known(msgspec.Struct, frozen=True, kw_only=True):
    """The runs of one model, GPU and method. ``tokens_per_s`` is the best, per GPU."""

    model: str
    gpu: str
    method: str
    runs: int
    valid: int
    oom: int
    quarantined: int
    tokens_per_s: float | None


class ImportAnswer(Answer, frozen=True, kw_only=True):
    """The answer of ``import --json``; ``known`` is the number of runs in the home afterwards."""

    taken: tuple[Taken, ...]
    known: int


class ExportAnswer(Answer, frozen=True, kw_only=True):
    """The answer of ``export --json``."""

    file: str
    rows: int


class ShowAnswer(Answer, frozen=True, kw_only=True):
    """The answer of ``show --json``; ``shipped`` of the ``runs`` come with duetune."""

    runs: int
    shipped: int
    snapshot: str
    known: tuple[Known, ...]


class SourcesAnswer(Answer, frozen=True, kw_only=True):
    """The answer of ``sources --json``: each name with its meaning."""

    sources: dict[str, str]


@click.group()
def history() -> None:
    """Import, export and show measured runs.

    `fits`, `recommend` and `plan` estimate memory and speed from these runs. Some come with
    duetune. Jobs that run here add theirs automatically.
    """


@history.command("import")
@click.argument("paths", metavar="PATH...", nargs=-1, required=True)
@click.option(
    "--given",
    multiple=True,
    metavar="FIELD=VALUE",
    help="A field that the runs lack, such as gpu_model=H100; not for tables. May be repeated.",
)
@json_option
def import_(paths: tuple[str, ...], given: tuple[str, ...], as_json: bool) -> int:
    """Import measured runs.

    PATH is a table (CSV or Parquet), a run of MLflow, W&B or the Hugging Face Trainer, or the
    output of 'duetune profile'. If one file cannot be read, nothing is imported.
    """
    from duetune.interop.measurement_files import read_places, take_in

    fields = _fields(given)
    home = Home()
    read = read_places(paths, fields)
    taken = take_in(home.writable_store, read)
    known = len(home.store.observations.history())
    if as_json:
        print_answer(ImportAnswer(command="history import", taken=taken, known=known))
        return _status(taken)
    for each in taken:
        old = each.read - each.new
        click.echo(f"{each.place}: {each.read:,} rows, {each.new:,} new, {old:,} known already.")
        if each.contradicting:
            click.echo(
                f"  {each.contradicting:,} configuration{'s' * (each.contradicting > 1)} with"
                " contradicting runs: their speeds differ by more than 3 times."
            )
        if each.quarantined:
            why = "; ".join(
                f"{count:,} {QUARANTINE.get(why, why)}"
                for why, count in each.quarantine_reasons.items()
            )
            click.echo(f"  {each.quarantined:,} kept but not used for estimates: {why}.")
        if each.left_out:
            click.echo(f"  {each.left_out:,} left out:")
            for reason in each.left_out_reasons:
                click.echo(f"    {reason}")
            if each.left_out > len(each.left_out_reasons):
                click.echo(f"    and {each.left_out - len(each.left_out_reasons):,} more")
    click.echo(f"The history of this home has {known:,} runs.")
    return _status(taken)


def _status(taken: tuple[Taken, ...]) -> int:
    """Return the exit status: 2, as for any bad input, if no row at all could be used."""
    useless = any(each.left_out for each in taken) and not any(each.read for each in taken)
    return InvalidInput.exit_code if useless else 0


@history.command()
@click.argument("file", metavar="FILE")
@click.option("--all", "everything", is_flag=True, help="Include the runs that come with duetune.")
@json_option
def export(file: str, everything: bool, as_json: bool) -> None:
    """Write the runs measured or imported here to FILE, as .csv or .parquet."""
    from duetune.interop.measurement_files import export_measurements

    found = _known(everything=everything)
    export_measurements(file, found)
    if as_json:
        print_answer(ExportAnswer(command="history export", file=file, rows=len(found)))
        return
    click.echo(f"Wrote {len(found):,} runs to {file}.")


@history.command()
@click.option("--model", metavar="NAME", help="Show one model only.")
@json_option
def show(model: str | None, as_json: bool) -> None:
    """Show the measured runs by model, GPU and method."""
    from duetune.knowledge.facts.model_registry import model_name
    from duetune.knowledge.history import History
    from duetune.registry.sources import shipped_history

    found = _known(everything=True)
    if model is not None:
        names = {model, model_name(model)}
        runs = [each for each in found if each.configuration.model in names]
        if not runs:
            _refuse(model, found)
        found = History(runs)
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
    """List the sources of configuration knowledge."""
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
    from duetune.store.store import existing_store

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
        screen.print("No runs were measured.")
        return
    narrow = screen.width < NARROW
    columns = ["model", "GPU", "method", "runs", "valid", "out of memory", "unused"]
    columns = columns[:4] if narrow else columns
    pace_column = "tok/s" if narrow else "best tok/s/GPU"
    table = new_table(*columns, pace_column, left=("model", "GPU", "method"))
    for each in known:
        pace = "-" if each.tokens_per_s is None else number(each.tokens_per_s)
        counts = [str(count or "-") for count in (each.valid, each.oom, each.quarantined)]
        model = each.model.rsplit("/", 1)[-1] if narrow else each.model
        shown = () if narrow else counts
        table.add_row(escape(model), escape(each.gpu), each.method, str(each.runs), *shown, pace)
    screen.print(table)
    screen.print()
    screen.print(f"{runs:,} runs: {runs - own:,} come with duetune, {own:,} are from this home.")
