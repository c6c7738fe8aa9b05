"""How large and how clear the source tree is, beside earlier revisions of it.

    python benchmarks/tree.py --base REVISION

Files, lines, duplicate names and docstrings are counted in the sources. Then two programs run, one
simulated decision and one ``duetune plan``; the modules are counted in which any function ran.
"""

from __future__ import annotations

import ast
import io
import os
import subprocess
import sys
import tarfile
import tempfile
from collections import Counter
from pathlib import Path

from reporting import arguments, finish, markdown_table, publish

ROOT = Path(__file__).resolve().parents[1]
EARLIER = ("e0f369b", "dd42550")
"""The tree that was reviewed, and the same features after the review."""

DECISION = """
try:
    from support.harness import Room
except ImportError:
    from rooms import Room
room = Room()
room.submit()
started = True
room.controller.turn()
"""
PLAN = """
import os, pathlib
from duetune.cli import main
job = pathlib.Path(os.environ["DUETUNE_HOME"]) / "job.yaml"
job.write_text("name: small\\nrun: echo done\\ndeadline: 6h\\n")
started = True
assert not main(["plan", str(job), "--json"])
"""
PROBE = """
import contextlib, io, sys
seen, space = set(), {"started": False}
def imports(frame):
    while frame is not None:
        if frame.f_code.co_name == "<module>" and "duetune" in frame.f_code.co_filename:
            return True
        frame = frame.f_back
    return False
def watch(frame, event, arg):
    name = frame.f_globals.get("__name__", "")
    if event == "call" and space["started"] and name.startswith("duetune") and name not in seen:
        # What runs while a module is imported is not the program's way.
        if frame.f_code.co_flags & 1 and not imports(frame):
            seen.add(name)
sys.setprofile(watch)
with contextlib.redirect_stdout(io.StringIO()), contextlib.suppress(SystemExit):
    exec(sys.argv[1], space)
sys.setprofile(None)
print(len([name for name in seen if not name.startswith("duetune.testing")]))
"""


def main() -> None:
    parser = arguments(__doc__ or "")
    parser.add_argument("--base", action="append", help="a git revision to compare with")
    given = parser.parse_args()
    revisions = given.base or EARLIER
    found = {each: earlier(each, quick=given.quick) for each in revisions}
    found["now"] = figures(ROOT, quick=given.quick)
    rows = [[name, *(each[name] for each in found.values())] for name in found["now"]]
    publish(
        "tree",
        "The source tree",
        "How large is the source tree, and how many modules does one decision touch?",
        [markdown_table(["", *found], rows)],
        write=not given.no_write,
    )
    finish(found)


def earlier(revision: str, *, quick: bool) -> dict[str, float]:
    """Return the figures of the tree at a git revision."""
    archive = subprocess.run(
        ["git", "archive", revision, "src", "tests"], cwd=ROOT, check=True, capture_output=True
    ).stdout
    with tempfile.TemporaryDirectory() as folder:
        with tarfile.open(fileobj=io.BytesIO(archive)) as tree:
            tree.extractall(folder, filter="data")
        return figures(Path(folder), quick=quick)


def figures(tree: Path, *, quick: bool) -> dict[str, float]:
    """Return the figures of one tree."""
    package = tree / "src" / "duetune"
    files = sorted(package.rglob("*.py"))
    rooms = [
        each for each in package.iterdir() if each.is_dir() and (each / "__init__.py").is_file()
    ]
    stems = Counter(each.stem for each in files if not each.stem.startswith("__"))
    classes: Counter[str] = Counter()
    lines = code = documented = silent = 0
    for path in files:
        text = path.read_text(encoding="utf-8")
        module = ast.parse(text)
        prose = docstring_lines(module)
        filled = sum(bool(line.strip()) for line in text.splitlines())
        comments = sum(line.strip().startswith("#") for line in text.splitlines())
        lines += len(text.splitlines())
        code += filled - comments - prose
        documented += prose
        for node in module.body:
            if not isinstance(node, ast.ClassDef | ast.FunctionDef) or node.name.startswith("_"):
                continue
            classes[node.name] += isinstance(node, ast.ClassDef)
            silent += ast.get_docstring(node) is None
    measured: dict[str, float] = {
        "packages": len(rooms),
        "files": len(files),
        "lines": lines,
        "lines of code": code,
        "public class names that exist twice": sum(count > 1 for count in classes.values()),
        "module names that exist twice": sum(count > 1 for count in stems.values()),
        "docstring lines per line of code": round(documented / code, 3),
        "public classes and functions without a docstring": silent,
    }
    if not quick:
        measured["modules that a first live decision runs through"] = touched(tree, DECISION)
        measured["modules that `duetune plan` runs through"] = touched(tree, PLAN)
    return measured


def docstring_lines(module: ast.Module) -> int:
    """Count lines of docstrings, including those below constants."""
    return sum(
        (node.end_lineno or node.lineno) - node.lineno + 1
        for node in ast.walk(module)
        if isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
    )


def touched(tree: Path, program: str) -> int:
    """Count the modules of ``tree`` in which a function runs while ``program`` runs."""
    with tempfile.TemporaryDirectory() as home:
        environment = os.environ | {
            "PYTHONPATH": os.pathsep.join(
                str(tree / part) for part in ("src", "tests", "tests/unit/control")
            ),
            "DUETUNE_HOME": home,
        }
        # Once without the probe: the compiler takes long, and longer when it is watched.
        for code in (f"exec({program!r})", PROBE):
            done = subprocess.run(
                [sys.executable, "-c", code, program],
                cwd=tree,
                env=environment,
                check=True,
                capture_output=True,
                text=True,
            )
    return int(done.stdout.splitlines()[-1])


if __name__ == "__main__":
    main()
