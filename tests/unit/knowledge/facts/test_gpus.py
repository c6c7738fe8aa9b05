from __future__ import annotations

import pytest

from duetune.knowledge.facts.gpus import GPUS, gpu_name, gpu_named


@pytest.mark.parametrize(
    ("said", "name"),
    [
        ("NVIDIA-A100-SXM4-80GB", "A100-80GB"),
        ("NVIDIA-A100-80GB-PCIe", "A100-80GB-PCIe"),
        ("NVIDIA A100 80GB PCIe", "A100-80GB-PCIe"),
        ("NVIDIA A100-PCIE-40GB", "A100-40GB"),
        ("NVIDIA A100-SXM4-40GB", "A100-40GB"),
        ("a100_40gb", "A100-40GB"),
        ("nvidia-tesla-a100", "A100"),
        ("Tesla V100-SXM2-16GB", "V100"),
        ("Tesla V100-PCIE-32GB", "V100-32GB"),
        ("NVIDIA H100 80GB HBM3", "H100"),
        ("NVIDIA-H100-PCIe", "H100-PCIe"),
        ("h100_80gb", "H100"),
        ("NVIDIA GeForce RTX 4090", "RTX4090"),
        ("NVIDIA RTX A6000", "A6000"),
        ("NVIDIA RTX 6000 Ada Generation", "RTX6000-Ada"),
        ("AMD Instinct MI300X", "MI300X"),
        ("Tesla T4", "T4"),
    ],
)
def test_a_gpu_is_known_by_what_drivers_and_clusters_call_it(said, name):
    assert gpu_name(said) == name


@pytest.mark.parametrize("name", GPUS)
def test_every_name_of_the_table_stands_for_itself(name):
    assert gpu_name(name) == name
    assert gpu_name(name.lower()) == name
    assert gpu_named(f"NVIDIA {name}") == GPUS[name]


@pytest.mark.parametrize(
    ("said", "name"), [("NVIDIA H100 NVL", "H100-PCIe"), ("GH200 480GB", "GH200")]
)
def test_a_variant_with_more_memory_is_taken_for_the_one_with_less(said, name):
    assert gpu_name(said) == name


@pytest.mark.parametrize(
    "said",
    [
        *("", "cpu", "emulated", "H20", "A100-64GB", "H100-64GB", "RTX 4090 Laptop"),
        "NVIDIA A100-SXM4-80GB MIG 1g.10gb",
    ],
)
def test_what_is_not_understood_is_no_gpu(said):
    assert gpu_name(said) is None
    assert gpu_named(said) is None
