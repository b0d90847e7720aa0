"""Sessions in a store, without a model: a block is any bytes under a key that its tokens give it.

python examples/01_sessions.py
"""

import os
import tempfile

import kvlake

BLOCK_TOKENS = 64
BLOCK_BYTES = 256 << 10

# Says which model's bytes these are; an engine's adapter fills it in for you.
NAMESPACE = kvlake.Namespace(
    weights="none", tokenizer="none", revision="1", adapter="", geometry="made up", dtype="uint8", rope="",
    layout="random bytes", layout_version=1, block_tokens=BLOCK_TOKENS, engine="example",
)  # fmt: skip


def answer(store, name, tokens):
    """What an engine does in a turn: look what is there, compute the rest, put it, note the turn."""
    keys = kvlake.chain_keys(NAMESPACE.digest, tokens, BLOCK_TOKENS)
    present = store.match(keys)
    new = [
        kvlake.Block(keys[at], keys[at - 1] if at else bytes(16), at, os.urandom(BLOCK_BYTES))
        for at in range(present, len(keys))
    ]
    store.put(new)
    store.session(name).turn(keys, len(tokens))
    print(f"{name}: {present} of {len(keys)} blocks were there, {len(new)} computed")
    return keys


with tempfile.TemporaryDirectory() as folder:
    system_prompt = list(range(256))
    question = [7] * 300

    with kvlake.open_store(folder, memory_bytes="32 MiB", disk_bytes="256 MiB") as store:
        answer(store, "alice", system_prompt + question)
        # Bob's prompt starts as Alice's does: what is shared is neither computed nor held twice.
        answer(store, "bob", system_prompt + [8] * 200)
        answer(store, "alice", system_prompt + question + [9] * 150)

        store.session("alice").idle()
        print("idle:", store.session("alice").describe().bytes_by_tier)

    # A new process would do the same: sessions are on the disk, and resume() fetches them ahead of the turn.
    with kvlake.open_store(folder, memory_bytes="32 MiB", disk_bytes="256 MiB") as store:
        alice = store.find_session("alice")
        print("resumed:", alice.resume().result(), "blocks in memory:", alice)

        keys = kvlake.chain_keys(NAMESPACE.digest, system_prompt + question, BLOCK_TOKENS)
        buffers = [bytearray(BLOCK_BYTES) for _ in keys]
        print("get:", {outcome.name for outcome in store.get(keys, buffers)})

        print("deleted:", alice.delete())
        print("left:", [info.id for info in store.sessions()])
