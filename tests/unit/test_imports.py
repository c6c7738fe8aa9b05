"""The import graph: every part has its layer, and no module imports itself by a detour."""

from __future__ import annotations

import tomllib
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import grimp

import duetune

ROOT = Path(__file__).parents[2]
PACKAGE = Path(duetune.__file__).parent


def test_every_package_and_module_has_a_layer():
    linter = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]
    layers = next(each["layers"] for each in linter["contracts"] if each["type"] == "layers")
    named = {name.strip() for layer in layers for name in layer.split("|")}
    there = {
        f"duetune.{path.stem}"
        for path in PACKAGE.iterdir()
        if not path.stem.startswith("_")
        and (path.suffix == ".py" or (path / "__init__.py").is_file())
    }
    assert named == there


def test_no_module_imports_itself_by_a_detour():
    """Imports for type checkers alone do not count; those inside functions do."""
    graph = grimp.build_graph("duetune", exclude_type_checking_imports=True, cache_dir=None)
    imports = {each: graph.find_modules_directly_imported_by(each) for each in graph.modules}
    try:
        TopologicalSorter(imports).prepare()
    except CycleError as error:
        raise AssertionError(" -> ".join(error.args[1])) from None
