"""The program as a process: start-up, exit status, signals, pipes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from support.patience import PATIENCE_S, until

PROGRAM = [sys.executable, "-m", "duetune.cli"]


def run(*arguments, **options):
    return subprocess.run(
        [*PROGRAM, *arguments],
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE_S,
        **options,
    )


def test_help_lists_every_command():
    done = run("--help")
    assert done.returncode == 0
    for command in ("simulate", "optimum", "tournament", "select", "policies", "markets"):
        assert command in done.stdout


@pytest.mark.parametrize("arguments", [["--help"], ["simulate", "--help"], ["select", "--help"]])
def test_help_imports_nothing_heavy(arguments):
    code = (
        "import sys; from duetune.cli import main; main(sys.argv[1:]);"
        "print(sorted({'numpy', 'numba', 'rich', 'matplotlib', 'polars'} & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines()[-1] == "[]"


def test_no_command_needs_anything_heavy_for_its_help():
    code = (
        "import sys; from duetune.cli import main; from duetune.cli.app import COMMANDS;"
        "[main([name, '--help']) for name in COMMANDS];"
        "heavy = {'numba', 'rich', 'matplotlib', 'polars', 'torch', 'transformers',"
        "'huggingface_hub', 'sqlalchemy'};"
        "print(sorted(heavy & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"


def test_the_version_is_printed():
    done = run("--version")
    assert done.returncode == 0
    assert done.stdout.startswith("duetune 0.")


def test_json_is_all_there_is_on_standard_output():
    done = run("tournament", "--json", "--jobs", "2", "--markets-count", "1")
    assert done.returncode == 0
    assert json.loads(done.stdout)["command"] == "tournament"
    assert "per second" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["simulate", "--policy", "nope"], "policy: 'nope' is not allowed; expected one of"),
        (["simulate", "--no-such-option"], "No such option"),
    ],
)
def test_bad_input_is_one_line_and_status_2(arguments, words):
    done = run(*arguments)
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.count("\n") == 1
    assert done.stderr.startswith("duetune: ")
    assert words in done.stderr


def test_a_reader_that_has_enough_is_no_error():
    with subprocess.Popen(
        [*PROGRAM, "simulate", "--json"], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait(PATIENCE_S) in {0, 1}


def cpu_seconds(pid):
    """What a process has computed for: the machine may have had others to serve."""
    times = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11:13]
    return sum(map(int, times)) / os.sysconf("SC_CLK_TCK")


def test_an_interrupt_ends_it_quietly(tmp_path):
    log = tmp_path / "log"
    with (
        log.open("wb") as stderr,
        subprocess.Popen(
            [*PROGRAM, "tournament", "--policies", "pool", "--jobs", "200000"],
            stdout=subprocess.DEVNULL,
            stderr=stderr,
            env=os.environ | {"PYTHONUNBUFFERED": "1"},
        ) as process,
    ):
        until(lambda: cpu_seconds(process.pid) > 3, "it to be at work")
        process.send_signal(signal.SIGINT)
        status = process.wait(PATIENCE_S)
    assert status == 130
    assert "Traceback" not in log.read_text()
