"""The other ranks, as rank 0 sees them."""

from collections.abc import Sequence as Items
from typing import Protocol

from backend.engine.parallel.step_messages import FromFollower, ToFollower


class Followers(Protocol):
    """The other ranks, from 1 on."""

    def send(self, message: ToFollower) -> None:
        """To each of them. Raises RankLost."""
        ...

    def send_to(self, rank: int, message: ToFollower) -> None:
        """To one of them, from 1 on. Raises RankLost."""
        ...

    def answers(self) -> Items[FromFollower]:
        """One of each of them, in the order of their ranks. Waits; raises RankLost."""
        ...

    def answer_of(self, rank: int) -> FromFollower:
        """One of this one, from 1 on. Waits; raises RankLost."""
        ...
