"""Requests that an engine runs before it is ready, so that no later request waits for a compiler or a capture.

A kernel is compiled when a step first needs it, which takes up to a second on a GPU and holds every stream of the
batch. These requests need every kind of step that there is: decodes and prompts, alone and mixed, of odd lengths and
over several chunks, with a common prefix, and with each parameter that takes the draw out of the captured graphs.
"""

import gc
from collections.abc import Sequence as Items
from typing import Any

from msgspec.structs import replace

from backend.engine.core.sampling import SamplingParams
from backend.engine.engine import Engine

Asked = tuple[list[int], SamplingParams]
PLAIN = SamplingParams(max_tokens=2, temperature=0, ignore_eos=True)
SHARED_TOKENS = 640  # more than `graph_runner` needs to read a common prefix once
SHARED_SEQUENCES = (16, 40, 136)  # kernels choose their tiles by the number of sequences
LENGTHS = (1, 2, 17, 31, 64, 250, 513, 777, 1100, 1500, 2100, 2500, 3100, 4097, 5000, 6200, 7300, 9000)
MIXED = [(37 * i % 900 + 1, i % 17 + 2) for i in range(24)]  # prompt and answer, so that prompts meet decodes


def warm_up(engine: Engine) -> None:
    """Leaves no block in the prefix cache. On a CPU two tokens are enough, for thread pools and first allocations."""
    groups = [[([0] * _within(engine, 8), PLAIN)]]
    if engine.config.device.startswith("cuda") and not engine.vector_size:
        groups += _every_kind(engine)
    id = -1
    for group in groups:
        for prompt, params in group[: engine.config.max_num_seqs]:
            engine.add(id, prompt, params)
            id -= 1
        while engine.has_work:
            engine.step()
    while engine.runner.missed:
        engine.prepare()
    engine.runner.scrub(engine.blocks.forget_free())
    engine.forget_host()
    gc.collect()
    gc.freeze()


def _every_kind(engine: Engine) -> list[list[Asked]]:
    """Groups of requests: those of a group are handed over at once, and are over before the next group begins."""
    return [*_every_length(engine), *_with_every_draw(engine), *_sharing_a_prefix(engine), *_many_with_a_draw(engine)]


def _every_length(engine: Engine) -> list[list[Asked]]:
    """Prompts of every length that fits: each alone, all together, and beside answers of other requests."""
    plain: list[Asked] = [([0] * length, PLAIN) for length in LENGTHS if length <= _within(engine, length)]
    mixed: list[Asked] = [
        ([0] * length, replace(PLAIN, max_tokens=most)) for length, most in MIXED if length <= _within(engine, length)
    ]
    return [*([asked] for asked in plain), plain, mixed]


def _with_every_draw(engine: Engine) -> list[list[Asked]]:
    """A prompt with each parameter of a draw: all together, and each alone."""
    asked: list[Asked] = [([0] * _within(engine, 20), params) for params in _every_draw()]
    return [asked, *([one] for one in asked)]


def _sharing_a_prefix(engine: Engine) -> list[list[Asked]]:
    """A prompt, then several that begin with it; none where the context is too short for it."""
    start = [token % engine.vocab_size for token in range(1, 1 + _within(engine, SHARED_TOKENS))]
    if len(start) < SHARED_TOKENS:
        return []
    return [
        [(start, PLAIN)],
        *([(start + [i % engine.vocab_size] * 3, PLAIN) for i in range(count)] for count in SHARED_SEQUENCES),
    ]


def _many_with_a_draw(engine: Engine) -> list[list[Asked]]:
    """Many short prompts at once, for each parameter of a draw."""
    return [[([i % engine.vocab_size] * 3, params) for i in range(40)] for params in _every_draw()]


def _every_draw() -> Items[SamplingParams]:
    plain: dict[str, Any] = {"max_tokens": 3, "ignore_eos": True}
    return [
        SamplingParams(**plain, temperature=0.8),
        SamplingParams(**plain, top_k=5),
        SamplingParams(**plain, top_p=0.9),
        SamplingParams(**plain, min_p=0.1),
        SamplingParams(**plain, presence_penalty=0.5, frequency_penalty=0.5, repetition_penalty=1.1),
        SamplingParams(**plain, logit_bias=((0, 1.0),)),
        SamplingParams(**plain, allowed_token_ids=(0, 1, 2)),
        SamplingParams(**plain, bad_words=((0,), (1, 2))),
        SamplingParams(**plain, min_tokens=2, stop_token_ids=(0,)),
        SamplingParams(**plain, logprobs=5),
        SamplingParams(**plain, temperature=0, logprobs=0, prompt_logprobs=2),
    ]


def _within(engine: Engine, length: int) -> int:
    """As many tokens of that length as a prompt may have."""
    return max(1, min(length, engine.max_model_len - 4))
