"""Answers of the demo's model, marked by one of several schemes or not at all."""

import json
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch

from backend.engine.core.sampling import SamplingParams
from backend.engine.cpu import sampler
from backend.engine.engine import Engine
from backend.engine_config import EngineConfig, size_cache
from backend.marks.scheme import MarkKey, shard_key
from backend.models.checkpoints.checkpoint import Checkpoint, resolve
from backend.models.loader import load_model

TOPICS = (
    "the history of a harbour town", "how bread is made", "a winter in the mountains", "the life of bees",
    "why rivers meander", "a day at a market", "the first railways", "how to look after an old bicycle",
    "the work of a lighthouse keeper", "a letter to a friend abroad", "the taste of coffee", "learning to play chess",
    "the migration of birds", "a garden in spring", "how a library is organised", "the invention of printing",
    "a walk through an old forest", "what makes a good teacher", "the craft of a carpenter", "stars seen from a desert",
    "the rules of an imaginary game", "a small company that makes shoes", "the repair of a church organ",
    "the economy of an island", "how glass is blown", "an argument between two neighbours", "the first day of school",
    "a journey by night train", "the care of elderly people", "how towns use water",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Answer:
    """tokens: of the answer. logprobs: of each under the model itself, at temperature 1. key: it was marked by."""

    tokens: list[int]
    logprobs: list[float]
    key: MarkKey | None


@lru_cache(maxsize=1)
def checkpoint(model: str) -> Checkpoint:
    return Checkpoint(resolve(model))


@lru_cache(maxsize=1)
def decoder_of(model: str) -> Any:
    return load_model(checkpoint(model), "float32")


def answers(
    model: str,
    *,
    count: int,
    tokens: int,
    temperature: float,
    key: bytes | None,
    seed: int = 0,
    batch: int = 32,
    draw: Callable[..., int] | None = None,
    logprobs: int | None = 0,
    **changes: Any,
) -> list[Answer]:
    """`count` answers of `tokens` tokens. key: None for unmarked ones. draw: in place of the engine's own draw."""
    config = EngineConfig(model="", num_blocks=1 + batch * (-(-(tokens + 64) // 16)), max_num_seqs=batch)
    decoder = decoder_of(model)
    engine = Engine(decoder, config, size_cache(config, decoder.config, 4), frozenset())
    own = sampler._draw_marked
    sampler._draw_marked = draw or own
    try:
        made: dict[int, Answer] = {}
        for number, prompt in enumerate(prompts_of(model, count, seed)):
            made[number] = Answer([], [], None if key is None else shard_key(key, number))
            params = SamplingParams(
                max_tokens=tokens,
                temperature=temperature,
                seed=seed * 1_000_003 + number,
                ignore_eos=True,
                logprobs=logprobs,
                mark=made[number].key,
                **changes,
            )
            engine.add(number, prompt, params)
        with torch.inference_mode():
            while engine.has_work:
                for item in engine.step():
                    assert item.token is not None
                    made[item.id].tokens.append(item.token)
                    if item.logprobs is not None:
                        made[item.id].logprobs.append(item.logprobs.logprob)
    finally:
        sampler._draw_marked = own
    return [made[number] for number in range(count)]


def kept(folder: Path | None, name: str, make: Callable[[], list[Answer]]) -> list[Answer]:
    """What was generated before under that name, or else what `make` generates now, which is kept there: a slow machine
    measures again without generating again."""
    file = None if folder is None else folder / f"{name}.json"
    if file is not None and file.exists():
        return [Answer(tokens, logprobs, None) for tokens, logprobs in json.loads(file.read_text())]
    made = make()
    if file is not None:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps([[one.tokens, one.logprobs] for one in made]))
    return made


def prompts_of(model: str, count: int, seed: int) -> Iterator[list[int]]:
    """Prompts of texts, in tokens."""
    rng, text = random.Random(seed), checkpoint(model).text
    for number in range(count):
        topic = TOPICS[number % len(TOPICS)]
        asked = f"Write a long text about {topic}. Variant {rng.randrange(10_000)}."
        yield text.encode_completion(f"<|im_start|>user\n{asked}<|im_end|>\n<|im_start|>assistant\n")


def edited(text: str, share: float, words: list[str], rng: random.Random) -> str:
    """Each word replaced, deleted or preceded by another with that probability in all."""
    kept: list[str] = []
    for word in text.split(" "):
        if rng.random() >= share:
            kept.append(word)
            continue
        match rng.randrange(3):
            case 0:
                kept.append(rng.choice(words))
            case 1:
                kept += [rng.choice(words), word]
            case _:
                pass
    return " ".join(kept)
