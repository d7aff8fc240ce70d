"""Replays of steps that do more or less than most."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from backend.engine.gpu.captures import Replay
from backend.engine.gpu.committing import PlainReplays, Variant


def replay(size: int) -> Replay:
    graph: Any = SimpleNamespace(replay=lambda: None)
    return Replay(size, graph, torch.zeros(size))


class Captures:
    """What a runner gives: captures that are made when they were missed."""

    def __init__(self) -> None:
        self.stepped: list[Variant] = []
        self.missed: list[tuple[Callable[[Any], object], Any]] = []

    def step_of(self, variant: Variant) -> Callable[[], Tensor]:
        self.stepped.append(variant)
        return lambda: torch.zeros(variant.size)

    def capture(self, sizes: list[int], step_of: Callable[[int], Callable[[], Tensor]]) -> list[Replay]:
        for size in sizes:
            step_of(size)
        return [replay(size) for size in sizes]

    def miss(self, capture: Callable[[Any], object], variant: Any) -> None:
        self.missed.append((capture, variant))


def test_a_step_without_adapters_takes_the_other_replay_until_it_has_its_own() -> None:
    made = Captures()
    replays = PlainReplays(made.step_of, made.capture, made.miss)
    adapted, variant = replay(8), Variant("decode", 8)
    assert replays.instead_of(adapted, variant) is adapted
    [(capture, missed)] = made.missed
    capture(missed)
    own = replays.instead_of(adapted, variant)
    assert own is not adapted and own.size == 8
    assert made.stepped == [variant] and not variant.adapted
    assert len(made.missed) == 1


def test_steps_that_draw_and_steps_that_do_not_have_replays_of_their_own() -> None:
    made = Captures()
    replays = PlainReplays(made.step_of, made.capture, made.miss)
    variants = [
        Variant("decode", 8),
        Variant("decode", 8, draws=False),
        Variant("decode", 16),
        Variant("decode", 16, shared=True),
        Variant("prompts", 16),
        Variant("check", 16),
    ]
    for variant in variants:
        replays.prepare(variant)
        replays.prepare(variant)  # once is enough
    assert made.stepped == variants
    assert len({id(replays.instead_of(replay(1), variant)) for variant in variants}) == len(variants)
