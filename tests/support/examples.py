"""Examples of the documentation: how they are written, and what the program prints for one."""

from __future__ import annotations

import re
import shlex
from typing import TYPE_CHECKING

from duetune.cli import main

if TYPE_CHECKING:
    import pytest

EXAMPLE = re.compile(r"```console\n\$ duetune(?P<arguments>[^\n]*)\n(?P<output>.*?)```", re.DOTALL)


def printed(arguments: str, capsys: pytest.CaptureFixture[str]) -> str:
    status = main(shlex.split(arguments))
    captured = capsys.readouterr()
    lines = (captured.out if status == 0 else captured.err).rstrip().splitlines()
    return "\n".join(line.rstrip() for line in lines) + "\n"
