"""What was said in the conversations of one store: named files, readable by their owner only."""

import json
import os
import re
from pathlib import Path

from kvlake.base.errors import ConfigError
from kvlake.cli.conversation import Conversation

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_VERSION = 1


class Transcripts:
    """One JSON file per conversation in a folder beside the store: the store holds keys and values, and no text."""

    def __init__(self, store: Path) -> None:
        self._folder = store.with_name(store.name + "-chat")

    def load(self, name: str) -> Conversation:
        """The conversation of that name, empty if there is none. Raises ConfigError for a file that is not ours."""
        path = self._path(name)
        try:
            kept = json.loads(path.read_text(encoding="utf-8"))
            version, messages = kept["version"], kept["messages"]
            conversation = Conversation([{"role": each["role"], "content": each["content"]} for each in messages])
        except FileNotFoundError:
            return Conversation()
        except (ValueError, KeyError, TypeError) as error:
            raise ConfigError(f"{path} cannot be read as a transcript ({error!r}); mend or delete it") from error
        if version != _VERSION:
            raise ConfigError(f"{path} is of version {version}, and this kvlake reads version {_VERSION}")
        return conversation

    def save(self, name: str, conversation: Conversation) -> None:
        """Write the conversation, all of it or nothing."""
        path = self._path(name)
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        draft = path.with_name(path.name + ".new")
        body = json.dumps({"version": _VERSION, "messages": conversation.messages}, ensure_ascii=False, indent=1)
        # Private from its first byte on, whatever the umask, and whatever a draft left from before allowed.
        draft.unlink(missing_ok=True)
        with open(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as file:
            file.write(body)
            file.flush()
            os.fsync(file.fileno())
        draft.replace(path)

    def delete(self, name: str) -> None:
        """Forget the conversation."""
        self._path(name).unlink(missing_ok=True)

    def _path(self, name: str) -> Path:
        if not _NAME.fullmatch(name):
            raise ConfigError(f"a session is named with letters, digits, dots, dashes and underscores, not {name!r}")
        return self._folder / f"{name}.json"
