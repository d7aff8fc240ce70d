"""The embedding, with its rows divided among the ranks of a group."""

import torch
from torch import Tensor

from backend.parallel.shard import TOKENS, Shard

SPARE = TOKENS  # rows of zeros behind a rank's part, of which tokens of other ranks take the last


def rows(shard: Shard, vocabulary: int) -> int:
    """Number of rows of embedding and head on a rank."""
    return vocabulary if shard.alone else shard.most_tokens(vocabulary) + SPARE


def row_of_token(shard: Shard, vocabulary: int, device: torch.device) -> Tensor:
    """[vocabulary] int64: the place of each token in this rank's `rows`; one of another rank in a spare row."""
    found = torch.full((vocabulary,), rows(shard, vocabulary) - 1, dtype=torch.int64, device=device)
    begin, end = shard.tokens(vocabulary)
    found[begin:end] = torch.arange(end - begin, device=device)
    return found
