"""LoRA variants, weights in 4 bits, and full fine-tuning in both precisions."""

from __future__ import annotations

import importlib.util
import json

import msgspec
import numpy as np
import pytest

from duetune.errors import InvalidInput, MissingExtra
from duetune.training.dataset_rows import DataRow
from duetune.training.task import TrainingTask
from duetune.training.tiny import build_tiny_model
from duetune.training.tokens import tokenized
from support.later import later

pytestmark = [
    pytest.mark.torch,
    pytest.mark.filterwarnings("ignore:`lora_bias=True` was passed"),
    pytest.mark.filterwarnings("ignore:Adapter 'default'. 7 LoRA tensor"),
]

torch = later("torch")
peft = later("peft")
transformers = later("transformers")
learning = later("duetune.training.shared_state")
models = later("duetune.training.trained_model")
adapters = later("duetune.training.adapters")

ROWS = [DataRow(prompt=f"{number} + 1 = ", completion=f"{number + 1}") for number in range(20)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return build_tiny_model(tmp_path_factory.mktemp("model"), hidden=64, layers=1, heads=2)


@pytest.fixture(autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def cpu():
    return torch.device("cpu")


def task(folder, **fields):
    defaults = {
        "per_device_train_batch_size": 4,
        "gradient_accumulation_steps": 2,
        "max_steps": 8,
        "learning_rate": 1e-2,
        "lora_r": 4,
    }
    named = {"model": str(folder), "dataset": ""}
    return msgspec.convert(named | defaults | fields, TrainingTask)


def learner(wished):
    data = tokenized(ROWS, models.load_tokenizer(wished), wished.max_length)
    model = models.load_model(wished, cpu())
    return learning.SharedState(wished, model, data, np.arange(len(data)), cpu())


def trained(wished, steps=4):
    member = learner(wished)
    for _ in range(steps):
        part = member.contribution(0, [0.0], lambda: None)
        member.update(member.combined([part], [0.0]) if member.reproducible else part[0])
    return member


def logits(model):
    model.eval()
    with torch.no_grad():
        return model(input_ids=torch.arange(3, 20).unsqueeze(0)).logits.float()


VARIANTS = [
    {"use_rslora": True},
    {"use_dora": True},
    {"lora_bias": True},
    {"lora_modules_to_save": ("lm_head",), "lora_target_modules": ("v_proj", "q_proj")},
    {"init_lora_weights": "gaussian"},
    {"init_lora_weights": "orthogonal"},
    {"method": "qlora", "precision": "fp32"},
    {"method": "qlora", "bf16": True, "use_dora": True, "gradient_checkpointing": True},
    {"method": "qlora", "bnb_4bit_quant_type": "fp4", "use_bnb_nested_quant": False},
]


@pytest.mark.parametrize("fields", VARIANTS, ids=str)
def test_a_variant_learns_is_read_again_and_can_be_put_aside(folder, tmp_path, fields):
    wished = task(folder, **fields)
    before = logits(adapters.load_base(wished, cpu()))
    member = trained(wished)
    assert member.known.losses[-1] < member.known.losses[0]
    after = logits(member.model)
    assert not torch.allclose(after, before, atol=1e-3)
    with member.model.disable_adapter():
        torch.testing.assert_close(logits(member.model), before)
    models.save_model(member.model, models.load_tokenizer(wished), tmp_path / "out")
    again = peft.PeftModel.from_pretrained(adapters.load_base(wished, cpu()), tmp_path / "out")
    torch.testing.assert_close(logits(again), after, rtol=1e-2, atol=1e-2)


@pytest.mark.parametrize("fields", VARIANTS, ids=str)
def test_every_member_starts_alike_and_the_configuration_is_the_same(folder, tmp_path, fields):
    wished = task(folder, **fields)
    one, other = learner(wished), learner(wished)
    assert torch.equal(one.arrays()["parameters"], other.arrays()["parameters"])
    files = []
    for number, member in enumerate((one, other)):
        models.save_model(member.model, models.load_tokenizer(wished), tmp_path / str(number))
        files.append((tmp_path / str(number) / "adapter_config.json").read_bytes())
    assert files[0] == files[1]
    config = json.loads(files[0])
    assert config["target_modules"] == sorted(config["target_modules"])


def test_random_weights_in_4_bits_are_those_that_transformers_would_read(folder, tmp_path):
    wished = task(folder, method="qlora", bf16=True)
    plain = adapters.load_base(task(folder, method="lora", bf16=True), cpu())
    plain.save_pretrained(tmp_path / "weights")
    made = adapters.load_base(wished, cpu())
    read = adapters.load_base(task(tmp_path / "weights", method="qlora", bf16=True), cpu())
    theirs = dict(read.named_parameters())
    for name, parameter in made.named_parameters():
        assert parameter.dtype == theirs[name].dtype
        assert torch.equal(parameter, theirs[name]), name
    assert made.model.layers[0].mlp.up_proj.weight.dtype == torch.uint8
    assert made.lm_head.weight.dtype == torch.bfloat16
    torch.testing.assert_close(logits(made), logits(read))


def test_without_its_library_quantised_training_says_what_to_install(folder, monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda _name: None)
    with pytest.raises(MissingExtra, match=r"duetune\[quantised\]"):
        adapters.load_base(task(folder, method="qlora"), cpu())


def test_pure_bfloat16_keeps_weights_gradients_and_moments_in_16_bits(folder, tmp_path):
    wished = task(folder, method="full", precision="bf16")
    member = trained(wished)
    arrays = member.arrays()
    assert {array.dtype for array in arrays.values()} == {torch.bfloat16}
    assert member.contribution(0, [0.0], lambda: None).dtype == torch.bfloat16
    mixed = trained(task(folder, method="full", bf16=True))
    assert {array.dtype for array in mixed.arrays().values()} == {torch.float32}
    # The loss is not rounded to the three digits of bfloat16.
    assert member.known.losses[0] == pytest.approx(mixed.known.losses[0], abs=0.02)
    assert member.known.losses[-1] < member.known.losses[0]
    other = learner(wished)
    other.load({key: array.clone() for key, array in arrays.items()}, member.document())
    assert torch.equal(other.arrays()["parameters"], arrays["parameters"])
    models.save_model(member.model, models.load_tokenizer(wished), tmp_path / "out")
    again = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "out", dtype="auto")
    assert again.dtype == torch.bfloat16
    torch.testing.assert_close(logits(again), logits(member.model))


@pytest.mark.parametrize(
    ("fields", "weights", "computed"),
    [
        ({"method": "full", "bf16": True}, "bf16-mixed", "bf16"),
        ({"method": "full", "fp16": True}, "fp16-mixed", "fp16"),
        ({"method": "full", "precision": "bf16"}, "bf16", "bf16"),
        ({"bf16": True}, "bf16", "bf16"),
        ({"precision": "bf16-mixed"}, "bf16-mixed", "bf16"),
        ({}, "fp32", "fp32"),
    ],
)
def test_one_word_says_how_weights_are_kept(fields, weights, computed):
    wished = task("m", **fields)
    assert (wished.weights, wished.computed_in) == (weights, computed)


def test_what_cannot_be_trained_is_refused():
    with pytest.raises(InvalidInput, match="fp16-mixed"):
        task("m", method="full", precision="fp16")
    with pytest.raises(InvalidInput, match="use_dora"):
        task("m", use_dora=True, lora_bias=True)
