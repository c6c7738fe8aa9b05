from __future__ import annotations

import json

import numpy as np
import pytest

from duetune.errors import InvalidInput
from duetune.quote.model import ModelFacts, model_facts, usual_model

LLAMA_2_7B = {
    "model_type": "llama",
    "hidden_size": 4096,
    "intermediate_size": 11008,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 32,
    "vocab_size": 32000,
    "tie_word_embeddings": False,
    "max_position_embeddings": 4096,
}
LLAMA_3_8B = {
    "model_type": "llama",
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "vocab_size": 128256,
    "tie_word_embeddings": False,
}
QWEN3_0_6B = {
    "model_type": "qwen3",
    "hidden_size": 1024,
    "intermediate_size": 3072,
    "num_hidden_layers": 28,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "vocab_size": 151936,
    "tie_word_embeddings": True,
}
GPT2 = {
    "model_type": "gpt2",
    "n_embd": 768,
    "n_layer": 12,
    "n_head": 12,
    "n_inner": None,
    "n_positions": 1024,
    "vocab_size": 50257,
}
MIXTRAL_8X7B = {
    "model_type": "mixtral",
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "num_local_experts": 8,
    "vocab_size": 32000,
    "tie_word_embeddings": False,
}


def folder_with(tmp_path, config):
    (tmp_path / "config.json").write_text(json.dumps(config), "utf-8")
    return str(tmp_path)


def write_safetensors(path, shapes):
    header, offset = {"__metadata__": {"format": "pt"}}, 0
    for name, shape in shapes.items():
        size = 4 * int(np.prod(shape))
        header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [offset, offset + size]}
        offset += size
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + bytes(offset))


@pytest.mark.parametrize(
    ("config", "published"),
    [
        (LLAMA_2_7B, 6_738_415_616),
        (LLAMA_3_8B, 8_030_261_248),
        (QWEN3_0_6B, 596_049_920),
        (GPT2, 124_439_808),
        (MIXTRAL_8X7B, 46_702_792_704),
    ],
)
def test_parameters_follow_from_the_architecture(tmp_path, config, published):
    facts = model_facts(folder_with(tmp_path, config))
    assert facts is not None
    assert facts.parameters == pytest.approx(published, rel=0.01)
    assert not facts.exact


def test_sizes_are_read_whatever_the_family_calls_them(tmp_path):
    facts = model_facts(folder_with(tmp_path, GPT2))
    assert facts is not None
    assert (facts.hidden, facts.layers, facts.intermediate) == (768, 12, 3072)
    assert facts.context == 1024


def test_weights_in_the_folder_are_counted(tmp_path):
    folder_with(tmp_path, QWEN3_0_6B)
    write_safetensors(tmp_path / "model-00001-of-00002.safetensors", {"a": [10, 3], "b": [7]})
    write_safetensors(tmp_path / "model-00002-of-00002.safetensors", {"c": [2, 2, 2]})
    facts = model_facts(str(tmp_path))
    assert facts is not None
    assert facts.parameters == 45
    assert facts.exact
    assert facts.hidden == 1024


@pytest.mark.parametrize("content", [b"", b"\xff" * 8, (5).to_bytes(8, "little") + b"{{{{{"])
def test_broken_weights_do_not_count(tmp_path, content):
    folder_with(tmp_path, QWEN3_0_6B)
    (tmp_path / "model.safetensors").write_bytes(content)
    facts = model_facts(str(tmp_path))
    assert facts is not None
    assert not facts.exact


def test_the_text_part_of_a_larger_model_counts(tmp_path):
    facts = model_facts(folder_with(tmp_path, {"model_type": "x", "text_config": QWEN3_0_6B}))
    assert facts is not None
    assert facts.layers == 28


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        ("meta-llama/Llama-2-7b-hf", 7_000_000_000),
        ("Qwen/Qwen2.5-0.5B-Instruct", 500_000_000),
        ("Qwen/Qwen3-0.6B", 600_000_000),
        ("HuggingFaceTB/SmolLM2-360M", 360_000_000),
        ("mistralai/Mixtral-8x7B-v0.1", 56_000_000_000),
        ("EleutherAI/pythia_1.4b", 1_400_000_000),
    ],
)
def test_a_size_in_the_name_is_taken(name, parameters):
    facts = model_facts(name)
    assert facts is not None
    assert facts.parameters == parameters
    assert "name" in facts.source


@pytest.mark.parametrize(
    "name", ["gpt2", "microsoft/phi-2", "org/model-v2", "org/model-4bit", "org/3beta", "a/b100"]
)
def test_where_the_name_says_nothing_nothing_is_known(name):
    assert model_facts(name) is None


def test_a_folder_without_the_sizes_tells_nothing_but_by_its_weights(tmp_path):
    folder = folder_with(tmp_path, {"model_type": "unheard-of"})
    assert model_facts(folder) is None
    write_safetensors(tmp_path / "model.safetensors", {"a": [1000, 500]})
    facts = model_facts(folder)
    assert facts is not None
    assert facts.parameters == 500_000


@pytest.mark.parametrize("text", ["", "[]", '{"hidden_size": "large"}'])
def test_a_broken_configuration_is_refused(tmp_path, text):
    (tmp_path / "config.json").write_text(text, "utf-8")
    with pytest.raises(InvalidInput, match=r"^model.*the configuration of a model"):
        model_facts(str(tmp_path))


def test_the_usual_shape_of_seven_billion_parameters_is_that_of_llama():
    facts = usual_model(7e9, "")
    assert 30 <= facts.layers <= 35
    assert 3900 <= facts.hidden <= 4300


def test_rank_one_of_all_linear_layers():
    facts = ModelFacts(
        parameters=1, hidden=10, layers=1, intermediate=30, vocabulary=5, key_values=4, source=""
    )
    assert facts.linear_widths == 2 * (10 + 10) + 2 * (10 + 4) + 3 * (10 + 30)
