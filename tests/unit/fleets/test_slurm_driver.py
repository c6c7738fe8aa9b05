from __future__ import annotations

import os
import subprocess

import pytest

from duetune.core.fleet import NodeKind
from duetune.errors import FleetError, InvalidInput
from duetune.fleets.driver import Capacity, CapacityDriver, CheckedDriver, NodeOrder
from duetune.fleets.slurm import SlurmDriver, SlurmSettings
from duetune.fleets.slurm.slurm_driver import batch_script, count_gres, sbatch_arguments
from duetune.wall_clock import wall_now

ORDER = NodeOrder(name="dt-a", job="tune", kind=NodeKind.SPOT, command=("true",), gpus=2)
BOTH = {"spot": "cheap", "on_demand": "sure"}


def settings(**changes):
    return SlurmSettings(**{**BOTH, **changes})


def order(**changes):
    return NodeOrder(
        **{"name": "dt-a", "job": "tune", "kind": NodeKind.SPOT, "command": ("true",), **changes}
    )


@pytest.fixture
def slurm(tmp_path, monkeypatch):
    """A folder of stand-ins for Slurm's commands; each notes how it was called."""
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")

    def program(name, body):
        path = tmp_path / name
        path.write_text(f'#!/bin/sh\necho "$@" >> {tmp_path}/{name}.calls\n{body}\n')
        path.chmod(0o755)

    for name in ("sbatch", "squeue", "scancel", "sinfo", "scontrol", "sdiag"):
        program(name, "exit 0")
    return program


def driver(**changes):
    return SlurmDriver(settings(**changes), prefix="dt-")


def calls(folder, name):
    path = folder / f"{name}.calls"
    return path.read_text().splitlines() if path.exists() else []


def test_it_can_tell_its_capacity_and_be_checked():
    assert isinstance(driver(), CapacityDriver)
    assert isinstance(driver(), CheckedDriver)


def test_an_order_becomes_the_arguments_of_sbatch():
    found = sbatch_arguments(order(gpus=2, log="/logs/100%.log"), settings())
    assert {
        "--job-name=dt-a",
        "--dependency=singleton",
        "--no-requeue",
        "--partition=cheap",
        "--gres=gpu:2",
        "--output=/logs/100%%.log",
        "--comment=duetune job=tune kind=spot",
    } <= set(found)
    assert not any(word.startswith(("--time", "--deadline", "--nice", "--qos")) for word in found)
    assert "--export=HOME,LANG,LOGNAME,PATH,USER" in found


def test_the_kind_decides_the_partition():
    assert "--partition=sure" in sbatch_arguments(order(kind=NodeKind.ON_DEMAND), settings())
    with pytest.raises(FleetError) as raised:
        sbatch_arguments(ORDER, SlurmSettings(on_demand="sure"))
    assert not raised.value.retry


def test_settings_become_arguments():
    found = sbatch_arguments(
        order(priority=-5, withdraw_at=wall_now() + 300),
        settings(
            account="lab",
            qos="low",
            gpus="gpu:h100",
            hours=2,
            nice=10,
            extra="--mem=64G --constraint='a b'",
        ),
    )
    assert {
        "--account=lab",
        "--qos=low",
        "--gres=gpu:h100:1",
        "--time=120",
        "--nice=10050",
        "--mem=64G",
        "--constraint=a b",
    } <= set(found)
    (deadline,) = [word for word in found if word.startswith("--deadline=now+")]
    assert 7200 < int(deadline.removeprefix("--deadline=now+").removesuffix("seconds")) <= 7500


def test_a_cluster_without_gres_is_not_asked_for_gpus():
    found = sbatch_arguments(ORDER, settings(gpus=""))
    assert not any(word.startswith("--gres") for word in found)


def test_the_script_keeps_words_and_variables_as_they_are(tmp_path):
    words = ("printf", "%s\n", "it's", "a  b", "$HOME", "")
    script = batch_script(order(command=words, environment={"GREETING": 'x="1", $y\nz'}))
    assert "\nexec srun " in script
    (tmp_path / "srun").write_text('#!/bin/sh\necho "$GREETING"; shift 2; exec "$@"\n')
    (tmp_path / "srun").chmod(0o755)
    done = subprocess.run(
        ["sh"],
        input=script,
        env={"PATH": f"{tmp_path}:/usr/bin:/bin"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == 'x="1", $y\nz\nit\'s\na  b\n$HOME\n\n'


def test_a_known_name_is_not_submitted_again(slurm, tmp_path):
    driver().start(ORDER)
    assert len(calls(tmp_path, "sbatch")) == 1
    slurm("squeue", "echo 17")
    driver().start(ORDER)
    assert len(calls(tmp_path, "sbatch")) == 1


@pytest.mark.usefixtures("slurm")
def test_a_name_of_another_fleet_is_refused():
    with pytest.raises(FleetError):
        driver().start(order(name="other-a"))


@pytest.mark.parametrize(
    ("said", "retry"),
    [
        ("sbatch: error: Batch job submission failed: Invalid partition name specified", False),
        ("sbatch: error: Batch job submission failed: Invalid qos specification", False),
        ("sbatch: error: Invalid generic resource (gres) specification", False),
        ("sbatch: unrecognized option '--bogus'", False),
        ("sbatch: error: Batch job submission failed: Access/permission denied", False),
        ("sbatch: error: Batch job submission failed: Socket timed out on send/recv", True),
        ("sbatch: error: Unable to contact slurm controller (connect failure)", True),
        ("sbatch: error: Batch job submission failed: Invalid authentication credential", True),
        ("", True),
    ],
)
def test_a_failure_says_whether_it_helps_to_ask_again(slurm, said, retry):
    slurm("sbatch", f'echo "{said}" >&2; exit 1')
    with pytest.raises(FleetError) as raised:
        driver().start(ORDER)
    assert raised.value.retry is retry
    assert said in str(raised.value)


def test_a_command_that_hangs_is_an_error(slurm):
    slurm("scancel", "exec sleep 60")
    with pytest.raises(FleetError, match=r"scancel took more than 0\.2 s") as raised:
        driver(timeout_s=0.2).stop("dt-a")
    assert raised.value.retry


def test_a_machine_without_slurm_is_an_error_that_stays(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(FleetError, match="squeue is not on this machine") as raised:
        driver().list()
    assert not raised.value.retry
    (found,) = driver().check()
    assert "missing: sbatch" in found.wrong


def test_variables_that_change_commands_do_not_reach_them(slurm, tmp_path, monkeypatch):
    monkeypatch.setenv("SQUEUE_USERS", "nobody")
    monkeypatch.setenv("SLURM_CONF", "/old")
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    slurm("scancel", f"env > {tmp_path}/env")
    driver(conf="/lab/slurm.conf").stop("dt-a")
    seen = (tmp_path / "env").read_text()
    assert "SLURM_CONF=/lab/slurm.conf\n" in seen
    assert "SQUEUE_USERS" not in seen
    assert "SLURM_JOB_ID" not in seen


def test_only_jobs_of_this_user_and_this_fleet_are_listed(slurm):
    mine = os.geteuid()
    rows = [("dt-a", mine), ("dt-b", mine + 1), ("other-c", mine), ("dt-d", mine)]
    jobs = ",".join(
        f'{{"job_id": {number}, "name": "{name}", "user_id": {user}, "job_state": "PENDING"}}'
        for number, (name, user) in enumerate(rows)
    )
    slurm("squeue", f"""echo '{{"errors": [], "jobs": [{jobs}]}}'""")
    assert [node.name for node in driver().list()] == ["dt-a", "dt-d"]


def test_capacity_is_what_usable_nodes_have_left(slurm):
    slurm(
        "sinfo",
        """cat <<'TEXT'
mixed      gpu:h100:8(S:0-1)      gpu:h100:5(IDX:0-2,6-7)
idle       gpu:h100:8(S:0-1)      gpu:h100:0(IDX:N/A)
idle~      gpu:h100:8             gpu:h100:0
idle*      gpu:h100:8             gpu:h100:0
drained    gpu:h100:8             gpu:h100:0
allocated  gpu:h100:8             gpu:h100:4(IDX:0-3)
idle       (null)                 (null)
TEXT""",
    )
    assert driver().capacity() == Capacity(19, 19, (3, 8, 8))
    assert driver(gpus="gpu:a100").capacity() == Capacity(0, 0, ())
    assert driver(gpus="").capacity() == Capacity(3, 3, (1, 1, 1))
    whole = SlurmDriver(settings(gpus=""), prefix="", gpus_per_node=8)
    assert whole.capacity() == Capacity(24, 24, (8, 8, 8))
    without_spot = SlurmDriver(SlurmSettings(on_demand="sure"), prefix="")
    assert without_spot.capacity() == Capacity(0, 19, ())


def test_a_partition_that_does_not_exist_is_told_and_not_counted_as_empty(slurm):
    assert driver().capacity() == Capacity(0, 0, ())  # it exists, and has no nodes
    slurm("scontrol", "echo Partition cheap not found; exit 1")
    with pytest.raises(FleetError, match="Partition cheap not found") as raised:
        driver().capacity()
    assert not raised.value.retry


@pytest.mark.parametrize(
    ("text", "gres", "count"),
    [
        ("gpu:4", "gpu", 4),
        ("gpu:a100:4,gpu:h100:2(S:0,1),shard:16", "gpu", 6),
        ("gpu:a100:4,gpu:h100:2(S:0,1),shard:16", "gpu:h100", 2),
        ("(null)", "gpu", 0),
        ("gpus:3", "gpu", 0),
    ],
)
def test_generic_resources_are_counted_by_name_and_type(text, gres, count):
    assert count_gres(text, gres) == count


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({}, "spot"),
        ({"spot": "same", "on_demand": "same"}, "on_demand"),
        ({**BOTH, "hours": 0}, "hours"),
        ({**BOTH, "nice": -1}, "nice"),
        ({**BOTH, "timeout_s": 0}, "timeout_s"),
        ({**BOTH, "extra": "--job-name=mine"}, "extra"),
        ({**BOTH, "extra": "--mem='64G"}, "extra"),
        ({**BOTH, "hours": "soon"}, "hours"),
        ({**BOTH, "partition": "x"}, "field"),
    ],
)
def test_wrong_settings_are_refused_by_name(options, field):
    with pytest.raises(InvalidInput) as raised:
        SlurmSettings.of(options)
    assert raised.value.field == field


def test_settings_may_come_as_text():
    assert SlurmSettings.of({**BOTH, "hours": "1.5", "nice": "3"}) == settings(hours=1.5, nice=3)


SOUND = {
    "partition": "PartitionName=cheap State=UP PriorityTier=1 PreemptMode=CANCEL GraceTime=60",
    "sure": "PartitionName=sure State=UP PriorityTier=9 PreemptMode=OFF GraceTime=0",
    "config": "PreemptType             = preempt/partition_prio\nMinJobAge    = 300 sec",
}


@pytest.mark.parametrize(
    ("changes", "wrong"),
    [
        ({}, []),
        ({"config": SOUND["config"].replace("partition_prio", "none")}, ["preempt/none"]),
        ({"partition": SOUND["partition"].replace("CANCEL", "SUSPEND,GANG")}, ["SUSPEND"]),
        ({"partition": SOUND["partition"].replace("60", "0")}, ["GraceTime is 0 s"]),
        ({"partition": SOUND["partition"].replace("UP", "DRAIN")}, ["its state is DRAIN"]),
        ({"sure": SOUND["sure"].replace("Tier=9", "Tier=1")}, ["higher PriorityTier"]),
        ({"config": SOUND["config"].replace("300", "5")}, ["MinJobAge is 5 s"]),
        ({"skew": "-100"}, ["they differ by"]),
        ({"gres": "gpu:a100:8"}, ["it has gpu:a100:8", "it has gpu:a100:8"]),
    ],
)
def test_a_check_finds_what_is_wrong_with_a_cluster(slurm, changes, wrong):
    told = {**SOUND, "gres": "gpu:h100:8(S:0-1)", "skew": "0", **changes}
    slurm("squeue", """echo '{"errors": [], "jobs": []}'""")
    slurm("sinfo", f"echo '{told['gres']}'")
    slurm("sdiag", f'echo "sdiag output at today ($(($(date +%s) + {told["skew"]})))"')
    slurm(
        "scontrol",
        f"""case "$*" in
*cheap) echo '{told["partition"]}' ;;
*sure) echo '{told["sure"]}' ;;
*) echo '{told["config"]}' ;;
esac""",
    )
    found = [each.wrong for each in driver(gpus="gpu:h100").check() if each.wrong]
    assert len(found) == len(wrong)
    assert all(word in each for word, each in zip(wrong, found, strict=True))


def test_a_check_ends_where_the_controller_does_not_answer(slurm):
    slurm("squeue", "echo 'Unable to contact slurm controller' >&2; exit 1")
    found = driver().check()
    assert [bool(each.wrong) for each in found] == [False, True]
