"""The blocks of a Transformers cache: layer tensors -> the bytes of a block, and back, exact to the bit.

Bytes of a block of B tokens: for each layer in order its keys [heads, B, k_dim], then its values [heads, B, v_dim],
each contiguous and in the model's own element type. A layer that slides keeps fewer tokens than the sequence has; it is
made to remember what a turn computes, so that a block holds the keys and values of its own tokens in every layer.
"""

import inspect
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import torch
from transformers import DynamicCache, PreTrainedModel
from transformers.cache_utils import DynamicLayer, DynamicSlidingWindowLayer

from kvlake.base.errors import ConfigError, UnsupportedModelError
from kvlake.tiers.tier import aligned_buffer

LAYOUT = "layers-of-keys-values-heads-tokens-dim"
LAYOUT_VERSION = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerLayout:
    """Shape of what one layer keeps for a token. `window` is 0 for a layer that sees all tokens."""

    heads: int
    k_dim: int
    v_dim: int
    window: int = 0
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))

    @property
    def kind(self) -> str:
        """`full` or `sliding`."""
        return "sliding" if self.window else "full"

    def kept(self, tokens: int) -> int:
        """Tokens that the layer needs of the last `tokens` to go on: the next token sees `window - 1` before it."""
        return min(tokens, self.window - 1) if self.window else tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockLayout:
    """How the bytes of one model's blocks are laid out; learnt from a forward pass, not guessed from a config."""

    layers: tuple[LayerLayout, ...]
    dtype: torch.dtype
    block_tokens: int

    def __post_init__(self) -> None:
        if self.block_tokens < 1:
            raise ConfigError(f"block_tokens must be at least 1, not {self.block_tokens}")

    @property
    def block_nbytes(self) -> int:
        """Bytes of one block."""
        element_bytes: int = self.dtype.itemsize
        per_token = sum(layer.heads * (layer.k_dim + layer.v_dim) for layer in self.layers)
        return per_token * self.block_tokens * element_bytes

    def describe(self) -> str:
        """The layout in words, for a namespace: equal layouts, equal text."""
        return " ".join(f"{each.kind}:{each.window}:{each.heads}x{each.k_dim}+{each.v_dim}" for each in self.layers)

    def pieces(self, flat: torch.Tensor) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """For each layer, the keys and values in `flat` [blocks, elements] as views [blocks, heads, B, dim]."""
        at = 0
        for layer in self.layers:
            views = []
            for dim in (layer.k_dim, layer.v_dim):
                size = layer.heads * self.block_tokens * dim
                views.append(flat[:, at : at + size].view(-1, layer.heads, self.block_tokens, dim))
                at += size
            yield views[0], views[1]


def cache_argument(model: PreTrainedModel) -> str:
    """Name under which `model` takes its cache: Transformers renamed `past_key_values` to `cache` in 5.x."""
    return "cache" if "cache" in inspect.signature(model.forward).parameters else "past_key_values"


def new_cache(model: PreTrainedModel) -> DynamicCache:
    """An empty cache as `model.generate` would make it, that forgets nothing before we have saved it."""
    cache = DynamicCache(config=model.config)
    # Else a sliding layer drops, within one long prefill, tokens whose block was never saved.
    cache.activate_past_recording()
    return cache


def learn_layout(model: PreTrainedModel, block_tokens: int) -> BlockLayout:
    """The layout of `model`'s blocks, from a forward pass over one token.

    Raises UnsupportedModelError where a layer keeps something else than one key and one value per token.
    """
    name = type(model).__name__
    cache = new_cache(model)
    check_layers(cache.layers, name)
    token = torch.zeros((1, 1), dtype=torch.long, device=model.device)
    with torch.no_grad():
        model(input_ids=token, use_cache=True, **{cache_argument(model): cache})
    # Again: some models choose their layers only as they run.
    check_layers(cache.layers, name)
    if any(not layer.is_initialized or layer.get_seq_length() != 1 for layer in cache.layers):
        raise UnsupportedModelError(f"{name} does not keep its keys and values in the cache it is given: {_CURE}")
    dtypes = {tensor.dtype for layer in cache.layers for tensor in (layer.keys, layer.values)}
    if len(dtypes) != 1 or any(layer.keys.shape[1] != layer.values.shape[1] for layer in cache.layers):
        raise UnsupportedModelError(f"{name} keeps keys and values of several types or head counts: {_CURE}")
    layers = tuple(
        LayerLayout(
            heads=layer.keys.shape[1],
            k_dim=layer.keys.shape[3],
            v_dim=layer.values.shape[3],
            window=layer.sliding_window if layer.is_sliding else 0,
            device=layer.keys.device,
        )
        for layer in cache.layers
    )
    return BlockLayout(layers=layers, dtype=dtypes.pop(), block_tokens=block_tokens)


_CURE = "generate with this model without kvlake, or use a model whose attention is full or sliding-window"


def check_layers(layers: Sequence[object], name: str) -> None:
    """Raise UnsupportedModelError unless every layer is one whose states can be cut by token."""
    # Exact types: a subclass (quantized, indexed, hybrid) keeps more than the two tensors that a block holds.
    odd = Counter(type(each).__name__ for each in layers if type(each) not in (DynamicLayer, DynamicSlidingWindowLayer))
    if odd or not layers:
        kinds = ", ".join(f"{count} x {kind}" for kind, count in sorted(odd.items())) or "no layer at all"
        raise UnsupportedModelError(f"the cache of {name} cannot be cut into blocks ({kinds}): {_CURE}")
    if any(getattr(each, "sliding_window", 2) < 2 for each in layers):
        raise UnsupportedModelError(f"{name} has a sliding window shorter than two tokens: {_CURE}")


def exportable(layout: BlockLayout, cache: DynamicCache) -> range:
    """Indexes of the whole blocks of which every layer still has every token."""
    first_token = max(layer.get_seq_length() - layer.keys.shape[-2] for layer in cache.layers)
    last_token = min(layer.get_seq_length() for layer in cache.layers)
    # Cast since (by autocast, say): not the bytes that the namespace promises.
    if any(tensor.dtype != layout.dtype for layer in cache.layers for tensor in (layer.keys, layer.values)):
        return range(0)
    return range(-(-first_token // layout.block_tokens), last_token // layout.block_tokens)


def export_blocks(layout: BlockLayout, cache: DynamicCache, blocks: range) -> list[memoryview]:
    """Bytes of the blocks, each a part of one page-aligned buffer. `blocks` lies within `exportable`."""
    allowed = exportable(layout, cache)
    if blocks and (blocks.start < allowed.start or blocks.stop > allowed.stop):
        raise ValueError(f"{blocks} is not within {allowed}, the blocks that this cache still holds")
    buffer = aligned_buffer(len(blocks) * layout.block_nbytes)
    if not blocks:
        return []
    flat = torch.frombuffer(buffer, dtype=layout.dtype).view(len(blocks), -1)
    for layer, views in zip(cache.layers, layout.pieces(flat), strict=True):
        forgotten = layer.get_seq_length() - layer.keys.shape[-2]
        start = blocks.start * layout.block_tokens - forgotten
        stop = blocks.stop * layout.block_tokens - forgotten
        for tensor, view in zip((layer.keys, layer.values), views, strict=True):
            # [heads, tokens, dim] -> [heads, blocks, B, dim] -> [blocks, heads, B, dim]
            by_block = tensor[0, :, start:stop].unflatten(1, (len(blocks), layout.block_tokens))
            view.copy_(by_block.transpose(0, 1))
    size = layout.block_nbytes
    return [buffer[at : at + size] for at in range(0, len(buffer), size)]


def import_blocks(layout: BlockLayout, cache: DynamicCache, buffer: memoryview) -> None:
    """Fill an empty cache from the blocks in `buffer`, of which it keeps nothing. A sliding layer gets its window."""
    flat = torch.frombuffer(buffer, dtype=layout.dtype).view(len(buffer) // layout.block_nbytes, -1)
    tokens = flat.shape[0] * layout.block_tokens
    for spec, layer, views in zip(layout.layers, cache.layers, layout.pieces(flat), strict=True):
        keys, values = (_last_tokens(view, spec.kept(tokens), spec.device) for view in views)
        # Set, not passed to `update`, which would copy all of it once more.
        layer.lazy_initialization(keys, values)
        layer.keys, layer.values = keys, values
        if spec.window:
            # What the layer has seen, not what it holds: positions and masks follow from it.
            layer.cumulative_length = tokens


def _last_tokens(view: torch.Tensor, tokens: int, device: torch.device) -> torch.Tensor:
    """[blocks, heads, B, dim] -> a new contiguous [1, heads, tokens, dim] of the last `tokens`."""
    blocks, heads, block_tokens, dim = view.shape
    needed = -(-tokens // block_tokens)
    joined = torch.empty((1, heads, needed * block_tokens, dim), dtype=view.dtype, device=device)
    joined.view(heads, needed, block_tokens, dim).copy_(view[blocks - needed :].transpose(0, 1))
    return joined[:, :, needed * block_tokens - tokens :].contiguous()


def forget(layout: BlockLayout, cache: DynamicCache, saved_tokens: int) -> None:
    """Let sliding layers drop what is saved and out of their window, so that a live cache stays small."""
    for spec, layer in zip(layout.layers, cache.layers, strict=True):
        held = layer.keys.shape[-2]
        needed = max(spec.kept(layer.get_seq_length()), layer.get_seq_length() - saved_tokens)
        if spec.window and needed < held:
            # Clones: a slice would keep the whole tensor's memory alive.
            layer.keys = layer.keys[:, :, held - needed :].clone()
            layer.values = layer.values[:, :, held - needed :].clone()


def cache_nbytes(cache: DynamicCache) -> int:
    """Bytes of the keys and values that a cache holds."""
    tensors = (tensor for layer in cache.layers if layer.is_initialized for tensor in (layer.keys, layer.values))
    return sum(tensor.nbytes for tensor in tensors)
