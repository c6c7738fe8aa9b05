"""Models and datasets on the Hugging Face hub: in the local cache, reachable, gated or unknown.

The hub is asked for access only; nothing is downloaded. A hub that does not answer costs
``TIMEOUT_S`` seconds, and ``HF_HUB_OFFLINE`` is honoured.
"""

from __future__ import annotations

import contextlib
import importlib.util
import threading
import time
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

TIMEOUT_S = 5.0
_TRUE = frozenset(("1", "ON", "YES", "TRUE"))
_WEIGHTS = ("*.safetensors", "*.bin")


class RepoKind(StrEnum):
    """What a repository on the hub holds."""

    MODEL = "model"
    DATASET = "dataset"


class Access(StrEnum):
    """Whether a repository can be used; the values complete a sentence."""

    CACHED = "is in the local cache"
    REACHABLE = "can be fetched from the hub"
    MISSING = "is not on the hub, or it is private and needs a token"
    GATED = "is gated, and the token gives no access to it"
    UNREACHABLE = "is not in the local cache, and the hub cannot be reached"
    OFFLINE = "is not in the local cache, and HF_HUB_OFFLINE is set"
    UNKNOWN = "was not looked up: huggingface_hub is not installed"


class Repo(msgspec.Struct, frozen=True):
    """One repository as a job would find it now.

    ``folder`` is its cached copy, if there is one; ``rows`` is the size of a dataset, if known.
    """

    kind: RepoKind
    name: str
    access: Access
    folder: Path | None = None
    rows: int | None = None


class _Split(msgspec.Struct, frozen=True):
    name: str
    num_examples: int


class _Sizes(msgspec.Struct, frozen=True):
    """One configuration in the metadata of a dataset."""

    config_name: str = "default"
    splits: tuple[_Split, ...] = ()


class _Card(msgspec.Struct, frozen=True):
    dataset_info: _Sizes | tuple[_Sizes, ...] = ()

    @property
    def rows(self) -> int | None:
        """The rows of the split that is trained on; None if the card does not say."""
        found = self.dataset_info if isinstance(self.dataset_info, tuple) else (self.dataset_info,)
        default = [each for each in found if each.config_name == "default"] or list(found)
        sizes = [each.num_examples for each in default[0].splits if each.name == "train"]
        return sizes[0] if len(default) == 1 and sizes else None


def look_up(wanted: Sequence[tuple[RepoKind, str]], environ: Mapping[str, str]) -> list[Repo]:
    """Return the repositories as a worker with this environment would find them.

    ``plan`` calls it for names on the hub. All are asked at the same time.
    """
    if importlib.util.find_spec("huggingface_hub") is None:
        return [Repo(kind, name, Access.UNKNOWN) for kind, name in wanted]
    offline = environ.get("HF_HUB_OFFLINE", "").upper() in _TRUE
    found: dict[tuple[RepoKind, str], Repo] = {}
    threads = {}
    for kind, name in wanted:
        folder = _cached(kind, name, environ)
        whole = folder is not None and (
            kind is RepoKind.DATASET or any(any(folder.glob(each)) for each in _WEIGHTS)
        )
        access = Access.CACHED if whole else Access.OFFLINE if offline else Access.UNREACHABLE
        found[kind, name] = Repo(kind, name, access, folder)
        if not whole and not offline:
            # A daemon: a name server that does not answer must hold up neither plan nor exit.
            threads[kind, name] = _Asking(kind, name, environ)
            threads[kind, name].start()
    until = time.monotonic() + TIMEOUT_S
    for key, thread in threads.items():
        thread.join(max(0.0, until - time.monotonic()))
        found[key] = msgspec.structs.replace(found[key], access=thread.access, rows=thread.rows)
    return [found[each] for each in wanted]


class _Asking(threading.Thread):
    """Asks the hub whether a repository can be fetched; ``access`` is the answer so far."""

    def __init__(self, kind: RepoKind, name: str, environ: Mapping[str, str]) -> None:
        super().__init__(daemon=True)
        self.access = Access.UNREACHABLE
        self.rows: int | None = None
        self._repo = (kind, name)
        self._endpoint, self._token = environ.get("HF_ENDPOINT"), environ.get("HF_TOKEN")

    def run(self) -> None:
        from huggingface_hub import HfApi  # noqa: PLC0415 - part of the trainer's extra
        from huggingface_hub.errors import (  # noqa: PLC0415
            GatedRepoError,
            RepositoryNotFoundError,
        )

        kind, name = self._repo
        api = HfApi(endpoint=self._endpoint, token=self._token)
        try:
            api.auth_check(name, repo_type=kind.value)
        except GatedRepoError:
            self.access = Access.GATED
        except RepositoryNotFoundError:
            self.access = Access.MISSING
        except Exception:  # noqa: BLE001 - no network, a proxy, a server error: many kinds
            self.access = Access.UNREACHABLE
        else:
            self.access = Access.REACHABLE
            with contextlib.suppress(Exception):  # the size is welcome, but not needed
                if kind is RepoKind.DATASET:
                    card = api.dataset_info(name, timeout=TIMEOUT_S).card_data
                    self.rows = msgspec.convert(vars(card), _Card).rows


def hub_cache(environ: Mapping[str, str]) -> Path:
    """Return the folder of the hub's local cache."""
    if place := environ.get("HF_HUB_CACHE"):
        return Path(place).expanduser()
    home = environ.get("HF_HOME") or Path(
        environ.get("XDG_CACHE_HOME") or "~/.cache", "huggingface"
    )
    return Path(home).expanduser() / "hub"


def _cached(kind: RepoKind, name: str, environ: Mapping[str, str]) -> Path | None:
    """Return the newest copy of a repository in the cache, if it has any file."""
    place = hub_cache(environ) / f"{kind.value}s--{name.replace('/', '--')}"
    try:
        revision = (place / "refs" / "main").read_text("utf-8").strip()
        folder = place / "snapshots" / revision
        needed = folder / "config.json" if kind is RepoKind.MODEL else folder
        return folder if needed.exists() and any(folder.iterdir()) else None
    except OSError:
        return None
