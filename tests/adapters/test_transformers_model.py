"""The identity of a loaded model: equal contents, equal namespace; any difference that reaches the KV, another."""

import pytest
import torch
from transformers import (
    AutoModelForCausalLM,
    GPT2Config,
    LlamaConfig,
    MambaConfig,
    MambaForCausalLM,
    Qwen3NextConfig,
    T5Config,
    T5ForConditionalGeneration,
)

from kvlake.adapters.transformers import Engine
from kvlake.adapters.transformers.blocks import learn_layout
from kvlake.adapters.transformers.model import (
    adapter_text,
    check_model,
    model_stamp,
    namespace_of,
    tokenizer_digest,
    weights_digest,
)
from kvlake.base.errors import UnsupportedModelError

SMALL = {"vocab_size": 31, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}


def built(config):
    return AutoModelForCausalLM.from_config(config).eval()


def namespace(model, **settings):
    return namespace_of(model, learn_layout(model, 16), **settings)


def test_a_namespace_is_read_from_contents(tiny, tmp_path):
    model = tiny()
    model.save_pretrained(tmp_path / "elsewhere")
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path / "elsewhere", attn_implementation="sdpa")
    assert namespace(loaded) == namespace(model)
    told = namespace(model)
    assert told.dtype == "float32"
    assert told.engine == "transformers-5"
    assert told.layout.endswith("/sdpa/cpu")
    assert '"rope_theta": 10000.0' in told.rope
    assert told.geometry.startswith("full:0:2x8+8 ")


def with_epsilon(model):
    model.config.rms_norm_eps = 1e-3


def with_theta(model):
    model.config.rope_parameters["rope_theta"] = 5e5


def with_kernel(model):
    model.set_attn_implementation("eager")


@pytest.mark.parametrize(
    ("change", "field"), [(with_epsilon, "geometry"), (with_theta, "rope"), (with_kernel, "layout")]
)
def test_a_setting_that_reaches_the_kv_is_another_namespace(tiny, change, field):
    model = tiny(fresh=True)
    before = namespace(model)
    change(model)
    after = namespace(model)
    assert getattr(after, field) != getattr(before, field)
    assert after.digest != before.digest


def test_a_setting_that_does_not_is_the_same(tiny):
    model = tiny(fresh=True)
    before = namespace(model)
    model.config.eos_token_id = 5
    model.config.use_cache = False
    model.config._name_or_path = "elsewhere"
    assert namespace(model) == before


@pytest.mark.parametrize("name", ["model.embed_tokens.weight", "model.layers.3.mlp.down_proj.weight"])
@pytest.mark.parametrize("place", [0, 700, -1])
def test_one_changed_value_is_another_model(tiny, name, place):
    model = tiny(fresh=True)
    digest, stamp = weights_digest(model), model_stamp(model)
    assert (digest, stamp) == (weights_digest(model), model_stamp(model))
    with torch.no_grad():
        model.get_parameter(name).view(-1)[place] += 1e-3
    assert weights_digest(model) != digest
    assert model_stamp(model) != stamp


def test_weights_of_odd_shapes_are_read(tiny):
    model = tiny(fresh=True)
    odd = {"a": torch.ones(3), "b": torch.tensor(1.0), "c": torch.ones(0), "d": torch.ones(4, 3).T}
    for name, tensor in odd.items():
        model.register_buffer(name, tensor.to(torch.bfloat16))
    digest = weights_digest(model)
    model.d[2, 3] = 2
    assert weights_digest(model) != digest


def test_weights_that_are_not_in_memory_are_refused():
    with torch.device("meta"):
        model = built(LlamaConfig(**SMALL))
    with pytest.raises(UnsupportedModelError, match=r"meta device.*without offloading"):
        weights_digest(model)


class Words:
    def __init__(self, **vocabulary):
        self.vocabulary = vocabulary

    def get_vocab(self):
        return self.vocabulary


def test_a_tokenizer_is_its_vocabulary(tiny):
    assert tokenizer_digest(Words(a=1, b=2)) == tokenizer_digest(Words(b=2, a=1))
    assert tokenizer_digest(Words(a=1, b=2)) != tokenizer_digest(Words(a=2, b=1))
    assert namespace(tiny()).tokenizer == ""
    assert namespace(tiny(), tokenizer=Words(a=1)).tokenizer == tokenizer_digest(Words(a=1))


def test_an_adapter_in_force_is_another_namespace(tiny):
    model = tiny(fresh=True)
    plain, stamp = namespace(model), model_stamp(model)
    assert plain.adapter == ""
    model.peft_config = {"formal": object(), "curt": object()}
    model.active_adapters = lambda: ["formal"]
    formal = namespace(model)
    assert formal.adapter == '[["formal"], 0]'
    model.active_adapters = ["curt"]
    assert adapter_text(model) == '[["curt"], 0]'
    model.model.layers[0].disable_adapters = True
    assert adapter_text(model) == '[["curt"], 1]'
    assert len({plain.digest, formal.digest, namespace(model).digest}) == 3
    assert model_stamp(model) != stamp


@pytest.mark.parametrize(
    ("rope", "said"),
    [
        ({"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0}, "dynamic"),
        (
            {
                "rope_type": "longrope",
                "rope_theta": 1e4,
                "short_factor": [1.0] * 4,
                "long_factor": [2.0] * 4,
                "factor": 2.0,
                "original_max_position_embeddings": 32,
            },
            "longrope",
        ),
    ],
)
def test_keys_that_depend_on_the_prompts_length_are_refused(rope, said):
    model = built(LlamaConfig(**SMALL, rope_parameters=rope, max_position_embeddings=64))
    with pytest.raises(UnsupportedModelError, match=f"rope_type {said}: its keys change with the length"):
        check_model(model)


def test_other_families_of_models_are_refused(open_at):
    store = open_at()
    recurrent = MambaForCausalLM(MambaConfig(vocab_size=31, hidden_size=16, num_hidden_layers=2)).eval()
    hybrid = built(
        Qwen3NextConfig(
            **SMALL,
            num_key_value_heads=2,
            linear_num_value_heads=2,
            linear_num_key_heads=2,
            num_experts=2,
            num_experts_per_tok=1,
            layer_types=["linear_attention", "full_attention"],
        )
    )
    translator = T5ForConditionalGeneration(T5Config(vocab_size=31, d_model=16, num_layers=1, num_heads=2, d_kv=8))
    for model, said in (
        (recurrent, "cache of MambaForCausalLM cannot be cut into blocks"),
        (hybrid, "1 x LinearAttentionLayer"),
        (translator, "encoder-decoder"),
    ):
        with pytest.raises(UnsupportedModelError, match=said):
            Engine(model, store)


def test_a_model_that_asks_for_another_cache_is_refused(tiny):
    model = tiny(fresh=True)
    model.generation_config.cache_implementation = "static"
    with pytest.raises(UnsupportedModelError, match=r"generation_config\.cache_implementation = None"):
        check_model(model)


def test_a_model_without_rotary_positions_is_served(open_at):
    model = built(GPT2Config(vocab_size=31, n_embd=16, n_layer=2, n_head=2, n_positions=64))
    check_model(model)
    talk = Engine(model, open_at(), block_tokens=8)
    ids = torch.arange(20).unsqueeze(0)
    asked = {"max_new_tokens": 4, "do_sample": False, "pad_token_id": 0}
    first, second = talk.generate(ids, **asked), talk.generate(ids, **asked)
    assert (first.cached_tokens, second.cached_tokens) == (0, 16)
    assert torch.equal(first.sequences, second.sequences)


def test_a_model_that_ignores_the_cache_is_refused(tiny):
    model = tiny(fresh=True)
    forward = model.forward
    model.forward = lambda cache=None, past_key_values=None, **inputs: forward(**inputs)
    with pytest.raises(UnsupportedModelError, match="does not keep its keys and values in the cache"):
        learn_layout(model, 16)
