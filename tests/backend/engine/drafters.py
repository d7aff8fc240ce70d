"""Drafters whose guesses are as good or bad as a test wants them."""

import random

from backend.engine.core.sequence import Sequence


class Oracle:
    """Knows the answers; says something else in `wrong` of all places."""

    def __init__(self, answers: dict[int, list[int]], wrong: float = 0.0, seed: int = 0) -> None:
        self.answers = answers
        self.wrong = wrong
        self.rng = random.Random(seed)
        self.forgotten: list[int] = []
        self.asked: list[int] = []

    def propose(self, wanted: list[tuple[Sequence, int]]) -> list[list[int]]:
        self.asked += [most for _, most in wanted]
        found = []
        for sequence, most in wanted:
            behind = self.answers.get(sequence.id, [])[sequence.num_output :][:most]
            found.append([(t + 1) % 320 if self.rng.random() < self.wrong else t for t in behind])
        return found

    def forget(self, id: int) -> None:
        self.forgotten.append(id)
