from __future__ import annotations

import json

import numpy as np
import pytest

from duetune.errors import InvalidInput
from duetune.knowledge.facts.model_facts import ModelFacts, model_facts, usual_model

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
        ("somebody/Lama-2-7b-hf", 7_000_000_000),
        ("org/my-0.5B-Instruct", 500_000_000),
        ("org/my-360M", 360_000_000),
        ("org/8x7B-v0.1", 56_000_000_000),
        ("org/my_1.4b", 1_400_000_000),
    ],
)
def test_a_size_in_the_name_is_taken(name, parameters):
    facts = model_facts(name)
    assert facts is not None
    assert facts.parameters == parameters
    assert "name" in facts.source
    assert not facts.shape_known


def test_the_active_part_in_the_name_is_taken():
    facts = model_facts("org/some-30B-A3B")
    assert facts is not None
    assert (facts.parameters, facts.active_parameters) == (30_000_000_000, 3_000_000_000)


@pytest.mark.parametrize(
    "name", ["org/gtp2", "org/model-v2", "org/model-4bit", "org/3beta", "a/b100", "", "base"]
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


def test_a_file_stands_for_its_folder_but_for_the_weights(tmp_path):
    folder_with(tmp_path, QWEN3_0_6B)
    write_safetensors(tmp_path / "model.safetensors", {"a": [10, 3]})
    facts = model_facts(str(tmp_path / "config.json"))
    assert facts is not None
    assert facts.parameters == pytest.approx(596_049_920, rel=0.01)
    assert not facts.exact


def test_heads_and_family_are_told(tmp_path):
    facts = model_facts(folder_with(tmp_path, QWEN3_0_6B))
    assert facts is not None
    assert (facts.heads, facts.key_values, facts.family) == (16, 8 * 128, "qwen3")
    assert facts.tied
    assert facts.shape_known
    assert facts.active_parameters == facts.parameters


def test_of_eight_experts_two_are_active(tmp_path):
    facts = model_facts(folder_with(tmp_path, MIXTRAL_8X7B | {"num_experts_per_tok": 2}))
    assert facts is not None
    assert facts.experts == 8
    assert facts.active_parameters == pytest.approx(12.9e9, rel=0.01)


def test_the_active_share_stands_where_weights_are_counted(tmp_path):
    folder_with(tmp_path, MIXTRAL_8X7B | {"num_experts_per_tok": 2})
    write_safetensors(tmp_path / "model.safetensors", {"a": [1000]})
    facts = model_facts(str(tmp_path))
    assert facts is not None
    assert facts.parameters == 1000
    assert facts.active_parameters == pytest.approx(1000 * 12.9 / 46.7, abs=2)


def test_first_layers_without_experts_and_shared_experts_count(tmp_path):
    sparse = {
        **MIXTRAL_8X7B,
        "moe_intermediate_size": 1000,
        "num_experts_per_tok": 2,
        "num_local_experts": None,
        "n_routed_experts": 10,
    }
    plain = model_facts(folder_with(tmp_path, sparse))
    more = model_facts(
        folder_with(tmp_path, sparse | {"first_k_dense_replace": 2, "n_shared_experts": 1})
    )
    assert plain is not None
    assert more is not None
    expert, dense, router = 3 * 4096 * 1000, 3 * 4096 * 14336, 4096 * 10
    assert more.parameters - plain.parameters == 2 * (dense - 10 * expert - router) + 30 * expert


def test_one_head_of_keys_for_all_is_seen(tmp_path):
    facts = model_facts(
        folder_with(tmp_path, GPT2 | {"multi_query": True, "model_type": "gpt_bigcode"})
    )
    assert facts is not None
    assert facts.key_values == 64


def test_recurrent_layers_are_counted_and_told(tmp_path):
    hybrid = QWEN3_0_6B | {
        "layer_types": ["mamba"] * 27 + ["attention"],
        "mamba_n_heads": 32,
        "mamba_d_head": 64,
        "mamba_d_state": 128,
        "mamba_n_groups": 1,
    }
    facts = model_facts(folder_with(tmp_path, hybrid))
    plain = model_facts(folder_with(tmp_path, QWEN3_0_6B))
    assert facts is not None
    assert plain is not None
    mamba = 1024 * (2 * 2048 + 2 * 128 + 32) + 2048 * 1024
    attention = 2 * 1024 * 2048 + 2 * 1024 * 1024
    assert facts.parameters - plain.parameters == 27 * (mamba - attention)
    assert "approximate: 27 layers are recurrent" in facts.source
