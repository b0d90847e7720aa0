"""The identity of a loaded model: everything that must match for its keys and values to be reused -> a Namespace.

Read from the model in memory, never from its name: weights swapped under one path, an adapter switched on or an
attention kernel changed each give another namespace.
"""

import json
from collections.abc import Iterator, Mapping
from hashlib import blake2b
from typing import Any

import torch
import transformers
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from kvlake.adapters.transformers.blocks import LAYOUT, LAYOUT_VERSION, BlockLayout
from kvlake.base.errors import UnsupportedModelError
from kvlake.keys.namespace import Namespace

_SAMPLE_BYTES = 4096

# Settings that do not change keys and values, or that are told elsewhere in the namespace.
_IDLE_SETTINGS = {
    "_name_or_path", "transformers_version", "architectures", "dtype", "torch_dtype", "use_cache", "return_dict",
    "output_attentions", "output_hidden_states", "bos_token_id", "eos_token_id", "pad_token_id",
}  # fmt: skip

# Their frequencies depend on the length of the whole prompt, so equal prefixes do not have equal keys.
_LENGTH_BOUND_ROPE = ("dynamic", "longrope")


def check_model(model: PreTrainedModel) -> None:
    """Raise UnsupportedModelError for a model of which a block of KV is not a function of the tokens before it."""
    name = type(model).__name__
    if model.config.is_encoder_decoder:
        raise UnsupportedModelError(f"{name} is an encoder-decoder; kvlake serves decoder-only models")
    rope = sorted(set(_rope_types(_rope_settings(model))) & set(_LENGTH_BOUND_ROPE))
    if rope:
        raise UnsupportedModelError(
            f"{name} has rope_type {', '.join(rope)}: its keys change with the length of the whole prompt, so a stored "
            "prefix would be wrong in a longer one; load it with rope_type 'default', 'yarn', 'linear' or 'llama3'"
        )
    wanted = getattr(model.generation_config, "cache_implementation", None)
    if wanted is not None:
        raise UnsupportedModelError(
            f"{name} asks for cache_implementation={wanted!r} and kvlake fills a dynamic cache; "
            "set model.generation_config.cache_implementation = None"
        )


def namespace_of(
    model: PreTrainedModel, layout: BlockLayout, tokenizer: PreTrainedTokenizerBase | None = None
) -> Namespace:
    """The namespace of the blocks that `model` makes now."""
    attention = model.config._attn_implementation
    return Namespace(
        weights=weights_digest(model),
        tokenizer=tokenizer_digest(tokenizer) if tokenizer is not None else "",
        adapter=adapter_text(model),
        geometry=f"{layout.describe()} {type(model).__name__} {_config_digest(model)}",
        dtype=str(layout.dtype).removeprefix("torch."),
        rope=json.dumps(_rope_settings(model), sort_keys=True, default=str),
        # Two attention kernels, or a CPU and a GPU, agree only up to rounding.
        layout=f"{LAYOUT}/{attention}/{model.device.type}",
        layout_version=LAYOUT_VERSION,
        block_tokens=layout.block_tokens,
        engine=f"transformers-{transformers.__version__.split('.')[0]}",
    )


def weights_digest(model: PreTrainedModel) -> str:
    """Digest of the weights in memory: each tensor's name, type, shape, a sample of its bytes and a sum of them all.

    The sum sees a change of any single value, wherever it is; it runs where the tensor lies, at memory speed.
    """
    hashed = blake2b(digest_size=16)
    seen: dict[tuple[int, torch.Size], bytes] = {}
    for name, tensor in sorted(model.state_dict().items()):
        if tensor.is_meta:
            raise UnsupportedModelError(
                f"the weights of {type(model).__name__} are not in memory ({name} is on the meta device); "
                "load the model without offloading, or on a larger machine"
            )
        # Tied weights, often the largest, are read once.
        tied = (tensor.data_ptr(), tensor.shape)
        if tied not in seen:
            seen[tied] = _tensor_digest(tensor)
        hashed.update(f"{len(name)}:{name}{tensor.dtype}{tuple(tensor.shape)}".encode() + seen[tied])
    return hashed.hexdigest()


def _tensor_digest(tensor: torch.Tensor) -> bytes:
    raw = tensor.detach().contiguous().view(-1).view(torch.uint8)
    if not raw.numel():
        return b""
    # An odd stride visits every byte position of an element.
    step = (raw.numel() // _SAMPLE_BYTES) | 1
    sample = raw[::step].cpu().numpy().tobytes()
    whole = raw.numel() % 8 == 0 and raw.storage_offset() % 8 == 0
    total = int((raw.view(torch.int64) if whole else raw).sum(dtype=torch.int64))
    return blake2b(sample + total.to_bytes(8, "little", signed=True), digest_size=16).digest()


def tokenizer_digest(tokenizer: PreTrainedTokenizerBase) -> str:
    """Digest of a tokenizer's vocabulary: equal token ids mean equal text."""
    return blake2b(json.dumps(sorted(tokenizer.get_vocab().items())).encode(), digest_size=16).hexdigest()


def adapter_text(model: PreTrainedModel) -> str:
    """The PEFT adapters in force, in order; empty for none. Their weights are in the weights digest."""
    if not getattr(model, "peft_config", None):
        return ""
    active: Any = model.active_adapters
    names = active() if callable(active) else active
    off = sum(getattr(module, "disable_adapters", False) is True for module in model.modules())
    return json.dumps([list(names), off])


def model_stamp(model: PreTrainedModel) -> int:
    """Changes when weights, adapters or the attention kernel were changed in this process; costs a millisecond.

    PyTorch counts in-place writes to a tensor, so a training step or `load_state_dict` is seen without reading weights.
    """
    weights = ((each.data_ptr(), 0 if each.is_inference() else each._version) for each in model.parameters())
    return hash((*weights, adapter_text(model), model.config._attn_implementation))


def _config_digest(model: PreTrainedModel) -> str:
    """Digest of the settings that enter the forward pass beside weights: epsilons, scalings, soft caps, windows."""
    settings = {name: value for name, value in model.config.to_diff_dict().items() if name not in _IDLE_SETTINGS}
    return blake2b(json.dumps(settings, sort_keys=True, default=str).encode(), digest_size=8).hexdigest()


def _rope_settings(model: PreTrainedModel) -> Mapping[str, Any]:
    return getattr(model.config.get_text_config(decoder=True), "rope_parameters", None) or {}


def _rope_types(settings: Mapping[str, Any]) -> Iterator[str]:
    """Every `rope_type` of settings that may be nested, one group per kind of layer."""
    for name, value in settings.items():
        if isinstance(value, Mapping):
            yield from _rope_types(value)
        elif name == "rope_type":
            yield str(value)
