"""Tiny models of each kind of attention, random prompts, and a store that can be opened again."""

import copy
import functools

import pytest
import torch
from transformers import AutoModelForCausalLM, Gemma3TextConfig, LlamaConfig, MistralConfig
from transformers.utils import logging

import kvlake
from kvlake.adapters.transformers import Engine

VOCABULARY = 97
WINDOW = 24
SHAPE = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 512,
    "bos_token_id": None,
    "eos_token_id": None,
    "pad_token_id": 0,
}
CONFIGS = {
    "grouped": lambda: LlamaConfig(**SHAPE),
    "multihead": lambda: LlamaConfig(**SHAPE | {"num_key_value_heads": 4}),
    "sliding": lambda: MistralConfig(**SHAPE, sliding_window=WINDOW),
    "mixed": lambda: Gemma3TextConfig(
        **SHAPE, sliding_window=WINDOW, layer_types=["sliding_attention", "full_attention"] * 2
    ),
}


@pytest.fixture(autouse=True, scope="session")
def one_thread():
    # Tiny models gain nothing from more, and threads that spin for each other crawl on a busy machine.
    torch.set_num_threads(1)
    logging.set_verbosity_error()


@functools.cache
def _model(kind, dtype, seed, attention):
    torch.manual_seed(seed)
    model = AutoModelForCausalLM.from_config(CONFIGS[kind](), attn_implementation=attention)
    return model.to(dtype).eval()


@pytest.fixture
def tiny():
    """A random model, the same for the same arguments; a copy that may be spoilt with `fresh`."""

    def make(kind="grouped", dtype=torch.float32, *, seed=0, attention="sdpa", fresh=False):
        model = _model(kind, dtype, seed, attention)
        return copy.deepcopy(model) if fresh else model

    return make


@pytest.fixture
def prompt():
    """Random token ids [1, tokens]."""

    def make(tokens, seed=1):
        generator = torch.Generator().manual_seed(seed)
        return torch.randint(0, VOCABULARY, (1, tokens), generator=generator)

    return make


@pytest.fixture
def open_at(tmp_path):
    """A store in memory alone, or over a folder; one that was open there before is closed first. All are audited."""
    opened = []

    def shut(store):
        assert all(report.ok for report in store.check())
        store.close()

    def make(folder=None):
        path = tmp_path / folder if folder else None
        while path is not None and opened:
            shut(opened.pop())
        opened.append(kvlake.open_store(path, memory_bytes="16 MiB", disk_bytes="64 MiB"))
        return opened[-1]

    yield make
    for store in opened:
        shut(store)


@pytest.fixture
def engine(tiny, open_at):
    """An engine over a tiny model and a store; `over` another store, with other settings."""

    def make(over=None, model=None, **settings):
        store = over if over is not None else open_at()
        return Engine(model if model is not None else tiny(), store, block_tokens=16, **settings)

    return make


class Faulty:
    """A store of which some methods do something else."""

    def __init__(self, store, **instead):
        self._store = store
        self._instead = instead

    def __getattr__(self, name):
        return self._instead.get(name) or getattr(self._store, name)


@pytest.fixture
def faulty():
    return Faulty
