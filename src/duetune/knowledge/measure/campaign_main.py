"""``duetune profile`` where little is installed: ``python -m ...measure.campaign_main``.

It needs torch, transformers, PEFT, numpy, msgspec and PyYAML. The active mode chooses better if the
other dependencies of duetune are installed too.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from duetune.errors import DuetuneError
from duetune.knowledge.measure.campaign_file import read_observations
from duetune.knowledge.measure.preparation import MODES, MOST_S, CampaignRequest, PreparedCampaign

if TYPE_CHECKING:
    from collections.abc import Sequence

    from duetune.knowledge.measure.campaign import CampaignProgress

_EVERY_S = 10.0


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a campaign from command-line arguments and return the exit status."""
    chosen = _parser().parse_args(arguments)
    request = CampaignRequest(
        space=chosen.space,
        out=Path(chosen.out),
        mode=chosen.mode,
        minutes=chosen.minutes,
        count=chosen.count,
        seed=chosen.seed,
        device=chosen.device,
        most_s=chosen.most_seconds,
        until_flat=chosen.until_flat,
        surrogate=chosen.surrogate,
        repeat_share=chosen.repeat_share,
    )
    try:
        history = [each for path in chosen.done for each in read_observations(Path(path))]
        prepared = PreparedCampaign(request, history)
        _say(f"{prepared.space.cardinality} configurations on {prepared.gpu}; {prepared.software}")
        if chosen.plan:
            _say(str(prepared.plan()))
            return 0
        done = prepared.campaign(_Reporter()).run()
    except DuetuneError as error:
        sys.stderr.write(f"duetune: {' '.join(str(error).split())}\n")
        return error.exit_code
    except KeyboardInterrupt:
        return 130
    _say(_shown(done))
    return 0


class _Reporter:
    """Prints the progress every 10 seconds, and whenever the model changes."""

    def __init__(self) -> None:
        self._reported = 0.0
        self._running = ""

    def __call__(self, progress: CampaignProgress) -> None:
        now = time.monotonic()
        if progress.running == self._running and now - self._reported < _EVERY_S:
            return
        self._reported, self._running = now, progress.running
        _say(_shown(progress))


def _shown(progress: CampaignProgress) -> str:
    return (
        f"{progress.elapsed_s:7.1f} s  {progress.done} done: {progress.valid} valid,"
        f" {progress.oom} out of memory, {progress.failed} failed"
        f" (and {progress.before} before)  {progress.running}"
    )


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="duetune.knowledge.measure", description=__doc__)
    parser.add_argument("--space", required=True, help="a file, h200 or quick")
    parser.add_argument(
        "--out",
        required=True,
        help="output file, one observation per line; appended to if it exists",
    )
    parser.add_argument(
        "--done",
        action="append",
        default=[],
        help="file of earlier observations; they are not measured again",
    )
    parser.add_argument("--minutes", type=float)
    parser.add_argument("--count", type=int)
    parser.add_argument("--mode", choices=MODES, default="active")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument(
        "--most-seconds",
        type=float,
        default=MOST_S,
        help="maximum expected seconds for one configuration",
    )
    parser.add_argument("--until-flat", action="store_true")
    parser.add_argument("--surrogate", choices=("learned", "ridge"), default="learned")
    parser.add_argument(
        "--repeat-share",
        type=float,
        default=0.0,
        help="share of runs that measure a known configuration again, in another process",
    )
    parser.add_argument("--plan", action="store_true", help="print the plan and run nothing")
    return parser


if __name__ == "__main__":
    sys.exit(main())
