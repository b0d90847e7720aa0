"""What must never meet in a store: other weights, types, kernels, salts, tenants."""

import pytest
import torch

B = 16
GREEDY = {"max_new_tokens": 20, "do_sample": False, "pad_token_id": 0}


def nudge(model):
    with torch.no_grad():
        model.model.layers[2].mlp.up_proj.weight[3, 5] += 0.5
    return model


@pytest.mark.parametrize(
    "other",
    [
        lambda tiny: {"model": nudge(tiny(fresh=True))},
        lambda tiny: {"model": tiny(seed=1)},
        lambda tiny: {"model": tiny(dtype=torch.bfloat16)},
        lambda tiny: {"model": tiny("multihead")},
        lambda tiny: {"model": tiny(attention="eager")},
        lambda tiny: {"salt": b"private"},
        lambda tiny: {"tenant": "other"},
    ],
    ids=["a weight", "weights", "dtype", "heads", "attention", "salt", "tenant"],
)
def test_nothing_is_shared_with(engine, open_at, tiny, prompt, other):
    store = open_at()
    engine(store).generate(prompt(70), **GREEDY)
    assert engine(store).generate(prompt(70), **GREEDY).cached_tokens == 64
    stranger = engine(store, **other(tiny)).generate(prompt(70), **GREEDY)
    assert (stranger.cached_tokens, stranger.new_blocks) == (0, 5)


def test_tenants_may_share_under_one_salt(engine, open_at, prompt):
    store = open_at()
    engine(store, tenant="one", salt=b"both").generate(prompt(70), **GREEDY)
    assert engine(store, tenant="two", salt=b"both").generate(prompt(70), **GREEDY).cached_tokens == 64


def to_half(model):
    model.to(torch.bfloat16)


def to_eager(model):
    model.set_attn_implementation("eager")


@pytest.mark.parametrize("change", [nudge, to_half, to_eager])
def test_a_model_changed_in_place_starts_anew(engine, tiny, prompt, change):
    model = tiny(fresh=True)
    talk = engine(model=model)
    first = talk.generate(prompt(70), session="chat", **GREEDY)
    assert talk.device_bytes() > 0
    change(model)
    answer = talk.generate(first.sequences, session="chat", **GREEDY)
    assert (answer.source, answer.cached_tokens, answer.new_blocks) == ("none", 0, 109 // B)
    mask = torch.ones_like(first.sequences)
    assert torch.equal(answer.sequences, model.generate(first.sequences, attention_mask=mask, **GREEDY))


def test_a_session_of_another_tenant_is_refused_before_any_work(engine, open_at, prompt):
    store = open_at()
    engine(store, tenant="one").generate(prompt(70), session="chat", **GREEDY)
    other = engine(store, tenant="two")
    with pytest.raises(ValueError, match="session 'chat' is another tenant's"):
        other.generate(prompt(70), session="chat", **GREEDY)
    assert other.counters["requests"] == 0


def test_blocks_belong_to_the_engines_tenant(engine, open_at, prompt):
    store = open_at()
    engine(store, tenant="one").generate(prompt(70), session="chat", **GREEDY)
    (tier,) = store.tiers()
    records = list(tier.records())
    assert {record.tenant for record in records} == {store.tenant_digest("one")}
    assert sorted(record.depth for record in records) == list(range(5))
    assert store.sessions("one")[0].blocks == 5
