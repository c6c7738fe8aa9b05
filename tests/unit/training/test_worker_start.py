"""What a worker imports before it is ready: only what its task needs."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from support.later import later

if TYPE_CHECKING:
    from pathlib import Path

later("peft")
later("bitsandbytes")

_LORA = """
import sys
from pathlib import Path
import torch
from duetune.training.task import TrainingMethod, TrainingTask
from duetune.training.tiny import build_tiny_model
from duetune.training.trained_model import load_model
folder = Path(sys.argv[1])
build_tiny_model(folder, hidden=16, layers=1, seed=1)
def load(**fields):
    task = TrainingTask(model=str(folder), dataset="none", max_steps=1, **fields)
    return load_model(task, torch.device("cpu"))
load()
assert "peft" in sys.modules
assert "bitsandbytes" not in sys.modules
assert "torch._inductor.compile_fx" not in sys.modules
found = load(method=TrainingMethod.QLORA)
kinds = {type(module).__module__ for module in found.modules()}
assert "peft.tuners.lora.bnb" in kinds, kinds
"""


@pytest.mark.more
def test_lora_does_not_import_bitsandbytes_and_qlora_after_it_does(tmp_path: Path) -> None:
    command = [sys.executable, "-c", _LORA, str(tmp_path / "model")]
    done = subprocess.run(command, env=os.environ, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_bitsandbytes_is_hidden_only_inside_the_block(monkeypatch: pytest.MonkeyPatch) -> None:
    from peft.import_utils import is_bnb_available  # noqa: PLC0415

    from duetune.training.adapters import without_bitsandbytes  # noqa: PLC0415

    for name in [each for each in sys.modules if each.partition(".")[0] == "bitsandbytes"]:
        monkeypatch.delitem(sys.modules, name)
    is_bnb_available.cache_clear()
    with without_bitsandbytes():
        assert not is_bnb_available()
    assert is_bnb_available()
    assert importlib.util.find_spec("bitsandbytes") is not None
