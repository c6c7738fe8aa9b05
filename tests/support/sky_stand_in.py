"""A SkyPilot in memory for tests: the driver's bridge runs, and speaks to ``fake_sky``."""

from __future__ import annotations

import json

from duetune.fleets.skypilot.skypilot_session import SkypilotSession
from support.places import SUPPORT


class FakeSky:
    """The state of the stand-in, which a test reads and changes."""

    def __init__(self, folder, monkeypatch):
        self.file = folder / "sky.json"
        self.file.write_text(
            json.dumps(
                {
                    "away": False,
                    "calls": 0,
                    "clusters": {},
                    "enabled": ["slurm/lab"],
                    "exits": {},
                    "failure": "",
                    "launches": [],
                    "requests": {},
                    "room": {"spot": 2, "on_demand": 2},
                }
            )
        )
        monkeypatch.setenv("FAKE_SKY", str(self.file))
        monkeypatch.setenv("PYTHONPATH", str(SUPPORT / "fake_sky"))
        monkeypatch.setattr(SkypilotSession, "_has_skypilot", lambda _: True)

    def __getitem__(self, name):
        return json.loads(self.file.read_text())[name]

    def __setitem__(self, name, value):
        self.file.write_text(json.dumps(json.loads(self.file.read_text()) | {name: value}))

    def change(self, name, **changes):
        """Change the row of a cluster."""
        clusters = self["clusters"]
        clusters[name] |= changes
        self["clusters"] = clusters
