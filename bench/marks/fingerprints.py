"""What fingerprints of answers cost on the request's path, and a search: ``python -m bench.marks.fingerprints``.

Each figure stands beside that of reading the same answer as JSON, measured in the same run.
"""

import os
import random
from collections.abc import Callable
from functools import partial
from time import perf_counter

from pydantic_core import from_json, to_json

from audit.log.answer_prints import prints_of, read, shingles_of, written
from gateway.content.said_text import SaidText

SIZES = (400, 4_000, 16_000, 64_000)
REPEAT = 5


def best_us(work: Callable[[], object], times: int) -> float:
    """Microseconds of one call, the least of REPEAT means over `times` calls."""
    took = []
    for _ in range(REPEAT):
        began = perf_counter()
        for _ in range(times):
            work()
        took.append((perf_counter() - began) / times * 1e6)
    return min(took)


def text_of(size: int) -> str:
    rng = random.Random(1)  # words for a measurement
    words = ("".join(rng.choices("abcdefghiklmnoprstuvwäöüé", k=rng.randint(2, 9))) for _ in range(size // 3))
    return " ".join(words)[:size]


def streamed(frames: list[bytes]) -> None:
    said = SaidText()
    for frame in frames:
        said.add_piece(frame)


def main() -> None:
    salt = os.urandom(32)
    print("whole answers: characters, fingerprints in microseconds, reading it as JSON, ratio")
    for size in SIZES:
        text = text_of(size)
        body = to_json({"choices": [{"index": 0, "message": {"content": text}}]})
        times = max(3, 400_000 // size)
        prints, reading = best_us(partial(prints_of, salt, [text]), times), best_us(partial(from_json, body), times)
        print(f"{size:>8} {prints:>10.0f} {reading:>10.1f} {prints / reading:>8.1f}")
    frames = [
        b"data: " + to_json({"id": "x", "choices": [{"index": 0, "delta": {"content": f" word{n}"}}]}) + b"\n\n"
        for n in range(500)
    ]
    event, reading = best_us(lambda: streamed(frames), 5) / 500, best_us(lambda: from_json(frames[0][6:]), 500)
    print(f"one event of a stream: {event:.2f} microseconds; reading it as JSON {reading:.2f}")
    stored = [read(written(os.urandom(192))) for _ in range(20_000)]
    text = text_of(4_000)
    hashing = best_us(lambda: shingles_of(salt, text), 3)
    wanted = shingles_of(salt, text)
    comparing = best_us(lambda: [wanted.intersection(prints) for prints in stored], 1) / len(stored)
    print(f"a search: {hashing / 1000:.1f} ms a month for 4,000 characters, {comparing:.2f} microseconds an answer")


if __name__ == "__main__":
    main()
