"""Specs become files of other tools, with what those cannot do as comments, and no secrets."""

from __future__ import annotations

import json
import os
import re
import subprocess
from datetime import timedelta

import pytest
import yaml

from duetune.errors import InvalidInput
from duetune.interop.export_jobs.kubernetes import literal, object_name, tag_annotations
from duetune.interop.export_jobs.machines import Machines, machines_of
from duetune.interop.export_jobs.sbatch import slurm_time
from duetune.interop.export_jobs.script import install_command, shell_path
from duetune.interop.export_jobs.writing import Target, export_job
from duetune.jobs.configure import configure
from duetune.jobs.site import Site
from duetune.jobs.spec.job_spec import JobSpec
from duetune.jobs.trainer_facts import trainer_software
from duetune.jobs.training_settings import training_task
from duetune.knowledge.facts.model_facts import model_facts


def job(**fields):
    return JobSpec(**{"model": "Qwen/Qwen3-0.6B", "dataset": "d.jsonl", "deadline": "8h"} | fields)


def own(**fields):
    return JobSpec(**{"run": "python train.py\n", "deadline": "8h"} | fields)


def documents(spec, target, **options):
    return list(yaml.safe_load_all(export_job(spec, Target(target), **options).text))


def notes(spec, target):
    return [str(note) for note in export_job(spec, Target(target)).notes]


def refused(spec, target="skypilot", **options):
    with pytest.raises(InvalidInput) as error:
        export_job(spec, Target(target), **options)
    return str(error.value)


class TestMachines:
    @pytest.mark.parametrize(
        ("accelerators", "expected"),
        [
            ("auto", Machines(None, 1, 1)),
            ("H100", Machines("H100", 1, 1)),
            ("H100:4", Machines("H100", 1, 4)),
            ("H100:1..4", Machines("H100", 1, 4)),
            ("H100:16", Machines("H100", 2, 8)),
            ("H100:12", Machines("H100", 2, 6)),
            ("H100:11", Machines("H100", 11, 1)),
        ],
    )
    def test_an_own_command_may_have_many(self, accelerators, expected):
        assert machines_of(own(resources={"accelerators": accelerators})) == expected
        assert expected.total == expected.count * expected.gpus

    def test_the_trainer_has_one(self):
        assert machines_of(job(resources={"accelerators": "H100:1..64"})) == Machines("H100", 1, 8)

    def test_another_number_within_the_range(self):
        assert machines_of(job(resources={"accelerators": "L4:1..4"}), 2) == Machines("L4", 1, 2)

    @pytest.mark.parametrize(
        ("accelerators", "gpus", "message"),
        [
            ("L4:2..4", 1, ("--gpus: 1 is not allowed; expected 2 to 4, as in "
             "resources.accelerators")),
            ("L4:2..4", 5, ("--gpus: 5 is not allowed; expected 2 to 4, as in "
             "resources.accelerators")),
            ("L4:2..", 1, ("--gpus: 1 is not allowed; expected 2 to any number, as in "
             "resources.accelerators")),
            ("L4", 0, ("--gpus: 0 is not allowed; expected 1 to any number, as in "
             "resources.accelerators")),
            ("L4", 9, ("--gpus: 9 is not allowed; expected at most 8: the built-in trainer is "
             "exported to one machine")),
            ("L4:16", None, ("resources.accelerators: 16 is not allowed; expected at most 8: the "
             "built-in trainer is exported to one machine")),
        ],
    )  # fmt: skip
    def test_numbers_that_do_not_fit(self, accelerators, gpus, message):
        assert refused(job(resources={"accelerators": accelerators}), gpus=gpus) == message


class TestSkyPilot:
    def test_an_own_command(self):
        (task,) = documents(
            own(
                name="mine",
                workdir="src",
                setup="pip install x",
                resources={"accelerators": "H100:16", "spot": "only"},
                envs={"A": "1", "ASK": None},
                secrets=["TOKEN"],
                tags={"team": "a"},
            ),
            "skypilot",
        )
        run = task.pop("run")
        assert task == {
            "name": "mine",
            "num_nodes": 2,
            "resources": {
                "accelerators": "H100:8",
                "use_spot": True,
                "labels": {"team": "a"},
                "job_recovery": {"max_restarts_on_errors": 3, "recover_on_exit_codes": [75]},
            },
            "workdir": "src",
            "envs": {"A": "1", "ASK": None},
            "secrets": {"TOKEN": None},
            "setup": "pip install x",
        }
        assert run.startswith("# duetune: begin\nexport DUETUNE_JOB_ID=mine\n")
        assert run.endswith("# duetune: end\npython train.py\n")

    def test_the_trainer(self):
        (task,) = documents(job(resources={"accelerators": "H100:1..4"}), "skypilot")
        assert task["resources"]["accelerators"] == "H100:4"
        assert task["resources"]["any_of"] == [{"use_spot": True}, {"use_spot": False}]
        assert task["setup"] == install_command(job())
        assert task["workdir"] == "."
        assert "python -m duetune.training &" in task["run"]

    def test_one_gpu_needs_no_coordinator(self):
        (task,) = documents(job(resources={"accelerators": "L4:1"}), "skypilot")
        assert task["run"].endswith("\nexec python -m duetune.training\n")
        assert "coordinator" not in task["run"]

    def test_any_gpu_is_a_choice(self):
        (task,) = documents(job(resources={"spot": False}), "skypilot")
        assert task["resources"]["use_spot"] is False
        assert task["resources"]["any_of"] == [
            {"accelerators": "A100-80GB:1"},
            {"accelerators": "H100:1"},
        ]

    def test_data_from_elsewhere_are_mounted(self):
        (task,) = documents(job(dataset="/data/my set.jsonl"), "skypilot")
        place = "/tmp/duetune-inputs/my set.jsonl"  # noqa: S108 - on another machine
        assert task["file_mounts"] == {place: "/data/my set.jsonl"}
        assert f'"dataset": "{place}"' in task["run"]
        assert "workdir" not in task

    def test_a_name_on_the_hub_needs_no_files(self):
        (task,) = documents(job(dataset="a/b"), "skypilot")
        assert "workdir" not in task
        assert "file_mounts" not in task

    def test_what_must_be_given_at_launch_is_in_the_command(self):
        exported = export_job(
            own(envs={"A": None, "B": "1"}, secrets=["TOKEN"]), Target.SKYPILOT, file="my task.yaml"
        )
        assert exported.launch == ("sky jobs launch 'my task.yaml' --env A --secret TOKEN",)


class TestTrainJob:
    def test_an_own_command(self):
        (document,) = documents(
            own(
                name="My.Job",
                setup="pip install x",
                max_duration="90m",
                resources={"accelerators": "H100:16"},
                envs={"A": "$(HOME) $$ $x", "ASK": None},
                secrets=["TOKEN"],
                tags={"a/b": "c"},
            ),
            "trainjob",
            image="me/image:1",
        )
        shell, option, script = document["spec"]["trainer"].pop("command")
        assert document == {
            "apiVersion": "trainer.kubeflow.org/v1alpha1",
            "kind": "TrainJob",
            "metadata": {"name": "my-job", "annotations": {"duetune/a.b": "c"}},
            "spec": {
                "runtimeRef": {
                    "apiGroup": "trainer.kubeflow.org",
                    "kind": "ClusterTrainingRuntime",
                    "name": "torch-distributed",
                },
                "trainer": {
                    "image": "me/image:1",
                    "numNodes": 2,
                    "resourcesPerNode": {
                        "requests": {"nvidia.com/gpu": 8},
                        "limits": {"nvidia.com/gpu": 8},
                    },
                    "env": [
                        {
                            "name": "TOKEN",
                            "valueFrom": {
                                "secretKeyRef": {"name": "my-job-secrets", "key": "TOKEN"}
                            },
                        },
                        {"name": "A", "value": "$$(HOME) $$$ $x"},
                        {
                            "name": "ASK",
                            "valueFrom": {"secretKeyRef": {"name": "my-job-secrets", "key": "ASK"}},
                        },
                    ],
                },
                "activeDeadlineSeconds": 5400,
            },
        }
        assert (shell, option) == ("bash", "-c")
        assert script.startswith("pip install x\n# duetune: begin\n")
        assert expanded(script).endswith("# duetune: end\npython train.py\n")

    def test_without_an_image_duetune_is_installed(self):
        (document,) = documents(job(), "trainjob")
        assert document["spec"]["trainer"]["command"][2].startswith(install_command(job()))
        (document,) = documents(job(), "trainjob", image="x")
        assert document["spec"]["trainer"]["command"][2].startswith("# duetune: begin")

    def test_how_to_launch(self):
        exported = export_job(own(secrets=["TOKEN"]), Target.TRAINJOB, file="t.yaml")
        assert exported.launch == (
            'kubectl create secret generic job-secrets --from-literal=TOKEN="$TOKEN"',
            "kubectl apply -f t.yaml",
        )


class TestRayJob:
    def test_a_script_beside_the_job(self):
        script, document = documents(
            own(
                name="j",
                max_duration="1h",
                resources={"accelerators": "H100:2"},
                secrets=["TOKEN"],
                tags=["t"],
            ),
            "rayjob",
        )
        assert script["kind"] == "ConfigMap"
        assert script["metadata"] == {"name": "j-script"}
        assert script["data"]["run.sh"].endswith("# duetune: end\npython train.py\n")
        body = document["spec"]
        assert (document["apiVersion"], document["kind"]) == ("ray.io/v1", "RayJob")
        assert document["metadata"] == {"name": "j", "annotations": {"duetune/t": ""}}
        assert body["entrypoint"] == "bash /duetune/run.sh"
        assert body["entrypointNumGpus"] == 2
        assert body["activeDeadlineSeconds"] == 3600
        (group,) = body["rayClusterSpec"]["workerGroupSpecs"]
        (worker,) = group["template"]["spec"]["containers"]
        assert worker["resources"]["limits"] == {"nvidia.com/gpu": 2}
        assert worker["env"][0]["valueFrom"]["secretKeyRef"]["key"] == "TOKEN"
        assert worker["volumeMounts"] == [{"name": "script", "mountPath": "/duetune"}]
        assert group["template"]["spec"]["volumes"] == [
            {"name": "script", "configMap": {"name": "j-script"}}
        ]

    def test_one_machine_is_all_there_is(self):
        assert refused(own(resources={"accelerators": "H100:16"}), "rayjob") == (
            "resources.accelerators: 16 is not allowed; expected at most 8: Ray runs the command "
            "once, on one machine"
        )


class TestSbatch:
    def text(self, spec):
        return export_job(spec, Target.SBATCH).text

    def test_its_options(self):
        text = self.text(
            own(name="j", max_duration="1d2h", resources={"accelerators": "A100-80GB:16"})
        )
        assert text.startswith("#!/bin/bash\n# Exported by duetune.")
        assert re.findall(r"^#SBATCH (.*)$", text, re.MULTILINE) == [
            "--job-name=j",
            "--nodes=2",
            "--ntasks-per-node=1",
            "--gres=gpu:a100-80gb:8",
            "--requeue",
            "--signal=B:TERM@120",
            "--open-mode=append",
            "--output=%x-%j.log",
            "--time=1-02:00:00",
        ]

    def test_options_come_before_any_command(self):
        lines = self.text(job()).splitlines()
        last = max(number for number, line in enumerate(lines) if line.startswith("#SBATCH"))
        assert all(line.startswith("#") for line in lines[: last + 1])

    def test_any_gpu_and_no_limit(self):
        text = self.text(job())
        assert "#SBATCH --gres=gpu:1\n" in text
        assert "--time" not in re.findall(r"^#SBATCH.*$", text, re.MULTILINE)[-1]
        assert "max_duration: not given: the time limit of the partition applies" in text

    def test_secrets_come_from_the_environment(self):
        text = self.text(own(envs={"A": "it's"}, secrets=["TOKEN"]))
        assert ': "${TOKEN:?set it where you call sbatch}"\n' in text
        assert "export A='it'\"'\"'s'\n" in text

    @pytest.mark.parametrize(
        ("duration", "written"),
        [
            (timedelta(hours=8), "0-08:00:00"),
            (timedelta(days=2, minutes=3, seconds=4), "2-00:03:04"),
            (timedelta(seconds=0.5), "0-00:00:01"),
        ],
    )
    def test_time(self, duration, written):
        assert slurm_time(duration) == written


class TestNotes:
    def test_what_only_duetune_knows(self):
        spec = job(
            budget=20,
            value=3,
            max_price=2.5,
            max_duration="9h",
            policy="ahap",
            priority=3,
            checkpoint={"keep": 5},
            resources={"accelerators": "L4:1..4"},
        )
        assert notes(spec, "skypilot")[:9] == [
            "deadline: 8h is not enforced there",
            "budget: $20 is not enforced there",
            "value: $3 is not enforced there",
            "max_price: $2.5 is not enforced there",
            "max_duration: 9h is not enforced there",
            "policy: ahap is not used there",
            "priority: 3 is not exported",
            "resources.accelerators: 4 GPUs all the time; choose another number with --gpus",
            "checkpoint.keep: 5 is not exported",
        ]
        assert "max_duration: 9h is not enforced there" not in notes(spec, "trainjob")

    def test_a_hard_deadline_is_noted(self):
        noted = "hard_deadline: the job is not stopped at its deadline there"
        assert noted in notes(job(hard_deadline=True), "sbatch")
        assert noted not in notes(job(), "sbatch")

    def test_an_own_command(self):
        found = notes(own(training={"max_steps": 5}), "sbatch")
        assert "run: runs once per machine there, not once per GPU" in found
        assert "training.max_steps: not used there" in found

    def test_they_are_comments(self):
        for target in Target:
            exported = export_job(job(tags={"a": "x"}), target)
            lines = exported.text.splitlines()
            for note in exported.notes:
                assert f"#   {note}" in lines

    def test_an_image_goes_with_containers(self):
        assert refused(job(), "sbatch", image="x") == (
            "--image: 'x' is not allowed; expected no value: sbatch does not use containers"
        )


SECRETS = own(secrets=["TOKEN"], envs={"OTHER": None})


@pytest.mark.parametrize("target", list(Target))
def test_no_value_of_a_secret_is_read(target, monkeypatch):
    monkeypatch.setenv("TOKEN", "hunter2")
    monkeypatch.setenv("OTHER", "hunter3")
    text = export_job(SECRETS, target).text
    assert "hunter" not in text
    assert "TOKEN" in text


def expanded(text, variables=None):
    """As Kubernetes expands commands and environments."""
    names = {} if variables is None else variables

    def one(found):
        if found[0] == "$$":
            return "$"
        return names.get(found[1], found[0])

    return re.sub(r"\$\$|\$\(([^)]*)\)", one, text)


@pytest.mark.parametrize("text", ["$(A)", "$$(A)", "$$", "$$$", "$", "$A", "$(A", "x$(A)$$y$", ""])
def test_kubernetes_gives_back_what_was_meant(text):
    assert expanded(literal(text), {"A": "expanded"}) == text


@pytest.mark.parametrize(
    ("name", "expected"),
    [("My.Job_1", "my-job-1"), ("1st", "job-1st"), ("a" * 63, "a" * 45), ("A", "a")],
)
def test_names_of_objects(name, expected):
    assert object_name(job(name=name)) == expected
    assert re.fullmatch(r"[a-z]([-a-z0-9]*[a-z0-9])?", expected)


def test_tags_are_annotations():
    assert tag_annotations(job(tags={"a/b/": "c d"})) == {"duetune/a.b": "c d"}


@pytest.mark.parametrize(
    ("path", "quoted"),
    [("/a b", "'/a b'"), ("a", '"$PWD"/a'), ("~", '"$HOME"'), ("~/a b", "\"$HOME\"'/a b'")],
)
def test_paths_are_quoted_for_the_shell(path, quoted):
    assert shell_path(path) == quoted


class TestPlannedRecipe:
    def test_open_fields_are_those_that_plan_would_choose(self):
        spec = job(resources={"accelerators": "H100:4"}, training={"max_steps": 5})
        plan = configure(
            spec,
            Site(accelerator="H100", max_gpus=4, software=trainer_software()),
            None,
            model_facts(spec.model),
        )
        for target in Target:
            text = export_job(spec, target).text
            assert f'"method": "{plan.method}"' in text
            assert f'"per_device_train_batch_size": {plan.microbatch}' in text
            assert f'"gradient_accumulation_steps": {plan.accumulation}' in text
            assert f'"precision": "{plan.precision}"' in text
            note = (
                f"{plan.method}, bf16, {plan.accumulation} x {plan.microbatch} examples of at most "
                f"{plan.max_length} tokens per step"
            )
            assert f"#   training: {note}, planned for 4 x H100 from data sheets" in text

    def test_given_fields_stay(self):
        training = {"per_device_train_batch_size": 3, "gradient_accumulation_steps": 2}
        spec = job(resources={"accelerators": "H100"}, training={**training, "fp16": True})
        text = export_job(spec, Target.SBATCH).text
        assert '"per_device_train_batch_size": 3' in text
        assert '"gradient_accumulation_steps": 2' in text
        assert '"fp16": true' in text
        assert '"bf16": false' in text

    def test_every_setting_is_that_of_the_plan(self, tmp_path):
        """The defaults of another version, or a small dataset, must not change the job."""
        rows = "".join(f'{{"prompt": "{n}", "completion": "{n}"}}\n' for n in range(6))
        (tmp_path / "d.jsonl").write_text(rows)
        spec = job(resources={"accelerators": "H100:1"}, method="lora")
        site = Site(accelerator="H100", max_gpus=1, software=trainer_software())
        plan = configure(spec, site, 6, model_facts(spec.model), tokens_per_row=1)
        task = training_task(spec, plan)
        text = export_job(spec, Target.SBATCH, folder=tmp_path).text
        found = json.loads(text.split("<<'DUETUNE_TASK'\n")[1].split("DUETUNE_TASK")[0])
        assert found["num_train_epochs"] == plan.epochs
        assert (found["learning_rate"], found["lora_r"]) == (2e-4, 16)
        for field in set(found) - {"num_train_epochs", "dataset", "model"}:
            assert found[field] == getattr(task, field), field
        for field in ("learning_rate", "lr_scheduler_type", "lora_alpha", "precision", "optim"):
            assert field in found

    def test_the_gpu_of_the_home_is_planned_for_where_none_is_named(self):
        text = export_job(job(), Target.SBATCH, home_gpu="H100").text
        assert '"precision": "bf16' in text
        assert "planned for 1 x H100" in text

    def test_a_gpu_that_is_not_named_is_said_to_be_unknown(self):
        assert "planned for an unknown GPU" in export_job(job(), Target.SBATCH).text
        assert "planned for 1 x A100-80GB" in export_job(job(), Target.SKYPILOT).text

    def test_a_job_that_does_not_fit_is_exported_with_a_note(self):
        spec = job(model="org/model-70b", resources={"accelerators": "L4"}, method="full")
        (note,) = [each for each in notes(spec, "sbatch") if each.startswith("training: ")]
        assert note.startswith("training: not planned, the job may not run: ")
        assert "24 GB of L4" in note


class TestMembers:
    LARGE = {"model": "meta-llama/Llama-3.1-70B", "method": "lora"}  # noqa: RUF012 - never changed

    def test_a_model_too_large_for_one_gpu_gets_members(self):
        spec = job(**self.LARGE, resources={"accelerators": "H100:8"})
        site = Site(accelerator="H100", max_gpus=8, software=trainer_software())
        plan = configure(spec, site, 1000, model_facts(spec.model))
        exported = export_job(spec, Target.SBATCH)
        assert plan.gpus_per_member > 1
        assert f"\nexport DUETUNE_GPUS={plan.gpus_per_member}\n" in exported.text
        why = plan.reasons["gpus_per_member"]
        note = f"training: members of {plan.gpus_per_member} GPUs: {why}"
        assert note in [str(each) for each in exported.notes]

    @pytest.mark.parametrize(
        ("member", "groups"), [(1, ["4", "5", "6", "7"]), (2, ["4,5", "6,7"]), (4, ["4,5,6,7"])]
    )
    def test_every_member_sees_its_own_gpus(self, member, groups, tmp_path):
        resources = {"accelerators": "H100:4", "gpus_per_member": member}
        (tmp_path / "job.sh").write_text(export_job(job(resources=resources), Target.SBATCH).text)
        python = tmp_path / "python"
        python.write_text(
            '#!/bin/bash\nif [ "$2" = duetune.training.coordinator ]; then echo here > "$4"; '
            'else echo "${DUETUNE_GPUS:-1} $CUDA_VISIBLE_DEVICES" >> "$SEEN"; fi\n'
        )
        python.chmod(0o700)
        seen = tmp_path / "seen"
        environment = {
            "PATH": f"{tmp_path}:{os.environ['PATH']}",
            "SEEN": str(seen),
            "DUETUNE_JOB_DIR": str(tmp_path / "job"),
            "CUDA_VISIBLE_DEVICES": "4,5,6,7",
        }
        script = str(tmp_path / "job.sh")
        subprocess.run(["bash", script], env=environment, check=True, timeout=60)
        assert sorted(seen.read_text().splitlines()) == [f"{member} {group}" for group in groups]


def test_what_the_job_needs_is_installed():
    assert "duetune[train,kernels]" in install_command(job())
    assert "duetune[train]" in install_command(job(training={"use_liger_kernel": False}))
    assert "duetune[train,kernels,quantised]" in install_command(job(method="qlora"))
    # Where only weights in 4 bits fit, the exported job trains with them.
    large = job(model="meta-llama/Llama-3.1-70B", resources={"accelerators": "H100:1"})
    assert "duetune[train,kernels,quantised]" in export_job(large, Target.SBATCH).text


def test_a_step_has_no_more_tokens_than_were_planned(tmp_path):
    rows = tmp_path / "rows.jsonl"
    rows.write_text((json.dumps({"text": "x" * 40}) + "\n") * 100)
    spec = job(dataset=str(rows), resources={"accelerators": "H100:1"})
    exported = export_job(spec, Target.SBATCH).text
    found = re.search(r'"max_tokens_per_microbatch": (\d+)', exported)
    site = Site(accelerator="H100", max_gpus=1, software=trainer_software())
    facts = model_facts(spec.model)
    plan = configure(spec, site, 100, facts, tokens_per_row=10.0)
    assert int(found[1]) == plan.tokens_per_microbatch
