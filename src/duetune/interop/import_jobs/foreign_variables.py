"""Environment variables of other tools, which often hold secrets."""

from __future__ import annotations

from typing import TYPE_CHECKING

from duetune.interop.import_jobs.foreign_file import is_secret_name
from duetune.jobs.spec.variables import is_variable

if TYPE_CHECKING:
    from duetune.interop.import_jobs.foreign_file import ForeignFile

# A node says which GPU its process has; a fixed number would give all of them the same.
_OURS = frozenset(("CUDA_VISIBLE_DEVICES",))


def variables(
    source: ForeignFile, given: dict[str, object], secrets: list[str], field: str = "envs"
) -> dict[str, object]:
    """``envs`` and ``secrets`` of a spec. A value that looks secret is left out, its name kept."""
    envs: dict[str, object] = {}
    names = list(secrets)
    for name, value in given.items():
        if name in _OURS:
            source.note(f"{field}.{name}", "is not carried over: every node sets its own")
        elif is_variable(name) and is_secret_name(name):
            names.append(name)
            source.note(f"{field}.{name}", "is among the secrets here, without its value")
        elif is_variable(name):
            envs[name] = value
        else:
            source.note(f"{field}.{name}", "the name is reserved or cannot be used")
    for name in names:
        if not is_variable(name):
            source.note(f"secrets.{name}", "the name is reserved or cannot be used")
    kept = [name for name in dict.fromkeys(names) if is_variable(name)]
    fields: dict[str, object] = {"envs": envs} if envs else {}
    return fields | ({"secrets": kept} if kept else {})
