"""What a step did, and how far a long undertaking is: plain data that crosses the process border. No torch here."""

from collections.abc import Callable
from enum import StrEnum

import msgspec


class Finish(StrEnum):
    STOP = "stop"  # an end token, which is the last token and not part of the text
    LENGTH = "length"
    ERROR = "error"  # the logits were not numbers; there is no last token
    GRAMMAR = "grammar"  # it cannot be followed within its limits
    NOTHING_LEFT = "nothing_left"  # what the request allows, forbids and asks for leaves no token to draw
    VECTOR = "vector"  # the prompt's vector is computed, which was all that was requested; there is no token


class TokenLogprobs(msgspec.Struct, frozen=True, array_like=True):
    """A token's log probability (nats), its rank among all (1 is the likeliest), and the likeliest ones there:
    (token, log probability), likeliest first."""

    logprob: float
    rank: int
    top: list[tuple[int, float]]


class Stage(StrEnum):
    """What takes longer than a step, and what its progress is counted in."""

    WEIGHTS = "weights"  # bytes of the checkpoint that are in place
    KERNELS = "kernels"  # 1 once the largest step has run, and with it most kernels are compiled
    GRAPHS = "graphs"  # captured steps
    TUNING = "tuning"  # seconds of those that a first start on this card may time its products
    SLEEP = "sleep"  # bytes put away
    WAKE = "wake"  # bytes back in place


OnStage = Callable[[Stage, int, int], None]  # what, done, of how many


class Progress(msgspec.Struct, frozen=True, array_like=True):
    """What one step did for one sequence.

    ``token`` is None only with Finish.ERROR, GRAMMAR or VECTOR; ``cached`` is the number of prompt tokens found in the
    prefix cache. ``logprobs`` are there if they were asked for; ``prompt`` likewise, with the first token, one for each
    token of the prompt but its first. ``started`` comes with the first token: when the sequence ran for the first time,
    in seconds of the host's monotonic clock, which is the same in every process. ``vector``: float32, little-endian,
    with Finish.VECTOR. ``activations``: the largest that the token was drawn from, if it is to be committed to them
    (`backend.activations.largest_activations`).
    """

    id: int
    token: int | None
    finish: Finish | None
    cached: int
    logprobs: TokenLogprobs | None = None
    prompt: list[TokenLogprobs] | None = None
    started: float | None = None
    vector: bytes | None = None
    activations: bytes | None = None


class Stats(msgspec.Struct, frozen=True, array_like=True):
    """Gauges (running … total_blocks) and counters since birth."""

    running: int
    waiting: int
    used_blocks: int
    total_blocks: int
    preemptions: int
    prefix_queries: int
    prefix_hits: int
    steps: int
    draft_tokens: int = 0  # guessed by a drafter, and found right
    draft_tokens_accepted: int = 0
    host_used_blocks: int = 0  # of the host tier, as `host_blocks`: gauges
    host_blocks: int = 0
    host_hits: int = 0  # prompt tokens that came from the host; they count as hits, too
    host_bytes_stored: int = 0  # copied to it and from it, by one rank
    host_bytes_loaded: int = 0
    swaps: int = 0  # preemptions whose blocks the host kept
    expert_pairs: list[int] = []  # of tokens and experts, by the rank that computes them; [] where none holds wholes
    draft_places: list[tuple[int, int]] = []  # guessed and found right, of guesses that are first, second … of a step
