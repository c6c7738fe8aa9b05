"""``import``, ``export`` and ``schema`` through the whole stack, and exported scripts for real."""

from __future__ import annotations

import io
import json
import os
import re
import shlex
import signal
import stat
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from duetune.cli import main
from duetune.jobs.spec.job_spec import spec_json_schema
from duetune.jobs.spec.load import load_spec
from support.patience import PATIENCE_S, until
from support.places import ROOT

HOW_TO = ROOT / "docs" / "how-to" / "import-export.md"
TASK = "name: t\nresources: {accelerators: 'L4:2', use_spot: true}\nrun: |\n  python train.py\n"
JOB = "model: Qwen/Qwen3-0.6B\ndataset: data.jsonl\ndeadline: 8h\n"


@pytest.fixture(autouse=True)
def _folder(monkeypatch, tmp_path):
    monkeypatch.delenv("DUETUNE_DEBUG", raising=False)
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def duetune(capsys):
    def call(*arguments):
        status = main(arguments)
        captured = capsys.readouterr()
        return status, captured.out, captured.err

    return call


@pytest.fixture
def refused(duetune):
    def call(*arguments):
        status, out, err = duetune(*arguments)
        assert (status, out) == (2, "")
        assert err.count("\n") == 1
        return err.rstrip("\n")

    return call


class TestImport:
    def test_prints_a_spec(self, duetune):
        Path("sky.yaml").write_text(TASK)
        status, out, _ = duetune("import", "sky.yaml", "--deadline", "8h")
        assert status == 0
        assert out == (
            "# Imported from skypilot (sky.yaml).\n"
            "# Differences:\n"
            "#   resources.accelerators: L4:2 becomes L4:1: your own command runs on one GPU here\n"
            "deadline: 8h\n"
            "name: t\n"
            "resources:\n"
            "  accelerators: L4:1\n"
            "  spot: only\n"
            "run: |\n"
            "  python train.py\n"
        )

    def test_writes_a_file_with_paths_that_are_right_from_there(self, duetune):
        Path("configs").mkdir()
        Path("jobs").mkdir()
        Path("configs/a.yml").write_text("base_model: m\ndatasets: [{path: x.jsonl}]\n")
        status, out, _ = duetune("import", "configs/a.yml", "-o", "jobs/job.yaml")
        assert (status, out) == (
            0,
            "Wrote jobs/job.yaml from axolotl; 2 notes in its first lines.\n",
        )
        assert load_spec(Path("jobs/job.yaml")).dataset == "../configs/x.jsonl"

    def test_json(self, duetune):
        Path("sky.yaml").write_text(TASK)
        _, out, _ = duetune("import", "sky.yaml", "--deadline", "8h", "--json", "-o", "j.yaml")
        document = json.loads(out)
        assert document["command"] == "import"
        assert (document["tool"], document["file"], document["output"]) == (
            "skypilot",
            "sky.yaml",
            "j.yaml",
        )
        assert document["spec"] == {
            "deadline": "8h",
            "name": "t",
            "resources": {"accelerators": "L4:1", "spot": "only"},
            "run": "python train.py\n",
        }
        assert [note["field"] for note in document["notes"]] == ["resources.accelerators"]
        assert Path("j.yaml").exists()

    def test_standard_input(self, duetune, monkeypatch):
        monkeypatch.setattr(sys, "stdin", io.StringIO(TASK))
        status, out, _ = duetune("import", "-", "--from", "skypilot")
        assert status == 0
        assert out.startswith("# Imported from skypilot (standard input).\n")

    def test_what_is_refused(self, refused):
        assert refused("import", "no.yaml") == (
            "duetune: task file: 'no.yaml' is not allowed; expected a readable file (No such file "
            "or directory)"
        )
        Path("sky.yaml").write_text(TASK)
        assert refused("import", "sky.yaml", "-o", "no/job.yaml") == (
            "duetune: --output: 'no/job.yaml' is not allowed; expected a file in a folder that "
            "exists"
        )
        assert refused("import", "sky.yaml", "-o", "sky.yaml") == (
            "duetune: --output: 'sky.yaml' is not allowed; expected a file that does not exist "
            "yet, or --force"
        )
        assert refused("import", "sky.yaml", "--from", "axolotl") == (
            "duetune: sky.yaml base_model is required; expected the model to fine-tune"
        )
        assert "is not one of 'auto', 'skypilot'" in refused("import", "sky.yaml", "--from", "x")
        assert refused("import").startswith("duetune: Missing argument 'FILE'.")

    def test_force_replaces(self, duetune):
        Path("sky.yaml").write_text(TASK)
        Path("job.yaml").write_text("old")
        assert duetune("import", "sky.yaml", "-o", "job.yaml", "--force")[0] == 0
        assert load_spec(Path("job.yaml")).name == "t"
        assert [path.name for path in Path().glob(".*.tmp")] == []


class TestExport:
    @pytest.mark.parametrize("target", ["skypilot", "trainjob", "rayjob", "sbatch"])
    def test_every_target(self, duetune, target):
        Path("job.yaml").write_text(JOB)
        status, out, err = duetune("export", "job.yaml", "--to", target)
        assert (status, err) == (0, "")
        if target == "sbatch":
            assert subprocess.run(["bash", "-n"], input=out, text=True, check=False).returncode == 0
        else:
            assert all(isinstance(each, dict) for each in yaml.safe_load_all(out))

    def test_json(self, duetune):
        Path("job.yaml").write_text(JOB)
        _, out, _ = duetune("export", "job.yaml", "--to", "sbatch", "--json")
        document = json.loads(out)
        assert document["target"] == "sbatch"
        assert document["launch"] == ["sbatch FILE"]
        assert document["text"].startswith("#!/bin/bash\n")
        assert {"field": "deadline", "says": "8h is not enforced there"} in document["notes"]

    def test_a_file_and_how_to_launch_it(self, duetune):
        Path("job.yaml").write_text(JOB + "secrets: [TOKEN]\n")
        status, out, _ = duetune("export", "job.yaml", "--to", "trainjob", "-o", "t.yaml")
        assert status == 0
        assert out == (
            "Wrote t.yaml. To launch:\n"
            "  kubectl create secret generic qwen3-0-6b-data-secrets "
            '--from-literal=TOKEN="$TOKEN"\n'
            "  kubectl apply -f t.yaml\n"
        )

    def test_standard_input(self, duetune, monkeypatch):
        monkeypatch.setattr(sys, "stdin", io.StringIO("{run: x, deadline: 8h}"))
        assert duetune("export", "-", "--to", "skypilot")[0] == 0

    def test_what_is_refused(self, refused, monkeypatch):
        Path("job.yaml").write_text("run: x\ndeadline: 8\n")
        assert refused("export", "job.yaml", "--to", "sbatch").startswith(
            "duetune: job.yaml:2 deadline: 8 is not allowed; expected a duration such as 8h"
        )
        Path("job.yaml").write_text(JOB)
        assert refused("export", "job.yaml", "--to", "sbatch", "--gpus", "9").startswith(
            "duetune: --gpus: 9 is not allowed; expected at most 8"
        )
        assert refused("export", "job.yaml").startswith("duetune: Missing option '--to'")
        monkeypatch.setattr(sys, "stdin", io.StringIO(""))
        assert refused("export", "-", "--to", "sbatch") == (
            "duetune: standard input: 'an empty file' is not allowed; expected a spec: a mapping "
            "of fields"
        )

    def test_there_and_back(self, duetune):
        Path("job.yaml").write_text(
            'name: x\nrun: |\n  python train.py "$A"\ndeadline: 8h\nworkdir: .\n'
            "resources: {accelerators: 'H100:1'}\nenvs: {A: 'it''s'}\nsecrets: [TOKEN]\n"
        )
        duetune("export", "job.yaml", "--to", "skypilot", "-o", "sky.yaml")
        duetune("import", "sky.yaml", "--deadline", "8h", "-o", "back.yaml")
        assert load_spec(Path("back.yaml")) == load_spec(Path("job.yaml"))


class TestSchema:
    def test_prints_the_schema(self, duetune):
        status, out, _ = duetune("schema")
        assert status == 0
        assert json.loads(out) == spec_json_schema()


def test_help_imports_nothing_heavy():
    code = (
        "import sys; import duetune.cli.app, duetune.cli.spec_files; "
        "print(sorted({'pydantic', 'yaml', 'torch'} & set(sys.modules)))"
    )
    shown = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout
    assert shown == "[]\n"


class TestHowTo:
    """The page's files and commands, in their order, in one folder."""

    def test_its_examples_print_what_it_says(self, duetune):
        text = HOW_TO.read_text(encoding="utf-8")
        now = text
        for found in re.finditer(
            r"```yaml (?P<file>\S+)\n(?P<content>.*?)```"
            r"|```console\n\$ duetune(?P<arguments>[^\n]*)\n(?P<output>.*?)```",
            text,
            re.DOTALL,
        ):
            if found["file"]:
                Path(found["file"]).write_text(found["content"])
                continue
            status, out, err = duetune(*shlex.split(found["arguments"]))
            assert (status, err) == (0, "")
            block = f"$ duetune{found['arguments']}\n"
            now = now.replace(block + found["output"], block + out)
        if os.environ.get("DUETUNE_UPDATE_DOCS"):
            HOW_TO.write_text(now, encoding="utf-8")
        assert now == text


@pytest.fixture
def machine(tmp_path, monkeypatch):
    """A machine with stand-ins for what an exported script starts; runs a script on it."""
    programs = tmp_path / "bin"
    programs.mkdir()
    stand_ins = {
        # Writes down who was started with what, then waits to be told to leave, or ends.
        "python": """\
#!/bin/bash
case "$2" in
  duetune.training.coordinator)
    echo tcp://127.0.0.1:1 > "$4"
    exec sleep 60 ;;
esac
env | grep -E '^(DUETUNE_|CUDA_|X=)' > "$RECORD/$DUETUNE_NODE_ID"
if [ -n "$STAY" ]; then
  trap 'echo left > "$RECORD/left-$DUETUNE_NODE_ID"; exit 75' TERM
  touch "$RECORD/ready-$DUETUNE_NODE_ID"
  while :; do sleep 0.05; done
fi
exit "${CODE:-0}"
""",
        "srun": '#!/bin/bash\nexec "$@"\n',
        "hostname": "#!/bin/bash\necho here\n",
    }
    for name, text in stand_ins.items():
        path = programs / name
        path.write_text(text)
        path.chmod(path.stat().st_mode | stat.S_IXUSR)
    record = tmp_path / "record"
    record.mkdir()
    monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")
    monkeypatch.setenv("RECORD", str(record))
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    return record


def script_of(duetune, job):
    Path("job.yaml").write_text(job)
    status, out, err = duetune("export", "job.yaml", "--to", "sbatch")
    assert (status, err) == (0, "")
    Path("job.sh").write_text(out)
    return "job.sh"


def environment(path):
    return dict(line.split("=", 1) for line in path.read_text().splitlines())


class TestScripts:
    def test_one_worker_per_gpu_with_the_contract_of_a_node(self, duetune, machine, tmp_path):
        job = JOB + "name: mine\nresources: {accelerators: 'L4:2'}\nenvs: {X: \"it's $(x) `y`\"}\n"
        script = script_of(duetune, job + "training: {max_steps: 3}\n")
        assert subprocess.run(["bash", script], timeout=PATIENCE_S, check=False).returncode == 0
        first = environment(machine / "here-0")
        folder = tmp_path / "home" / "duetune" / "mine"
        assert first["X"] == "it's $(x) `y`"
        assert first["DUETUNE_JOB_ID"] == "mine"
        assert first["DUETUNE_JOB_DIR"] == str(folder)
        assert first["DUETUNE_CHECKPOINT_DIR"] == str(folder / "checkpoints")
        assert first["DUETUNE_COORDINATOR_FILE"] == str(folder / "coordinator.address")
        assert len(first["DUETUNE_JOB_SECRET"]) == 64
        assert first["DUETUNE_EPOCH"].isdigit()
        assert first["CUDA_VISIBLE_DEVICES"] == "0"
        assert environment(machine / "here-1")["CUDA_VISIBLE_DEVICES"] == "1"
        task = json.loads((folder / "task.json").read_text())
        assert (task["learning_rate"], task["eval_fraction"]) == (2e-4, 0.05)
        assert not {"bf16", "fp16"} & task.keys(), "precision says it"
        expected = {
            "model": "Qwen/Qwen3-0.6B",
            "dataset": "data.jsonl",
            "method": "full",
            "max_steps": 3,
            "per_device_train_batch_size": 8,
            "gradient_accumulation_steps": 2,
            "precision": "bf16-mixed",
            "gradient_checkpointing": False,
            "max_length": 1024,
        }
        assert task | expected == task

    def test_the_gpus_that_were_given_are_used(self, duetune, machine, monkeypatch):
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "5,7")
        script = script_of(duetune, JOB + "resources: {accelerators: 'L4:2'}\n")
        assert subprocess.run(["bash", script], timeout=PATIENCE_S, check=False).returncode == 0
        assert environment(machine / "here-7")["CUDA_VISIBLE_DEVICES"] == "7"

    def test_a_failure_is_the_status_of_the_script(self, duetune, machine, monkeypatch):
        monkeypatch.setenv("CODE", "78")
        script = script_of(duetune, JOB + "resources: {accelerators: 'L4:2'}\n")
        assert subprocess.run(["bash", script], timeout=PATIENCE_S, check=False).returncode == 78
        assert (machine / "here-1").exists()

    def test_every_worker_is_told_to_leave_and_waited_for(self, duetune, machine, monkeypatch):
        monkeypatch.setenv("STAY", "1")
        script = script_of(duetune, JOB + "resources: {accelerators: 'L4:2'}\n")
        process = subprocess.Popen(["bash", script])
        wait_for(machine / "ready-here-0", machine / "ready-here-1")
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=PATIENCE_S) != 0
        assert (machine / "left-here-0").exists()
        assert (machine / "left-here-1").exists()

    def test_one_worker_is_the_script_itself(self, duetune, machine, monkeypatch):
        monkeypatch.setenv("STAY", "1")
        script = script_of(duetune, JOB + "resources: {accelerators: 'L4:1'}\n")
        process = subprocess.Popen(["bash", script])
        wait_for(machine / "ready-here")
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=PATIENCE_S) == 75

    def test_an_own_command_in_its_folder_and_its_own_words(self, duetune, tmp_path, machine):
        Path("my src").mkdir()
        job = (
            'run: |\n  pwd > "$RECORD/pwd"\n  echo \'it\'\'s\' "$A" > "$RECORD/said"\n'
            "  exit 3\ndeadline: 8h\nworkdir: my src\nsetup: touch set-up\n"
            "envs: {A: 'a \"b\" $c'}\n"
        )
        script = script_of(duetune, job.replace("'it''s'", "it\\'s"))
        assert subprocess.run(["bash", script], timeout=PATIENCE_S, check=False).returncode == 3
        assert (machine / "pwd").read_text().strip() == str(tmp_path / "my src")
        assert (machine / "said").read_text() == 'it\'s a "b" $c\n'
        assert Path("my src/set-up").exists()

    def test_a_secret_that_is_not_set_stops_it(self, duetune, machine):
        script = script_of(duetune, JOB + "secrets: [TOKEN]\n")
        done = subprocess.run(["bash", script], capture_output=True, text=True, check=False)
        assert done.returncode != 0
        assert "TOKEN: set it where you call sbatch" in done.stderr
        assert list(machine.iterdir()) == []


def wait_for(*paths):
    until(lambda: all(path.exists() for path in paths), paths)
