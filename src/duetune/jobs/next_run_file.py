"""The one run that would teach most, as a space that ``duetune profile`` reads."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import yaml

from duetune.files import output_file, write_whole

if TYPE_CHECKING:
    from duetune.knowledge.configurations.configuration import Configuration


def probe_text(configuration: Configuration) -> str:
    """Without the software: it is what is installed where it runs."""
    values = msgspec.to_builtins(configuration)
    del values["software"]
    fields = {field: {"role": "given", "values": [value]} for field, value in values.items()}
    document = {"description": "one run, to decide between candidates", "fields": fields}
    return yaml.safe_dump(document, sort_keys=False, default_flow_style=None)


def write_probe(place: str, text: str) -> None:
    """The file appears whole or not at all."""
    target = output_file("probe", place)
    write_whole(target, text, "probe")
