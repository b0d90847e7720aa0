"""What may be asked of `generate`: a sequence whose KV depends on its tokens alone, else a clear error."""

from collections.abc import Sequence
from typing import Any

import torch
from transformers import PreTrainedModel, StoppingCriteria

from kvlake.base.clock import Clock
from kvlake.base.errors import ConfigError, UnsupportedModelError

_OURS = ("past_key_values", "cache")

# Tensors that do not enter the forward pass; any other (pixels, embeddings, positions) is not in a block's key.
_HARMLESS_TENSORS = frozenset(
    ("bos_token_id", "eos_token_id", "pad_token_id", "negative_prompt_ids", "negative_prompt_attention_mask")
)


def one_sequence(input_ids: torch.Tensor | Sequence[int]) -> torch.Tensor:
    """`input_ids` as a tensor [1, tokens]; raises ConfigError for a batch or an empty prompt."""
    ids = torch.as_tensor(input_ids, dtype=torch.long)
    ids = ids.unsqueeze(0) if ids.ndim == 1 else ids
    if ids.ndim != 2 or ids.shape[0] != 1:
        raise ConfigError(f"generate takes one sequence at a time, not input_ids of shape {tuple(ids.shape)}")
    if not ids.shape[1]:
        raise ConfigError("input_ids is empty; a prompt has at least one token")
    return ids


def check_request(model: PreTrainedModel, tokens: int, asked: dict[str, Any]) -> None:
    """Raise unless the KV of this request is that of its tokens, in order, and nothing else."""
    ours = [name for name in _OURS if asked.get(name) is not None]
    if ours:
        raise ConfigError(f"{ours[0]} was given, but kvlake makes the cache; call model.generate for your own")
    kind = _setting(model, asked, "cache_implementation")
    if kind is not None:
        raise UnsupportedModelError(f"cache_implementation={kind!r} cannot be cut into blocks; leave it out")
    for name, only in (("num_beams", 1), ("num_return_sequences", 1), ("use_cache", True)):
        if (value := _setting(model, asked, name)) not in (None, only):
            raise ConfigError(f"{name}={value} is not served; use {name}={only}, or call model.generate")
    mask = asked.get("attention_mask")
    if mask is not None and (tuple(mask.shape) != (1, tokens) or not bool(mask.all())):
        raise ConfigError(f"attention_mask must be ones of shape (1, {tokens}): send no padding")
    for name, value in asked.items():
        if isinstance(value, torch.Tensor) and name != "attention_mask" and name not in _HARMLESS_TENSORS:
            raise ConfigError(f"{name} enters the KV but not a block's key; call model.generate instead")
    if model.training:
        raise ConfigError("the model is in training mode, dropout would enter the stored KV; call model.eval()")
    if torch.is_autocast_enabled(model.device.type):
        raise ConfigError("autocast changes the stored KV; load the model in the type you want instead")


def _setting(model: PreTrainedModel, asked: dict[str, Any], name: str) -> Any:
    """The value that `model.generate` would take: from the call, else its generation_config, else the model's."""
    configs = (asked.get("generation_config"), model.generation_config)
    values = (asked.get(name), *(getattr(config, name, None) for config in configs))
    return next((value for value in values if value is not None), None)


class FirstToken(StoppingCriteria):
    """Notes when the first token was chosen; stops nothing, so that it stands beside the caller's own criteria."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.at_s: float | None = None

    def __call__(self, input_ids: torch.LongTensor, scores: object, **kwargs: object) -> torch.BoolTensor:
        if self.at_s is None:
            # Reading the token waits for the device, so that the time is the token's and not the launch's.
            input_ids[0, -1].item()
            self.at_s = self._clock.monotonic()
        return torch.zeros(input_ids.shape[0], dtype=torch.bool, device=input_ids.device)
