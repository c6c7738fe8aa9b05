"""The terms of memory and time, by hand for a model of round numbers, by direction for others."""

from __future__ import annotations

import math

import numpy as np
import pytest

from duetune.knowledge.arithmetic import (
    MemoryConstants,
    TimeConstants,
    memory_terms,
    peak_bytes,
    step_seconds,
    time_terms,
)
from duetune.knowledge.configurations.configuration import Configuration, Configurations
from duetune.knowledge.configurations.configuration_table import Described, card_bytes
from duetune.knowledge.facts.gpus import GPUS, MIB
from duetune.knowledge.facts.model_facts import ModelFacts, model_facts
from duetune.knowledge.model.features import Physics, Reckoned
from duetune.knowledge.model.memory_model import MemoryModel
from duetune.knowledge.model.pace_model import PaceModel

FACTS = ModelFacts(
    parameters=1_000_000,
    hidden=100,
    layers=10,
    intermediate=300,
    vocabulary=1000,
    key_values=50,
    heads=4,
    source="a test",
)
CONFIGURATION = Configuration(
    model="round", gpu_model="A100-80GB", method="full", batch_size=2, tokens_per_sample=128
)
TOKENS = 256
LAYER = 2 * (6 * 100 + 2 * 50 + 4 * 300) + 16 * 100
TRAINED = 8 * 10 * (4 * 100 + 2 * 150)  # rank 8 of attention in ten layers


def described(facts=FACTS, **changes):
    rows = Configurations.of([CONFIGURATION.replace(**changes)])
    return Described(rows, lambda _: facts)


def memory(facts=FACTS, **changes):
    it = described(facts, **changes)
    one = np.ones(1)
    terms = memory_terms(it, MemoryConstants(), context=one, activations=one, scratch=one)
    return {name: float(column[0]) for name, column in terms.items()}


def peak(facts=FACTS, **changes):
    it = described(facts, **changes)
    return float(MemoryModel().peak(it)[0])


def time(facts=FACTS, **changes):
    it = described(facts, **changes)
    share = np.full(1, 0.5)
    terms = time_terms(it, TimeConstants(), utilisation=share, launch=2 * share, link=share)
    return {name: float(column[0]) for name, column in terms.items()}


def step(facts=FACTS, **changes):
    return float(PaceModel().step_s(described(facts, **changes))[0])


def real(**changes):
    row = {"model": "meta-llama/Llama-3.2-1B", "batch_size": 8, "tokens_per_sample": 1024}
    return Described(Configurations.of([CONFIGURATION.replace(**(row | changes))]))


def real_peak(**changes):
    return float(MemoryModel().peak(real(**changes))[0])


def test_training_all_weights_on_one_gpu_takes_what_it_takes_by_hand():
    assert memory() == {
        "weights": 2e6,
        "optimiser": (4 + 0.5) * 1e6,
        "gradients": 2e6,
        "cast weights": 0.0,
        "activations": TOKENS * (10 * 2 * 100 + LAYER),
        "logits": TOKENS * 1000 * 13.5,
        "optimiser's scratch": 1e6,
        "gathered layers": 0.0,
        "context": 2e9,
    }


def test_sharded_training_of_all_weights_keeps_a_part_in_32_bits():
    terms = memory(num_gpus=4, batch_size=8, sharding="fsdp")
    assert terms["weights"] == 4 * 0.25e6
    assert terms["optimiser"] == (8 + 0.5) * 0.25e6
    assert terms["gradients"] == 4 * 0.25e6
    assert terms["cast weights"] == 0.25e6
    assert terms["optimiser's scratch"] == 0.25e6
    # 0.2e6 of the parameters are embeddings and head: gathered together, with their gradients.
    assert terms["gathered layers"] == pytest.approx(2 * (3.5 * 0.8e6 / 10 + 0.2e6) + 4 * 0.2e6)
    assert terms["activations"] == memory()["activations"]  # each GPU has its own two sequences


def test_our_own_sharded_training_stores_weights_as_the_precision_says():
    split = {"num_gpus": 4, "sharding": "fsdp", "tokens_per_microbatch": 256}
    pure = memory(**split)
    assert pure["weights"] == 2 * 0.25e6
    assert pure["gradients"] == 2 * 0.25e6
    assert pure["optimiser"] == (4 + 0.5) * 0.25e6
    assert pure["cast weights"] == 0.0
    assert memory(precision="bf16-mixed", **split)["weights"] == 4 * 0.25e6


def test_packed_layers_keep_what_their_kernels_need():
    def layer(**changes):
        row = {"tokens_per_microbatch": 256, "grad_checkpoint": False, "fast_kernels": True}
        return memory(**(row | changes))["activations"] / (TOKENS * 10)

    lean = 2 * (5 * 100 + 2 * 50 + 2 * 300)
    assert layer(method="lora") == lean
    assert layer(method="qlora", lora_targets="q_proj+v_proj") == lean
    deep = lean + 2 * (100 + 300)
    assert layer(method="lora", lora_targets="all-linear") == deep
    assert layer(method="lora", lora_targets="down_proj+q_proj") == deep
    assert layer() == deep
    assert layer(fast_kernels=False) == deep + 2 * (2 * 100 + 300)


def test_a_copy_on_every_gpu_saves_nothing():
    alone, copies = memory(), memory(num_gpus=4, batch_size=8, sharding="ddp")
    assert copies == alone


def test_sharding_says_nothing_of_one_gpu():
    assert memory(sharding="fsdp") == memory()


def test_adapters_have_gradients_and_state_of_their_own_size_only():
    terms = memory(method="lora")
    assert terms["weights"] == 2e6 + 4 * TRAINED
    assert terms["gradients"] == 4 * TRAINED
    assert terms["optimiser"] == 8 * TRAINED
    assert terms["optimiser's scratch"] == TRAINED
    assert terms["activations"] == TOKENS * (10 * 2 * 100 + LAYER)


def test_adapters_on_all_linear_layers_and_of_a_higher_rank_are_larger():
    few = memory(method="lora")["gradients"]
    assert memory(method="lora", lora_rank=16)["gradients"] == 2 * few
    every = 8 * 10 * (4 * 100 + 2 * 150 + 3 * 400)
    assert memory(method="lora", lora_targets="all-linear")["gradients"] == 4 * every


def test_four_bit_weights_take_about_a_quarter():
    for method in ("qlora", "gptq-lora"):
        # Embeddings and head, 0.2e6 of the parameters, stay in 16 bits.
        assert memory(method=method)["weights"] == pytest.approx(
            0.52 * 0.8e6 + 2 * 0.2e6 + 4 * TRAINED
        )


def test_single_precision_doubles_weights_state_and_what_layers_keep():
    half, single = memory(), memory(precision="fp32")
    assert single["weights"] == 2 * half["weights"]
    assert single["gradients"] == 2 * half["gradients"]
    assert single["optimiser"] == (8 + 0.5) * 1e6
    within = 4 * (6 * 100 + 2 * 50 + 4 * 300) + 16 * 100
    assert single["activations"] == TOKENS * (10 * 4 * 100 + within)


def test_mixed_precision_keeps_a_copy_to_compute_with():
    mixed = memory(precision="bf16-mixed")
    assert mixed["weights"] == 4e6
    assert mixed["cast weights"] == 1e6
    assert memory(precision="bf16-mixed", method="lora")["cast weights"] == 0
    plain = memory(precision="bf16-mixed", method="lora", grad_checkpoint=False)
    assert plain["cast weights"] == 1e6


def test_without_checkpointing_every_layer_is_kept():
    assert memory(grad_checkpoint=False)["activations"] == TOKENS * 10 * LAYER
    frozen = memory(grad_checkpoint=False, method="lora")["activations"]
    assert frozen == pytest.approx(0.8 * TOKENS * 10 * LAYER)


def test_eager_attention_keeps_the_scores_of_every_pair_of_tokens():
    more = memory(attention="eager", grad_checkpoint=False)["activations"]
    scores = TOKENS * 10 * 8 * 4 * 128
    assert more - memory(grad_checkpoint=False)["activations"] == scores
    assert memory(attention="flash") == memory(attention="sdpa")


def test_fused_kernels_never_keep_all_logits():
    assert memory(fast_kernels=True)["logits"] == TOKENS * 1000 * 6


@pytest.mark.parametrize(
    ("optimiser", "state", "slack", "scratch"),
    [
        ("adamw", 4e6, 0.5e6, 1e6),
        ("paged-adamw", 4e6, 0.5e6, 1e6),
        ("adamw-8bit", 2e6, 0.5e6, 1e6),  # as many bytes in every precision
        ("adafactor", 0.025e6, 0.5e6, 16 * 1000 * 100),
        ("sgd", 0, 0, 0),
    ],
)
def test_each_optimiser_has_its_state_and_scratch(optimiser, state, slack, scratch):
    terms = memory(optimiser=optimiser)
    assert terms["optimiser"] == pytest.approx(state + slack)
    assert terms["optimiser's scratch"] == pytest.approx(scratch)


def test_the_peak_is_at_the_loss_and_gradients_are_there_if_accumulated():
    terms = memory()
    always = terms["weights"] + terms["optimiser"] + terms["context"]
    loss = terms["activations"] + terms["logits"]
    assert peak() == always + loss
    assert peak(grad_accum=4) == always + loss + terms["gradients"]


def test_the_peak_is_at_the_optimisers_step_where_little_is_kept():
    terms = memory(batch_size=1, tokens_per_sample=8)
    always = terms["weights"] + terms["optimiser"] + terms["context"]
    step_ = terms["gradients"] + terms["optimiser's scratch"]
    assert peak(batch_size=1, tokens_per_sample=8) == always + step_


def test_without_scratch_the_peak_of_few_tokens_is_at_the_last_gradients():
    few = {"batch_size": 1, "tokens_per_sample": 8, "optimiser": "sgd"}
    terms = memory(**few)
    always = terms["weights"] + terms["context"]
    layered = terms["gradients"] + terms["activations"] / 10
    assert peak(**few) == pytest.approx(always + layered, rel=1e-12)


def test_paged_state_may_lie_in_the_hosts_memory():
    assert peak() - peak(optimiser="paged-adamw") == pytest.approx(4.5e6)


def test_gathered_layers_and_copies_are_part_of_a_sharded_peak():
    sharded = {"num_gpus": 4, "batch_size": 8, "sharding": "fsdp"}
    terms = memory(**sharded)
    it = described(**sharded)
    assert float(MemoryModel().peak(it)[0]) == pytest.approx(
        terms["weights"]
        + terms["optimiser"]
        + terms["gathered layers"]
        + terms["context"]
        + terms["activations"]
        + terms["logits"]
        + terms["cast weights"]
    )


def test_experts_are_kept_by_the_group_they_are_spread_over():
    facts = ModelFacts(
        parameters=1_000_000,
        hidden=100,
        layers=10,
        intermediate=20,
        vocabulary=1000,
        key_values=50,
        heads=4,
        source="a test",
        active=640_000,
        experts=8,
    )  # one expert is 3 * 100 * 20 * 10 = 60,000 parameters: two of eight see a token
    it = described(facts, num_gpus=8, batch_size=8, sharding="fsdp")
    assert float(it.active_experts[0]) == 2.0
    assert float(it.expert_parameters[0]) == 480_000
    every = memory(facts, num_gpus=8, batch_size=8, sharding="fsdp")["weights"]
    assert every == 4 * 1e6 / 8
    pairs = memory(facts, num_gpus=8, batch_size=8, sharding="fsdp", fast_moe=2)["weights"]
    assert pairs == 4 * (520_000 / 8 + 480_000 / 2)


def test_prompts_train_a_hundred_virtual_tokens():
    assert float(described(method="pt").trained[0]) == 100 * 100


def test_adapters_are_never_larger_than_the_model():
    assert float(described(method="lora", lora_rank=10_000).trained[0]) == 1e6


def test_a_micro_step_takes_what_it_takes_by_hand():
    terms = time()
    attention = 8 * 10 * 100 * 128
    assert terms["arithmetic"] == pytest.approx(256 * (8e6 + attention) / (312e12 * 0.5))
    assert terms["launch"] == pytest.approx(0.005 * 10)
    assert terms["weights"] == pytest.approx(0.5 * 2 * 2e6 / 2039e9)
    assert terms["communication"] == 0.0
    assert terms["optimiser"] == pytest.approx((12 + 1.5 * 8) * 1e6 / 2039e9)


def test_recomputing_costs_a_third_and_adapters_save_a_third():
    plain = time(grad_checkpoint=False)
    assert plain["arithmetic"] == pytest.approx(256 * (6e6 + 6 * 10 * 100 * 128) / (312e12 * 0.5))
    assert plain["launch"] == pytest.approx(0.75 * 0.005 * 10)
    adapters = time(grad_checkpoint=False, method="lora")
    assert plain["arithmetic"] - adapters["arithmetic"] == pytest.approx(256 * 2e6 / (312e12 * 0.5))


def test_sharded_weights_are_gathered_twice_also_for_adapters():
    sharded = {"num_gpus": 4, "batch_size": 8, "sharding": "fsdp"}
    link = 300e9 * 0.5
    whole = time(**sharded)["communication"]
    assert whole == pytest.approx(0.75 * (2 * 2e6 + 2e6) / link + 0.003 * 10)
    adapters = time(method="lora", **sharded)["communication"]
    assert adapters == pytest.approx(0.75 * (2 * 2e6 + 2 * TRAINED) / link + 0.003 * 10)
    quantised = time(method="qlora", **sharded)["communication"]
    assert quantised == pytest.approx(0.75 * (2 * 0.55e6 + 2 * TRAINED) / link + 0.003 * 10)


def test_copies_exchange_gradients_once_in_an_optimisers_step():
    copies = {"num_gpus": 4, "batch_size": 8, "sharding": "ddp"}
    link = 300e9 * 0.5
    assert time(**copies)["communication"] == pytest.approx(0.75 * 2 * 2e6 / link + 0.003 * 4)
    seldom = time(grad_accum=4, **copies)["communication"]
    assert seldom == pytest.approx(0.75 * 2 * 2e6 / 4 / link + 0.003 * 4)


def test_between_nodes_the_network_is_the_slowest_link():
    two = {"num_gpus": 16, "batch_size": 32, "sharding": "fsdp", "num_nodes": 2}
    assert time(**two)["communication"] == pytest.approx(15 / 16 * 6e6 / 8e9 + 0.03)


def test_a_slower_link_that_is_named_is_the_one_that_counts():
    sharded = {"num_gpus": 4, "batch_size": 8, "sharding": "fsdp"}
    pcie = time(interconnect="pcie", **sharded)["communication"]
    assert pcie == pytest.approx(0.75 * 6e6 / (25e9 * 0.5) + 0.03)
    assert time(interconnect="nvlink", **sharded) == time(**sharded)
    slow = {"gpu_model": "L4", **sharded}  # 12 GB/s are not made faster by a name
    assert time(interconnect="nvlink", **slow) == time(**slow) == time(interconnect="pcie", **slow)
    two = {"num_gpus": 16, "batch_size": 32, "sharding": "fsdp", "num_nodes": 2}
    assert time(interconnect="tcp", **two)["communication"] > time(**two)["communication"]
    assert time(interconnect="roce", **two) == time(**two)


def test_accumulation_and_sharding_divide_the_optimisers_time():
    alone = time()["optimiser"]
    assert time(grad_accum=4)["optimiser"] == pytest.approx(alone / 4)
    sharded = {"num_gpus": 4, "batch_size": 8}
    assert time(sharding="fsdp", **sharded)["optimiser"] == pytest.approx(alone / 4)
    assert time(sharding="ddp", **sharded)["optimiser"] == pytest.approx(alone)


def test_single_precision_has_half_the_peak_and_reads_twice():
    half, single = time(), time(precision="fp32")
    assert single["arithmetic"] == pytest.approx(2 * half["arithmetic"])
    assert single["weights"] == pytest.approx(2 * half["weights"])


def test_only_active_experts_compute():
    sparse = ModelFacts(
        parameters=1_000_000,
        hidden=100,
        layers=10,
        intermediate=20,
        vocabulary=1000,
        key_values=50,
        heads=4,
        source="a test",
        active=250_000,
        experts=8,
    )
    saved = time()["arithmetic"] - time(sparse)["arithmetic"]
    assert saved == pytest.approx(256 * 8 * 750_000 / (312e12 * 0.5))


def test_a_step_is_the_longer_part_and_what_does_not_overlap():
    terms = {
        "arithmetic": np.array([3.0, 3.0]),
        "launch": np.array([4.0, 4.0]),
        "weights": np.array([1.0, 1.0]),
        "communication": np.array([0.0, 6.0]),
        "optimiser": np.array([0.5, 0.5]),
    }
    assert step_seconds(terms, 0.4) == pytest.approx([6.5, 6 * 2**0.25 + 0.6 * 6 + 0.5])
    assert step_seconds(terms, 1.0)[1] == pytest.approx(6 * 2**0.25 + 0.5)


def test_tokens_of_all_gpus_together_over_the_seconds_of_a_step():
    changes = {"num_gpus": 4, "batch_size": 8, "sharding": "fsdp"}
    it = described(**changes)
    assert float(PaceModel().tokens_per_s(it)[0]) == pytest.approx(4 * 256 / step(**changes))


def test_memory_is_in_bytes_and_about_what_is_known_of_an_eight_billion_model():
    eight = {"model": "meta-llama/Llama-3.1-8B", "batch_size": 1, "tokens_per_sample": 512}
    assert 14e9 < real_peak(method="lora", **eight) < 24e9
    assert 55e9 < real_peak(**eight) < 80e9
    assert 5e9 < real_peak(method="qlora", **eight) < 10e9


@pytest.mark.parametrize(
    ("less", "more"),
    [
        ({"batch_size": 8}, {"batch_size": 16}),
        ({"tokens_per_sample": 1024}, {"tokens_per_sample": 1025}),
        ({"grad_checkpoint": True}, {"grad_checkpoint": False}),
        ({"method": "lora"}, {"method": "full"}),
        ({"method": "qlora"}, {"method": "lora"}),
        ({"method": "lora", "lora_rank": 8}, {"method": "lora", "lora_rank": 64}),
        ({"attention": "sdpa"}, {"attention": "eager"}),
        ({"fast_kernels": True}, {"fast_kernels": False}),
        ({"optimiser": "adamw-8bit"}, {"optimiser": "adamw"}),
        ({"optimiser": "sgd"}, {"optimiser": "adamw-8bit"}),
        ({"precision": "bf16"}, {"precision": "fp32"}),
        ({"grad_accum": 1}, {"grad_accum": 2}),
        ({"model": "HuggingFaceTB/SmolLM2-135M"}, {"model": "meta-llama/Llama-3.2-1B"}),
    ],
)
def test_what_needs_more_memory(less, more):
    assert real_peak(**less) < real_peak(**more)


def test_memory_grows_with_parameters_and_with_the_vocabulary_alone():
    def of(**changes):
        values = {name: getattr(FACTS, name) for name in FACTS.__struct_fields__} | changes
        return peak(ModelFacts(**values))

    assert of() < of(parameters=2_000_000)
    assert of(vocabulary=2000) - of() == TOKENS * 1000 * 13.5


def test_more_gpus_that_share_the_state_need_less_each():
    peaks = [real_peak(num_gpus=gpus, batch_size=gpus, sharding="fsdp") for gpus in (2, 4, 8, 16)]
    assert peaks == sorted(peaks, reverse=True)
    copies = {real_peak(num_gpus=gpus, batch_size=gpus, sharding="ddp") for gpus in (1, 2, 4, 8)}
    assert len(copies) == 1


def test_a_cap_only_lowers_the_capacity():
    card = GPUS["A100-80GB"].capacity
    assert float(described().capacity[0]) == card == 81920 * MIB
    assert float(described(memory_cap_gb=40.0).capacity[0]) == 40960 * MIB < card
    assert float(described(memory_cap_gb=141.0).capacity[0]) == card
    assert float(described(memory_cap_gb=0.0).capacity[0]) == card


def test_a_higher_cap_never_means_less_memory():
    sizes = [card_bytes(cap / 5) for cap in range(5, 1000)]
    assert sizes == sorted(sizes)


@pytest.mark.parametrize("name", GPUS)
@pytest.mark.parametrize("method", ["full", "lora", "qlora", "gptq-lora", "pt"])
def test_the_smallest_model_fits_every_card_and_the_largest_none(name, method):
    small = real(model="HuggingFaceTB/SmolLM2-135M", gpu_model=name, method=method, batch_size=1)
    assert float(Reckoned(small, Physics()).margin[0]) > 0.3
    large = real(
        model="meta-llama/Llama-3.1-405B",
        gpu_model=name,
        method=method,
        batch_size=1,
        tokens_per_sample=128,
    )
    assert float(Reckoned(large, Physics()).margin[0]) < 0


def test_the_margin_is_the_logarithm_of_capacity_over_peak():
    it = described()
    assert float(Reckoned(it, Physics()).margin[0]) == pytest.approx(math.log(81920 * MIB / peak()))


@pytest.mark.parametrize("changes", [{"batch_size": 4}, {"tokens_per_sample": 256}])
def test_a_step_takes_longer_with_more_tokens_but_its_tokens_less(changes):
    assert step() < step(**changes)
    it, more = described(), described(**changes)
    assert PaceModel().tokens_per_s(it)[0] < PaceModel().tokens_per_s(more)[0]


def test_eager_attention_takes_longer():
    facts = model_facts("meta-llama/Llama-3.1-8B")
    long = {"tokens_per_sample": 8192}
    assert step(facts, attention="eager", **long) > 1.02 * step(facts, **long)


def test_a_faster_card_is_faster_and_a_slower_link_slower():
    facts = model_facts("meta-llama/Llama-3.1-8B")
    assert step(facts, gpu_model="H200") < step(facts) < step(facts, gpu_model="L4")
    sharded = {"num_gpus": 4, "batch_size": 8, "sharding": "fsdp"}
    assert step(facts, **sharded) < step(facts, gpu_model="A100-80GB-PCIe", **sharded)


@pytest.mark.parametrize("name", GPUS)
def test_no_more_arithmetic_than_the_card_has(name):
    it = real(
        gpu_model=name,
        model="meta-llama/Llama-3.1-70B",
        batch_size=1024,
        tokens_per_sample=4096,
        grad_checkpoint=False,
    )
    keen = PaceModel(factors={f"gpu_model={name}": 10.0})
    flop = 6 * model_facts("meta-llama/Llama-3.1-70B").parameters
    for model in (PaceModel(), keen):
        assert float(model.tokens_per_s(it)[0]) * flop <= GPUS[name].tflops * 1e12


def test_what_is_not_known_is_usual_and_finite():
    rows = Configurations.of(
        [CONFIGURATION.replace(model="a model of nobody", gpu_model="a card of nobody")]
    )
    reckoned = Reckoned(Described(rows), Physics())
    assert float(reckoned.it.parameters[0]) == 7e9
    for number in (reckoned.step_s, reckoned.peak, reckoned.margin):
        assert np.isfinite(number).all()
    assert np.isfinite(peak_bytes(reckoned.it, reckoned.memory)).all()
