"""What answers come from, in one word: OpenAI's ``system_fingerprint``.

``fp_`` and 16 hexadecimal digits of the checkpoint, every byte of it; then 8 of how it is computed. Who kept an answer
can tell later whether another one came from the same weights.
"""

import hashlib
import json
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from backend.engine_config import EngineConfig
from backend.parallel.shard import SAME

THREADS = 4
PARTS = ("*.safetensors", "*.json", "*.jinja", "*.model", "additional_chat_templates/*.jinja")  # of a folder
LIBRARIES = ("torch", "triton", "tokenizers")


def fingerprint(path: Path, config: EngineConfig) -> str:
    """Reads all of the checkpoint: seconds for gigabytes. Raises OSError where it cannot be read."""
    return f"fp_{checkpoint_digest(path)[:16]}_{_setup_digest(config)[:8]}"


def checkpoint_digest(path: Path) -> str:
    """SHA-256 over name and SHA-256 of each file that makes a checkpoint, in the order of their names; of a GGUF file
    over its own alone, for its name says nothing."""
    if not path.is_dir():
        return _file_digest(path)
    files = sorted({file for part in PARTS for file in path.glob(part) if file.is_file()})
    with ThreadPoolExecutor(THREADS, thread_name_prefix="fingerprint") as threads:
        digests = threads.map(_file_digest, files)
        lines = [
            f"{digest}  {file.relative_to(path).as_posix()}\n" for file, digest in zip(files, digests, strict=True)
        ]
    return hashlib.sha256("".join(lines).encode()).hexdigest()


def _file_digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _setup_digest(config: EngineConfig) -> str:
    """What decides over bits of an answer, besides the weights and the kind of card."""
    setup: dict[str, object] = {
        "device": config.device.partition(":")[0],
        "dtype": config.dtype,
        "quantization": config.quantization,
        "kv_dtype": config.kv_dtype,
        "batch_invariant": config.batch_invariant,
        "libraries": [_version(name) for name in LIBRARIES],
    }
    same = config.batch_invariant and SAME % config.tensor_parallel_size == 0  # stages change no bit in any mode
    if config.tensor_parallel_size > 1 and not same:  # sums are made in another order
        setup["tensor_parallel_size"] = config.tensor_parallel_size
        setup |= {"expert_parallel": True} if config.expert_parallel else {}
    if config.max_adapters:  # products are made without what is fused with them elsewhere
        setup["adapters"] = True
    return hashlib.sha256(json.dumps(setup, sort_keys=True).encode()).hexdigest()


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None
