"""Hidden states that a model leaves behind for a head that guesses from them (`models.heads`)."""

import torch
from torch import Tensor


class Exposure:
    """Hidden states of the tokens of the last step, in the order of its rows.

    They are copied into memory that stays, so that captured steps write them, too, and nothing waits for them.

    Attributes:
        layers: before which of them the hidden states are taken, side by side; empty: what the model's head reads.
        states: [tokens, width].
        begin: row of `states` that the first token of a forward pass goes to.
    """

    def __init__(
        self, layers: tuple[int, ...], tokens: int, hidden_size: int, dtype: torch.dtype, device: torch.device
    ) -> None:
        self.layers = layers
        self.states = torch.zeros(tokens, hidden_size * max(1, len(layers)), dtype=dtype, device=device)
        self.begin = 0
        self._hidden_size = hidden_size

    def before(self, layer: int, hidden: Tensor) -> None:
        """Keep the hidden states that enter `layer`, [tokens, hidden_size], if it is one of `layers`."""
        if layer in self.layers:
            at = self.layers.index(layer) * self._hidden_size
            self.states[self.begin : self.begin + len(hidden), at : at + self._hidden_size].copy_(hidden)

    @property
    def last(self) -> bool:
        """Whether it is of what the model's head reads."""
        return not self.layers

    def read_by_head(self, states: Tensor) -> None:
        """Keep what the model's head reads of all tokens, [tokens, hidden_size]."""
        self.states[self.begin : self.begin + len(states)].copy_(states)

    def clear(self) -> None:
        """Zero it: no text can be derived from it then."""
        self.states.zero_()
