"""The measurement that would teach most, as a space file that ``duetune profile`` reads."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import yaml

from duetune.files import output_file, write_whole
from duetune.jobs.trainer_knowledge import packed_rows
from duetune.knowledge.configurations.configuration import Configurations

if TYPE_CHECKING:
    from duetune.knowledge.configurations.configuration import Configuration


def probe_text(configuration: Configuration) -> str:
    """Return the space file of one configuration, with packed rows because the profiler runs our
    trainer. The software is left out, because it is whatever is installed where that runs.
    """
    values = msgspec.to_builtins(packed_rows(Configurations.of([configuration]))[0])
    del values["software"]
    fields = {field: {"role": "given", "values": [value]} for field, value in values.items()}
    document = {"description": "one run that helps to decide between candidates", "fields": fields}
    return yaml.safe_dump(document, sort_keys=False, default_flow_style=None)


def write_probe(place: str, text: str) -> None:
    """Write the file to ``place``, whole or not at all."""
    write_whole(output_file("probe", place), text, "probe")
