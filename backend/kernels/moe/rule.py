"""Routing rule of a model, from its configuration. Does not import torch."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Routing:
    """Rule that selects a token's experts from its logits.

    Attributes:
        experts: number of experts; 0: the width of the logits. per_token: experts of a token.
        sigmoid: scores are the sigmoid of each logit instead of a softmax over all (DeepSeek-AI 2024, V3).
        normalised: the weights of the selected experts sum to 1. scale: final factor of the weights.
        groups, groups_taken: experts are in `groups` groups of neighbours, and only the best `groups_taken` groups are
            considered. The score of a group is the sum of its two best experts, or, without a bias, its best expert
            (node-limited routing; V2, V3).
    """

    per_token: int
    experts: int = 0
    sigmoid: bool = False
    normalised: bool = True
    scale: float = 1.0
    groups: int = 1
    groups_taken: int = 1
