"""What a token costs each stage between the engine's loop and a client's socket, one at a time, in one process.

A step of STREAMS sequences goes through the code of the server itself; times are the thread's CPU time, in microseconds
a token, the least of ROUNDS.
"""

import random
import socket
import time
from collections.abc import Callable

from backend.answer.answers import ChatAnswer
from backend.chat.choice import Choice, TextOptions
from backend.engine.core.progress import Progress, Stats
from backend.models.checkpoints.checkpoint import Checkpoint, resolve
from backend.process.messages import StepDone, frame, from_engine

STREAMS = 256
ROUNDS = 30


def stages() -> dict[str, float]:
    model = Checkpoint(resolve("demo")).text
    rng = random.Random(0)
    stats = Stats(STREAMS, 0, 4096, 8192, 0, 0, 0, 1)
    step = [Progress(id, rng.randrange(10, model.vocab_size), None, 0) for id in range(STREAMS)]
    message = frame(StepDone(step, stats))
    choices = [Choice(model, TextOptions()) for _ in range(STREAMS)]
    answer = ChatAnswer("0123456789abcdef0123456789abcdef", "measured", usage_in_chunks=True)
    parts = [choice.feed(item) for choice, item in zip(choices, step, strict=True)]
    chunk = answer.chunk(0, parts[0], None)
    return {
        "engine: encode a step's message": cost(lambda: frame(StepDone(step, stats))),
        "server: decode a step's message": cost(lambda: from_engine.decode(message[4:])),
        "server: detokenise": cost(lambda: [c.feed(p) for c, p in zip(choices, step, strict=True)]),
        "server: an event's JSON": cost(lambda: [answer.chunk(0, part, None) for part in parts]),
        "server: write to a socket": written(chunk),
    }


def cost(work: Callable[[], object]) -> float:
    best = float("inf")
    for _ in range(ROUNDS):
        begin = time.thread_time_ns()
        work()
        best = min(best, time.thread_time_ns() - begin)
    return round(best / 1e3 / STREAMS, 3)


def written(chunk: bytes) -> float:
    """Of a write on loopback; what the clients read is not counted."""
    listener = socket.create_server(("127.0.0.1", 0))
    with listener, socket.create_connection(listener.getsockname()) as ours:
        theirs, _ = listener.accept()
        with theirs:
            best = float("inf")
            for _ in range(ROUNDS):
                begin = time.thread_time_ns()
                for _ in range(STREAMS):
                    ours.send(chunk)
                best = min(best, time.thread_time_ns() - begin)
                left = STREAMS * len(chunk)
                while left:
                    left -= len(theirs.recv(left))
    return round(best / 1e3 / STREAMS, 3)
