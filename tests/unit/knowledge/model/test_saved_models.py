"""Models on disk: the same to the bit, written whole, and nothing else is taken for one."""

from __future__ import annotations

import io
import pickle
import zipfile

import msgspec
import numpy as np
import pytest

from duetune.errors import InvalidInput
from duetune.knowledge.history import History
from duetune.knowledge.model.learned_model import KnowledgeModel
from support.synthetic_history import drawn, measured

COLUMNS = ("p_valid", "cause", "tokens_per_s", "memory_gb", "support", "extrapolated")
FRESH = drawn(60, 2, method=("full", "lora", "qlora"), gpu_model=("A100-80GB", "L40S", "H200"))


@pytest.fixture(scope="module")
def model():
    rows = drawn(90, 1, tokens_per_sample=(1024, 2048, 4096), num_gpus=(1,))
    bound = np.where(rows.is_("gpu_model", "L40S"), 0.4, 1.0)
    learned = KnowledgeModel.fit(measured(rows, 1, bound=bound))
    assert learned.validity.odds.trust > 0
    assert learned.validity.odds.shift != 0
    return learned


@pytest.fixture(scope="module")
def blank():
    return KnowledgeModel.fit(History())


def same(first, second):
    mine, theirs = first.estimate(FRESH), second.estimate(FRESH)
    return all(getattr(mine, name).tobytes() == getattr(theirs, name).tobytes() for name in COLUMNS)


@pytest.fixture
def saved(model, tmp_path):
    path = tmp_path / "folder" / "model.npz"
    model.save(path)
    return path


def test_a_saved_model_says_the_same_to_the_bit(model, saved):
    again = KnowledgeModel.load(saved)
    assert again.snapshot == model.snapshot
    assert same(model, again)
    assert [path.name for path in saved.parent.iterdir()] == [saved.name]
    assert b"pickle" not in saved.read_bytes()


def test_a_model_of_nothing_can_be_kept_too(blank, tmp_path):
    blank.save(tmp_path / "model")
    assert same(blank, KnowledgeModel.load(tmp_path / "model"))


def test_saving_again_gives_the_same_file(model, saved, tmp_path):
    model.save(tmp_path / "again")
    with np.load(saved) as first, np.load(tmp_path / "again") as second:
        assert first.files == second.files
        assert all(first[name].tobytes() == second[name].tobytes() for name in first.files)


def test_a_save_that_fails_leaves_the_old_file_and_nothing_else(model, saved, monkeypatch):
    before = saved.read_bytes()

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("pathlib.Path.replace", full)
    with pytest.raises((OSError, InvalidInput)):
        model.save(saved)
    assert saved.read_bytes() == before
    assert [path.name for path in saved.parent.iterdir()] == [saved.name]


def arrays_of(path):
    with np.load(path) as arrays:
        return {name: arrays[name] for name in arrays.files}


def packed(arrays):
    buffer = io.BytesIO()
    np.savez(buffer, **arrays)
    return buffer.getvalue()


def with_told(path, **changes):
    arrays = arrays_of(path)
    told = msgspec.json.decode(arrays["told"].tobytes()) | changes
    told = {name: value for name, value in told.items() if value is not None}
    return packed(arrays | {"told": np.frombuffer(msgspec.json.encode(told), np.uint8)})


def without(name):
    return lambda path: packed(
        {each: array for each, array in arrays_of(path).items() if each != name}
    )


def changed(name, change):
    def content(path):
        arrays = arrays_of(path)
        return packed(arrays | {name: change(arrays[name].copy())})

    return content


def flipped(path):
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 0xFF
    return bytes(content)


def npy(array):
    buffer = io.BytesIO()
    np.save(buffer, array)
    return buffer.getvalue()


def archive(_):
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as file:
        file.writestr("notes.txt", "nothing")
    return buffer.getvalue()


def beyond(nodes):
    nodes[0] = (0, 0, len(nodes) + 1000)
    return nodes


def foreign_feature(nodes):
    nodes[:, 0] = 100_000
    return nodes


def before(nodes):
    nodes[0, 2] = -5
    return nodes


class Evil:
    def __reduce__(self):
        return (pytest.fail, ("a pickle was loaded",))


@pytest.mark.parametrize(
    "content",
    [
        pytest.param(lambda _: b"", id="empty"),
        pytest.param(lambda _: b"hello", id="text"),
        pytest.param(lambda path: path.read_bytes()[:-1], id="last byte missing"),
        pytest.param(lambda path: path.read_bytes()[:1000], id="a beginning"),
        pytest.param(lambda path: path.read_bytes()[500:], id="an end"),
        pytest.param(flipped, id="a byte changed"),
        pytest.param(lambda _: pickle.dumps(Evil()), id="pickle"),
        pytest.param(lambda _: npy(np.array([Evil()], object)), id="pickle in an array"),
        pytest.param(changed("told", lambda _: np.array([Evil()], object)), id="pickle inside"),
        pytest.param(
            changed("classifier.value", lambda _: np.array([Evil()], object)), id="pickle in a tree"
        ),
        pytest.param(lambda _: npy(np.arange(3)), id="one array"),
        pytest.param(lambda _: packed({"a": np.arange(3)}), id="other arrays"),
        pytest.param(archive, id="a zip of texts"),
        pytest.param(lambda path: with_told(path, format=99), id="another format"),
        pytest.param(lambda path: with_told(path, snapshot=None), id="no snapshot"),
        pytest.param(lambda path: with_told(path, physics=3), id="other physics"),
        *(
            pytest.param(without(name), id=f"no {name}")
            for name in ("told", "support", "performance.nodes", "memory.value", "classifier.roots")
        ),
        pytest.param(changed("support", lambda array: array[..., :3]), id="other counts"),
        pytest.param(changed("memory.nodes", lambda array: array[:, :2]), id="other nodes"),
        pytest.param(changed("memory.value", lambda array: array[:-1]), id="too few leaves"),
        pytest.param(changed("performance.nodes", beyond), id="children beyond the end"),
        pytest.param(changed("performance.nodes", before), id="children before the beginning"),
        pytest.param(changed("performance.roots", lambda array: array + 10**6), id="other roots"),
        pytest.param(changed("performance.nodes", foreign_feature), id="features there are not"),
    ],
)
def test_what_is_no_model_is_refused_in_one_line(saved, content):
    path = saved.with_name("other")
    path.write_bytes(content(saved))
    with pytest.raises(InvalidInput) as refused:
        KnowledgeModel.load(path)
    assert refused.value.field == "model"
    assert "\n" not in str(refused.value)


def test_a_file_that_is_not_there_is_refused(tmp_path):
    for path in (tmp_path / "none", tmp_path):
        with pytest.raises(InvalidInput):
            KnowledgeModel.load(path)
