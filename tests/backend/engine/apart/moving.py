"""Blocks moved from one engine to another in this process, as two backends move them."""

from collections.abc import Callable
from typing import Any

from backend.engine.apart.frame import BlockFrame, Further
from backend.engine.core.progress import Progress
from backend.engine.core.sampling import SamplingParams
from backend.engine.engine import Engine

ONE_TOKEN = SamplingParams(max_tokens=1, temperature=0.0)
Frames = Callable[[BlockFrame], BlockFrame]


def exported(engine: Engine, prompt: list[int], first: int = 0, id: int = 900) -> tuple[list[BlockFrame], Further]:
    """All frames of a prompt that this engine computes."""
    engine.add(id, prompt, ONE_TOKEN, exports=first)
    frames: list[BlockFrame] = []
    while True:
        if engine.has_work:
            engine.step()
        taken = engine.exports.take(id, 1)
        if taken is not None:
            frames += [frame for frame in taken[0] if isinstance(frame, BlockFrame)]
            if taken[1] is not Further.MORE:
                return frames, taken[1]


def fetched(
    source: Engine,
    engine: Engine,
    prompt: list[int],
    params: SamplingParams,
    id: int = 0,
    through: Frames = lambda frame: frame,
    **more: Any,
) -> bool:
    """Add a sequence to `engine` whose prompt `source` computes; whether all of its blocks came. through: what happens
    to frames on their way."""
    engine.add(id, prompt, params, fetches=True, **more)
    (room,) = engine.make_room()
    if room.first == room.end:
        return True
    frames, _ = exported(source, prompt, room.first)
    refused = [engine.imports.write(id, through(frame)) for frame in frames]
    return engine.imports.end(id, whole=not any(refused))


def finished(engine: Engine) -> list[Progress]:
    progress: list[Progress] = []
    while engine.has_work:
        progress += engine.step()
    return progress


def tokens_of(progress: list[Progress], id: int = 0) -> list[int | None]:
    return [item.token for item in progress if item.id == id]
