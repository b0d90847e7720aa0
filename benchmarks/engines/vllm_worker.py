"""The process that runs vLLM 0.32's file tier: commands on stdin, one JSON line each on stdout.

Only the tier's I/O functions and its thread pool are loaded, with empty parents in place of the rest of vLLM, and are
called as its manager calls them: 16 read and 16 write threads, O_DIRECT where the folder takes it, one job for
all the blocks that one request loads, one job for each batch that a request stores.
"""

import argparse
import functools
import importlib
import json
import logging
import sys
import types
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from engines.engine import (
    WARM_BLOCKS,
    Sample,
    chain,
    digest,
    empty_dir,
    fill,
    page_buffer,
    split,
    sync_filesystem,
    timed,
)

_THREADS = 16
_TIERING = "vllm.v1.kv_offload.tiering"


def load_tier(root: Path) -> tuple[Any, Any]:
    """vLLM's `io` and `thread_pool` modules, their parents being empty packages at the same paths."""
    parts = f"{_TIERING}.fs".split(".")
    for depth in range(1, len(parts) + 1):
        package = types.ModuleType(".".join(parts[:depth]))
        package.__path__ = [str(root.joinpath(*parts[:depth]))]
        sys.modules[package.__name__] = package
    words: dict[str, dict[str, object]] = {
        "vllm.logger": {"init_logger": logging.getLogger},
        f"{_TIERING}.base": {"JobId": int},
    }
    for name, values in words.items():
        module = types.ModuleType(name)
        vars(module).update(values)
        sys.modules[name] = module
    return importlib.import_module(f"{_TIERING}.fs.io"), importlib.import_module(f"{_TIERING}.fs.thread_pool")


class FileTier:
    """The blocks of one session in vLLM's memory region, and its file tier below."""

    def __init__(self, given: argparse.Namespace) -> None:
        self.io, pool = load_tier(given.root)
        self.block_bytes, self.count = given.block_bytes, given.count
        self.put_blocks, self.get_blocks = given.put_blocks, given.get_blocks
        self.directory = empty_dir(given.dir)
        self.direct = bool(self.io.probe_o_direct(str(self.directory)))
        self.pool = pool.DualQueueThreadPool(_THREADS, _THREADS)
        self.region = page_buffer(self.count * self.block_bytes)
        fill(self.region)
        self.blocks = split(self.region, self.block_bytes, self.count)
        self.digests = [digest(block) for block in self.blocks]
        self.paths = [self.path(key) for key in chain(self.count)]
        self.jobs = 0

    def path(self, key: bytes) -> str:
        name = key.hex()
        return f"{self.directory}/{name[:3]}/{name[3:5]}_g0/{name}.bin"

    def submit(self, enqueue: Callable[..., None], work: Callable[..., None], indices: Sequence[int]) -> None:
        paths = [self.paths[index] for index in indices]
        offsets = [index * self.block_bytes for index in indices]
        task = functools.partial(work, paths, self.region, offsets, self.block_bytes, self.direct)
        self.jobs += 1
        enqueue(self.jobs, 1, [task])

    def settle(self) -> None:
        self.pool.wait_idle()
        if not all(success for _, success, _ in self.pool.get_finished()):
            raise OSError("a job of vLLM's file tier failed; its log line is above")

    def write(self) -> tuple[Sample, float]:
        """Every batch a store job, all queued; then one syncfs, whose share is the second value."""
        empty_dir(self.directory)
        warm = [self.path(bytes([index]) * 16) for index in range(min(WARM_BLOCKS, self.count))]
        offsets = [index * self.block_bytes for index in range(len(warm))]
        self.io.batch_store_block(warm, self.region, offsets, self.block_bytes, self.direct)
        sync_filesystem(self.directory)
        shares = []

        def action() -> None:
            for start in range(0, self.count, self.put_blocks):
                indices = range(start, min(start + self.put_blocks, self.count))
                self.submit(self.pool.enqueue_store, self.io.batch_store_block, indices)
            self.settle()
            shares.append(timed(lambda: sync_filesystem(self.directory), 1).seconds)

        return timed(action, self.count * self.block_bytes), shares[0]

    def read(self, order: Sequence[int], per_job: int) -> tuple[Sample, float]:
        for block in self.blocks:
            block[:8] = block[-8:] = bytes(8)

        def action() -> None:
            for start in range(0, self.count, per_job):
                self.submit(self.pool.enqueue_load, self.io.batch_load_block, order[start : start + per_job])
            self.settle()

        sample = timed(action, self.count * self.block_bytes)
        if any(digest(block) != want for block, want in zip(self.blocks, self.digests, strict=True)):
            raise OSError("vLLM's file tier returned other bytes than it was given")
        return sample, 0.0

    def do(self, command: dict[str, Any]) -> tuple[Sample, float]:
        if command["do"] == "write":
            return self.write()
        return self.read(command["order"], self.count if command["one_job"] else self.get_blocks)


def main() -> None:
    parser = argparse.ArgumentParser()
    for name in ("--root", "--dir"):
        parser.add_argument(name, type=Path, required=True)
    for name in ("--block-bytes", "--count", "--put-blocks", "--get-blocks"):
        parser.add_argument(name, type=int, required=True)
    tier = FileTier(parser.parse_args())
    helper = "C helper" if getattr(tier.io, "_HAS_FSIO_C", False) else "its Python path, C helper not loadable"
    print(json.dumps({"helper": helper, "direct": tier.direct}), flush=True)
    for line in sys.stdin:
        sample, sync_s = tier.do(json.loads(line))
        reply = {"seconds": sample.seconds, "cpu_s": sample.cpu_s, "nbytes": sample.nbytes, "sync_s": sync_s}
        print(json.dumps(reply), flush=True)
    tier.pool.shutdown()


if __name__ == "__main__":
    main()
