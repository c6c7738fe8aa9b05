"""What users install is the wheel: built, installed without the source tree, and tried."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import sysconfig
import zipfile

import pytest

import duetune
from support.places import ROOT

pytestmark = pytest.mark.live

DATA = {".csv", ".json", ".yaml", ".typed"}
NOT_FROM_HERE = ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    folder = tmp_path_factory.mktemp("wheel")
    build = [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", folder]
    subprocess.run(build, cwd=ROOT, check=True, capture_output=True)
    (made,) = folder.glob("*.whl")
    return made


@pytest.fixture(scope="module")
def installed(wheel, tmp_path_factory):
    """Runs a program of an environment that has the wheel, and what it needs, but no source."""
    folder = tmp_path_factory.mktemp("environment")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    python = folder / "bin" / "python"
    pip = [sys.executable, "-m", "pip", "--python", python, "install", "-q", "--no-deps"]
    subprocess.run([*pip, "--no-index", "--no-compile", wheel], check=True)
    (packages,) = (folder / "lib").glob("python*/site-packages")
    # Only the folder is added, not what its own .pth files name: the source tree stays out.
    needed = {sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}
    (packages / "needed.pth").write_text("".join(f"{path}\n" for path in sorted(needed)))
    # The same source has the same machine code: it need not be compiled once more.
    for compiled in (ROOT / "src").rglob("*.nb[ci]"):
        kept = packages / compiled.relative_to(ROOT / "src")
        kept.parent.mkdir(exist_ok=True)
        shutil.copyfile(compiled, kept)
    environment = {name: text for name, text in os.environ.items() if name not in NOT_FROM_HERE}

    def run(program, *arguments):
        return subprocess.run(
            [folder / "bin" / program, *arguments],
            cwd=folder,
            env=environment | {"DUETUNE_HOME": str(folder / "home")},
            capture_output=True,
            text=True,
            check=True,
        ).stdout

    run.folder = folder
    return run


def test_the_wheel_has_every_module_and_data_file_and_nothing_else(wheel):
    source = ROOT / "src"
    with zipfile.ZipFile(wheel) as archive:
        packed = {name for name in archive.namelist() if ".dist-info/" not in name}
    assert packed == {
        str(path.relative_to(source))
        for path in (source / "duetune").rglob("*")
        if path.suffix in {".py", *DATA} and "__pycache__" not in path.parts
    }
    for name in ("py.typed", "knowledge/facts/registry.json", "knowledge/data/h200.csv"):
        assert f"duetune/{name}" in packed
    assert any("/migrations/" in name for name in packed)


def test_the_installed_program_works_without_the_source_tree(installed):
    where = installed("python", "-c", "import duetune; print(duetune.__file__)")
    assert where.startswith(str(installed.folder))
    assert installed("duetune", "--version").strip() == f"duetune {duetune.__version__}"
    assert "simulate" in installed("duetune", "--help")
    assert json.loads(installed("duetune", "queue", "--json"))["jobs"] == []
    simulated = installed("duetune", "simulate", "--policy", "on_demand", "--json")
    assert json.loads(simulated)["command"] == "simulate"
