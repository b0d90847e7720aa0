"""Generation that remembers: a prompt -> `model.generate` with the longest stored prefix already in its cache.

What a turn computes, of the prompt and of the answer, is cut into blocks and put into the store; the next turn, of this
session or of any that starts alike, loads it instead of computing it. A fault of the store costs time, never a request.
"""

import logging
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from threading import Lock
from typing import Any

import torch
from transformers import DynamicCache, PreTrainedModel, PreTrainedTokenizerBase

from kvlake.adapters.transformers.blocks import (
    BlockLayout,
    cache_argument,
    export_blocks,
    exportable,
    forget,
    import_blocks,
    learn_layout,
    new_cache,
)
from kvlake.adapters.transformers.live import Live, LiveCaches, give_back_heap
from kvlake.adapters.transformers.model import check_model, model_stamp, namespace_of
from kvlake.adapters.transformers.request import FirstToken, check_request, one_sequence
from kvlake.base.clock import Clock, SystemClock
from kvlake.base.errors import ConfigError, KvlakeError, SessionNotFoundError
from kvlake.keys.block import NO_PARENT, BlockKey, chain_keys
from kvlake.keys.namespace import Namespace
from kvlake.store.store import Session, Store
from kvlake.tiers.tier import Block, Get, Put, aligned_buffer

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSettings:
    """How an engine uses its store. `salt` isolates what one tenant may share with another; None means by tenant."""

    block_tokens: int = 64
    tenant: str = "default"
    salt: bytes | None = None
    device_sessions: int = 1
    """Sessions whose cache stays on the device between turns."""
    timeout_s: float | None = None
    """Longest wait for stored blocks; None leaves it to the store."""
    clock: Clock = field(default_factory=SystemClock)

    def __post_init__(self) -> None:
        if self.block_tokens < 1:
            raise ConfigError(f"block_tokens must be at least 1, not {self.block_tokens}")
        if self.device_sessions < 0:
            raise ConfigError(f"device_sessions must be 0 or more, not {self.device_sessions}")
        if not self.tenant:
            raise ConfigError("tenant is empty; leave it out for 'default'")


@dataclass(frozen=True, slots=True, kw_only=True)
class Generation:
    """What `generate` gives back: the answer, and what the store spared it."""

    sequences: torch.Tensor
    """[1, tokens]: the prompt and the answer, as from `model.generate`."""
    output: Any
    """What `model.generate` returned: `sequences`, or its own record with `return_dict_in_generate=True`."""
    prompt_tokens: int
    cached_tokens: int
    """Prompt tokens whose keys and values were not computed."""
    source: str
    """Where those came from: `device` (the session's live cache), `store`, or `none`."""
    loaded_bytes: int
    new_blocks: int
    """Blocks that the store took in."""
    first_token_s: float
    """From the call to the first token, loading included."""
    load_s: float


@dataclass(frozen=True, slots=True)
class _Start:
    """A cache to go on from, and how many of the prompt's tokens it holds."""

    cache: DynamicCache
    tokens: int = 0
    source: str = "none"
    loaded_bytes: int = 0


class Engine:
    """One model and one store. Calls to one engine come one after the other; a store may serve many engines."""

    def __init__(
        self,
        model: PreTrainedModel,
        store: Store,
        tokenizer: PreTrainedTokenizerBase | None = None,
        **settings: Any,
    ) -> None:
        """`settings` are the fields of EngineSettings. Raises UnsupportedModelError for a cache we cannot cut."""
        unknown = set(settings) - set(EngineSettings.__dataclass_fields__)
        if unknown:
            known = ", ".join(EngineSettings.__dataclass_fields__)
            raise ConfigError(f"unknown engine setting {min(unknown)!r}; the settings are {known}")
        check_model(model)
        self.settings = EngineSettings(**settings)
        self.counters: Counter[str] = Counter()
        self._counters_lock = Lock()
        self._model, self._store, self._tokenizer = model, store, tokenizer
        self._study_model()
        self._live = LiveCaches(self.settings.device_sessions)
        if self.settings.device_sessions:
            store.on_idle(self._rest)

    def __repr__(self) -> str:
        return f"<Engine {type(self._model).__name__}, {self.layout.block_nbytes} B/block, {self._live!r}>"

    def generate(
        self, input_ids: torch.Tensor | Sequence[int], *, session: str | None = None, **generate_kwargs: Any
    ) -> Generation:
        """`model.generate(input_ids, **generate_kwargs)`, with what the store holds of the prompt not computed again.

        `input_ids` is the whole conversation so far, one sequence. Raises ConfigError for what cannot be served, and
        ValueError for another tenant's session; a fault of the store is counted in `counters` and costs time only.
        """
        clock, began_s = self.settings.clock, self.settings.clock.monotonic()
        ids = one_sequence(input_ids).to(self._model.device)
        check_request(self._model, ids.shape[1], generate_kwargs)
        self._follow_model()
        prompt: list[int] = ids[0].tolist()
        opened = self._open(session) if session is not None else None
        start = self._begin(prompt, session)
        load_s = clock.monotonic() - began_s
        first = FirstToken(clock)
        # A mask, or Transformers would take pad tokens in the prompt for padding, which is not in a block's key.
        arguments = {"attention_mask": torch.ones_like(ids), **generate_kwargs}
        # A stopping criterion is called right after a token is drawn; a logits processor would be just before.
        arguments["stopping_criteria"] = [first, *(generate_kwargs.get("stopping_criteria") or ())]
        arguments[cache_argument(self._model)] = start.cache
        output = self._model.generate(ids, **arguments)
        sequences: torch.Tensor = output if isinstance(output, torch.Tensor) else output.sequences
        new_blocks = self._finish(sequences[0].tolist(), start.cache, opened)
        self._count(requests=1, prompt_tokens=len(prompt), cached_tokens=start.tokens)
        return Generation(
            sequences=sequences,
            output=output,
            prompt_tokens=len(prompt),
            cached_tokens=start.tokens,
            source=start.source,
            loaded_bytes=start.loaded_bytes,
            new_blocks=new_blocks,
            first_token_s=(first.at_s if first.at_s is not None else clock.monotonic()) - began_s,
            load_s=load_s,
        )

    def idle(self, session: str) -> None:
        """The session rests: free its live cache; the store keeps its blocks and may demote them."""
        with self._tolerate("session"):
            self._store.find_session(session).idle()
        self._rest(session)

    def device_bytes(self) -> int:
        """Bytes of keys and values held on the device for the sessions in use."""
        return self._live.nbytes()

    def keys(self, tokens: Sequence[int]) -> list[BlockKey]:
        """Keys of the whole blocks of `tokens`, as this engine names them."""
        salt = self.settings.salt if self.settings.salt is not None else self.settings.tenant.encode()
        return chain_keys(self.namespace.digest, tokens, self.settings.block_tokens, salt=salt)

    def _rest(self, session: str) -> None:
        """Drop a session's live cache, and have the process give up what it held."""
        self._live.drop(session)
        if self._model.device.type == "cpu":
            give_back_heap()

    def _study_model(self) -> None:
        self._stamp = model_stamp(self._model)
        self.layout: BlockLayout = learn_layout(self._model, self.settings.block_tokens)
        self.namespace: Namespace = namespace_of(self._model, self.layout, self._tokenizer)

    def _follow_model(self) -> None:
        """Another namespace from here on if weights, their type or place, the adapter or the kernel were changed."""
        if model_stamp(self._model) != self._stamp:
            self._live.clear()
            self._study_model()

    def _open(self, session: str) -> Session | None:
        """The session in the store, made if it is new; None where the store cannot say."""
        with self._tolerate("session"):
            try:
                self._store.find_session(session)
            except SessionNotFoundError:
                # Deleted by its owner: what the device still holds of it must not live on.
                self._live.drop(session)
            return self._store.session(session, tenant=self.settings.tenant, namespace=self.namespace.digest[:8])
        return None

    def _begin(self, prompt: list[int], session: str | None) -> _Start:
        """The session's live cache where the prompt goes on from it, else the longest stored prefix, else nothing."""
        live = self._live.take(session, prompt) if session is not None else None
        if live is not None:
            return _Start(live.cache, len(live.tokens), "device")
        start = None
        # The last token is always computed: its logits are what the first new token is drawn from.
        keys = self.keys(prompt[:-1])
        with self._tolerate("load"):
            start = self._load(keys)
        return start or _Start(new_cache(self._model))

    def _load(self, keys: list[BlockKey]) -> _Start | None:
        """A cache filled with the leading blocks that the store returns in time and whole; None if there are none."""
        present = self._store.match(keys)
        if not present:
            return None
        size = self.layout.block_nbytes
        buffer = aligned_buffer(present * size)
        views = [buffer[at : at + size] for at in range(0, len(buffer), size)]
        outcomes = self._store.get(keys[:present], views, timeout_s=self.settings.timeout_s)
        hits = next((at for at, outcome in enumerate(outcomes) if outcome is not Get.HIT), present)
        self._count(loaded_blocks=hits, missed_blocks=present - hits)
        if not hits:
            return None
        cache = new_cache(self._model)
        # The bytes are copied out and the buffer is dropped: after a timeout a late read may still write to it.
        import_blocks(self.layout, cache, buffer[: hits * size])
        return _Start(cache, hits * self.settings.block_tokens, "store", hits * size)

    def _finish(self, tokens: list[int], cache: DynamicCache, session: Session | None) -> int:
        """Save the new whole blocks, note the session's turn, keep its cache live; returns the blocks taken in."""
        # The last token was drawn and not computed; only the cache knows what it holds.
        held = min(layer.get_seq_length() for layer in cache.layers)
        computed = tokens[:held]
        keys = self.keys(computed)
        stored = 0
        with self._tolerate("save"):
            stored = self._save(keys, cache)
        if session is None:
            return stored
        with self._tolerate("session"):
            session.turn(keys, len(computed))
        # A cache ahead of its tokens (an answer cut short) would put the next turn at the wrong positions.
        if self.settings.device_sessions and held == len(computed):
            forget(self.layout, cache, len(keys) * self.settings.block_tokens)
            self._live.hold(session.id, Live(tuple(computed), cache))
        return stored

    def _save(self, keys: list[BlockKey], cache: DynamicCache) -> int:
        """Put the blocks that the store lacks; returns how many it took in."""
        # From what the store lacks and not from the last turn on: what was evicted meanwhile comes back.
        missing = range(self._store.match(keys), len(keys))
        ready = exportable(self.layout, cache)
        if missing.start < ready.start or missing.stop > ready.stop:
            # A sliding layer no longer has these tokens; without them the blocks after would never be matched either.
            self._count(unexportable_blocks=len(missing))
            return 0
        tenant = self._store.tenant_digest(self.settings.tenant)
        pieces = export_blocks(self.layout, cache, missing)
        blocks = [
            Block(keys[at], keys[at - 1] if at else NO_PARENT, at, data, self.namespace.digest[:8], tenant)
            for at, data in zip(missing, pieces, strict=True)
        ]
        outcomes = self._store.put(blocks) if blocks else []
        self._count(**{f"{outcome.value}_blocks": outcomes.count(outcome) for outcome in set(outcomes)})
        return outcomes.count(Put.STORED)

    @contextmanager
    def _tolerate(self, what: str) -> Iterator[None]:
        """A fault of the store ends here: counted, logged the first time, and the request goes on without it."""
        try:
            yield
        except (KvlakeError, OSError) as error:
            self._count(**{f"{what}_errors": 1})
            if self.counters[f"{what}_errors"] == 1:
                _log.warning("kvlake %s failed, generation goes on without it: %s", what, error)

    def _count(self, **amounts: int) -> None:
        with self._counters_lock:
            self.counters.update(amounts)


def generate(
    model: PreTrainedModel,
    store: Store,
    input_ids: torch.Tensor | Sequence[int],
    *,
    session: str | None = None,
    **generate_kwargs: Any,
) -> Generation:
    """One request through the store, nothing kept on the device after it. For many turns, keep an Engine."""
    # The engine ends with this call, so nothing of it may stay on the device.
    engine = Engine(model, store, device_sessions=0)
    return engine.generate(input_ids, session=session, **generate_kwargs)
