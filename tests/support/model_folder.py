"""A model's folder without weights, made in milliseconds and without torch."""

from __future__ import annotations

import json

from tokenizers import Tokenizer, models, pre_tokenizers

LAYERS = ("q_proj", "k_proj", "v_proj", "o_proj")
TEMPLATE = (
    "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)


def model_folder(folder, *, template=None, tokenizer=True, named=LAYERS, **config):
    """A Llama over bytes; ``named`` are the layers that the headers of its weights name."""
    folder.mkdir(parents=True)
    fields = {
        "model_type": "llama",
        "architectures": ["LlamaForCausalLM"],
        "vocab_size": 300,
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "num_key_value_heads": 2,
        "max_position_embeddings": 256,
    }
    (folder / "config.json").write_text(json.dumps(fields | config))
    if tokenizer:
        alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
        words = {word: place for place, word in enumerate(["<s>", "</s>", *alphabet])}
        backend = Tokenizer(models.BPE(vocab=words, merges=[]))
        backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        backend.save(str(folder / "tokenizer.json"))
        special = {"bos_token": "<s>", "eos_token": {"content": "</s>"}}
        about = special | ({"chat_template": template} if template else {})
        (folder / "tokenizer_config.json").write_text(json.dumps(about))
    if named:
        header = {
            f"model.layers.0.self_attn.{name}.weight": {
                "dtype": "F32",
                "shape": [32, 32],
                "data_offsets": [0, 0],
            }
            for name in named
        }
        text = json.dumps(header).encode()
        content = len(text).to_bytes(8, "little") + text
        (folder / "model.safetensors").write_bytes(content)
    return folder


def rows_file(path, rows):
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return path
