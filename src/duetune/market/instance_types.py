"""The GPUs of AWS instance types, which turn a price per instance into a price per GPU."""

from __future__ import annotations

import msgspec

from duetune.errors import InvalidInput


class InstanceType(msgspec.Struct, frozen=True):
    """What one instance of a type has."""

    gpus: int
    accelerator: str


_FAMILIES = {
    "p2": ("K80", {1: "xlarge", 8: "8xlarge", 16: "16xlarge"}),
    "p3": ("V100", {1: "2xlarge", 4: "8xlarge", 8: "16xlarge"}),
    "p3dn": ("V100-32GB", {8: "24xlarge"}),
    "p4d": ("A100", {8: "24xlarge"}),
    "p4de": ("A100-80GB", {8: "24xlarge"}),
    "p5": ("H100", {1: "4xlarge", 8: "48xlarge"}),
    "p5e": ("H200", {8: "48xlarge"}),
    "p5en": ("H200", {8: "48xlarge"}),
    "p6-b200": ("B200", {8: "48xlarge"}),
    "p6-b300": ("B300", {8: "48xlarge"}),
    "g3": ("M60", {1: "4xlarge", 2: "8xlarge", 4: "16xlarge"}),
    "g3s": ("M60", {1: "xlarge"}),
    "g4ad": ("V520", {1: "xlarge 2xlarge 4xlarge", 2: "8xlarge", 4: "16xlarge"}),
    "g4dn": ("T4", {1: "xlarge 2xlarge 4xlarge 8xlarge 16xlarge", 4: "12xlarge", 8: "metal"}),
    "g5": (
        "A10G",
        {1: "xlarge 2xlarge 4xlarge 8xlarge 16xlarge", 4: "12xlarge 24xlarge", 8: "48xlarge"},
    ),
    "g5g": ("T4G", {1: "xlarge 2xlarge 4xlarge 8xlarge", 2: "16xlarge metal"}),
    "g6": (
        "L4",
        {1: "xlarge 2xlarge 4xlarge 8xlarge 16xlarge", 4: "12xlarge 24xlarge", 8: "48xlarge"},
    ),
    "gr6": ("L4", {1: "4xlarge 8xlarge"}),
    "g6e": (
        "L40S",
        {1: "xlarge 2xlarge 4xlarge 8xlarge 16xlarge", 4: "12xlarge 24xlarge", 8: "48xlarge"},
    ),
    "g7e": ("RTX PRO Server 6000", {1: "2xlarge 4xlarge 8xlarge", 8: "48xlarge"}),
}

AWS_INSTANCES = {
    f"{family}.{size}": InstanceType(gpus, accelerator)
    for family, (accelerator, by_gpus) in _FAMILIES.items()
    for gpus, sizes in by_gpus.items()
    for size in sizes.split()
}
"""The instance types with whole GPUs that are known here, by name."""


def aws_instance(name: str, gpus_per_instance: int | None) -> InstanceType:
    """Return what an instance of this type has; the caller's number of GPUs comes first.

    A type that is not known is refused without that number: with a guess of one GPU, the price of
    an instance of eight would count as the price of a GPU.
    """
    known = AWS_INSTANCES.get(name)
    if gpus_per_instance is not None:
        return InstanceType(gpus_per_instance, known.accelerator if known else name)
    if known is None:
        allowed = f"the number of GPUs of {name}, a type that is not in the table of instance types"
        raise InvalidInput("gpus_per_instance", None, allowed)
    return known
