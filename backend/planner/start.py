"""Whether a backend with default options could start at all: asked before a deployment is accepted."""

from backend.engine_config import EngineConfig
from backend.errors import ConfigError
from backend.models.checkpoints.checkpoint import Checkpoint
from backend.planner.capacity_plan import gib, plan
from backend.planner.cards import CARDS
from backend.planner.memory import weight_bytes
from backend.quantization.none import NONE

CPU = "cpu"


def start_refusal(
    checkpoint: Checkpoint, gpu: str, host_memory: int | None = None, replicas: int = 1, cards: int = 1
) -> str | None:
    """Why it could not, None where it could. The KV cache takes what is left, so a long context refuses nothing.

    gpu: a card's name or ``cpu``. host_memory: bytes of the machine, where backends on its CPU are to run there, and
    `replicas` how many at one time. cards: that the model is divided among.
    Raises BackendError where the model cannot be read.
    """
    if gpu != CPU and gpu not in CARDS:
        raise ConfigError(f"no card {gpu!r}; known are {', '.join(CARDS)}, and {CPU}")
    if checkpoint.is_encoder:
        checkpoint.encoder_config  # noqa: B018  # read, so that one that cannot be is refused
        return None
    model = checkpoint.config
    if gpu == CPU:
        weights = weight_bytes(model, "float32", NONE.name)
        if host_memory is None or replicas * weights <= host_memory:
            return None
        there = f"the machine has {gib(host_memory)} of memory"
        if weights > host_memory:
            return f"the weights take {gib(weights)} in float32; {there}"
        most = host_memory // weights
        return (
            f"the weights of {replicas} replicas take {gib(replicas * weights)} in float32; {there}: "
            f"ask for {most} at most"
        )
    shortest = EngineConfig(model="", device="cuda", dtype="bfloat16", max_model_len=2, tensor_parallel_size=cards)
    made = plan(model, shortest, CARDS[gpu], concurrency=1, prompt=1, answer=1)
    return made.refusal if made.memory.blocks == 0 else None
