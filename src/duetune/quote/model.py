"""What is known of a model before it is loaded: from its folder, or from its name."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path

import msgspec

from duetune.errors import InvalidInput

_UNITS = {"m": 1e6, "b": 1e9, "t": 1e12}
# 7B, 0.5b, 1.5B, 360M, 8x7B; not the 4 of "4bit" and not the 2 of "v2".
_SIZE = re.compile(
    r"(?<![A-Za-z0-9.])(?:(\d{1,3})x)?(\d{1,4}(?:\.\d{1,3})?)([mbt])(?![A-Za-z0-9])", re.IGNORECASE
)
# Of these families the feed-forward part has two matrices; of all others three.
_TWO_MATRICES = frozenset(
    (
        *("bloom", "codegen", "falcon", "gpt2", "gpt_bigcode", "gpt_neo", "gpt_neox", "gptj"),
        *("mpt", "opt", "phi", "starcoder2"),
    )
)
_TIED = frozenset(
    (
        *("bloom", "falcon", "gpt2", "gpt_bigcode", "gpt_neo", "mpt", "opt"),
        *("gemma", "gemma2", "gemma3_text"),
    )
)
_ASPECT = 128
_VOCABULARY = 128_000


class ModelFacts(msgspec.Struct, frozen=True):
    """Sizes of a transformer. ``source`` says where they are from; ``exact`` whether the number of
    parameters is counted and not derived.
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

    @property
    def linear_widths(self) -> int:
        """Inputs and outputs of all linear layers of one block: rank 1 of LoRA on all of them."""
        attention = 4 * self.hidden + 2 * (self.hidden + self.key_values)
        return attention + 3 * (self.hidden + self.intermediate)


def model_facts(place: str) -> ModelFacts | None:
    """Of a folder with a ``config.json``, else by a size in the name; None: nothing is known."""
    folder = Path(place)
    if (folder / "config.json").is_file():
        return _of_folder(folder)
    return _of_name(folder.name)


class _Config(msgspec.Struct, frozen=True):
    """What is read of ``config.json``; names differ from family to family."""

    model_type: str = ""
    hidden_size: int | None = None
    n_embd: int | None = None
    d_model: int | None = None
    num_hidden_layers: int | None = None
    n_layer: int | None = None
    n_layers: int | None = None
    intermediate_size: int | None = None
    n_inner: int | None = None
    ffn_dim: int | None = None
    moe_intermediate_size: int | None = None
    num_attention_heads: int | None = None
    n_head: int | None = None
    n_heads: int | None = None
    num_key_value_heads: int | None = None
    head_dim: int | None = None
    vocab_size: int | None = None
    tie_word_embeddings: bool | None = None
    max_position_embeddings: int | None = None
    n_positions: int | None = None
    num_experts: int | None = None
    num_local_experts: int | None = None
    n_routed_experts: int | None = None
    text_config: _Config | None = None


def _of_folder(folder: Path) -> ModelFacts | None:
    path = folder / "config.json"
    try:
        config = msgspec.json.decode(path.read_bytes(), type=_Config)
    except OSError as error:
        raise InvalidInput("model", str(path), f"a readable file ({error.strerror})") from None
    except msgspec.MsgspecError as error:
        raise InvalidInput("model", str(path), f"the configuration of a model ({error})") from None
    facts = _of_config(config if config.text_config is None else config.text_config)
    counted = _counted(folder)
    if counted is None:
        return facts
    source = "the weights in its folder"
    facts = facts or usual_model(counted, source)
    return msgspec.structs.replace(facts, parameters=counted, exact=True, source=source)


def _of_config(config: _Config) -> ModelFacts | None:
    hidden = config.hidden_size or config.n_embd or config.d_model
    layers = config.num_hidden_layers or config.n_layer or config.n_layers
    if not hidden or not layers:
        return None
    heads = config.num_attention_heads or config.n_head or config.n_heads or max(1, hidden // 64)
    head = config.head_dim or hidden // heads
    key_values = head * (config.num_key_value_heads or heads)
    inner = config.intermediate_size or config.n_inner or config.ffn_dim or 4 * hidden
    vocabulary = config.vocab_size or _VOCABULARY
    matrices = 2 if config.model_type in _TWO_MATRICES else 3
    experts = config.num_experts or config.num_local_experts or config.n_routed_experts or 1
    expert = (config.moe_intermediate_size or inner) if experts > 1 else inner
    attention = 2 * hidden * head * heads + 2 * hidden * key_values
    block = attention + experts * matrices * hidden * expert + 2 * hidden
    tied = config.tie_word_embeddings
    if tied is None:
        tied = config.model_type in _TIED
    embeddings = vocabulary * hidden * (1 if tied else 2)
    context = config.max_position_embeddings or config.n_positions
    return ModelFacts(
        parameters=layers * block + embeddings + hidden,
        hidden=hidden,
        layers=layers,
        intermediate=inner if experts == 1 else expert,
        vocabulary=vocabulary,
        key_values=key_values,
        source="the config.json in its folder",
        context=context,
    )


def _counted(folder: Path) -> int | None:
    """The parameters in the folder's safetensors files, by their headers alone."""
    total = 0
    for path in sorted(folder.glob("*.safetensors")):
        try:
            with path.open("rb") as file:
                length = int.from_bytes(file.read(8), "little")
                if not 0 < length <= 100_000_000:
                    return None
                header = json.loads(file.read(length))
            total += sum(
                math.prod(tensor["shape"])
                for name, tensor in header.items()
                if name != "__metadata__"
            )
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return None
    return total or None


def _of_name(name: str) -> ModelFacts | None:
    """A size in the name, and the shape that models of this size usually have."""
    found = _SIZE.findall(name.replace("_", "-"))
    if not found:
        return None
    experts, number, unit = found[0]
    parameters = round(int(experts or 1) * float(number) * _UNITS[unit.lower()])
    if not 10**5 <= parameters <= 10**14:
        return None
    return usual_model(parameters, "the size in its name", int(experts or 1))


def usual_model(parameters: float, source: str, experts: int = 1) -> ModelFacts:
    """The shape that models of this size usually have: P = 12 L h^2 with h = 128 L."""
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
    )
