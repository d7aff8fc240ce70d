"""How a model routes its tokens, as its configuration says. Does not import torch."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Routing:
    """How a token's experts are found from its logits.

    Attributes:
        experts: that there are; 0 leaves it to the logits. per_token: experts that a token takes.
        sigmoid: logits become scores by a sigmoid each, not by a softmax over all (DeepSeek-AI 2024, V3).
        normalised: weights of those taken add up to 1. scale: multiplies weights last.
        groups, groups_taken: experts of the best `groups_taken` of so many groups of neighbours alone are taken; a
            group is as good as its two best, or, without a bias, its best (node-limited routing; V2, V3).
    """

    per_token: int
    experts: int = 0
    sigmoid: bool = False
    normalised: bool = True
    scale: float = 1.0
    groups: int = 1
    groups_taken: int = 1
