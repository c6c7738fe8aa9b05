"""``duetune market feeds``, ``record`` and ``import``: live feeds and the recordings of a home."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import TYPE_CHECKING

import click
import msgspec

from duetune.cli.context import Answer, fleet_option, json_option, print_answer
from duetune.cli.options import market_options
from duetune.errors import FleetError, InvalidInput
from duetune.home import Home

if TYPE_CHECKING:
    from collections.abc import Callable

    from duetune.cli.options import MarketOptions
    from duetune.core.ports import Clock, MarketFeed
    from duetune.market.feeds.recorder import Outcome, Recorder
    from duetune.settings import Settings


class RecordingNote(msgspec.Struct, frozen=True):
    """A recording of the home. ``slots`` counts rows; ``counted`` those with a number of GPUs."""

    file: str
    pool: str
    slots: int
    counted: int
    gaps: int
    slot_hours: float
    first: str
    last: str


class FeedsAnswer(Answer, frozen=True, kw_only=True):
    """The answer of ``market feeds --json``."""

    configured: str
    feeds: dict[str, str]
    recordings: tuple[RecordingNote, ...]


class RecordingAnswer(Answer, frozen=True, kw_only=True):
    """The answer of ``market import --json``: what was changed in which file."""

    file: str
    pool: str
    slots: int
    changed: int


to_option = click.option(
    "--to",
    metavar="FILE",
    help="The recording to write.  [default: the pool's file in DUETUNE_HOME/markets]",
)


@click.command()
@json_option
def feeds(as_json: bool) -> None:
    """List the market feeds that can be named, and the recordings of this home.

    A feed is chosen by `feed` under [site] in config.toml, or by --feed.
    """
    from duetune.cli.catalogue import print_listing
    from duetune.market.feeds.recording import FOLDER
    from duetune.registry.feeds import feeds_listed

    settings = Home().settings
    folder = settings.home / FOLDER
    notes, broken = [], []
    for path in sorted(folder.glob("*.csv")):
        try:
            notes.append(_note(path))
        except InvalidInput as error:
            broken.append(f"  {path.name}: {error}")
    if as_json:
        print_answer(
            FeedsAnswer(
                command="market feeds",
                configured=settings.site.feed,
                feeds=dict(feeds_listed()),
                recordings=tuple(notes),
            )
        )
        return
    print_listing(f"Feeds (site.feed in config.toml, now {settings.site.feed})", feeds_listed())
    none = "" if notes or broken else " none"
    click.echo(f"Recordings ({folder}):{none}")
    for note in notes:
        gaps = f", {note.gaps:,} missing" if note.gaps else ""
        click.echo(f"  {Path(note.file).name}: pool {note.pool}, until {note.last[:16]}Z")
        minutes = note.slot_hours * 60
        click.echo(f"    {note.slots:,} slots of {minutes:g} min, {note.counted:,} counted{gaps}")
    for line in broken:
        click.echo(line)


def _note(path: Path) -> RecordingNote:
    from duetune.market.slot_grid import written
    from duetune.market.traces import load_grid

    grid = load_grid(path)
    present = grid.present[0]
    return RecordingNote(
        file=str(path),
        pool=grid.pools[0].name,
        slots=int(present.sum()),
        counted=int(grid.counted[0].sum()),
        gaps=int((~present).sum()),
        slot_hours=grid.slot_hours,
        first=written(grid.time(0)),
        last=written(grid.time(present.size)),
    )


@click.command()
@click.option("--feed", metavar="NAME", help="A feed instead of the one in config.toml.")
@fleet_option("that of config.toml")
@to_option
@click.option("--once", is_flag=True, help="Record the present slot and end; for cron.")
def record(feed: str | None, fleet: str | None, to: str | None, once: bool) -> None:
    """Append a market feed to a recording, slot by slot, until it is interrupted.

    It may be stopped and started at any time. Slots that were missed are filled where the feed
    knows its past, as AWS knows prices; else they stay gaps. An answer that the feed only repeats
    because its source is away is not recorded. One process records a file at a time.
    """
    from duetune.jobs.recordings import opened_recording
    from duetune.market.feeds.recorder import Outcome, Recorder
    from duetune.registry.feeds import RECORDED, pool_of
    from duetune.wiring import with_feed_named

    settings = with_feed_named(Home().on(fleet or ""), feed)
    name = settings.site.feed.strip()
    if name.partition(":")[0] == RECORDED:
        raise InvalidInput("--feed", name, "a feed that is not a recording itself")
    found, clock, interrupt = _connected(settings)
    pool = pool_of(settings, found)
    target, slot_s = _target(settings, to, pool.name), found.now().slot_s
    with opened_recording(target, pool, slot_s) as recording:
        recorder = Recorder(found, recording)
        if once:
            outcome = recorder.once()
            click.echo(_words(recorder, outcome))
            if outcome is Outcome.STALE:
                raise FleetError(f"{pool.name}: the feed does not answer; nothing was recorded")
            return
        stopping: list[int] = []

        def stop(number: int, _: object) -> None:
            stopping.append(number)
            interrupt()

        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, stop)
        click.echo(f"Recording {pool.name} in {recording.path}; Ctrl-C ends it.")
        recorder.run(
            clock,
            stop=lambda: bool(stopping),
            say=lambda outcome: click.echo(_words(recorder, outcome)),
        )


@click.command("import")
@click.argument("trace_file", metavar="[TRACE]", required=False)
@click.option(
    "--from-jobs",
    is_flag=True,
    help="Take the grants, refusals and losses of this home's jobs instead of a file.",
)
@to_option
@json_option
@market_options
def import_(
    trace_file: str | None, from_jobs: bool, to: str | None, market: MarketOptions, as_json: bool
) -> None:
    """Add a trace file, or what our own jobs have learned, to a recording.

    TRACE is a CSV, Parquet or JSON file as for --trace; each of its pools has its own recording.
    Slots that are recorded already keep their prices, and get a count if they had none.

    With --from-jobs the spot GPUs that jobs held count as available at least; where a request was
    refused or a GPU was taken for lack of capacity, there were no more than jobs still held. Slots
    without jobs stay unknown. The counts go to the recording of the feed in config.toml.
    """
    home = Home()
    if from_jobs == bool(trace_file or market.trace):
        raise click.UsageError("give a TRACE file or --from-jobs")
    if market.market:
        raise click.UsageError("a synthetic market is not imported")
    answers = _from_jobs(home, to) if from_jobs else _from_file(home, trace_file, to, market)
    for answer in answers:
        if as_json:
            print_answer(answer)
        else:
            words = f"{answer.changed:,} slots added or changed, {answer.slots:,} in all"
            click.echo(f"{answer.pool}: {words}; {answer.file}")


def _from_jobs(home: Home, to: str | None) -> list[RecordingAnswer]:
    from duetune.jobs.recordings import import_jobs, opened_recording, slot_s_of_jobs
    from duetune.registry.feeds import pool_of
    from duetune.wiring import market_feed

    feed = market_feed(home.settings)
    pool = pool_of(home.settings, feed)
    names = home.settings.names_in_rows
    slot_s = slot_s_of_jobs(home.store, names)
    if slot_s is None:
        raise InvalidInput("--from-jobs", str(home.settings.home), "a home with jobs; it has none")
    target = _target(home.settings, to, pool.name)
    with opened_recording(target, pool, None if target.exists() else slot_s) as recording:
        changed = import_jobs(home.store, recording, names)
        return [_answer(recording.path, recording.pool.name, len(recording.slots), changed)]


def _from_file(
    home: Home, trace_file: str | None, to: str | None, market: MarketOptions
) -> list[RecordingAnswer]:
    from duetune.jobs.recordings import import_trace, opened_recording

    if trace_file is not None:
        if market.trace:
            raise click.UsageError("give one file: TRACE or --trace")
        market = msgspec.structs.replace(market, trace=(trace_file,))
    traces = market.pools(0)
    if to is not None and len(traces) > 1:
        names = ", ".join(trace.pools[0].name for trace in traces)
        raise InvalidInput("--to", to, f"one pool for one file: --pool, one of {names}")
    answers = []
    for trace in traces:
        pool = trace.pools[0]
        target = _target(home.settings, to, pool.name)
        slot_s = None if target.exists() else trace.slot_hours * 3600
        with opened_recording(target, pool, slot_s) as recording:
            changed = import_trace(trace, recording)
            answers.append(_answer(recording.path, pool.name, len(recording.slots), changed))
    return answers


def _answer(path: Path, pool: str, slots: int, changed: int) -> RecordingAnswer:
    return RecordingAnswer(
        command="market import", file=str(path), pool=pool, slots=slots, changed=changed
    )


def _target(settings: Settings, to: str | None, pool: str) -> Path:
    from duetune.core.market import Pool
    from duetune.registry.feeds import recording_of

    return recording_of(settings, Pool(pool)) if to is None else Path(to).absolute()


def _connected(settings: Settings) -> tuple[MarketFeed, Clock, Callable[[], None]]:
    """Return the feed, the clock of its slots, and what ends a wait of that clock."""
    from duetune.market.feeds.recorder import WallClock
    from duetune.settings import OF_FLEET
    from duetune.wiring import market_feed, running_fleet, runs_here

    if settings.site.feed.strip() == OF_FLEET:
        fleet = running_fleet(settings)
        if fleet is not None:
            return fleet.feed, fleet.clock, fleet.interrupt
        # A fleet that others run has a market before the first job.
        if runs_here(settings):
            raise InvalidInput("site.feed", OF_FLEET, "a fleet that runs: `duetune fleet start`")
    clock = WallClock()
    return market_feed(settings), clock, clock.interrupt


def _words(recorder: Recorder, outcome: Outcome | FleetError) -> str:
    from duetune.market.slot_grid import written

    recording, filled = recorder.recording, recorder.filled
    recorder.filled = 0
    if isinstance(outcome, FleetError):
        return f"not recorded: {outcome}"
    last = recording.last
    if last is None or recording.start is None:
        return str(outcome)
    began = written((recording.start + last * recording.slot_s) * 1e6)
    slot = recording.slots[last]
    count = "not counted" if slot.available is None else f"{slot.available} available"
    more = f", {filled:,} slots before it filled" if filled else ""
    return f"{began[:16]}Z: ${slot.spot_usd_gpu_h:.4f} spot, {count}; {outcome}{more}"
