from __future__ import annotations

import subprocess

import pytest

from duetune.core.fleet import NodeKind
from duetune.errors import InvalidInput
from duetune.fleets.driver import NodeOrder
from duetune.fleets.skypilot.skypilot_settings import SkypilotSettings, run_script, task_of


def order(**changes):
    known = {"job": "job", "kind": NodeKind.SPOT, "command": ("true",)}
    return NodeOrder(name="dt-a", **{**known, **changes})


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"infra": "aws us-east-1"}, "infra"),
        ({"infra": "slurm/lab/spot"}, "spot"),
        ({"spot": "k8s/a", "on_demand": "k8s/a"}, "spot"),
        ({"spot": "none", "on_demand": "none"}, "on_demand"),
        ({"infra": "aws", "labels": "team"}, "labels"),
        ({"infra": "aws", "any_of": "[1"}, "any_of"),
        ({"infra": "aws", "any_of": "{}"}, "any_of"),
        ({"infra": "aws", "config": "[]"}, "config"),
        ({"infra": "aws", "autodown_minutes": "-1"}, "autodown_minutes"),
        ({"infra": "aws", "disk_size": 0}, "disk_size"),
        ({"infra": "aws", "answer_s": 0}, "answer_s"),
        ({"infra": "aws", "refresh_s": "inf"}, "refresh_s"),
        ({"region": "us-east-1"}, "field"),
    ],
)
def test_wrong_options_are_refused_by_name(options, field):
    with pytest.raises(InvalidInput) as raised:
        SkypilotSettings.of(options)
    assert raised.value.field == field


def test_in_clouds_the_kind_is_a_way_to_buy_and_on_slurm_a_partition():
    cloud = SkypilotSettings.of({"infra": "aws/us-east-1"}, "H100")
    assert cloud.resources(NodeKind.SPOT, 2) == {
        "infra": "aws/us-east-1",
        "accelerators": "H100:2",
        "use_spot": True,
    }
    assert cloud.resources(NodeKind.ON_DEMAND, 1)["use_spot"] is False
    slurm = SkypilotSettings.of({"spot": "slurm/lab/spot", "on_demand": "slurm/lab/guaranteed"})
    assert slurm.resources(NodeKind.SPOT, 1) == {"infra": "slurm/lab/spot"}
    assert slurm.resources(NodeKind.ON_DEMAND, 1) == {"infra": "slurm/lab/guaranteed"}
    # Owned machines, and a cloud when they are taken.
    mixed = SkypilotSettings.of({"spot": "k8s/mine", "on_demand": "gcp"})
    assert "use_spot" not in mixed.resources(NodeKind.SPOT, 1)
    assert mixed.resources(NodeKind.ON_DEMAND, 1)["use_spot"] is False


def test_skypilot_gives_back_what_a_dead_controller_left_where_it_can():
    settings = SkypilotSettings.of({"spot": "slurm/lab/spot", "on_demand": "aws"})
    assert settings.autodown(NodeKind.SPOT) is None
    assert settings.autodown(NodeKind.ON_DEMAND) == 30
    assert SkypilotSettings.of({"autodown_minutes": 0}).autodown(NodeKind.SPOT) is None


def test_a_task_has_the_labels_the_limit_of_the_price_and_the_settings():
    settings = SkypilotSettings.of(
        {
            "infra": "gcp",
            "gpu": "H100",
            "labels": "team=ml, cost=42",
            "any_of": '[{"instance_type": "a"}]',
            "config": '{"gcp": {"vpc_name": "x"}}',
            "disk_size": "300",
            "cpus": 4,
            "memory": "16+",
        },
        "A100",
    )
    task = task_of(order(job="tune-1", max_price=1.5, gpus=2), settings)
    assert task["config"] == {"gcp": {"vpc_name": "x"}}
    assert task["resources"] == {
        "infra": "gcp",
        "accelerators": "H100:2",
        "use_spot": True,
        "disk_size": 300,
        "cpus": "4",
        "memory": "16+",
        "any_of": [{"instance_type": "a"}],
        "labels": {"duetune-job": "tune-1", "team": "ml", "cost": "42"},
        "max_hourly_cost": 3.0,
    }
    dear = task_of(order(job="Tune 1", kind=NodeKind.ON_DEMAND, max_price=1.5), settings)
    assert "max_hourly_cost" not in dear["resources"]
    assert "duetune-job" not in dear["resources"]["labels"]


@pytest.mark.parametrize("shared", [True, False])
def test_the_script_runs_the_command_with_its_words_and_writes_the_log_where_it_can(
    tmp_path, shared
):
    log = tmp_path / ("a b" if shared else "none/a")
    words = ("sh", "-c", 'echo "$0 $1 $GREETING"; exit 3', "it's", "$HOME")
    script = run_script(order(command=words, environment={"GREETING": "x, 'y'"}, log=str(log)))
    done = subprocess.run(["sh", "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 3
    assert (log.read_text() if shared else done.stdout) == "it's $HOME x, 'y'\n"
