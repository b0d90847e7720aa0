"""Transcripts: private, whole, and found again."""

import json
import os
import stat

import pytest

from kvlake.base.errors import ConfigError
from kvlake.cli.chat.transcript import Transcripts
from kvlake.cli.conversation import Conversation


@pytest.fixture
def transcripts(tmp_path):
    return Transcripts(tmp_path / "store")


@pytest.fixture
def conversation():
    talk = Conversation()
    talk.say("user", "Wie heißt du?")
    talk.say("assistant", "Ich heiße kvlake.")
    return talk


def test_what_was_said_is_found_again(transcripts, conversation):
    transcripts.save("a", conversation)
    assert transcripts.load("a") == conversation
    assert transcripts.load("b") == Conversation()
    transcripts.delete("a")
    transcripts.delete("a")
    assert transcripts.load("a") == Conversation()


def test_only_its_owner_reads_it(transcripts, conversation, tmp_path):
    before = os.umask(0)
    try:
        transcripts.save("a", conversation)
    finally:
        os.umask(before)
    folder = tmp_path / "store-chat"
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert [stat.S_IMODE(file.stat().st_mode) for file in folder.iterdir()] == [0o600]


def test_a_draft_left_by_a_crash_is_in_nobodys_way(transcripts, conversation, tmp_path):
    transcripts.save("a", conversation)
    draft = tmp_path / "store-chat/a.json.new"
    draft.write_text("half a")
    draft.chmod(0o644)
    transcripts.save("a", conversation)
    assert transcripts.load("a") == conversation
    assert stat.S_IMODE((tmp_path / "store-chat/a.json").stat().st_mode) == 0o600


@pytest.mark.parametrize("name", ["", "../a", "a/b", ".hidden", "a b", "a" * 65, "a\n"])
def test_names_that_are_no_file_names(transcripts, conversation, name):
    with pytest.raises(ConfigError, match="a session is named with letters"):
        transcripts.save(name, conversation)
    with pytest.raises(ConfigError, match="a session is named with letters"):
        transcripts.load(name)


@pytest.mark.parametrize(
    "text", ["", "{", "[]", "{}", '{"version": 1}', '{"version": 1, "messages": [{"role": "user"}]}', '{"version": 9}']
)
def test_what_cannot_be_read_is_said_and_kept(transcripts, conversation, tmp_path, text):
    transcripts.save("a", conversation)
    path = tmp_path / "store-chat/a.json"
    path.write_text(text)
    with pytest.raises(ConfigError, match="cannot be read as a transcript"):
        transcripts.load("a")
    assert path.read_text() == text


def test_a_later_version_is_refused(transcripts, conversation, tmp_path):
    transcripts.save("a", conversation)
    path = tmp_path / "store-chat/a.json"
    path.write_text(json.dumps({"version": 2, "messages": []}))
    with pytest.raises(ConfigError, match="is of version 2, and this kvlake reads version 1"):
        transcripts.load("a")
