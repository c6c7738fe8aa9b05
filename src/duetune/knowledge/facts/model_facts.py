"""Sizes of a model that is not loaded: from its folder, the registry, or the size in its name."""

from __future__ import annotations

import functools
import math
import re
from pathlib import Path

import msgspec

from duetune.errors import InvalidInput
from duetune.knowledge.facts.model_registry import registered
from duetune.knowledge.facts.weight_files import tensor_shapes

_UNITS = {"m": 1e6, "b": 1e9, "t": 1e12}
# Active parameters in a name: A3B, a800m.
_ACTIVE = re.compile(
    r"(?<![A-Za-z0-9.])a(\d{1,4}(?:\.\d{1,3})?)([mb])(?![A-Za-z0-9])", re.IGNORECASE
)
# 7B, 0.5b, 1.5B, 360M, 8x7B; not the 4 of "4bit" and not the 2 of "v2".
_SIZE = re.compile(
    r"(?<![A-Za-z0-9.])(?:(\d{1,3})x)?(\d{1,4}(?:\.\d{1,3})?)([mbt])(?![A-Za-z0-9])", re.IGNORECASE
)
# The feed-forward part has two matrices in these families and three in all others.
_TWO_MATRICES = frozenset(
    (
        *("bloom", "codegen", "falcon", "gpt2", "gpt_bigcode", "gpt_neo", "gpt_neox", "gptj"),
        *("mpt", "opt", "phi", "starcoder2"),
    )
)
_TIED = frozenset(
    (
        *("bloom", "falcon", "gpt2", "gpt_bigcode", "gpt_neo", "mpt", "opt"),
        *("cohere", "cohere2", "gemma", "gemma2", "gemma3_text", "starcoder2"),
    )
)
_FOUR_NORMS = frozenset(("gemma2", "gemma3_text"))
_LEARNED_POSITIONS = frozenset(("gpt2", "gpt_bigcode", "gpt_neo", "opt"))
_RECURRENT = frozenset(("falcon_mamba", "mamba", "mamba2"))
_ASPECT = 128
_VOCABULARY = 128_000


class ModelFacts(msgspec.Struct, frozen=True):
    """Sizes of a transformer.

    - ``source``: where the sizes come from, in words.
    - ``exact``: whether the parameters were counted in the weight files; otherwise they are
      derived.
    - ``active``: parameters that take part in each token, fewer than all in a mixture of experts
    (0: all of them).
    - ``key_values``: width of the keys, and of the values, over all key-value heads.
    - ``context``: the longest sequence, in tokens.
    - ``shape_known``: False if only the number of parameters is known.
    """

    parameters: int
    hidden: int
    layers: int
    intermediate: int
    vocabulary: int
    key_values: int
    source: str
    exact: bool = False
    context: int | None = None
    heads: int = 0
    active: int = 0
    experts: int = 1
    tied: bool = False
    family: str = ""
    shape_known: bool = True

    @property
    def active_parameters(self) -> int:
        """Return the parameters that take part in each token."""
        return self.active or self.parameters

    @property
    def learned_positions(self) -> bool:
        """Return whether a sequence longer than ``context`` cannot be computed at all."""
        return self.family in _LEARNED_POSITIONS

    @property
    def linear_widths(self) -> int:
        """Return the inputs plus outputs of all linear layers of one block: the parameters that
        LoRA of rank 1 adds to them.
        """
        return self.lora_widths("attention") + 3 * (self.hidden + self.intermediate)

    def lora_widths(self, targets: str) -> int:
        """Return the parameters of one block that LoRA of rank 1 adds to some layers.

        ``targets`` is "all-linear", "attention", or names of layers joined by "+". A layer with a
        name that is not known here counts as one from hidden to hidden.
        """
        if targets == "all-linear":
            return self.linear_widths
        outputs = dict.fromkeys(("k_proj", "v_proj"), self.key_values)
        outputs |= dict.fromkeys(("gate_proj", "up_proj", "down_proj"), self.intermediate)
        outputs |= {"gate_up_proj": 2 * self.intermediate}
        outputs |= {"qkv_proj": self.hidden + 2 * self.key_values}
        names = "q_proj+k_proj+v_proj+o_proj" if targets == "attention" else targets
        return sum(self.hidden + outputs.get(name, self.hidden) for name in names.split("+"))


def model_facts(place: str) -> ModelFacts | None:
    """Return the sizes of a model, or None if nothing is known of it.

    ``place`` is a folder with a ``config.json``, such a file, a name that the registry knows, or a
    name that contains the size. Called for every question about a model.
    """
    path = Path(place)
    if (path / "config.json").is_file():
        return _of_folder(path)
    if path.suffix == ".json" and path.is_file():
        return _of_config(_read(path), f"the file {path.name}")
    return _named(place)


@functools.lru_cache(maxsize=4096)
def _named(place: str) -> ModelFacts | None:
    entry = registered(place)
    if entry is None:
        return _of_name(Path(place).name)
    name, text = entry
    return _of_config(msgspec.json.decode(text, type=_Config), f"the registry entry {name}")


class _Config(msgspec.Struct, frozen=True):
    """The keys of ``config.json`` that are read; their names differ between model families."""

    model_type: str = ""
    hidden_size: int | None = None
    n_embd: int | None = None
    d_model: int | None = None
    num_hidden_layers: int | None = None
    num_layers: int | None = None
    n_layer: int | None = None
    n_layers: int | None = None
    intermediate_size: int | None = None
    n_inner: int | None = None
    ffn_dim: int | None = None
    ffn_hidden_size: int | None = None
    expansion_ratio: float | None = None
    moe_intermediate_size: int | None = None
    num_attention_heads: int | None = None
    num_heads: int | None = None
    n_head: int | None = None
    n_heads: int | None = None
    num_key_value_heads: int | None = None
    num_kv_heads: int | None = None
    multi_query: bool | None = None
    new_decoder_architecture: bool | None = None
    head_dim: int | None = None
    kv_lora_rank: int | None = None
    q_lora_rank: int | None = None
    qk_nope_head_dim: int | None = None
    qk_rope_head_dim: int | None = None
    v_head_dim: int | None = None
    vocab_size: int | None = None
    word_embed_proj_dim: int | None = None
    tie_word_embeddings: bool | None = None
    max_position_embeddings: int | None = None
    n_positions: int | None = None
    max_seq_len: int | None = None
    num_experts: int | None = None
    num_local_experts: int | None = None
    n_routed_experts: int | None = None
    num_experts_per_tok: int | None = None
    n_shared_experts: int | None = None
    shared_intermediate_size: int | None = None
    shared_expert_intermediate_size: int | None = None
    first_k_dense_replace: int | None = None
    decoder_sparse_step: int | None = None
    expert_layer_period: int | None = None
    mlp_only_layers: tuple[int, ...] | None = None
    layer_types: tuple[str, ...] | None = None
    attn_layer_indices: tuple[int, ...] | None = None
    attn_layer_period: int | None = None
    mamba_n_heads: int | None = None
    mamba_d_head: int | str | None = None
    mamba_d_state: int | None = None
    mamba_n_groups: int | None = None
    mamba_expand: float | None = None
    expand: float | None = None
    text_config: _Config | None = None


def _of_folder(folder: Path) -> ModelFacts | None:
    """Return the sizes from ``config.json``, with parameters counted in the weights if they are
    there.
    """
    facts = _of_config(_read(folder / "config.json"), "the config.json in its folder")
    counted = sum(map(math.prod, tensor_shapes(folder).values()))
    if not counted:
        return facts
    source = "the weights in its folder"
    if facts is None:
        return msgspec.structs.replace(usual_model(counted, source), exact=True)
    # Only the share of active parameters is known; it is applied to the counted number.
    active = round(facts.active_parameters / facts.parameters * counted)
    return msgspec.structs.replace(
        facts, parameters=counted, active=active, exact=True, source=source
    )


def _read(path: Path) -> _Config:
    try:
        return msgspec.json.decode(path.read_bytes(), type=_Config)
    except OSError as error:
        raise InvalidInput("model", str(path), f"a readable file ({error.strerror})") from None
    except msgspec.MsgspecError as error:
        raise InvalidInput("model", str(path), f"the configuration of a model ({error})") from None


def _of_config(config: _Config, source: str) -> ModelFacts | None:
    """Return the sizes that a configuration describes, or None if it gives no width or depth."""
    inner = config.text_config
    if inner is not None:
        tied = inner.tie_word_embeddings
        tied = config.tie_word_embeddings if tied is None else tied
        return _of_config(msgspec.structs.replace(inner, tie_word_embeddings=tied), source)
    hidden = config.hidden_size or config.n_embd or config.d_model
    layers = config.num_hidden_layers or config.num_layers or config.n_layer or config.n_layers
    if not hidden or not layers:
        return None
    heads = (
        *(config.num_attention_heads, config.num_heads, config.n_head, config.n_heads),
        max(1, hidden // 64),
    )
    shape = _Shape(config, hidden, layers, next(filter(None, heads)))
    total, active = shape.parameters()
    recurrent = shape.recurrent_layers()
    return ModelFacts(
        parameters=total,
        hidden=hidden,
        layers=layers,
        intermediate=shape.expert_width if shape.experts > 1 else shape.intermediate,
        vocabulary=shape.vocabulary,
        key_values=shape.key_values,
        source=f"{source}, approximate: {recurrent} layers are recurrent" if recurrent else source,
        context=config.max_position_embeddings or config.n_positions or config.max_seq_len,
        heads=shape.heads,
        active=active,
        experts=shape.experts,
        tied=shape.tied,
        family=config.model_type,
    )


class _Shape:
    """Sizes that follow from those in the configuration."""

    def __init__(self, config: _Config, hidden: int, layers: int, heads: int) -> None:
        self.config = config
        self.hidden = hidden
        self.layers = layers
        self.heads = heads
        self.head = config.head_dim or hidden // heads
        self.key_values = self.head * self._key_value_heads()
        self.vocabulary = config.vocab_size or _VOCABULARY
        self.matrices = 2 if config.model_type in _TWO_MATRICES else 3
        experts = (config.num_experts, config.num_local_experts, config.n_routed_experts)
        self.experts = max(1, *(number or 0 for number in experts))
        self.intermediate = self._intermediate()
        self.expert_width = config.moe_intermediate_size or self.intermediate
        tied = config.tie_word_embeddings
        self.tied = config.model_type in _TIED if tied is None else tied

    def parameters(self) -> tuple[int, int]:
        """Return all parameters, and those that take part in each token."""
        config, hidden = self.config, self.hidden
        recurrent = self.recurrent_layers()
        mixing = (self.layers - recurrent) * self._attention() + recurrent * self._recurrent()
        sparse = self._sparse_layers()
        matrix = self.matrices * hidden
        experts = sparse * self.experts * matrix * self.expert_width
        always = sparse * (matrix * self._shared_width() + hidden * self.experts)
        always += (self.layers - sparse) * matrix * self.intermediate
        norms = (4 if config.model_type in _FOUR_NORMS else 2) * hidden * self.layers + hidden
        width = config.word_embed_proj_dim or hidden
        embeddings = self.vocabulary * width * (1 if self.tied else 2)
        embeddings += 2 * width * hidden if width != hidden else 0
        if config.model_type in _LEARNED_POSITIONS:
            embeddings += (config.n_positions or config.max_position_embeddings or 0) * hidden
        rest = mixing + always + norms + embeddings
        chosen = min(config.num_experts_per_tok or 2, self.experts)
        return rest + experts, rest + experts * chosen // self.experts

    def recurrent_layers(self) -> int:
        """Return the number of layers that are recurrent (Mamba) instead of attention."""
        config = self.config
        if config.layer_types is not None:
            return sum("mamba" in each for each in config.layer_types[: self.layers])
        if config.attn_layer_indices is not None:
            return self.layers - len(config.attn_layer_indices)
        if config.attn_layer_period:
            return self.layers - self.layers // config.attn_layer_period
        return self.layers if config.model_type in _RECURRENT else 0

    def _key_value_heads(self) -> int:
        config = self.config
        if config.num_key_value_heads or not config.multi_query:
            return config.num_key_value_heads or config.num_kv_heads or self.heads
        grouped = config.num_kv_heads if config.new_decoder_architecture else None
        return grouped or 1

    def _intermediate(self) -> int:
        config = self.config
        if config.shared_intermediate_size and not config.num_local_experts:
            return config.shared_intermediate_size
        named = (
            *(config.intermediate_size, config.n_inner, config.ffn_dim, config.ffn_hidden_size),
            round((config.expansion_ratio or 4) * self.hidden),
        )
        return next(filter(None, named))

    def _attention(self) -> int:
        """Return the parameters of the attention part of one layer."""
        config, hidden = self.config, self.hidden
        if not config.kv_lora_rank:
            return 2 * hidden * self.head * self.heads + 2 * hidden * self.key_values
        # DeepSeek's models keep keys and values compressed.
        rotated = config.qk_rope_head_dim or 0
        plain = config.qk_nope_head_dim or self.head
        value = config.v_head_dim or self.head
        wide = self.heads * (plain + rotated)
        rank = config.q_lora_rank
        queries = rank * (hidden + wide) if rank else hidden * wide
        compressed = hidden * (config.kv_lora_rank + rotated)
        expanded = config.kv_lora_rank * self.heads * (plain + value)
        return queries + compressed + expanded + self.heads * value * hidden

    def _recurrent(self) -> int:
        """Return the parameters of one Mamba layer; it is Mamba 2 if the configuration gives
        heads.
        """
        config, hidden = self.config, self.hidden
        heads = config.mamba_n_heads or 0
        size = config.mamba_d_head
        width = round((config.mamba_expand or config.expand or 2) * hidden)
        if heads and isinstance(size, int):
            width = heads * size
        state = 2 * (config.mamba_n_groups or 1) * (config.mamba_d_state or 0)
        return hidden * (2 * width + state + heads) + width * hidden

    def _sparse_layers(self) -> int:
        """Return the number of layers that have experts."""
        config = self.config
        if self.experts == 1:
            return 0
        after = self.layers - (config.first_k_dense_replace or 0)
        step = config.decoder_sparse_step or config.expert_layer_period or 1
        return max(0, after // step - len(config.mlp_only_layers or ()))

    def _shared_width(self) -> int:
        """Return the width of the experts that every token passes."""
        config = self.config
        named = config.shared_intermediate_size or config.shared_expert_intermediate_size
        return named or (config.n_shared_experts or 0) * self.expert_width


def _of_name(name: str) -> ModelFacts | None:
    """Return sizes from a number in the name, such as 7B, with the usual shape of that size."""
    found = _SIZE.findall(name.replace("_", "-"))
    if not found:
        return None
    experts, number, unit = found[0]
    parameters = round(int(experts or 1) * float(number) * _UNITS[unit.lower()])
    if not 10**5 <= parameters <= 10**14:
        return None
    facts = usual_model(parameters, "the size in its name", int(experts or 1))
    part = _ACTIVE.search(name.replace("_", "-"))
    active = round(float(part[1]) * _UNITS[part[2].lower()]) if part else 0
    return msgspec.structs.replace(facts, active=active if active < parameters else 0)


def usual_model(parameters: float, source: str, experts: int = 1) -> ModelFacts:
    """Return the usual shape of a model with this many parameters: P = 12 L h^2 with h = 128 L."""
    layers = max(2, round((parameters / experts / (12 * _ASPECT**2)) ** (1 / 3)))
    hidden = _ASPECT * layers
    return ModelFacts(
        parameters=round(parameters),
        hidden=hidden,
        layers=layers,
        intermediate=3 * hidden,
        vocabulary=_VOCABULARY,
        key_values=hidden // 4,
        source=source,
        heads=layers,
        experts=experts,
        shape_known=False,
    )
