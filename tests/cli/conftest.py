"""A small real store with three sessions, two of which share a prefix; and the command line to look at it."""

import json
import os

import pytest
from click.testing import CliRunner

import kvlake
from kvlake.cli import smollm
from kvlake.cli.main import main
from kvlake.tiers.tier import Block

NAMESPACE = b"n" * 16
BLOCK_TOKENS = 16
BLOCK_BYTES = 8192

COMMON = list(range(32))
SESSIONS = {
    "alice": ("default", COMMON + [1] * 32),
    "bob": ("team", COMMON + [2] * 40),
    "007": ("team", [5] * 20),
}
"""Name -> tenant and tokens. `alice` and `bob` share two blocks, which bob found there."""


def put_session(store, name, tenant, tokens):
    keys = kvlake.chain_keys(NAMESPACE, tokens, BLOCK_TOKENS)
    store.put(
        [
            Block(key, parent, depth, os.urandom(BLOCK_BYTES), NAMESPACE[:8], store.tenant_digest(tenant))
            for depth, (parent, key) in enumerate(zip([bytes(16), *keys], keys, strict=False))
        ]
    )
    store.session(name, tenant=tenant).turn(keys, len(tokens))


def open_owned(path):
    return kvlake.open_store(path, memory_bytes="1 MiB", disk_bytes="32 MiB")


@pytest.fixture
def store(tmp_path, monkeypatch):
    """The store's directory; nobody has it open."""
    for variable in [name for name in os.environ if name.startswith("KVLAKE_")]:
        monkeypatch.delenv(variable)
    path = tmp_path / "store"
    with open_owned(path) as opened:
        for name, (tenant, tokens) in SESSIONS.items():
            put_session(opened, name, tenant, tokens)
    return path


@pytest.fixture
def owner(store):
    """The same store, open in its owner's hands."""
    with open_owned(store) as opened:
        yield opened


@pytest.fixture
def run():
    """Run `kvlake` with these arguments; asserts the exit code."""

    def call(*arguments, code=0, **options):
        result = CliRunner().invoke(main, [str(each) for each in arguments], **options)
        assert result.exit_code == code, result.output
        return result

    return call


@pytest.fixture
def run_json(run):
    def call(*arguments, code=0):
        return json.loads(run(*arguments, "--json", code=code).stdout)

    return call


class Letters:
    """A tokenizer of bytes, with the methods that the commands and an engine ask of one."""

    def get_vocab(self):
        return {chr(byte): byte for byte in range(256)}

    def __call__(self, text, truncation, max_length):
        return {"input_ids": list(text.encode()[:max_length])}

    def decode(self, ids, skip_special_tokens=False, **options):
        return "".join(chr(int(each)) if 32 <= int(each) < 127 else chr(97 + int(each) % 26) for each in ids)

    def apply_chat_template(self, messages, add_generation_prompt, return_dict):
        text = "".join(f"<{each['role']}>{each['content']}\n" for each in messages) + "<assistant>"
        return list(text.encode())


@pytest.fixture
def tiny(monkeypatch):
    """A random model in the place of the real one: what it says is noise, what it remembers is not."""
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=256, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=4096, bos_token_id=None, eos_token_id=None, pad_token_id=0,
    )  # fmt: skip
    model = transformers.LlamaForCausalLM(config).eval()
    monkeypatch.setattr(smollm, "load", lambda folder, note: (model, Letters()))
    return model
