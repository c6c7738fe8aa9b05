"""The result is published once, whole, by one process."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from duetune.training.publication import (
    RESULT_FILE,
    PublishedResult,
    only_publisher,
    publish,
    published,
)


def weights(content):
    def write(folder):
        (folder / "weights").write_text(content)

    return write


def test_the_first_result_stays(tmp_path):
    output = tmp_path / "job" / "output"
    assert published(output) is None
    first = publish(output, weights("one"), PublishedResult(steps=5, tokens=7))
    second = publish(output, weights("two"), PublishedResult(steps=6, tokens=8))
    assert first == second == published(output) == PublishedResult(steps=5, tokens=7)
    assert (output / "weights").read_text() == "one"
    assert sorted(path.name for path in (tmp_path / "job").iterdir()) == ["output"]


def test_a_result_that_could_not_be_written_leaves_nothing(tmp_path):
    def fail(folder):
        (folder / "weights").write_text("half")
        raise OSError("no space left on device")

    with pytest.raises(OSError, match="no space"):
        publish(tmp_path / "output", fail, PublishedResult(steps=1, tokens=1))
    assert list(tmp_path.iterdir()) == []


def test_what_is_in_the_way_and_is_no_result_is_kept_aside(tmp_path):
    output = tmp_path / "output"
    output.mkdir()
    (output / "notes").write_text("mine")
    (output / RESULT_FILE).write_text("half a docu")
    publish(output, weights("one"), PublishedResult(steps=1, tokens=1))
    assert published(output) is not None
    (aside,) = (path for path in tmp_path.iterdir() if path != output)
    assert (aside / "notes").read_text() == "mine"


def test_who_dies_while_publishing_lets_the_next_one_in(tmp_path):
    output = tmp_path / "output"
    code = (
        "import sys, pathlib, time\n"
        "from duetune.training.publication import only_publisher\n"
        "with only_publisher(pathlib.Path(sys.argv[1]), lambda: None):\n"
        "    print('inside', flush=True)\n"
        "    time.sleep(60)\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code, output], stdout=subprocess.PIPE, text=True
    )
    with process:
        assert process.stdout.readline() == "inside\n"
        waited = []

        def poll():
            waited.append(os.getpid())
            process.kill()
            process.wait()

        with only_publisher(output, poll):
            assert waited
