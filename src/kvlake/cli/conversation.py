"""What has been said so far -> the tokens that a model is asked to go on from."""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


@dataclass(slots=True)
class Conversation:
    """Messages in the order in which they were said. Each prompt begins with all of the one before it."""

    messages: list[dict[str, str]] = field(default_factory=list)

    def say(self, role: str, text: str) -> None:
        """Add a message of `system`, `user` or `assistant`."""
        self.messages.append({"role": role, "content": text})

    def prompt(self, tokenizer: "PreTrainedTokenizerBase") -> list[int]:
        """Token ids of it all in the model's own template, up to where the answer begins."""
        # As a list: since Transformers 5 the default is a dict of it and a mask.
        ids: list[int] = tokenizer.apply_chat_template(self.messages, add_generation_prompt=True, return_dict=False)
        return ids
