"""fairseq's own full forward, and scorers that run chunk by chunk beside it."""

import math
import random

import torch

LENGTHS = [9, 6, 3, 1]
TOKENS = 13


def inputs_for(task, seed=1, length=TOKENS):
    """B×length decoder inputs without <pad>, which fairseq's forward would treat specially."""
    generator = torch.Generator().manual_seed(seed)
    low = task.target_dictionary.unk()
    size = (len(LENGTHS), length)
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


def run_chunks(scorer, sample, inputs, widths):
    """Log-probs of all inputs, in chunks of these widths, B×T×V."""
    scorer.encode(sample["net_input"]["src_tokens"].numpy())
    done, parts = 0, []
    for width in widths:
        parts.append(scorer.log_probs(scorer.step(inputs[:, done : done + width])))
        done += width
        scorer.keep([done] * len(inputs))
    return torch.cat(parts, dim=1)


def walk(scorer, sample, inputs, want, widest, seed=0):
    """Run chunks of random widths with random roll-backs, rows each at their own length.

    A part of what goes in behind a row's kept tokens is junk, rolled back again. Every right output
    is compared with the full forward; rows leave, change places or are repeated on the way.

    Returns:
        The number of slots of the cache after each step; an ensemble has several caches.
    """
    rng = random.Random(seed)
    scorer.encode(sample["net_input"]["src_tokens"].numpy())
    rows = list(range(len(inputs)))
    done, slots = [0] * len(rows), []
    while rows:
        width = rng.randint(1, min(widest, rng.choice((4, widest)) if slots else 4))
        # 1. Of each row's chunk the first tokens are right, and the others wrong.
        right = [min(rng.randint(1, width), inputs.size(1) - n) for n in done]
        chunk = torch.randint(4, 30, (len(rows), width))
        for b, (row, n, good) in enumerate(zip(rows, done, right, strict=True)):
            chunk[b, :good] = inputs[row, n : n + good]
        got = scorer.log_probs(scorer.step(chunk))
        for b, (row, n, good) in enumerate(zip(rows, done, right, strict=True)):
            assert difference(got[b, :good], want[row, n : n + good]) < 1e-9, (row, n, good)
        slots.append(scorer.cache.capacity if hasattr(scorer, "cache") else None)
        # 2. As much is kept as was right, or less.
        done = [n + rng.randint(min(good, 1), good) for n, good in zip(done, right, strict=True)]
        scorer.keep(done)
        # 3. Rows that are done leave; now and then the others change places, or some stand twice.
        stay = [b for b, n in enumerate(done) if n < inputs.size(1)]
        if stay and rng.random() < 0.2:
            stay = rng.choices(stay, k=len(rows))
        elif rng.random() < 0.2:
            rng.shuffle(stay)
        if stay and stay != list(range(len(rows))):
            scorer.reorder(stay)
        rows, done = [rows[b] for b in stay], [done[b] for b in stay]
    return slots
