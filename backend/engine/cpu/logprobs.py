"""Log probabilities of tokens, under the model's own distribution."""

import torch
from torch import Tensor

from backend.engine.core.progress import TokenLogprobs

LOWEST = -9999.0  # JSON has no infinity; OpenAI writes this


def logprobs_of(logits: Tensor, tokens: list[int], tops: list[int]) -> list[TokenLogprobs]:
    """For each row, of its token and of so many of its likeliest.

    logits: [rows, vocab_size], before anything shaped them. tops: at most the vocabulary; 0 gives none.
    """
    if not tokens:
        return []
    rows = logits.float()
    total = rows.logsumexp(-1, keepdim=True)
    own = rows.gather(1, torch.tensor(tokens, device=rows.device).unsqueeze(-1))
    ranks = (rows > own).sum(-1) + 1
    values, ids = rows.topk(min(max(tops), rows.shape[1]), dim=-1)
    found = []
    lists = zip(
        (own - total).squeeze(-1).tolist(), ranks.tolist(), ids.tolist(), (values - total).tolist(), strict=True
    )
    for (own_logprob, rank, top_ids, top_values), top in zip(lists, tops, strict=True):
        likeliest = [(i, max(v, LOWEST)) for i, v in zip(top_ids[:top], top_values[:top], strict=True)]
        found.append(TokenLogprobs(max(own_logprob, LOWEST), rank, likeliest))
    return found
