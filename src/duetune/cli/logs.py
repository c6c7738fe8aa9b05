"""``duetune logs``: print the log files of a job's nodes."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import click

from duetune.home import Home

if TYPE_CHECKING:
    from pathlib import Path

POLL_S = 0.3


@click.command()
@click.argument("job")
@click.option("-f", "--follow", is_flag=True, help="Keep printing until the job ends.")
@click.option("--node", metavar="ID", help="Print this node only.")
@click.option(
    "-n",
    "--tail",
    type=click.IntRange(0),
    metavar="N",
    help="Print only the last N lines of each node.",
)
@click.option("--controller", is_flag=True, help="Print the controller's log instead.")
def logs(job: str, follow: bool, node: str | None, tail: int | None, controller: bool) -> None:
    """Print the logs of a job's nodes. Each line starts with the name of its node."""
    from duetune.core.node_contract import LOGS
    from duetune.errors import NotFound
    from duetune.jobs.controller_process import controller_files

    home = Home()
    row = home.store.job(job)
    folder = home.settings.folder(row.id) / LOGS
    if not row.status.final and (note := home.controller_note(row.fleet)):
        click.echo(note, err=True)
    if controller:
        _print_new({controller_files(home.settings.on(row.fleet)).log: 0}, tail, {})
        return
    read: dict[Path, int] = {}
    unfinished: dict[Path, str] = {}
    first = True
    while True:
        over = home.store.job(row.id).status.final
        for path in sorted(folder.glob("*.log")):
            if node is None or path.stem == node:
                read.setdefault(path, 0)
        if node is not None and not read:
            known = ", ".join(sorted(path.stem for path in folder.glob("*.log")))
            raise NotFound("node", node, known)
        _print_new(read, tail if first else None, unfinished)
        first = False
        if not follow or over:
            return
        time.sleep(POLL_S)


def _print_new(read: dict[Path, int], tail: int | None, unfinished: dict[Path, str]) -> None:
    for path, place in read.items():
        try:
            with path.open("rb") as file:
                file.seek(place)
                content = file.read()
        except OSError:
            continue
        read[path] = place + len(content)
        text = unfinished.pop(path, "") + content.decode("utf-8", "replace")
        lines = text.split("\n")
        # The last line may be incomplete; it is printed once its end is there.
        if lines[-1]:
            unfinished[path] = lines[-1]
        lines = lines[:-1]
        for line in lines if tail is None else lines[max(0, len(lines) - tail) :]:
            click.echo(f"{path.stem} | {line}")
