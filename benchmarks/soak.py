"""The soak: controllers are killed at random a thousand times, and their jobs are checked.

Every round is a scenario drawn from its number: markets, jobs, requests, faults and kills. A round
that fails prints its number, and ``--round N`` repeats it.

A job is *lost* if it is not over, ended more than once, or failed although it was easy. *Leaked*
counts nodes that outlive their job. *Unaccounted* are jobs whose bill differs from the journal, or
whose decisions cannot be replayed from it.

``make soak`` runs it with ``tests`` on the Python path, because it uses the tests' harness.
"""

from __future__ import annotations

import argparse
import logging
import math
import sys
import time
import traceback

import numpy as np

from duetune.core.events import Ended
from reporting import finish
from support.fuzz import Adventure, Seeded
from support.harness import Status


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=2026)
    parser.add_argument("--first", type=int, default=0, help="begin with this round")
    parser.add_argument("--round", type=int, help="only this one, and in full")
    options = parser.parse_args()
    # Lost replies and silent fleets are what this is about; the log would be nothing else.
    logging.getLogger("duetune.control").setLevel(logging.ERROR)
    if options.round is not None:
        lived = adventure_of(options.seed, options.round)
        lived.live()
        lived.check()
        return

    tally = dict.fromkeys(("kills", "rounds", "jobs", "succeeded", "nodes"), 0)
    wrong = dict.fromkeys(("lost", "leaked", "unaccounted"), 0)
    began = time.perf_counter()
    number = options.first
    while tally["kills"] < options.kills:
        adventure = adventure_of(options.seed, number)
        problem = lived_through(adventure)
        names = adventure.names
        tally["kills"] += adventure.deaths
        tally["rounds"] += 1
        tally["jobs"] += len(names)
        tally["succeeded"] += sum(adventure.room.status(n) is Status.SUCCEEDED for n in names)
        tally["nodes"] += sum(len(adventure.room.fleet.observe(n).nodes) for n in names)
        if problem:
            for kind, count in found_wrong(adventure).items():
                wrong[kind] += count
            print(f"round {number} of seed {options.seed}: {problem}", flush=True)
        number += 1
        if tally["rounds"] % 100 == 0:
            print(
                f"round {number}: {tally['kills']:,} kills, {tally['jobs']:,} jobs, "
                f"{sum(wrong.values())} wrong, {time.perf_counter() - began:.0f} s",
                flush=True,
            )
    seconds = round(time.perf_counter() - began, 1)
    finish({**tally, **wrong, "seed": options.seed, "next_round": number, "seconds": seconds})
    sys.exit(1 if any(wrong.values()) else 0)


def adventure_of(seed: int, number: int) -> Adventure:
    """Return the scenario of a round; every other one is easy, and its jobs must succeed."""
    random = np.random.default_rng([seed, number])
    return Adventure(Seeded(random), kills=8, troubles=8, jobs=3, easy=number % 2 == 0)


def lived_through(adventure: Adventure) -> str:
    """Run a round and return what was wrong, or ""."""
    try:
        adventure.live()
        adventure.check()
    except Exception:  # noqa: BLE001 - whatever it is, it is told and counted
        return traceback.format_exc()
    return ""


def found_wrong(adventure: Adventure) -> dict[str, int]:
    """Return every problem of a round; one problem does not hide another."""
    room = adventure.room
    room.fleet.unreachable = False
    lost = leaked = unaccounted = 0
    for name in adventure.names:
        ends = room.events(name, Ended)
        leaked += len(room.fleet.alive(name)) if ends else 0
        easy_but_failed = adventure.easy and room.status(name) is not Status.SUCCEEDED
        lost += len(ends) != 1 or easy_but_failed
        bill = math.fsum(node.billed for node in room.fleet.observe(name).nodes)
        unaccounted += len(ends) == 1 and ends[0].cost != bill
    found = {"lost": lost, "leaked": leaked, "unaccounted": unaccounted}
    return found if any(found.values()) else {"unaccounted": 1}


if __name__ == "__main__":
    main()
