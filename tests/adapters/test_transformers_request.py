"""What a request may be: everything else is refused with the reason and the cure, before any work."""

import pytest
import torch
from transformers import GenerationConfig

from kvlake.adapters.transformers.request import FirstToken, check_request, one_sequence
from kvlake.base.clock import SystemClock
from kvlake.base.errors import ConfigError, UnsupportedModelError


@pytest.mark.parametrize("ids", [[3, 1, 4], torch.tensor([3, 1, 4]), torch.tensor([[3, 1, 4]])])
def test_a_sequence_may_be_a_list_or_a_tensor(ids):
    assert one_sequence(ids).tolist() == [[3, 1, 4]]


@pytest.mark.parametrize(
    ("ids", "said"),
    [
        (torch.zeros((2, 3), dtype=torch.long), r"one sequence at a time, not input_ids of shape \(2, 3\)"),
        (torch.zeros((1, 3, 1), dtype=torch.long), r"shape \(1, 3, 1\)"),
        (torch.zeros((0, 3), dtype=torch.long), r"shape \(0, 3\)"),
        ([], "input_ids is empty"),
    ],
)
def test_a_batch_or_nothing_is_refused(ids, said):
    with pytest.raises(ConfigError, match=said):
        one_sequence(ids)


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"cache": object()}, "cache was given, but kvlake makes the cache"),
        ({"past_key_values": object()}, "past_key_values was given"),
        ({"num_beams": 4}, "num_beams=4 is not served; use num_beams=1"),
        ({"num_return_sequences": 2}, "num_return_sequences=2 is not served"),
        ({"use_cache": False}, "use_cache=False is not served; use use_cache=True"),
        ({"generation_config": GenerationConfig(num_beams=2)}, "num_beams=2"),
        ({"attention_mask": torch.tensor([[0, 1, 1]])}, r"attention_mask must be ones of shape \(1, 3\)"),
        ({"attention_mask": torch.ones((1, 4))}, "attention_mask must be ones"),
        ({"pixel_values": torch.zeros(1)}, "pixel_values enters the KV but not a block's key"),
        ({"position_ids": torch.zeros(1)}, "position_ids enters the KV"),
    ],
)
def test_what_a_key_cannot_tell_is_refused(tiny, asked, said):
    with pytest.raises(ConfigError, match=said):
        check_request(tiny(), 3, asked)


def test_a_cache_that_cannot_be_cut_is_refused(tiny):
    for asked in (
        {"cache_implementation": "static"},
        {"generation_config": GenerationConfig(cache_implementation="quantized")},
    ):
        with pytest.raises(UnsupportedModelError, match=r"cache_implementation='\w+' cannot be cut into blocks"):
            check_request(tiny(), 3, asked)


def test_what_leaves_keys_and_values_alone_is_served(tiny):
    check_request(
        tiny(),
        3,
        {
            "attention_mask": torch.ones((1, 3)),
            "eos_token_id": torch.tensor([2]),
            "num_beams": 1,
            "use_cache": True,
            "temperature": 0.5,
            "generation_config": GenerationConfig(num_beams=1),
        },
    )


def test_dropout_and_autocast_are_refused(tiny):
    model = tiny(fresh=True).train()
    with pytest.raises(ConfigError, match=r"call model\.eval\(\)"):
        check_request(model, 3, {})
    with torch.autocast("cpu"), pytest.raises(ConfigError, match="autocast changes the stored KV"):
        check_request(model.eval(), 3, {})


def test_the_first_token_is_timed_once_and_stops_nothing():
    first = FirstToken(SystemClock())
    assert first.at_s is None
    assert first(torch.tensor([[1, 2]]), None).tolist() == [False]
    at_s = first.at_s
    first(torch.tensor([[1, 2, 3]]), None)
    assert first.at_s == at_s
