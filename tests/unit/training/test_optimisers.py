"""Every optimiser over the flat vector: its updates, and its state saved and loaded."""

from __future__ import annotations

import pytest

from duetune.training.task import (
    OptimiserName,
    TrainingMethod,
    TrainingPrecision,
    TrainingTask,
)
from support.later import later

pytestmark = pytest.mark.torch

torch = later("torch")
transformers = later("transformers")
flat_parameters = later("duetune.training.flat_parameters")
learning = later("duetune.training.shared_state")
optimisers = later("duetune.training.optimisers")


def model(dtype=None):
    torch.manual_seed(5)
    made = torch.nn.Sequential(torch.nn.Linear(80, 64), torch.nn.LayerNorm(64))
    return made.to(dtype)


def task(name, dtype):
    return TrainingTask(
        model="",
        dataset="",
        method=TrainingMethod.FULL,
        precision=TrainingPrecision("bf16" if dtype is torch.bfloat16 else "fp32"),
        optim=name,
        weight_decay=0.1,
        learning_rate=1e-2,
        adam_beta2=0.99,
    )


def built(name, dtype=None):
    made, wished = model(dtype or torch.float32), task(name, dtype)
    flat = flat_parameters.FlatParameters(made, wished)
    return made, flat, optimisers.FlatOptimiser(wished, flat)


def gradients(flat):
    generator = torch.Generator().manual_seed(9)
    return [torch.randn(flat.size, generator=generator).to(flat.values.dtype) for _ in range(5)]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("name", OptimiserName)
def test_a_loaded_state_gives_the_same_next_updates_to_the_last_bit(name, dtype):
    _, flat, optimiser = built(name, getattr(torch, dtype))
    before = flat.values.clone()
    assert optimiser.arrays() == {}
    for gradient in gradients(flat)[:3]:
        optimiser.apply(gradient.clone(), 1e-2)
    assert not torch.equal(flat.values, before)
    arrays = {key: array.clone() for key, array in optimiser.arrays().items()}
    _, late, other = built(name, getattr(torch, dtype))
    for gradient in gradients(flat)[3:]:
        # What it had done before it joined must not matter.
        other.apply(gradient.clone(), 1e-2)
    late.values.copy_(flat.values)
    other.load(arrays, 3)
    for gradient in gradients(flat)[3:]:
        optimiser.apply(gradient.clone(), 5e-3)
        other.apply(gradient.clone(), 5e-3)
    assert torch.equal(flat.values, late.values)
    assert all(torch.equal(array, other.arrays()[key]) for key, array in optimiser.arrays().items())


@pytest.mark.parametrize("name", ["lion_32bit", "paged_adamw_32bit"])
def test_a_state_of_shards_is_the_same_with_any_pieces(name, monkeypatch):
    """Two processes whose vectors are in pieces write what one process without pieces reads."""
    sharding = later("duetune.training.sharding")
    name = OptimiserName(name)
    _, flat, optimiser = built(name)
    for gradient in gradients(flat)[:3]:
        optimiser.apply(gradient.clone(), 1e-2)
    whole = {key: array.clone() for key, array in optimiser.arrays().items()}
    shards = []
    for place in range(2):
        shard = sharding.ShardedParameters.__new__(sharding.ShardedParameters)
        weight, small = 80 * 64 // 2, 64 // 2
        shard.spans = [
            sharding.Span(0, place * weight, weight),
            *(
                sharding.Span(weight + n * small, 80 * 64 + n * 64 + place * small, small)
                for n in range(3)
            ),
        ]
        shard.size, shard.decaying = weight + 3 * small, weight
        shard.whole_size, shard.whole_decaying = flat.size, flat.decaying
        shard.values = shard.take("parameters", flat.values)
        shards.append(shard)
    for module in ("optimisers", "sharding"):
        monkeypatch.setattr(f"duetune.training.{module}.LONGEST", 1000)
    own = [optimisers.FlatOptimiser(task(name, None), shard) for shard in shards]
    for shard, each in zip(shards, own, strict=True):
        each.load({key: shard.take(key, array) for key, array in whole.items()}, 3)
    (decaying, other) = (key for key in whole if key.endswith("state1"))
    assert {"decaying2.state1", "other.state1"} < own[0].arrays().keys()
    found = {key: torch.full_like(array, 7) for key, array in whole.items()}
    for shard, each in zip(shards, own, strict=True):
        for key, array in each.arrays().items():
            shard.put(key, array, found[optimisers.joined_name(key)])
    assert all(torch.equal(found[key], whole[key]) for key in (decaying, other))
    # The other way round: pieces of one process are read by processes with shards.
    alone = optimisers.FlatOptimiser(task(name, None), flat)
    alone.load(whole, 3)
    assert "decaying5.state1" in alone.arrays()
    again = optimisers.joined(alone.arrays())
    assert all(torch.equal(again[key], whole[key]) for key in whole)


def test_optimisers_whose_state_cannot_be_cut_are_refused_by_name():
    refused = {name for name in OptimiserName if task(name, None).unshardable}
    assert refused == {
        *("adamw_8bit", "adamw_bnb_8bit", "paged_adamw_8bit"),
        *("lion_8bit", "paged_lion_8bit", "adafactor"),
    }
    assert "adamw_8bit" in task(OptimiserName("adamw_8bit"), None).unshardable


def theirs(name, made):
    groups = [
        {"params": [p for p in made.parameters() if p.ndim >= 2], "weight_decay": 0.1},
        {"params": [p for p in made.parameters() if p.ndim < 2], "weight_decay": 0.0},
    ]
    if name == "sgd":
        return torch.optim.SGD(groups, lr=1e-2)
    if name == "adafactor":
        return transformers.optimization.Adafactor(
            groups, lr=1e-2, scale_parameter=False, relative_step=False
        )
    return torch.optim.AdamW(groups, lr=1e-2, betas=(0.9, 0.99))


@pytest.mark.parametrize("name", ["adamw_torch", "adamw_torch_fused", "adafactor", "sgd"])
def test_updates_are_those_of_the_library_on_single_parameters(name):
    ours, flat, optimiser = built(OptimiserName(name))
    plain = model()
    library = theirs(name, plain)
    for gradient in gradients(flat):
        places = dict(flat.views(gradient))
        for key, parameter in plain.named_parameters():
            parameter.grad = places[key].clone()
        library.step()
        optimiser.apply(gradient, 1e-2)
    for mine, other in zip(ours.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(mine, other)


@pytest.mark.parametrize("name", ["adamw_8bit", "paged_adamw_32bit"])
def test_fewer_bits_come_near_adamw(name):
    ours, flat, optimiser = built(OptimiserName(name))
    plain, other_flat, exact = built(OptimiserName.ADAMW_TORCH)
    before = flat.values.clone()
    for gradient in gradients(flat):
        exact.apply(gradient.clone(), 1e-2)
        optimiser.apply(gradient, 1e-2)
    moved = (other_flat.values - before).norm()
    assert (flat.values - other_flat.values).norm() < 0.1 * moved
    assert ours is not plain


def test_eight_bits_need_a_quarter_of_the_memory():
    sizes = {}
    for name in (OptimiserName.ADAMW_TORCH, OptimiserName.ADAMW_8BIT, OptimiserName.ADAFACTOR):
        _, flat, optimiser = built(name)
        optimiser.apply(gradients(flat)[0], 1e-2)
        sizes[name] = sum(array.nbytes for array in optimiser.arrays().values())
    assert sizes["adamw_8bit"] < 0.4 * sizes["adamw_torch"]
    assert sizes["adafactor"] < 0.1 * sizes["adamw_torch"]


def test_a_checkpoint_of_adamw_from_before_still_loads():
    _, flat, optimiser = built(OptimiserName.ADAMW_TORCH)
    for gradient in gradients(flat)[:2]:
        optimiser.apply(gradient, 1e-2)
    arrays = {key: array.clone() for key, array in optimiser.arrays().items()}
    assert set(arrays) == {
        f"{piece}.{moment}"
        for piece in ("decaying", "other")
        for moment in ("exp_avg", "exp_avg_sq")
    }
    # Checkpoints from before the first update had zeros, and pieces without parameters.
    _, _, other = built(OptimiserName.ADAMW_TORCH)
    other.load({key: torch.zeros_like(array) for key, array in arrays.items()}, 0)
    assert other.arrays() == {}


def test_states_of_other_optimisers_have_another_layout():
    layouts = {built(name)[1].layout for name in OptimiserName}
    assert len(layouts) == len(OptimiserName) - 2  # two names each of AdamW and its 8-bit form
    wide, narrow = (built(OptimiserName.SGD, each)[1] for each in (None, torch.bfloat16))
    assert wide.layout != narrow.layout


def test_a_loss_beside_gradients_of_16_bits_keeps_its_digits():
    like = torch.zeros(3, dtype=torch.bfloat16)
    parts = [2.34567 / 40] * 40
    total = sum(flat_parameters.loss_columns(part, like) for part in parts)
    assert flat_parameters.loss_of(total) == pytest.approx(2.34567, abs=1e-4)
    assert not flat_parameters.loss_of(flat_parameters.loss_columns(float("nan"), like)) < 1
