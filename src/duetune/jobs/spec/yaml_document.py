"""Read and write YAML files, with the line of every value and without YAML's surprises.

Plain words are read by the rules of YAML 1.2: ``on`` and ``no`` are text, ``1:30`` is not a number,
``2e-4`` is one, and times stay text. Duplicate keys, tags, and aliases that expand to more values
than a spec can need are refused.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import yaml

from duetune.errors import InvalidInput

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

LARGEST = 256 * 1024
MOST_VALUES = 50_000
DEEPEST = 60

_NULL = frozenset(("", "~", "null", "Null", "NULL"))
_BOOLEANS = {
    "true": True, "True": True, "TRUE": True, "false": False, "False": False, "FALSE": False,
}  # fmt: skip
_WHOLE = re.compile(r"[-+]?[0-9]{1,40}")
_OTHER_BASE = re.compile(r"0o[0-7]{1,40}|0x[0-9a-fA-F]{1,40}")
_NUMBER = re.compile(
    r"[-+]?(?:\.[0-9]{1,40}|[0-9]{1,40}(?:\.[0-9]{0,40})?)(?:[eE][-+]?[0-9]{1,5})?"
)
_SPECIAL = re.compile(r"([-+]?)\.(inf|Inf|INF)|\.(nan|NaN|NAN)")
# Characters that cannot be seen, or that some readers take for a line break: they are escaped.
_UNUSUAL = re.compile(
    r"[^\n\t\x20-\x7e\xa0-\u2027\u202a-\ud7ff\ue000-\ufefe\uff00-\ufffd\U00010000-\U0010ffff]"
)
_PLAIN_TAGS = frozenset(f"tag:yaml.org,2002:{kind}" for kind in ("str", "seq", "map"))


class Document(msgspec.Struct, frozen=True):
    """A parsed file. ``lines`` gives the line of each value by its path."""

    source: str
    fields: dict[str, object]
    lines: dict[tuple[str, ...], int]

    def where(self, path: tuple[str, ...]) -> str:
        """Return ``job.yaml:7 `` for the nearest value on ``path`` that is in the file."""
        for end in range(len(path), 0, -1):
            if path[:end] in self.lines:
                return f"{self.source}:{self.lines[path[:end]]} "
        return f"{self.source} "


def read_document(text_or_path: Path | str, what: str = "spec") -> Document:
    """Return the document in a file or in text. Text is what has several lines or a ``key: value``;
    ``what`` names the kind of file in errors.
    """
    if isinstance(text_or_path, Path) or not _is_text(text_or_path):
        path = Path(text_or_path)
        return parse_document(_content(path, what), path.name, what)
    return parse_document(text_or_path, what, what)


def parse_document(text: str, source: str, what: str = "spec") -> Document:
    """Return the document in ``text``; ``source`` names it in errors."""
    if len(text) > LARGEST:
        raise InvalidInput(source, f"{len(text)} characters", f"at most {LARGEST} characters")
    try:
        nodes = [node for node in yaml.compose_all(text, Loader=yaml.BaseLoader) if node]
    except yaml.YAMLError as error:
        raise _unreadable(error, source, text) from None
    except RecursionError:
        raise InvalidInput(source, "too deep nesting", f"at most {DEEPEST} levels") from None
    nodes = [node for node in nodes if not (_is_plain(node) and node.value in _NULL)]
    if not nodes:
        raise InvalidInput(source, "an empty file", f"a {what}: a mapping of fields")
    if len(nodes) > 1:
        line = nodes[1].start_mark.line + 1
        raise InvalidInput(f"{source}:{line}", "a second document (---)", "one document per file")
    if not isinstance(nodes[0], yaml.MappingNode):
        kind = "a list" if isinstance(nodes[0], yaml.SequenceNode) else nodes[0].value
        raise InvalidInput(source, kind, f"a {what}: a mapping of fields such as 'name: x'")
    reader = _Reader(source)
    fields = reader.mapping(nodes[0], ())
    return Document(source, fields, reader.lines)


def written_yaml(fields: Mapping[str, object]) -> str:
    """Return fields as YAML, in their order. Text that a YAML reader could misread is quoted."""
    return yaml.dump(dict(fields), Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=100)


def scalar(text: str) -> object:
    """Return the value of a plain word by the rules of YAML 1.2."""
    if text in _NULL:
        return None
    if text in _BOOLEANS:
        return _BOOLEANS[text]
    if _WHOLE.fullmatch(text):
        return int(text)
    if _OTHER_BASE.fullmatch(text):
        return int(text, 0)
    if _NUMBER.fullmatch(text):
        return float(text)
    special = _SPECIAL.fullmatch(text)
    if special:
        return float((special[1] or "") + (special[2] or "nan"))
    return text


class _Reader:
    """Turns YAML nodes into values. It counts them, so that aliases cannot expand without limit."""

    def __init__(self, source: str) -> None:
        self.source = source
        self.lines: dict[tuple[str, ...], int] = {}
        self._values = 0

    def value(self, node: yaml.Node, path: tuple[str, ...]) -> object:
        """Return the value of a node and of everything below it."""
        self._values += 1
        line = node.start_mark.line + 1
        if self._values > MOST_VALUES or len(path) > DEEPEST:
            allowed = f"at most {MOST_VALUES} values, {DEEPEST} levels deep"
            raise InvalidInput(f"{self.source}:{line}", "too many values", allowed)
        if node.tag not in _PLAIN_TAGS:
            where = f"{self.source}:{line} {'.'.join(path)}".rstrip()
            raise InvalidInput(where, node.tag.replace("tag:yaml.org,2002:", "!!"), "no YAML tag")
        if isinstance(node, yaml.MappingNode):
            return self.mapping(node, path)
        if isinstance(node, yaml.SequenceNode):
            return [self.value(each, (*path, str(place))) for place, each in enumerate(node.value)]
        return scalar(node.value) if _is_plain(node) else node.value

    def mapping(self, node: yaml.MappingNode, path: tuple[str, ...]) -> dict[str, object]:
        """Return the fields of a mapping node and record their lines."""
        found: dict[str, object] = {}
        merged: dict[str, object] = {}
        seen: dict[str, int] = {}
        for key, value in node.value:
            line = key.start_mark.line + 1
            where = f"{self.source}:{line} {'.'.join(path)}".rstrip()
            if not isinstance(key, yaml.ScalarNode):
                raise InvalidInput(where, "a list or mapping as a key", "a plain word as the key")
            name = key.value
            if name in seen:
                allowed = f"each field only once; it is also in line {seen[name]}"
                raise InvalidInput(f"{where} {name}".replace("  ", " "), name, allowed)
            seen[name] = line
            if name == "<<" and _is_plain(key):
                for each in self._merged(value, path, where):
                    merged = each | merged
                continue
            self.lines[*path, name] = line
            found[name] = self.value(value, (*path, name))
        return merged | found

    def _merged(
        self, node: yaml.Node, path: tuple[str, ...], where: str
    ) -> Iterator[dict[str, object]]:
        for each in node.value if isinstance(node, yaml.SequenceNode) else [node]:
            if not isinstance(each, yaml.MappingNode):
                raise InvalidInput(where, "<<", "a mapping, or an alias of one, after <<")
            self._values += 1
            value = self.value(each, (*path, "<<"))
            if isinstance(value, dict):
                yield value


class _Dumper(yaml.SafeDumper):
    """Writes indented lists, long text as blocks, and no aliases."""

    def ignore_aliases(self, data: object) -> bool:  # noqa: ARG002 - as the base class has it
        return True

    def increase_indent(self, flow: bool = False, indentless: bool = False) -> None:  # noqa: ARG002
        return super().increase_indent(flow, indentless=False)


def _text(dumper: _Dumper, text: str) -> yaml.Node:
    tag = "tag:yaml.org,2002:str"
    if _UNUSUAL.search(text):
        return dumper.represent_scalar(tag, text, style='"')
    if "\n" in text and all(line == line.rstrip() for line in text.split("\n")):
        return dumper.represent_scalar(tag, text, style="|")
    # The dumper quotes what YAML 1.1 would misread; numbers such as 1e5 only YAML 1.2 reads.
    ambiguous = not isinstance(scalar(text), str)
    return dumper.represent_scalar(tag, text, style="'" if ambiguous else None)


_Dumper.add_representer(str, _text)


def _is_plain(node: yaml.Node) -> bool:
    return isinstance(node, yaml.ScalarNode) and node.style is None


def _is_text(given: str) -> bool:
    if "\n" in given:
        return True
    return (not given.strip() or re.search(r":(\s|$)|^[\[{]", given) is not None) and not (
        given.strip() and len(given) < 4096 and Path(given).is_file()
    )


def _content(path: Path, what: str) -> str:
    try:
        with path.open("rb") as file:
            content = file.read(LARGEST + 1)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise InvalidInput(f"{what} file", str(path), f"a readable file ({reason})") from None
    if len(content) > LARGEST:
        raise InvalidInput(f"{what} file", str(path), f"a file of at most {LARGEST // 1024} KiB")
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        place = f"byte {error.start}"
        raise InvalidInput(
            f"{what} file", str(path), f"text in UTF-8 ({place} is not UTF-8)"
        ) from None


def _unreadable(error: yaml.YAMLError, source: str, text: str) -> InvalidInput:
    mark = getattr(error, "problem_mark", None)
    problem = getattr(error, "problem", None) or str(error).splitlines()[0]
    if mark is None:
        return InvalidInput(source, "a special character", f"YAML ({problem})")
    lines = text.splitlines()
    found = lines[mark.line] if mark.line < len(lines) else ""
    if "\t" in found[: mark.column + 1]:
        problem = "tabs cannot indent; use spaces"
    return InvalidInput(f"{source}:{mark.line + 1}", found.strip(), f"YAML ({problem})")
