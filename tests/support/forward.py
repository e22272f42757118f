"""fairseq's own full forward, for comparison with a scorer's."""

from __future__ import annotations

import math

import torch

LENGTHS = [9, 6, 3, 1]
TOKENS = 13


def inputs_for(task, seed=1):
    """B×TOKENS decoder inputs without <pad>, which fairseq's forward would treat specially."""
    generator = torch.Generator().manual_seed(seed)
    low = task.target_dictionary.unk()
    size = (len(LENGTHS), TOKENS)
    return torch.randint(low, len(task.target_dictionary), size, generator=generator)


def full_forward(model, sample, inputs):
    """fairseq's log-probs at every position, B×T×V, without any cache."""
    net_input = sample["net_input"]
    output = model(net_input["src_tokens"], net_input["src_lengths"], inputs)
    if model.decoder.adaptive_softmax is not None:
        return model.decoder.adaptive_softmax.get_log_prob(output[0], None)
    return torch.log_softmax(output[0], dim=-1)


def difference(a, b):
    """The largest difference, with equal infinities no difference."""
    return float((a - b).abs().nan_to_num(nan=math.inf).max())
