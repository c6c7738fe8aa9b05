"""Import a file of another tool as a job spec, with notes on everything that differs.

Each tool has its own module; this one recognises the tool and makes the spec.
"""

from __future__ import annotations

import os
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from duetune.errors import InvalidInput
from duetune.files import write_whole
from duetune.interop.import_jobs.axolotl import from_axolotl
from duetune.interop.import_jobs.foreign_file import ForeignFile
from duetune.interop.import_jobs.from_skypilot import from_skypilot
from duetune.interop.import_jobs.llamafactory import from_llamafactory
from duetune.interop.import_jobs.renamed_columns import RenamedColumns
from duetune.interop.import_jobs.trl import from_trl
from duetune.jobs.spec.conversion_notes import Note, one_line
from duetune.jobs.spec.job_spec import JobSpec
from duetune.jobs.spec.problems import InvalidSpec
from duetune.jobs.spec.values import is_path
from duetune.jobs.spec.yaml_document import Document, parse_document, read_document

if TYPE_CHECKING:
    from collections.abc import Callable

ASSUMED_DEADLINE = "1d"


class Tool(StrEnum):
    """The tools whose files can be imported."""

    SKYPILOT = "skypilot"
    AXOLOTL = "axolotl"
    LLAMAFACTORY = "llamafactory"
    TRL = "trl"


_READERS: dict[Tool, Callable[[ForeignFile], dict[str, object]]] = {
    Tool.SKYPILOT: from_skypilot,
    Tool.AXOLOTL: from_axolotl,
    Tool.LLAMAFACTORY: from_llamafactory,
    Tool.TRL: from_trl,
}


class Imported(msgspec.Struct, frozen=True):
    """A spec, and notes on the fields that could not be imported as they were.

    ``renamed`` are the fields whose data the trainer cannot read as it is; ``written`` converts it.
    """

    tool: Tool
    spec: JobSpec
    notes: tuple[Note, ...]
    renamed: dict[str, RenamedColumns] = {}

    def to_yaml(self, file: str) -> str:
        """Return the spec as a file, with the notes as comments in its first lines."""
        lines = [f"# Imported from {self.tool} ({one_line(file)})."]
        if self.notes:
            lines.append("# Differences:")
            lines += [f"#   {note}" for note in self.notes]
        return "\n".join(lines) + "\n" + self.spec.to_yaml()


def import_job(
    path_or_text: Path | str, tool: Tool | None = None, *, deadline: str | None = None
) -> Imported:
    """Return the spec of another tool's file. ``duetune import`` calls it.

    Without ``tool`` the fields of the file tell which it is. Without ``deadline`` one day is
    assumed, because other tools have none.
    """
    if isinstance(path_or_text, Path):
        document = read_document(path_or_text, "task")
        folder = path_or_text.absolute().parent
    else:
        document = parse_document(path_or_text, "standard input", "task")
        folder = Path.cwd()
    source = ForeignFile(document, folder)
    chosen = recognised(document) if tool is None else tool
    if deadline is None:
        source.note(
            "deadline", f"{ASSUMED_DEADLINE} is assumed; set it to when you need the result"
        )
    fields = _READERS[chosen](source)
    try:
        spec = JobSpec.model_validate(fields | {"deadline": deadline or ASSUMED_DEADLINE})
    except InvalidSpec as error:
        where = "" if error.problems[0].path == ("deadline",) else f"{document.source} -> "
        raise InvalidSpec(error.problems, where) from None
    if _size_unknown(spec, folder):
        source.note(
            "training.max_steps",
            f"plan needs it if the card of {spec.dataset} on the hub does not state its size",
        )
    return Imported(chosen, spec, tuple(source.notes), source.renamed)


def _size_unknown(spec: JobSpec, folder: Path) -> bool:
    """Return whether the number of steps follows from a dataset that is not on this machine."""
    if spec.dataset is None or spec.training.max_steps is not None:
        return False
    return not is_path(spec.dataset) and not (folder / spec.dataset).exists()


def recognised(document: Document) -> Tool:
    """Return the tool, by fields that only one of the tools has."""
    names = set(document.fields)
    if "deadline" in names and names & {"model", "run"}:
        raise InvalidInput(document.source, "a job spec", "a file of another tool")
    if "base_model" in names:
        return Tool.AXOLOTL
    if "model_name_or_path" in names:
        factory = {"finetuning_type", "stage", "cutoff_len", "template", "lora_rank", "dataset_dir"}
        return Tool.LLAMAFACTORY if names & (factory | {"dataset"}) else Tool.TRL
    if names & {"run", "resources", "num_nodes", "file_mounts", "setup"}:
        return Tool.SKYPILOT
    allowed = f"a file of {', '.join(Tool)}; name the tool with --from"
    raise InvalidInput(document.source, f"the fields {', '.join(sorted(names)[:5])}", allowed)


def written(imported: Imported, source: Path, target: Path, *, force: bool = False) -> Imported:
    """Return the import for the spec file ``target``: with paths from its folder instead of
    ``source``, and with renamed columns converted to files beside it. ``force`` replaces these.
    """
    spec = relocated(imported.spec, source, target.parent)
    places = {"dataset": imported.spec.dataset, "eval_dataset": imported.spec.training.eval_dataset}
    for field, names in imported.renamed.items():
        place = target.with_name(f"{target.stem}-{field}.jsonl")
        if place.exists() and not force:
            raise InvalidInput(str(place), "a file", "nothing there, or --force: rows go there")
        rows = names.messages(source.absolute() / str(places[field]))
        write_whole(place, b"".join(rows))
        given: dict[str, object] = {field: f"./{place.name}"}
        if field != "dataset":
            given = {"training": spec.training.given | given}
        spec = spec.amended(**given, name=spec.name)
    return msgspec.structs.replace(imported, spec=spec)


def relocated(spec: JobSpec, source: Path, target: Path) -> JobSpec:
    """Return the spec with paths relative to the folder ``target`` instead of ``source``. Names on
    the hub stay as they are.
    """
    if source.absolute() == target.absolute():
        return spec

    def moved(place: str) -> str:
        path = source.absolute() / place
        if place.startswith(("/", "~")) or not (is_path(place) or path.exists()):
            return place
        relative = os.path.relpath(path, target.absolute())
        return relative if is_path(relative) else f"./{relative}"

    fields = spec.document()
    for field in ("model", "dataset"):
        if isinstance(place := fields.get(field), str):
            fields[field] = moved(place)
    if spec.run is not None:
        fields["workdir"] = moved(spec.workdir or ".")
    if spec.training.eval_dataset is not None:
        fields["training"] = spec.training.given | {
            "eval_dataset": moved(spec.training.eval_dataset)
        }
    return JobSpec.model_validate(fields | {"name": spec.name})
