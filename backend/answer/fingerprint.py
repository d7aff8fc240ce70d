"""What answers come from, in one word: OpenAI's ``system_fingerprint``.

``fp_`` and 16 hexadecimal digits of the checkpoint, every byte of it; then 8 of how it is computed. Who kept an answer
can later determine whether another one came from the same weights.
"""

import hashlib
import json
from importlib.metadata import PackageNotFoundError, version

from backend.engine_config import EngineConfig
from backend.parallel.shard import SAME

LIBRARIES = ("torch", "triton", "tokenizers")


def fingerprint(weights_sha256: str, config: EngineConfig) -> str:
    """`weights_sha256`: of the checkpoint (`backend.answer.weights`)."""
    return f"fp_{weights_sha256[:16]}_{_setup_digest(config)[:8]}"


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
