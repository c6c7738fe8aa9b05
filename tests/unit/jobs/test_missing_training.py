"""Without torch the core works, and a launch says what to install before anything is started."""

from __future__ import annotations

import importlib.util

from duetune.cli import main


def test_a_launch_without_the_training_extra_says_what_to_install(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("DUETUNE_HOME", str(tmp_path / "home"))
    (tmp_path / "model").mkdir()
    (tmp_path / "rows.jsonl").write_text('{"text": "a"}\n')
    spec = tmp_path / "job.yaml"
    spec.write_text("model: ./model\ndataset: rows.jsonl\ndeadline: 8h\n")
    found = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == "torchft" else found(name)
    )
    assert main(["launch", str(spec), "--yes"]) == 2
    assert capsys.readouterr().err == (
        "duetune: training needs an optional part: pip install 'duetune[train]'\n"
    )
    assert not (tmp_path / "home").exists()
