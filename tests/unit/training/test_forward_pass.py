"""Packed rows give the losses and gradients of padded ones, for every style of model."""

from __future__ import annotations

import json

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from duetune.training.packed_rows import laid_end_to_end
from duetune.training.task import TrainingTask
from duetune.training.tokens import TokenizedRows
from support.later import later

pytestmark = pytest.mark.torch

torch = later("torch")
transformers = later("transformers")
forward = later("duetune.training.forward_pass")
models = later("duetune.training.trained_model")

VOCABULARY = 61
SMALL = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 128,
    "tie_word_embeddings": False,
}
EXPERTS = {"num_local_experts": 2}
STYLES = {
    "llama": ("LlamaConfig", {}),
    "qwen2": ("Qwen2Config", {}),
    "qwen3": ("Qwen3Config", {}),
    "mistral": ("MistralConfig", {"sliding_window": 6}),
    "gemma": ("GemmaConfig", {"tie_word_embeddings": True}),
    "gemma2": ("Gemma2Config", {"sliding_window": 6, "query_pre_attn_scalar": 8}),
    "gemma3": ("Gemma3TextConfig", {"sliding_window": 6, "query_pre_attn_scalar": 8}),
    "cohere": ("CohereConfig", {"logit_scale": 0.25}),
    "granite": ("GraniteConfig", {"logits_scaling": 4.0}),
    "gpt_oss": (
        "GptOssConfig",
        {"sliding_window": 6, "num_local_experts": 2, "num_experts_per_tok": 1},
    ),
    "llama4": ("Llama4TextConfig", {"attention_chunk_size": 6, **EXPERTS}),
    "lfm2": ("Lfm2Config", {"layer_types": ["conv", "full_attention"]}),
    "gpt2": ("GPT2Config", {}),
}
TASK = TrainingTask(model="", dataset="")


def cpu():
    return torch.device("cpu")


def built(style):
    name, fields = STYLES[style]
    config = getattr(transformers, name)(**(SMALL | fields))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(5)
        model = transformers.AutoModelForCausalLM.from_config(config)
        for parameter in model.parameters():
            # Larger than usual, so that attention looks at single tokens and caps have effect.
            parameter.data.mul_(2.0)
    model.config.use_cache = False
    return model.eval()


def rows_of(lengths, seed=0):
    random = np.random.default_rng(seed)
    ids = random.integers(0, VOCABULARY, sum(lengths)).astype(np.int32)
    counts = random.random(sum(lengths)) < 0.6
    begins = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    return TokenizedRows(ids, counts, begins)


def reference(model, data, row):
    """The loss of one row by itself, as transformers computes it."""
    ids, counts = data.row(row)
    tokens = torch.from_numpy(ids.astype(np.int64))[None]
    logits = model(input_ids=tokens).logits[0, :-1].float()
    wanted = torch.where(torch.from_numpy(counts[1:]), tokens[0, 1:], -100)
    return torch.nn.functional.cross_entropy(logits, wanted, ignore_index=-100, reduction="sum")


def gradients(model, loss):
    model.zero_grad()
    loss.backward()
    found = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
    model.zero_grad()
    return found


def close(found, wanted):
    return torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("style", STYLES)
def test_packed_rows_have_the_losses_and_gradients_of_rows_alone(style):
    model, lengths = built(style), (13, 5, 2, 9)
    data = rows_of(lengths)
    alone = [reference(model, data, row) for row in range(len(lengths))]
    wanted = gradients(model, sum(alone))
    way = forward.choose_forward_pass(model, TASK, cpu(), None)
    order = np.array([2, 0, 3, 1])
    found = gradients(model, models.summed_loss(model, data, order, cpu(), None))
    assert found.keys() == wanted.keys()
    scale = max(float(each.abs().max()) for each in wanted.values())
    for name, gradient in found.items():
        close(gradient / scale, wanted[name] / scale)
    for row in range(len(lengths)):
        close(models.summed_loss(model, data, np.array([row]), cpu(), None), alone[row])
    assert way.packed == (style not in {"lfm2", "llama4"}), way.notes
    assert way.split == (style not in {"gemma2", "cohere", "granite"}), way.notes


def test_the_way_is_named_with_its_reason():
    def notes(style, **fields):
        task = msgspec.structs.replace(TASK, **fields)
        return "; ".join(forward.choose_forward_pass(built(style), task, cpu(), None).notes)

    assert notes("llama") == "attention: SDPA row by row, packed rows"
    assert "row by row, because the model uses softcapping" in notes("gemma2")
    assert "loss: the model's own head, because the model changes" in notes("gemma2")
    assert "padded rows, because the model has layers of type conv" in notes("lfm2")
    assert "because the model has layers of type chunked_attention" in notes("llama4")
    wanted = notes("llama", use_liger_kernel=True)
    assert "kernels: torch, because there is no CUDA device" in wanted


def test_a_model_that_does_not_take_the_borders_gets_padded_rows():
    model = built("llama")
    inner, takes = model.model.forward, {"input_ids", "attention_mask", "use_cache"}

    def older(**arguments):
        if unknown := {name for name in arguments if arguments[name] is not None} - takes:
            raise TypeError(f"unexpected arguments {unknown}")
        return inner(**arguments)

    model.model.forward = older
    way = forward.choose_forward_pass(model, TASK, cpu(), None)
    assert not way.packed
    assert "padded rows, because the model refuses it" in way.notes[0]
    data = rows_of((4, 9))
    close(
        models.summed_loss(model, data, np.arange(2), cpu(), None),
        reference(model, data, 0) + reference(model, data, 1),
    )


@pytest.fixture(scope="module")
def llama():
    model = built("llama")
    forward.choose_forward_pass(model, TASK, cpu(), None)
    return model


@settings(max_examples=20, deadline=None)
@given(
    lengths=st.lists(st.integers(2, 12), min_size=2, max_size=6),
    changed=st.integers(0, 5),
    shuffle=st.randoms(use_true_random=False),
)
def test_no_row_sees_another_one(llama, lengths, changed, shuffle):
    data, changed = rows_of(lengths), changed % len(lengths)
    order = list(range(len(lengths)))
    shuffle.shuffle(order)
    ids = data.ids.copy()
    place = slice(data.begins[changed], data.begins[changed + 1])
    ids[place] = (ids[place] + 7) % VOCABULARY
    other = TokenizedRows(ids, data.counts, data.begins)

    def states(rows):
        packed = laid_end_to_end(rows, np.array(order))
        every = msgspec.structs.replace(packed, predicting=np.arange(len(packed.ids)))
        with torch.no_grad():
            found = forward.hidden_states(llama, every, cpu(), packed=True)
        return dict(zip(order, found.split([lengths[row] for row in order]), strict=True))

    before, after = states(data), states(other)
    for row in order:
        assert torch.equal(before[row], after[row]) == (row != changed)


def test_logits_of_a_long_microbatch_never_exist_at_once(llama, monkeypatch):
    data, rows = rows_of((20, 30, 25)), np.arange(3)
    whole = models.summed_loss(llama, data, rows, cpu(), None)
    wanted = gradients(llama, whole)
    seen = []
    head = llama.lm_head.forward

    def watched(hidden):
        seen.append(len(hidden))
        return head(hidden)

    monkeypatch.setattr(llama.lm_head, "forward", watched, raising=False)
    monkeypatch.setattr("duetune.training.kernels.MOST_LOGITS", 8 * VOCABULARY)
    pieces = models.summed_loss(llama, data, rows, cpu(), None)
    close(pieces, whole)
    found = gradients(llama, pieces)
    assert llama.lm_head.forward is watched
    close(found["lm_head.weight"], wanted["lm_head.weight"])
    assert max(seen) == 8
    # Only tokens that count are computed, once forward and once more backward.
    assert sum(seen) == 2 * data.targets(rows)


def test_a_saved_model_does_not_name_the_attention_of_the_trainer(llama, tmp_path):
    llama.save_pretrained(tmp_path)
    assert "duetune" not in json.dumps(json.loads((tmp_path / "config.json").read_text()))
    again = transformers.AutoModelForCausalLM.from_pretrained(tmp_path)
    tokens = torch.arange(1, 9)[None]
    mask = torch.ones_like(tokens)
    mask[0, 6:] = 0
    # The trainer's own copy still takes padded batches.
    close(
        llama(input_ids=tokens, attention_mask=mask).logits[0, :6],
        again(input_ids=tokens).logits[0, :6],
    )
