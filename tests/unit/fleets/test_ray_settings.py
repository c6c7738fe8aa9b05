from __future__ import annotations

import pytest

from duetune.core.fleet import NodeKind
from duetune.errors import InvalidInput
from duetune.fleets.ray.ray_settings import RaySettings


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("address", "ray://head:10001"),
        ("address", "head"),
        ("namespace", ""),
        ("cpus", -1.0),
        ("grace_s", float("nan")),
        ("answer_s", 0.0),
        ("runtime_env", "pip: duetune"),
        ("runtime_env", "[1]"),
        ("gpu", ""),
        ("resources", "nvlink"),
    ],
)
def test_what_cannot_work_is_refused(field, value):
    with pytest.raises(InvalidInput) as caught:
        RaySettings(**{"address": "head:6379", field: value})
    assert caught.value.field == field


def test_resources_are_per_gpu():
    settings = RaySettings(address="head:6379", cpus=4, resources="nvlink=0.5, fast=1")
    assert settings.needs(2) == {"CPU": 8.0, "GPU": 2.0, "nvlink": 1.0, "fast": 2.0}


def test_cpus_can_stand_for_gpus():
    assert RaySettings(address="head:6379", gpu="CPU", cpus=4).needs(2) == {"CPU": 2.0}


def test_a_kind_is_a_label_of_machines():
    settings = RaySettings(address="head:6379", on_demand="")
    assert settings.selector(NodeKind.SPOT) == {"ray.io/market-type": "spot"}
    assert settings.selector(NodeKind.ON_DEMAND) == {}


def test_settings_can_come_from_text():
    """As they do from the command line."""
    given = {"address": "[::1]:6379", "cpus": "2", "runtime_env": '{"pip": ["duetune"]}'}
    settings = RaySettings.of(given)
    assert settings.cpus == 2.0
    assert settings.runtime_environment() == {"pip": ["duetune"]}
    with pytest.raises(InvalidInput, match="adress"):
        RaySettings.of({"adress": "head:6379"})
