"""Creates a tiny Llama model and its tokenizer, for demonstrations and tests."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path


def build_tiny_model(
    folder: Path,
    *,
    hidden: int = 192,
    layers: int = 4,
    heads: int = 4,
    positions: int = 2048,
    seed: int | None = None,
) -> Path:
    """Write a Llama of 1.8 million parameters over bytes to ``folder`` for ``from_pretrained``.

    Without a ``seed`` no weights are written; a worker then draws them with the task's seed.
    """
    import torch  # noqa: PLC0415 - slow to import
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers  # noqa: PLC0415
    from transformers import (  # noqa: PLC0415
        LlamaConfig,
        LlamaForCausalLM,
        PreTrainedTokenizerFast,
    )

    special = ["<pad>", "<s>", "</s>"]
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {token: place for place, token in enumerate([*special, *alphabet])}
    backend = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = decoders.ByteLevel()
    padding, begin, end = special
    tokenizer = PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]
        tokenizer_object=backend, pad_token=padding, bos_token=begin, eos_token=end
    )
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save_pretrained(folder)
    config = LlamaConfig(
        vocab_size=len(vocabulary),
        hidden_size=hidden,
        intermediate_size=hidden * 8 // 3,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=heads,
        max_position_embeddings=positions,
        tie_word_embeddings=False,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
    )
    if seed is None:
        config.architectures = ["LlamaForCausalLM"]
        config.save_pretrained(folder)
        return folder
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = LlamaForCausalLM(config)
        model.save_pretrained(folder)
    return folder
