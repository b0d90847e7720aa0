"""Blocks of a Transformers cache: bytes out, bytes in, equal to what the engine itself would hold."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import cache_utils
from transformers.cache_utils import Cache, DynamicLayer, DynamicSlidingWindowLayer

from kvlake.adapters.transformers.blocks import (
    BlockLayout,
    LayerLayout,
    cache_nbytes,
    check_layers,
    export_blocks,
    exportable,
    forget,
    import_blocks,
    learn_layout,
)
from kvlake.base.errors import ConfigError, UnsupportedModelError


def empty(layout):
    layers = [
        DynamicSlidingWindowLayer(sliding_window=spec.window) if spec.window else DynamicLayer()
        for spec in layout.layers
    ]
    cache = Cache(layers=layers)
    cache.activate_past_recording()
    return cache


def states(layout, tokens, seed=0):
    """Keys and values of each layer; fewer tokens are a prefix of more."""
    generator = torch.Generator().manual_seed(seed)
    return [
        tuple(
            torch.randn((1, spec.heads, 128, dim), generator=generator).to(layout.dtype)[:, :, :tokens]
            for dim in (spec.k_dim, spec.v_dim)
        )
        for spec in layout.layers
    ]


def filled(layout, tokens, turns=1):
    """A cache that has seen `tokens` tokens in `turns` forward passes, and what it was given."""
    given_states, cache = states(layout, tokens), empty(layout)
    step = -(-tokens // turns)
    for start in range(0, tokens, step):
        for index, (keys, values) in enumerate(given_states):
            cache.update(keys[:, :, start : start + step], values[:, :, start : start + step], index)
    return cache, given_states


def joined(blocks):
    return memoryview(bytearray(b"".join(blocks)))


def same(left, right):
    """Equal to the bit, NaN and the sign of zero included."""
    return left.shape == right.shape and torch.equal(left.view(torch.uint8), right.view(torch.uint8))


layer_layouts = st.builds(
    LayerLayout,
    heads=st.integers(1, 3),
    k_dim=st.sampled_from([1, 4, 8]),
    v_dim=st.sampled_from([2, 8]),
    window=st.sampled_from([0, 0, 2, 5, 16, 40]),
)
layouts = st.builds(
    BlockLayout,
    layers=st.lists(layer_layouts, min_size=1, max_size=4).map(tuple),
    dtype=st.sampled_from([torch.float32, torch.bfloat16, torch.float16]),
    block_tokens=st.integers(1, 17),
)
ONE_OF_EACH = BlockLayout(
    layers=(LayerLayout(heads=2, k_dim=4, v_dim=4), LayerLayout(heads=1, k_dim=4, v_dim=2, window=10)),
    dtype=torch.float32,
    block_tokens=4,
)


@settings(max_examples=80, deadline=None)
@given(layouts, st.integers(1, 90), st.integers(1, 4))
def test_block_bytes_are_each_layers_keys_then_values(layout, tokens, turns):
    cache, given_states = filled(layout, tokens, turns)
    whole = tokens // layout.block_tokens
    assert exportable(layout, cache) == range(whole)
    for index, block in enumerate(export_blocks(layout, cache, range(whole))):
        span = slice(index * layout.block_tokens, (index + 1) * layout.block_tokens)
        parts = [tensor[0, :, span].contiguous() for pair in given_states for tensor in pair]
        expected = b"".join(part.view(torch.uint8).numpy().tobytes() for part in parts)
        assert len(block) == layout.block_nbytes
        assert block == expected


@settings(max_examples=80, deadline=None)
@given(layouts, st.integers(1, 90), st.data())
def test_an_imported_cache_goes_on_as_the_engines_own(layout, tokens, data):
    cache, _ = filled(layout, tokens)
    blocks = data.draw(st.integers(0, tokens // layout.block_tokens))
    kept, _ = filled(layout, blocks * layout.block_tokens) if blocks else (empty(layout), None)
    loaded = empty(layout)
    if blocks:
        import_blocks(layout, loaded, joined(export_blocks(layout, cache, range(blocks))))
    for query in (1, 3, 50):
        for index, (keys, values) in enumerate(states(layout, query, seed=query)):
            assert loaded.get_mask_sizes(query, index) == kept.get_mask_sizes(query, index)
            assert loaded.layers[index].get_seq_length() == kept.layers[index].get_seq_length()
            mine, theirs = loaded.update(keys, values, index), kept.update(keys, values, index)
            assert all(same(*pair) for pair in zip(mine, theirs, strict=True))


@settings(max_examples=60, deadline=None)
@given(layouts, st.integers(1, 60), st.integers(0, 60), st.integers(1, 30))
def test_what_is_forgotten_is_never_missed(layout, tokens, saved, more):
    lean, _ = filled(layout, tokens)
    full, _ = filled(layout, tokens)
    saved = min(saved, tokens) // layout.block_tokens * layout.block_tokens
    forget(layout, lean, saved)
    assert exportable(layout, lean).start <= saved // layout.block_tokens
    for index, (keys, values) in enumerate(states(layout, more, seed=9)):
        assert lean.get_mask_sizes(more, index) == full.get_mask_sizes(more, index)
        mine, theirs = lean.update(keys, values, index), full.update(keys, values, index)
        assert all(same(*pair) for pair in zip(mine, theirs, strict=True))
    new = range(saved // layout.block_tokens, (tokens + more) // layout.block_tokens)
    assert export_blocks(layout, lean, new) == export_blocks(layout, full, new)


def test_forgetting_gives_the_memory_back():
    cache, _ = filled(ONE_OF_EACH, 80)
    before = cache_nbytes(cache)
    forget(ONE_OF_EACH, cache, 80)
    full, sliding = cache.layers
    assert full.keys.shape[-2] == 80
    assert sliding.keys.shape[-2] == 9
    assert sliding.keys.untyped_storage().nbytes() == sliding.keys.nbytes
    assert cache_nbytes(cache) == before - (80 - 9) * (4 + 2) * 4
    assert cache_nbytes(empty(ONE_OF_EACH)) == 0


def test_a_block_whose_tokens_are_gone_is_not_exported():
    cache, _ = filled(ONE_OF_EACH, 40)
    forget(ONE_OF_EACH, cache, 40)
    assert exportable(ONE_OF_EACH, cache) == range(8, 10)
    with pytest.raises(ValueError, match=r"range\(7, 10\) is not within range\(8, 10\)"):
        export_blocks(ONE_OF_EACH, cache, range(7, 10))
    assert len(export_blocks(ONE_OF_EACH, cache, range(8, 10))) == 2
    assert export_blocks(ONE_OF_EACH, cache, range(0)) == []


def test_a_cache_of_another_type_exports_nothing():
    cache, _ = filled(ONE_OF_EACH, 40)
    cache.layers[0].values = cache.layers[0].values.to(torch.bfloat16)
    assert exportable(ONE_OF_EACH, cache) == range(0)


def test_a_late_write_to_the_buffer_does_not_reach_the_cache():
    one_head = BlockLayout(
        layers=(LayerLayout(heads=1, k_dim=4, v_dim=4), LayerLayout(heads=1, k_dim=4, v_dim=4, window=5)),
        dtype=torch.float32,
        block_tokens=4,
    )
    cache, given_states = filled(one_head, 4)
    buffer, loaded = joined(export_blocks(one_head, cache, range(1))), empty(one_head)
    import_blocks(one_head, loaded, buffer)
    buffer[:] = bytes(len(buffer))
    for layer, (keys, values) in zip(loaded.layers, given_states, strict=True):
        assert same(layer.keys, keys)
        assert same(layer.values, values)


def test_blocks_lie_on_pages_for_direct_io():
    layout = BlockLayout(layers=(LayerLayout(heads=2, k_dim=32, v_dim=32),), dtype=torch.float32, block_tokens=16)
    cache, _ = filled(layout, 48)
    for block in export_blocks(layout, cache, range(3)):
        assert torch.frombuffer(block, dtype=torch.uint8).data_ptr() % 4096 == 0


@pytest.mark.parametrize(
    ("kind", "heads", "windows"),
    [
        ("grouped", 2, (0, 0, 0, 0)),
        ("multihead", 4, (0, 0, 0, 0)),
        ("sliding", 2, (24, 24, 24, 24)),
        ("mixed", 2, (24, 0, 24, 0)),
    ],
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_layout_is_learnt_from_the_model(tiny, kind, heads, windows, dtype):
    layout = learn_layout(tiny(kind, dtype), 16)
    assert [(each.heads, each.k_dim, each.v_dim) for each in layout.layers] == [(heads, 8, 8)] * 4
    assert tuple(each.window for each in layout.layers) == windows
    assert layout.dtype == dtype
    assert layout.block_nbytes == 4 * 2 * heads * 8 * 16 * dtype.itemsize
    assert layout.describe().split()[0] == f"{'sliding' if windows[0] else 'full'}:{windows[0]}:{heads}x8+8"


def test_a_layout_refuses_a_block_of_no_tokens():
    with pytest.raises(ConfigError, match="block_tokens must be at least 1, not 0"):
        BlockLayout(layers=(), dtype=torch.float32, block_tokens=0)


@pytest.mark.parametrize(
    ("layer", "kind"),
    [
        (lambda: cache_utils.StaticLayer(max_cache_len=8), "StaticLayer"),
        (lambda: cache_utils.StaticSlidingWindowLayer(max_cache_len=8, sliding_window=4), "StaticSliding"),
        (lambda: cache_utils.LinearAttentionLayer(), "LinearAttentionLayer"),
        (lambda: cache_utils.LinearAttentionAndFullAttentionLayer(), "LinearAttentionAndFull"),
        (lambda: cache_utils.DynamicIndexedLayer(), "DynamicIndexedLayer"),
        (lambda: type("QuantizedLayer", (DynamicLayer,), {})(), "QuantizedLayer"),
        (lambda: object(), "object"),
    ],
)
def test_a_layer_that_holds_more_than_keys_and_values_is_refused(layer, kind):
    with pytest.raises(UnsupportedModelError, match=rf"cache of Odd cannot .*1 x {kind}.*without kvlake"):
        check_layers([DynamicLayer(), layer()], "Odd")


def test_a_cache_without_layers_or_with_no_window_is_refused():
    with pytest.raises(UnsupportedModelError, match="no layer at all"):
        check_layers([], "Odd")
    with pytest.raises(UnsupportedModelError, match="shorter than two tokens"):
        check_layers([DynamicSlidingWindowLayer(sliding_window=1)], "Odd")
    check_layers([DynamicSlidingWindowLayer(sliding_window=2), DynamicLayer()], "Even")
