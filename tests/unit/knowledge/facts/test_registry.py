from __future__ import annotations

import json
import re
from importlib.resources import files

import pytest

from duetune.knowledge.facts.model_facts import model_facts
from duetune.knowledge.facts.model_registry import model_name

REGISTRY = json.loads(files("duetune.knowledge.facts").joinpath("registry.json").read_text("utf-8"))
SIZE = re.compile(r"(?:^|-)(\d+(?:\.\d+)?)([mb])(?=-|$)", re.IGNORECASE)

# Names round, or leave out: embeddings (Qwen2.5-7B has 6.5 without), experts that share attention
# (8x7B), what came with a larger vocabulary. Published numbers of parameters, in billions.
NOT_IN_THE_NAME = {
    "Qwen/Qwen2-7B": 7.62,
    "Qwen/Qwen2.5-7B": 7.62,
    "Qwen/Qwen2.5-14B": 14.77,
    "Qwen/Qwen3-14B": 14.77,
    "huggyllama/llama-7b": 6.74,
    "huggyllama/llama-30b": 32.5,
    "meta-llama/Llama-2-7b-hf": 6.74,
    "codellama/CodeLlama-7b-hf": 6.74,
    "meta-llama/Llama-3.2-1B": 1.24,
    "meta-llama/Llama-3.2-3B": 3.21,
    "mistralai/Mistral-7B-v0.1": 7.24,
    "mistralai/Mistral-7B-Instruct-v0.2": 7.24,
    "mistralai/Mistral-7B-v0.3": 7.25,
    "mistralai/Mixtral-8x7B-v0.1": 46.7,
    "mistralai/Mixtral-8x22B-v0.1": 140.6,
    "mistralai/Mistral-Nemo-Base-2407": 12.2,
    "mistralai/Mistral-Small-Instruct-2409": 22.2,
    "mistralai/Mistral-Large-Instruct-2407": 122.6,
    "google/gemma-2b": 2.51,
    "google/gemma-7b": 8.54,
    "google/gemma-2-2b": 2.61,
    "google/gemma-3-4b-pt": 3.88,
    "microsoft/phi-1_5": 1.42,
    "microsoft/phi-2": 2.78,
    "microsoft/Phi-3-mini-4k-instruct": 3.82,
    "microsoft/Phi-3-mini-128k-instruct": 3.82,
    "microsoft/Phi-3-medium-4k-instruct": 13.96,
    "microsoft/Phi-3-medium-128k-instruct": 13.96,
    "microsoft/Phi-3.5-mini-instruct": 3.82,
    "microsoft/Phi-3.5-MoE-instruct": 41.9,
    "microsoft/phi-4": 14.66,
    "microsoft/Phi-4-mini-instruct": 3.84,
    "ibm-granite/granite-7b-base": 6.74,
    "ibm-granite/granite-3b-code-base-2k": 3.48,
    "ibm-granite/granite-3b-code-base-128k": 3.48,
    "bigcode/gpt_bigcode-santacoder": 1.12,
    "bigcode/starcoder": 15.5,
    "ibm-granite/granite-3.0-2b-base": 2.53,
    "ibm-granite/granite-3.1-2b-base": 2.53,
    "ibm-granite/granite-3.2-2b-instruct": 2.53,
    "ibm-granite/granite-3.3-2b-base": 2.53,
    "ibm-granite/granite-3.0-1b-a400m-base": 1.33,
    "ibm-granite/granite-3.1-1b-a400m-base": 1.33,
    "ibm-granite/granite-3.0-3b-a800m-base": 3.30,
    "ibm-granite/granite-3.1-3b-a800m-base": 3.30,
    "ibm-granite/granite-4.0-1b": 1.63,
    "ibm-granite/granite-4.0-h-1b": 1.46,
    "ibm-granite/granite-4.0-micro": 3.4,
    "ibm-granite/granite-4.0-h-micro": 3.19,
    "ibm-granite/granite-4.0-h-tiny": 6.94,
    "ibm-granite/granite-4.0-tiny-preview": 6.67,
    "ibm-granite/granite-4.0-h-small": 32.2,
    # "About 7" is all that is published of it.
    "ibm-research/moe-7b-1b-active-shared-experts": 6.37,
    "ibm/PowerLM-3b": 3.51,
    "ibm/PowerMoE-3b": 3.30,
    "tiiuae/falcon-40b": 41.3,
    "tiiuae/Falcon3-1B-Base": 1.67,
    "tiiuae/Falcon3-3B-Base": 3.23,
    "tiiuae/Falcon3-7B-Base": 7.46,
    "tiiuae/Falcon3-10B-Base": 10.3,
    "mosaicml/mpt-1b": 1.31,
    "mosaicml/mpt-3b": 2.65,
    "mosaicml/mpt-7b": 6.65,
    "mosaicml/mpt-70b": 64.9,
    "openai-community/gpt2": 0.124,
    "openai-community/gpt2-medium": 0.355,
    "openai-community/gpt2-large": 0.774,
    "openai-community/gpt2-xl": 1.56,
    "distilbert/distilgpt2": 0.082,
    "facebook/opt-350m": 0.331,
    "bigscience/bloom-1b1": 1.065,
    "bigscience/bloom-1b7": 1.722,
    "bigscience/bloom-7b1": 7.069,
    "bigcode/starcoder2-15b": 15.96,
    "deepseek-ai/deepseek-coder-1.3b-base": 1.346,
    "deepseek-ai/DeepSeek-V2-Lite": 15.7,
    "deepseek-ai/DeepSeek-V3": 671.0,
    "allenai/OLMo-1B-hf": 1.18,
    "allenai/OLMo-2-1124-7B": 7.30,
    "allenai/OLMo-2-1124-13B": 13.7,
    "openai/gpt-oss-20b": 20.9,
}
ACTIVE = {
    "Qwen/Qwen3-30B-A3B": 3.3,
    "Qwen/Qwen3-235B-A22B": 22.0,
    "mistralai/Mixtral-8x7B-v0.1": 12.9,
    "microsoft/Phi-3.5-MoE-instruct": 6.6,
    "ibm-granite/granite-3.1-1b-a400m-base": 0.43,
    "ibm-granite/granite-3.1-3b-a800m-base": 0.88,
    "ibm-granite/granite-4.0-h-small": 8.8,
    "deepseek-ai/DeepSeek-V3": 37.5,
}


@pytest.mark.parametrize("name", REGISTRY)
def test_parameters_are_those_that_were_published(name):
    facts = model_facts(name)
    assert facts is not None
    assert facts.shape_known
    published = NOT_IN_THE_NAME.get(name)
    if published is None:
        number, unit = SIZE.findall(name.rsplit("/", 1)[-1])[0]
        published = float(number) * {"m": 1e-3, "b": 1.0}[unit.lower()]
        assert facts.parameters / 1e9 == pytest.approx(published, rel=0.03)
    else:
        assert facts.parameters / 1e9 == pytest.approx(published, rel=0.01)


@pytest.mark.parametrize(("name", "billions"), ACTIVE.items())
def test_active_parameters_are_those_that_were_published(name, billions):
    facts = model_facts(name)
    assert facts is not None
    assert facts.active_parameters / 1e9 == pytest.approx(billions, rel=0.02)


@pytest.mark.parametrize("name", REGISTRY)
def test_every_name_of_the_registry_stands_for_itself(name):
    assert model_name(name) == name
    assert model_name(name.rsplit("/", 1)[-1].upper()) == name


@pytest.mark.parametrize(
    ("said", "name"),
    [
        ("llama3.2-3b", "meta-llama/Llama-3.2-3B"),
        ("unsloth/Llama-3.2-3B-Instruct-bnb-4bit", "meta-llama/Llama-3.2-3B"),
        ("llama3.1-405b", "meta-llama/Llama-3.1-405B"),
        ("meta-llama/Llama-3.1-8B-Instruct-FP8", "meta-llama/Llama-3.1-8B"),
        ("llama3-8b", "meta-llama/Meta-Llama-3-8B"),
        ("TechxGenus/Meta-Llama-3-8B-GPTQ", "meta-llama/Meta-Llama-3-8B"),
        ("NousResearch/Llama-2-70b-hf", "meta-llama/Llama-2-70b-hf"),
        ("TheBloke/Llama-2-70B-GPTQ", "meta-llama/Llama-2-70b-hf"),
        ("llama-7b", "huggyllama/llama-7b"),
        ("mistral-7b-v0.1", "mistralai/Mistral-7B-v0.1"),
        ("mistral-7b", "mistralai/Mistral-7B-v0.1"),
        ("mistralai/Mistral-7B-Instruct-v0.3", "mistralai/Mistral-7B-v0.3"),
        ("TheBloke/Mistral-7B-v0.1-GPTQ", "mistralai/Mistral-7B-v0.1"),
        ("mistral-123b-v2", "mistralai/Mistral-Large-Instruct-2407"),
        ("mixtral-8x7b-instruct-v0.1", "mistralai/Mixtral-8x7B-v0.1"),
        ("granite-3-8b", "ibm-granite/granite-3.0-8b-base"),
        ("granite-3.3-8b", "ibm-granite/granite-3.3-8b-base"),
        ("granite-3.1-3b-a800m-instruct", "ibm-granite/granite-3.1-3b-a800m-base"),
        ("granite-7b-base", "ibm-granite/granite-7b-base"),
        ("granite-13b-v2", "ibm/granite-13b-base-v2"),
        ("granite-20b-v2", "ibm-granite/granite-20b-code-base-8k"),
        ("granite-34b-code-base", "ibm-granite/granite-34b-code-base-8k"),
        ("granite-4.0-h-small", "ibm-granite/granite-4.0-h-small"),
        ("Qwen/Qwen2.5-Coder-7B-Instruct", "Qwen/Qwen2.5-7B"),
        ("qwen2.5_0.5b", "Qwen/Qwen2.5-0.5B"),
        ("gpt2", "openai-community/gpt2"),
        ("gemma-2-9b-it", "google/gemma-2-9b"),
        ("phi-3-mini-128k", "microsoft/Phi-3-mini-128k-instruct"),
        ("/models/SmolLM2-135M-Instruct/", "HuggingFaceTB/SmolLM2-135M"),
    ],
)
def test_a_model_is_known_by_what_people_call_it(said, name):
    assert model_name(said) == name
    assert model_facts(said) == model_facts(name)


@pytest.mark.parametrize(
    "said", ["org/new-7b", "llama-9-8b", "granite-3.1-9b", "", "instruct", "v2"]
)
def test_an_unknown_name_stands_for_itself(said):
    assert model_name(said) == said
