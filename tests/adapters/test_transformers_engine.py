"""Generation through a store: equal to the engine's own, from every source, through every fault."""

import logging

import pytest
import torch
from transformers import LogitsProcessor, StoppingCriteria

from kvlake.adapters.transformers import Engine, generate
from kvlake.adapters.transformers.blocks import cache_argument, new_cache
from kvlake.base.errors import ConfigError, StoreClosedError
from kvlake.tiers.tier import Get, Put

B = 16
GREEDY = {"max_new_tokens": 20, "do_sample": False, "pad_token_id": 0}
DETAILED = {**GREEDY, "return_dict_in_generate": True, "output_logits": True}


def cache_of(output):
    return output.get("cache") or output.get("past_key_values")


def again(model, ids, cache=None, **asked):
    """What Transformers alone answers."""
    given = {cache_argument(model): cache} if cache is not None else {}
    return model.generate(ids, attention_mask=torch.ones_like(ids), **given, **{**GREEDY, **asked})


def cut(cache, tokens):
    """Roll a recorded cache back to its first `tokens` tokens."""
    cache.crop(tokens - cache.get_seq_length())
    return cache


def assert_same_states(left, right):
    for ours, theirs in zip(left.layers, right.layers, strict=True):
        assert ours.get_seq_length() == theirs.get_seq_length()
        shared = min(ours.keys.shape[-2], theirs.keys.shape[-2])
        assert torch.equal(ours.keys[:, :, -shared:], theirs.keys[:, :, -shared:])
        assert torch.equal(ours.values[:, :, -shared:], theirs.values[:, :, -shared:])


@pytest.mark.parametrize("source", ["memory", "disk"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("kind", ["grouped", "multihead", "sliding", "mixed"])
def test_a_resumed_session_equals_one_that_never_left(tiny, prompt, open_at, kind, dtype, source):
    model, store = tiny(kind, dtype), open_at("kv" if source == "disk" else None)
    first = Engine(model, store, block_tokens=B).generate(prompt(70), session="chat", **GREEDY)
    if source == "disk":
        store = open_at("kv")
        assert store.usage()["memory"].blocks == 0
    question = torch.cat([first.sequences, prompt(21, seed=2)], dim=1)
    resumed = Engine(model, store, block_tokens=B).generate(question, session="chat", **DETAILED)

    # 89 of the first turn's 90 tokens were computed: 5 blocks, and the rest is computed again.
    assert (resumed.source, resumed.prompt_tokens, resumed.cached_tokens) == ("store", 111, 80)
    kept = new_cache(model)
    again(model, prompt(70), kept)
    stayed = again(model, question, cut(kept, 80), **DETAILED)
    for ours, theirs in zip(resumed.output.logits, stayed.logits, strict=True):
        assert torch.equal(ours, theirs)
    assert_same_states(cache_of(resumed.output), kept)
    assert torch.equal(resumed.sequences, stayed.sequences)
    if dtype == torch.float32:
        assert torch.equal(resumed.sequences, again(model, question))


def test_a_first_turn_is_what_transformers_alone_answers(engine, tiny, prompt):
    first = engine().generate(prompt(70), **GREEDY)
    assert torch.equal(first.sequences, again(tiny(), prompt(70)))
    assert first.output is first.sequences
    assert (first.source, first.cached_tokens, first.loaded_bytes, first.new_blocks) == ("none", 0, 0, 5)
    assert 0 < first.load_s < first.first_token_s


@pytest.mark.parametrize("kind", ["grouped", "mixed"])
def test_a_session_in_use_stays_on_the_device(engine, tiny, prompt, faulty, open_at, kind):
    reads = []
    store = open_at()
    watched = faulty(store, get=lambda keys, into, **more: reads.append(keys) or store.get(keys, into, **more))
    talk = engine(watched, tiny(kind))
    said, sources = prompt(70), []
    for turn in range(4):
        answer = talk.generate(said, session="chat", **GREEDY)
        sources.append((answer.source, answer.cached_tokens))
        assert torch.equal(answer.sequences, again(tiny(kind), said))
        said = torch.cat([answer.sequences, prompt(9, seed=turn)], dim=1)
    assert sources == [("none", 0), ("device", 89), ("device", 118), ("device", 147)]
    assert reads == []
    # Every whole block of all four turns is in the store, those of the answers too.
    assert store.match(talk.keys(said[0, :-9].tolist())) == 176 // B
    assert talk.counters["stored_blocks"] == 176 // B


def test_a_prompt_that_changed_the_past_goes_through_the_store(engine, tiny, prompt):
    talk = engine()
    first = talk.generate(prompt(70), session="chat", **GREEDY)
    edited = first.sequences.clone()
    edited[0, 50] = (edited[0, 50] + 1) % 97
    answer = talk.generate(edited, session="chat", **GREEDY)
    assert (answer.source, answer.cached_tokens) == ("store", 48)
    assert torch.equal(answer.sequences, again(tiny(), edited))


def test_a_prompt_no_longer_than_the_past_goes_through_the_store(engine, tiny, prompt):
    talk = engine()
    past = talk.generate(prompt(70), session="chat", **GREEDY).sequences[:, :-1]
    answer = talk.generate(past, session="chat", **GREEDY)
    assert (answer.source, answer.cached_tokens) == ("store", 80)
    assert torch.equal(answer.sequences, again(tiny(), past))


def test_a_cache_ahead_of_its_tokens_is_not_kept(engine, tiny, prompt):
    model = tiny(fresh=True)
    whole = model.generate
    model.generate = lambda *given, **named: whole(*given, **named)[:, :-6]
    talk = engine(model=model)
    first = talk.generate(prompt(70), session="chat", **GREEDY)
    assert (talk.device_bytes(), first.new_blocks) == (0, 84 // B)


def test_an_answer_asked_again_computes_at_least_one_token(engine, tiny, prompt):
    talk = engine()
    for tokens, cached in ((64, 0), (64, 48), (65, 64), (17, 16), (16, 0), (1, 0)):
        answer = talk.generate(prompt(65)[:, :tokens], **GREEDY)
        assert answer.cached_tokens == cached
        assert torch.equal(answer.sequences, again(tiny(), prompt(65)[:, :tokens]))


def test_sessions_share_what_they_begin_with(engine, prompt):
    talk = engine()
    talk.generate(prompt(70), session="one", **GREEDY)
    other = talk.generate(torch.cat([prompt(70)[:, :50], prompt(30, seed=3)], dim=1), session="two", **GREEDY)
    assert (other.source, other.cached_tokens) == ("store", 48)
    assert other.loaded_bytes == 3 * talk.layout.block_nbytes


def test_the_device_holds_as_many_sessions_as_it_is_told(engine, prompt):
    talk = engine(device_sessions=2)
    bytes_per_token = talk.layout.block_nbytes // B
    for number, name in enumerate(["one", "two", "three"]):
        talk.generate(prompt(40, seed=number), session=name, **GREEDY)
    assert talk.device_bytes() == 2 * 59 * bytes_per_token
    assert "2/2 sessions" in repr(talk)
    talk.idle("three")
    assert talk.device_bytes() == 59 * bytes_per_token
    assert engine(device_sessions=0).device_bytes() == 0


def test_the_store_can_rest_a_session(engine, open_at, prompt):
    store = open_at()
    talk = engine(store)
    talk.generate(prompt(40), session="chat", **GREEDY)
    assert store.session("chat").describe().tokens == 59
    store.session("chat").idle()
    assert talk.device_bytes() == 0
    nothing_kept = engine(store, device_sessions=0)
    nothing_kept.generate(prompt(40), session="chat", **GREEDY)
    assert nothing_kept.device_bytes() == 0


def test_a_deleted_session_leaves_nothing_on_the_device(engine, open_at, tiny, prompt):
    store = open_at()
    talk = engine(store)
    first = talk.generate(prompt(70), session="chat", **GREEDY)
    store.session("chat").delete()
    answer = talk.generate(first.sequences, session="chat", **GREEDY)
    assert (answer.source, answer.new_blocks) == ("none", 109 // B)
    assert torch.equal(answer.sequences, again(tiny(), first.sequences))


def test_a_session_nobody_knows_can_rest(engine):
    talk = engine()
    talk.idle("nobody")
    assert talk.counters["session_errors"] == 1


def test_evicted_blocks_are_put_again_by_a_session_in_use(engine, open_at, prompt):
    store = open_at()
    talk = engine(store)
    first = talk.generate(prompt(70), session="chat", **GREEDY)
    store.evict(talk.keys(first.sequences[0].tolist()))
    longer = torch.cat([first.sequences, prompt(21, seed=2)], dim=1)
    second = talk.generate(longer, session="chat", **GREEDY)
    assert (second.source, second.new_blocks) == ("device", 130 // B)


def test_a_sliding_session_does_not_put_what_it_forgot(engine, open_at, tiny, prompt):
    store = open_at()
    talk = engine(store, tiny("sliding"))
    first = talk.generate(prompt(70), session="chat", **GREEDY)
    store.evict(talk.keys(first.sequences[0].tolist()))
    longer = torch.cat([first.sequences, prompt(21, seed=2)], dim=1)
    second = talk.generate(longer, session="chat", **GREEDY)
    assert (second.source, second.new_blocks) == ("device", 0)
    assert talk.counters["unexportable_blocks"] == 130 // B
    assert torch.equal(second.sequences, again(tiny("sliding"), longer))


def fail(error):
    def method(*_, **__):
        raise error

    return method


def outcomes(*first):
    """A `get` that really reads, then says otherwise of the first blocks."""

    def wrap(store):
        def get(keys, into, *, timeout_s=None):
            said = store.get(keys, into, timeout_s=timeout_s)
            for place, outcome in enumerate(first):
                if outcome is not Get.HIT:
                    into[place][:] = b"\xff" * len(into[place])
            return [*first, *said[len(first) :]]

        return {"get": get}

    return wrap


@pytest.mark.parametrize("error", [StoreClosedError("closed"), OSError(5, "Input/output error")])
@pytest.mark.parametrize(
    ("method", "what"),
    [("match", "load"), ("get", "load"), ("put", "save"), ("match", "save"), ("session", "session")],
)
def test_a_fault_of_the_store_never_fails_a_request(engine, open_at, tiny, prompt, faulty, caplog, method, what, error):
    store = open_at()
    first = engine(store).generate(prompt(70), **GREEDY)
    longer = torch.cat([first.sequences, prompt(21, seed=2)], dim=1)
    talk = engine(faulty(store, **{method: fail(error)}), device_sessions=0)
    with caplog.at_level(logging.WARNING, "kvlake"):
        for _ in range(2):
            answer = talk.generate(longer, session="chat", **GREEDY)
            assert torch.equal(answer.sequences, again(tiny(), longer))
    assert talk.counters[f"{what}_errors"] == 2
    assert len([each for each in caplog.messages if f"kvlake {what} failed" in each]) == 1
    assert answer.source == ("none" if what == "load" or method == "match" else "store")


@pytest.mark.parametrize(
    ("said", "cached"),
    [
        ((Get.HIT, Get.HIT, Get.MISS), 32),
        ((Get.HIT, Get.CORRUPT, Get.HIT, Get.HIT), 16),
        ((Get.HIT, Get.HIT, Get.HIT, Get.TIMEOUT), 48),
        ((Get.ERROR,), 0),
    ],
)
@pytest.mark.parametrize("kind", ["grouped", "sliding"])
def test_only_the_leading_hits_are_used(engine, open_at, tiny, prompt, faulty, kind, said, cached):
    store = open_at()
    first = engine(store, tiny(kind)).generate(prompt(70), **GREEDY)
    longer = torch.cat([first.sequences, prompt(21, seed=2)], dim=1)
    talk = engine(faulty(store, **outcomes(*said)(store)), tiny(kind))
    answer = talk.generate(longer, **GREEDY)
    assert answer.cached_tokens == cached
    assert answer.source == ("store" if cached else "none")
    assert torch.equal(answer.sequences, again(tiny(kind), longer))
    assert talk.counters["missed_blocks"] == 5 - cached // B


def test_a_store_that_takes_nothing_in_is_counted(engine, open_at, prompt, faulty):
    talk = engine(faulty(open_at(), put=lambda blocks, **_: [Put.FULL] * len(blocks)))
    assert talk.generate(prompt(70), **GREEDY).new_blocks == 0
    assert talk.counters["full_blocks"] == 5


class StopAfter(StoppingCriteria):
    def __init__(self, tokens):
        self.tokens = tokens

    def __call__(self, input_ids, scores, **kwargs):
        return torch.full((1,), input_ids.shape[1] >= self.tokens)


class Only(LogitsProcessor):
    """Nothing but one token may be drawn."""

    def __call__(self, input_ids, scores):
        return torch.full_like(scores, -torch.inf).index_fill(1, torch.tensor([7]), 0.0)


class Heard:
    def __init__(self):
        self.tokens = []

    def put(self, value):
        self.tokens += value.flatten().tolist()

    def end(self):
        self.tokens.append("end")


def test_the_callers_own_hooks_work_beside_ours(engine, prompt):
    talk, heard = engine(), Heard()
    asked = {**GREEDY, "stopping_criteria": [StopAfter(73)], "logits_processor": [Only()], "streamer": heard}
    answer = talk.generate(prompt(70), **asked)
    assert answer.sequences[0].tolist() == [*prompt(70)[0].tolist(), 7, 7, 7]
    assert heard.tokens == [*answer.sequences[0].tolist(), "end"]


def test_sampling_draws_the_same_tokens(engine, tiny, prompt):
    talk = engine()
    talk.generate(prompt(70), **GREEDY)
    asked = {"do_sample": True, "temperature": 0.8, "top_k": 20}
    torch.manual_seed(5)
    answer = talk.generate(prompt(70), **{**GREEDY, **asked})
    torch.manual_seed(5)
    assert torch.equal(answer.sequences, again(tiny(), prompt(70), **asked))
    assert answer.cached_tokens == 64


def test_speculation_saves_only_what_was_accepted(engine, tiny, prompt):
    for kind in ("grouped", "sliding"):
        talk = engine(model=tiny(kind))
        repeated = prompt(12).repeat(1, 6)
        answer = talk.generate(repeated, session=kind, prompt_lookup_num_tokens=4, **GREEDY)
        assert torch.equal(answer.sequences, again(tiny(kind), repeated))
        longer = torch.cat([answer.sequences, prompt(9, seed=2)], dim=1)
        assert torch.equal(talk.generate(longer, **GREEDY).sequences, again(tiny(kind), longer))


def test_one_call_without_an_engine(open_at, tiny, prompt):
    store = open_at()
    first = generate(tiny(), store, prompt(70)[0].tolist(), session="chat", **GREEDY)
    second = generate(tiny(), store, first.sequences, session="chat", **GREEDY)
    assert (second.source, second.cached_tokens) == ("store", 64)
    assert torch.equal(second.sequences, again(tiny(), first.sequences))


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"block_tokens": 0}, "block_tokens must be at least 1, not 0"),
        ({"device_sessions": -1}, "device_sessions must be 0 or more, not -1"),
        ({"tenant": ""}, "tenant is empty"),
        ({"blocks_tokens": 16}, "unknown engine setting 'blocks_tokens'; the settings are block_tokens, "),
    ],
)
def test_a_bad_setting_is_named(open_at, tiny, settings, said):
    with pytest.raises(ConfigError, match=said):
        Engine(tiny(), open_at(), **settings)
