"""Rows as tokens, the model of a task, and what a step does to it."""

from __future__ import annotations

import json

import numpy as np
import pytest

from duetune.errors import InvalidInput
from duetune.training.dataset_rows import DataRow, Message
from duetune.training.learning_rate import Schedule
from duetune.training.task import TrainingTask
from duetune.training.tiny import build_tiny_model
from duetune.training.tokens import tokenized, tokenized_dataset
from support.later import later

pytestmark = pytest.mark.torch

torch = later("torch")
peft = later("peft")
transformers = later("transformers")
safetensors = later("safetensors.torch")
evaluating = later("duetune.training.evaluation")
learning = later("duetune.training.shared_state")
models = later("duetune.training.trained_model")
adapters = later("duetune.training.adapters")

ROWS = [DataRow(prompt=f"{number} + 1 = ", completion=f"{number + 1}") for number in range(40)]


def cpu():
    return torch.device("cpu")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return build_tiny_model(tmp_path_factory.mktemp("model"), hidden=32, layers=1, heads=2)


@pytest.fixture(autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def task(folder, **fields):
    defaults = {"per_device_train_batch_size": 2, "gradient_accumulation_steps": 5, "max_steps": 8}
    defaults |= {"reproducible": True}
    return TrainingTask(model=str(folder), dataset="", **(defaults | fields))


def learner(folder, **fields):
    wished = task(folder, **fields)
    data = tokenized(ROWS, models.load_tokenizer(wished), wished.max_length)
    return learning.SharedState(
        wished, models.load_model(wished, cpu()), data, np.arange(len(data)), cpu()
    )


def step(members, paces=None):
    """One step as the members of a group would do it."""
    paces = paces or [0.0] * len(members)
    parts = [member.contribution(rank, paces, lambda: None) for rank, member in enumerate(members)]
    for member in members:
        if member.reproducible:
            member.update(member.combined([part.clone() for part in parts], paces))
        else:
            member.update(torch.stack([part[0] for part in parts]).sum(0))


def state(member):
    return {name: array.clone() for name, array in member.arrays().items()}


def equal(one, other):
    return all(torch.equal(array, other[name]) for name, array in one.items())


# Tokens


def test_the_loss_counts_on_completions_and_the_end_of_text(folder):
    tokenizer = models.load_tokenizer(task(folder))
    data = tokenized([DataRow(prompt="ab", completion="cd")], tokenizer, 100)
    ids, counts = data.row(0)
    assert tokenizer.decode(ids[:4]) == "abcd"
    assert ids[4] == tokenizer.eos_token_id
    assert counts.tolist() == [False, False, True, True, True]
    assert data.targets(np.array([0])) == 3


def test_all_of_a_text_counts_but_its_first_token_is_never_predicted(folder):
    data = tokenized([DataRow(text="abc")], models.load_tokenizer(task(folder)), 100)
    assert data.row(0)[1].all()
    assert data.targets(np.array([0])) == 3


def test_only_the_assistant_counts_without_a_chat_template(folder):
    tokenizer = models.load_tokenizer(task(folder))
    said = Message("assistant", "yes")
    row = DataRow(messages=(Message("user", "so?"), said, Message("user", "ok"), said))
    ids, counts = tokenized([row], tokenizer, 1000).row(0)
    assert tokenizer.decode(ids[counts]) == "yes</s>yes</s>"
    assert tokenizer.decode(ids).startswith("### user\nso?\n\n### assistant\nyes</s>\n\n### user")


def test_only_the_assistant_counts_with_a_chat_template(folder):
    tokenizer = models.load_tokenizer(task(folder))
    tokenizer.chat_template = (
        "{% for m in messages %}[{{ m.role }}]{{ m.content }}{{ eos_token }}{% endfor %}"
        "{% if add_generation_prompt %}[assistant]{% endif %}"
    )
    said = Message("assistant", "yes")
    row = DataRow(messages=(Message("user", "so?"), said, Message("user", "ok"), said))
    ids, counts = tokenized([row], tokenizer, 1000).row(0)
    assert tokenizer.decode(ids[counts]) == "yes</s>yes</s>"
    assert tokenizer.decode(ids) == "[user]so?</s>[assistant]yes</s>[user]ok</s>[assistant]yes</s>"


def test_a_template_that_forgets_earlier_answers_has_its_last_one_counted(folder):
    tokenizer = models.load_tokenizer(task(folder))
    tokenizer.chat_template = (
        "{% for m in messages %}[{{ m.role }}]"
        "{% if m.role == 'assistant' and not loop.last %}...{% else %}{{ m.content }}{% endif %}"
        "{% endfor %}{% if add_generation_prompt %}[assistant]{% endif %}"
    )
    row = DataRow(
        messages=(
            Message("user", "a"),
            Message("assistant", "b"),
            Message("user", "c"),
            Message("assistant", "d"),
        )
    )
    ids, counts = tokenized([row], tokenizer, 1000).row(0)
    assert tokenizer.decode(ids) == "[user]a[assistant]...[user]c[assistant]d"
    assert tokenizer.decode(ids[counts]) == "d"


def test_rows_are_cut_and_those_without_anything_to_learn_left_out(folder):
    tokenizer = models.load_tokenizer(task(folder))
    rows = [DataRow(prompt="x" * 20, completion="never"), DataRow(prompt="x", completion="y" * 20)]
    data = tokenized(rows, tokenizer, 10)
    assert (len(data), data.left_out, len(data.row(0)[0])) == (1, 1, 10)
    with pytest.raises(InvalidInput, match="max_length 10"):
        tokenized(rows[:1], tokenizer, 10)


def test_tokens_are_kept_and_made_anew_when_the_data_changes(folder, tmp_path):
    tokenizer = models.load_tokenizer(task(folder))
    path = tmp_path / "rows.jsonl"
    path.write_text(json.dumps({"text": "one"}))
    first = tokenized_dataset(str(path), tokenizer, 50, tmp_path / "cache")
    (kept,) = (tmp_path / "cache").iterdir()
    again = tokenized_dataset(str(path), tokenizer, 50, tmp_path / "cache")
    np.testing.assert_array_equal(first.ids, again.ids)
    kept.write_bytes(b"damaged")
    np.testing.assert_array_equal(
        first.ids, tokenized_dataset(str(path), tokenizer, 50, tmp_path / "cache").ids
    )
    path.write_text(json.dumps({"text": "other"}))
    assert len(tokenized_dataset(str(path), tokenizer, 50, tmp_path / "cache").ids) == 6


# Models


def test_weights_that_are_missing_are_drawn_by_the_seed(folder):
    def weights(seed):
        return torch.cat(
            [p.flatten() for p in adapters.load_base(task(folder, seed=seed), cpu()).parameters()]
        )

    assert torch.equal(weights(1), weights(1))
    assert not torch.equal(weights(1), weights(2))


@pytest.mark.parametrize("method", ["lora", "full"])
def test_what_was_trained_is_what_is_read_again(tmp_path, method):
    base = build_tiny_model(tmp_path / "base", hidden=32, layers=1, heads=2, seed=3)
    member = learner(base, method=method, learning_rate=1e-2)
    for _ in range(3):
        step([member])
    tokens = torch.arange(3, 20).unsqueeze(0)
    member.model.eval()
    expected = member.model(input_ids=tokens).logits
    models.save_model(member.model, models.load_tokenizer(task(base)), tmp_path / "out")
    if method == "lora":
        plain = transformers.AutoModelForCausalLM.from_pretrained(base)
        again = peft.PeftModel.from_pretrained(plain, tmp_path / "out")
    else:
        again = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "out")
    torch.testing.assert_close(again(input_ids=tokens).logits, expected)


def test_a_model_that_cannot_be_used_is_refused_in_one_line(folder, tmp_path):
    (tmp_path / "config.json").write_text("{}")
    for wished, words in (
        (task("/nowhere/at/all"), "model: '/nowhere/at/all' is not allowed"),
        (task(tmp_path), "a tokenizer"),
        (task(folder, lora_target_modules=("no_such_layer",)), "lora_target_modules"),
    ):
        with pytest.raises(InvalidInput, match=words) as refused:
            _ = models.load_tokenizer(wished), models.load_model(wished, cpu())
        assert "\n" not in str(refused.value)


# Steps


def test_any_number_of_members_comes_to_the_same_bits(folder):
    fields = {"lora_dropout": 0.2, "weight_decay": 0.1, "learning_rate": 1e-2}
    alone = learner(folder, **fields)
    start = state(alone)
    group = [learner(folder, **fields) for _ in range(3)]
    for count in (2, 3, 1, 2):
        step([alone])
        # The members' paces decide who computes what, and change nothing else.
        step(group[:count], [1000.0, 0.0, 250.0][:count])
        # Those that were left out catch up from a member, as in a group.
        for late in group[count:]:
            late.load(state(group[0]), group[0].document())
    assert alone.known == group[0].known
    assert all(equal(state(alone), state(member)) for member in group)
    assert not equal(state(alone), start)


def test_without_reproducibility_the_result_is_nearly_the_same(folder):
    exact = learner(folder)
    fast = [learner(folder, reproducible=False) for _ in range(3)]
    for _ in range(3):
        step([exact])
        step(fast)
    torch.testing.assert_close(state(fast[0])["parameters"], state(exact)["parameters"])
    assert equal(state(fast[0]), state(fast[2]))


def test_an_emulated_gpu_takes_as_long_for_the_same_examples(folder, monkeypatch):
    slept = []
    monkeypatch.setattr("duetune.training.shared_state.time.sleep", slept.append)
    monkeypatch.setattr("duetune.training.shared_state.time.monotonic", lambda: 0.0)
    for reproducible in (True, False):
        slept.clear()
        member = learner(folder, emulated_microbatch_s=3.0, reproducible=reproducible)
        step([member])
        # Ten examples, two per microbatch.
        assert sum(slept) == pytest.approx(5 * 3.0)
        # The pace of an emulated GPU is not that of this machine.
        assert member.pace.told == 0


def test_members_of_different_pace_share_a_step_by_it(folder):
    def targets(paces):
        members = [learner(folder, reproducible=False) for _ in paces]
        seen = []
        for rank, member in enumerate(members):
            rows = member._plan.rows_of(0)
            mine, height = member._share(rows, rank, paces)
            assert height == 1
            seen.append(sum(int(member._data.lengths(rows)[chosen].sum()) for chosen in mine))
        return seen

    slow, fast = targets([100.0, 400.0])
    assert 3 < fast / slow < 5.5
    even = targets([0.0, 0.0])
    assert abs(even[0] - even[1]) <= 12


def test_a_step_is_that_of_torch_on_the_whole_batch(folder):
    wished = task(
        folder, learning_rate=1e-2, max_grad_norm=0.0, lr_scheduler_type=Schedule.CONSTANT
    )
    member = learner(
        folder, learning_rate=1e-2, max_grad_norm=0.0, lr_scheduler_type=Schedule.CONSTANT
    )
    plain = models.load_model(wished, cpu())
    trained = [p for p in plain.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=1e-2, weight_decay=0.0)
    data = tokenized(ROWS, models.load_tokenizer(wished), wished.max_length)
    for _ in range(2):
        rows = member._plan.rows_of(member.step)
        (models.summed_loss(plain, data, rows, cpu(), None) / data.targets(rows)).backward()
        optimizer.step()
        optimizer.zero_grad()
        step([member])
    ours = [p for p in member.model.parameters() if p.requires_grad]
    for mine, theirs in zip(ours, trained, strict=True):
        # AdamW enlarges the rounding of gradients near zero.
        torch.testing.assert_close(mine, theirs, rtol=1e-3, atol=1e-5)


def test_training_lowers_the_loss_and_the_adapter_can_be_put_aside(folder):
    member = learner(folder, learning_rate=2e-2, max_steps=15, lr_scheduler_type=Schedule.CONSTANT)
    held_out = evaluating.Evaluation(task(folder), member._data, np.arange(10), 40, cpu())
    before = held_out.alone(member.model)
    for _ in range(15):
        step([member])
    after = held_out.alone(member.model)
    with member.model.disable_adapter():
        assert held_out.alone(member.model) == before
    assert after < before - 0.1


@pytest.mark.parametrize("fields", [{"fp16": True}, {"bf16": True}])
def test_lower_precision_trains_too(folder, fields):
    member = learner(folder, **fields, learning_rate=1e-2)
    for _ in range(2):
        step([member])
    assert member.known.updates == 2
    assert all(np.isfinite(member.known.losses))


def test_adapters_in_16_bits_are_trained_and_saved_in_32(folder, tmp_path):
    member, cast = learner(folder, bf16=True, learning_rate=1e-3), learner(folder, bf16=True)
    trained = [p for p in member.model.parameters() if p.requires_grad]
    assert {p.dtype for p in trained} == {torch.bfloat16}
    for _ in range(3):
        step([member])
    values = member.arrays()["parameters"]
    assert values.dtype == torch.float32
    # The model computes with the rounded values, also after it has taken another's state.
    cast.load(state(member), member.document())
    for each in (member, cast):
        used = [p.detach().flatten() for p in each.model.parameters() if p.requires_grad]
        torch.testing.assert_close(sum(p.sum() for p in used), values.bfloat16().sum())
    models.save_model(member.model, models.load_tokenizer(task(folder)), tmp_path)
    saved = safetensors.load_file(tmp_path / "adapter_model.safetensors")
    assert {array.dtype for array in saved.values()} == {torch.float32}
    total = sum(array.sum() for array in saved.values())
    torch.testing.assert_close(total, values.sum())
    assert any(not torch.equal(array, array.bfloat16().float()) for array in saved.values())


def test_a_gradient_that_is_not_finite_changes_nothing_and_many_end_it(folder):
    member = learner(folder)
    before = state(member)["parameters"]
    broken = torch.full((member.trainable + 1,), torch.nan)
    member.update(broken.clone())
    assert torch.equal(member.arrays()["parameters"], before)
    assert (member.known.step, member.known.updates, member.known.skipped) == (1, 0, 1)
    for _ in range(18):
        member.update(broken.clone())
    with pytest.raises(learning.Diverged, match="learning_rate"):
        member.update(broken.clone())


def test_the_state_of_another_task_is_not_taken(folder):
    one, other = learner(folder), learner(folder, lora_r=4)
    with pytest.raises(ValueError, match="another"):
        one.load(state(other), other.document())


def test_an_adapter_names_its_layers_in_the_same_order_in_every_run(folder, tmp_path):
    chosen = ("v_proj", "q_proj", "up_proj", "k_proj", "down_proj", "o_proj", "gate_proj")
    wanted = task(folder, lora_target_modules=chosen)
    models.save_model(models.load_model(wanted, cpu()), models.load_tokenizer(wanted), tmp_path)
    saved = json.loads((tmp_path / "adapter_config.json").read_text())
    assert saved["target_modules"] == sorted(chosen)
