"""fairseq's sampling as exact numbers: its own search says what it draws from. Slow."""

from unittest import mock

import torch
from fairseq import search
from fairseq.data import Dictionary

from .gad import Verify
from .greedy import Rules


def law(log_probs: torch.Tensor, topk: int = -1, topp: float = -1.0) -> torch.Tensor:
    """The probabilities (V) by which search.Sampling draws, asked for rank by rank."""
    probs, weights, rank = torch.zeros_like(log_probs), torch.ones(1, 1), 0
    while rank < weights.size(1):
        with mock.patch("torch.multinomial", return_value=torch.tensor([[rank]])) as draw:
            strategy = search.Sampling(Dictionary(), topk, topp)
            score, token, _ = strategy.step(0, log_probs.clone()[None, None], None)
        weights = draw.call_args.args[0]
        probs[token] = weights[0, rank] / weights.sum()
        assert weights[0, rank] == 0 or torch.isclose(score, log_probs[token])  # what it reports
        rank += 1
    return probs


def joint(
    verify: Verify, rules: Rules, length: int, tokens: tuple[int, ...] = (), **truncated: float
) -> dict[tuple[int, ...], float]:
    """The probability of each output's first `length` tokens, of those that begin with `tokens`."""
    if len(tokens) == length or rules.eos in tokens:
        return {tokens: 1.0}
    shares = law(rules.apply(verify(tokens)[-1], len(tokens), tokens), **truncated).tolist()
    drawn = [(share, (*tokens, token)) for token, share in enumerate(shares) if share > 0]
    further = [(share, joint(verify, rules, length, one, **truncated)) for share, one in drawn]
    return {one: share * rest for share, found in further for one, rest in found.items()}
