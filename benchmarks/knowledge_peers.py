"""Other people's predictors, each in its own environment under ``out/peers``.

They are asked through a file; see ``peers/protocol.py``. Training takes minutes, so answers are
kept beside the environments and used again for the same question.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

HERE = Path(__file__).resolve().parent
PLACE = HERE.parent / "out" / "peers"
INSTALL_LIMIT_S = 600
ANSWER_LIMIT_S = 1800
MARK = "ready.txt"


class Peer(msgspec.Struct, frozen=True):
    """A peer: its packages, its adapter and the cores it may use."""

    name: str
    requirements: tuple[str, ...]
    adapter: str
    cores: int = 1


# The torch of duetune's own environment: other versions bring gigabytes for GPUs.
KAVIER = Peer("kavier", ("kavier[calibration]==0.5.3",), "kavier_peer.py")
COASTLINE = Peer(
    "coastline", ("coastline-recommender[ml]==0.3.0", "torch==2.13.0"), "coastline_peer.py"
)
AUTOCONF = Peer("autoconf", ("ado-autoconf==2.1.2", "torch==2.13.0"), "autoconf_peer.py", cores=2)


class Unavailable(Exception):
    """A peer cannot be asked; the message says why."""


class Answer(msgspec.Struct, frozen=True):
    """The answer of a peer, see ``peers/protocol.py``; None where it gives no prediction."""

    shipped: dict[str, list[float | None]]
    refit: dict[str, list[list[float | None]]]
    unavailable: dict[str, str]
    seconds_per_point: dict[str, float]
    seconds_to_load: dict[str, float]
    seconds_to_fit: dict[str, float]

    def predicted(self, name: str) -> NDArray[np.float64]:
        return column(self.shipped[name])


def column(values: list[float | None]) -> NDArray[np.float64]:
    """Return predictions as an array, NaN where there is none."""
    return np.array([np.nan if value is None else value for value in values], np.float64)


def ask(peer: Peer, question: dict[str, object], *, install: bool, keep: bool = True) -> Answer:
    """Ask a peer; with ``keep`` an earlier answer to the same question is used."""
    python = environment(peer, install=install)
    adapter = HERE / "peers" / peer.adapter
    text = json.dumps(question, sort_keys=True)
    digest = hashlib.blake2b(
        b"\0".join(
            [
                text.encode(),
                adapter.read_bytes(),
                (HERE / "peers" / "protocol.py").read_bytes(),
                " ".join(peer.requirements).encode(),
            ]
        ),
        digest_size=8,
    ).hexdigest()
    folder = PLACE / "answers"
    folder.mkdir(parents=True, exist_ok=True)
    answered = folder / f"{peer.name}-{digest}.json"
    if keep and answered.is_file():
        return msgspec.json.decode(answered.read_bytes(), type=Answer)
    asked = folder / f"{peer.name}-{digest}.question.json"
    asked.write_text(text, encoding="utf-8")
    part = folder / f"{peer.name}-{digest}.part.json"
    try:
        done = subprocess.run(
            [python, adapter, asked, part],
            env=variables(peer),
            capture_output=True,
            text=True,
            timeout=ANSWER_LIMIT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise Unavailable(f"{peer.name} gave no answer within {ANSWER_LIMIT_S} s") from None
    finally:
        asked.unlink()
    if done.returncode:
        last = done.stderr.strip().splitlines() or [f"exit code {done.returncode}"]
        raise Unavailable(f"{peer.name}: {last[-1]}")
    part.replace(answered)
    return msgspec.json.decode(answered.read_bytes(), type=Answer)


def variables(peer: Peer) -> dict[str, str]:
    """Return the environment variables of a peer."""
    threads = str(peer.cores)
    return {
        **os.environ,
        "OMP_NUM_THREADS": threads,
        "OPENBLAS_NUM_THREADS": threads,
        "MKL_NUM_THREADS": threads,
        "PYTHONDONTWRITEBYTECODE": "1",
        "HF_HUB_OFFLINE": "1",
        "RAY_USAGE_STATS_ENABLED": "0",
        "TABPFN_DISABLE_TELEMETRY": "1",
    }


def environment(peer: Peer, *, install: bool) -> Path:
    """Return the folder of a peer's environment, installed on first use."""
    folder = PLACE / peer.name
    python = folder / "bin" / "python"
    mark = folder / MARK
    wanted = "\n".join(peer.requirements)
    if mark.is_file() and mark.read_text(encoding="utf-8") == wanted:
        return python
    if not install:
        raise Unavailable(f"{peer.name} is not installed; a run without --quick installs it")
    print(f"installing {', '.join(peer.requirements)} ...", file=sys.stderr)
    shutil.rmtree(folder, ignore_errors=True)
    try:
        subprocess.run([sys.executable, "-m", "venv", folder], check=True, capture_output=True)
        subprocess.run(
            [python, "-m", "pip", "install", "-q", "--no-cache-dir", *peer.requirements],
            check=True,
            capture_output=True,
            text=True,
            timeout=INSTALL_LIMIT_S,
        )
    except subprocess.TimeoutExpired:
        raise Unavailable(
            f"{peer.name} could not be installed within {INSTALL_LIMIT_S} s"
        ) from None
    except subprocess.CalledProcessError as error:
        said = (error.stderr or "").strip().splitlines() or ["no reason given"]
        raise Unavailable(f"{peer.name} could not be installed: {said[-1]}") from None
    mark.write_text(wanted, encoding="utf-8")
    return python
