"""Load a spec from a file or from text, and check that the paths it names exist."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from duetune.errors import InvalidInput
from duetune.jobs.spec.job_spec import JobSpec
from duetune.jobs.spec.problems import InvalidSpec
from duetune.jobs.spec.values import DATASET, MODEL, PATH, is_path
from duetune.jobs.spec.yaml_document import parse_document, read_document

if TYPE_CHECKING:
    from duetune.jobs.spec.yaml_document import Document


def load_spec(path_or_text: Path | str) -> JobSpec:
    """Return the spec in a file or text. Raises one ``InvalidInput`` that names file, line, field
    and what is allowed.

    Paths stay as they are written; ``JobSpec.resolved`` makes them absolute.
    """
    return spec_of(read_document(path_or_text, "spec"))


def load_text(text: str, source: str = "standard input") -> JobSpec:
    """Return the spec in ``text``; ``source`` stands for the file name in errors."""
    return spec_of(parse_document(text, source))


def load_resolved(path: Path | str) -> JobSpec:
    """Return the spec in a file with absolute paths, which are not checked yet.

    ``plan``, ``launch`` and ``recommend`` call it, and then ``check_paths``.
    """
    return load_spec(Path(path)).resolved(Path(path).absolute().parent)


def spec_of(document: Document) -> JobSpec:
    """Return the spec of a parsed YAML document; problems are sorted by their line."""
    try:
        return JobSpec.model_validate(document.fields)
    except InvalidSpec as error:
        # Sorted as in the file, so that the first wrong line is shown in full.
        end = 1 << 30
        problems = sorted(error.problems, key=lambda each: document.lines.get(each.path, end))
        raise InvalidSpec(tuple(problems), document.where(problems[0].path)) from None


def check_paths(spec: JobSpec, *, own: bool = True) -> None:
    """Refuse paths that do not exist. Names on the Hugging Face hub are not looked up.

    Without ``own`` the job runs on other machines: only what is read here must be here.
    """
    template = ("training.chat_template_path", spec.training.chat_template_path, PATH)
    places = [
        ("model", spec.model, MODEL),
        ("dataset", spec.dataset, DATASET),
        ("training.eval_dataset", spec.training.eval_dataset, DATASET),
    ]
    for field, place, allowed in (*(places if own else ()), template):
        if place is not None and is_path(place) and not Path(place).exists():
            raise InvalidInput(field, place, f"{allowed}; there is no such file or folder")
    if not own:
        return
    if spec.model is not None and is_path(spec.model) and not Path(spec.model).is_dir():
        raise InvalidInput("model", spec.model, f"{MODEL}; this is a file")
    if spec.workdir is not None and not Path(spec.workdir).is_dir():
        raise InvalidInput("workdir", spec.workdir, "a folder that exists")
    if spec.checkpoint.dir is not None:
        path = Path(spec.checkpoint.dir)
        if path.exists() and not path.is_dir():
            raise InvalidInput(
                "checkpoint.dir", spec.checkpoint.dir, "a folder, or a path that does not exist yet"
            )
