"""Checkpoints for training commands that are not written in Python.

    python -m duetune.training.command latest             prints the newest checkpoint's folder
    python -m duetune.training.command publish 120 DIR    publishes a copy of DIR as step 120

``latest`` prints nothing if there is no checkpoint. ``publish`` exits with 75 if a later launch of
the job has taken over; the command should then exit, too.
"""

from __future__ import annotations

import argparse
import logging
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from duetune.core.node_contract import DONE, LEFT
from duetune.errors import DuetuneError
from duetune.training.checkpoint import StaleEpoch, job_checkpoints
from duetune.training.worker_contract import Contract

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


def main(arguments: Sequence[str], environ: Mapping[str, str]) -> int:
    """Run one of the two commands and return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m duetune.training.command")
    verbs = parser.add_subparsers(dest="verb", required=True)
    verbs.add_parser("latest", help="print the folder of the newest whole checkpoint, if any")
    publish = verbs.add_parser("publish", help="publish a copy of a file or folder")
    publish.add_argument("step", type=int)
    publish.add_argument("source", type=Path)
    publish.add_argument("--keep", type=int, default=2, help="how many to keep (default: 2)")
    options = parser.parse_args(arguments)
    try:
        contract = Contract.from_environment(environ)
        if options.verb == "latest":
            found = job_checkpoints(contract, environ, keep=2).latest()
            if found is not None:
                print(found.files)  # noqa: T201 - the command's output
        else:
            store = job_checkpoints(contract, environ, options.keep)
            store.publish(options.step, options.source)
    except StaleEpoch as error:
        return _failed(error, LEFT)
    except DuetuneError as error:
        return _failed(error, error.exit_code)
    except OSError as error:
        return _failed(error, 1)
    return DONE


def _failed(error: Exception, status: int) -> int:
    print(error, file=sys.stderr)  # noqa: T201 - the caller is a shell
    return status


if __name__ == "__main__":
    logging.basicConfig(level=logging.WARNING, format="%(message)s")
    sys.exit(main(sys.argv[1:], os.environ))
