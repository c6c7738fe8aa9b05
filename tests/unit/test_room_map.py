"""The map in docs/explanation/design.md is drawn from the import graph.

``DUETUNE_UPDATE_DOCS=1 .venv/bin/pytest -n0 tests/unit/test_room_map.py`` draws it again.
"""

from __future__ import annotations

import os
import re

import grimp

from support.places import ROOT

PAGE = ROOT / "docs" / "explanation" / "design.md"
BLOCK = re.compile(r"(<!-- rooms -->\n```mermaid\n)(.*?)(```\n)", re.DOTALL)
SMALL = {"errors", "files", "conversion", "settings", "notebook", "wall_clock"}
"""Modules that everything uses: drawn, they would hide the rest."""


def drawn_map():
    """Rooms and their imports, without those that follow from others."""
    graph = grimp.build_graph("duetune", exclude_type_checking_imports=True)
    imports = {}
    for module in sorted(graph.modules - {"duetune"}):
        room = module.split(".")[1]
        found = {
            each.split(".")[1]
            for each in graph.find_modules_directly_imported_by(module)
            if each.startswith("duetune.")
        }
        imports.setdefault(room, set()).update(found - {room})
    imports = {room: found - SMALL for room, found in imports.items() if room not in SMALL}
    arrows = [
        f"    {room} --> {target}\n"
        for room, targets in sorted(imports.items())
        for target in sorted(targets)
        if not any(target in reachable(imports, other) for other in targets - {target})
    ]
    return "flowchart TD\n" + "".join(arrows)


def reachable(imports, room):
    found, left = set(), [room]
    while left:
        for each in imports[left.pop()] - found:
            found.add(each)
            left.append(each)
    return found


def test_the_map_of_the_rooms_is_the_import_graph():
    text = PAGE.read_text(encoding="utf-8")
    if os.environ.get("DUETUNE_UPDATE_DOCS"):
        PAGE.write_text(BLOCK.sub(rf"\g<1>{drawn_map()}\3", text), encoding="utf-8")
        return
    shown = BLOCK.search(text)
    assert shown is not None, f"{PAGE.name} has no map"
    assert shown[2] == drawn_map()
