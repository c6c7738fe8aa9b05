from __future__ import annotations

from duetune.fleets.embedded.node_assignment import Devices, visible_devices


def test_gpus_are_those_of_the_environment_or_of_the_machine(tmp_path):
    for name in ("nvidia10", "nvidia2", "nvidiactl", "nvidia-uvm", "null"):
        (tmp_path / name).touch()
    assert visible_devices({}, tmp_path) == ["2", "10"]
    assert visible_devices({"CUDA_VISIBLE_DEVICES": "3, GPU-ab"}, tmp_path) == ["3", "GPU-ab"]
    assert visible_devices({"CUDA_VISIBLE_DEVICES": ""}, tmp_path) == []


def test_every_node_gets_one_and_nobody_shares_while_one_is_free():
    devices = Devices(["0", "1"])
    assert [devices.take(("job", name)) for name in "abc"] == ["0", "1", "0"]
    devices.give_back(("job", "b"))
    devices.give_back(("job", "unknown"))
    assert devices.take(("job", "d")) == "1"
    assert Devices([]).take(("job", "a")) is None
