"""Speculative sampling: the output has the distribution of fairseq's own --sampling."""

from __future__ import annotations

import argparse
import math
from collections import Counter
from typing import Any

import pytest
import torch
from reference import gad
from reference.greedy import rules_for
from reference.sampling import joint, law
from support.assisted import drafter
from support.builders import Limits, built, collate, lend, sources
from support.chance import assert_drawn
from support.exact import watched

from fairseq_paradec.decoding.sampling import Sampling, acceptance, residual

LOW = -math.inf
TRUNCATED = [{}, {"topk": 4}, {"topk": 40}, {"topp": 0.6}, {"topp": 1.0}, {"topp": 0.3, "topk": 2}]


@pytest.mark.parametrize("own", TRUNCATED)
def test_truncation_is_fairseqs(own: dict[str, Any]) -> None:
    """Also of tokens that are forbidden or made likelier, whose probabilities add up to no 1."""
    log_probs = torch.randn(5, 40, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    log_probs = (3 * log_probs).log_softmax(dim=1)
    log_probs[:, 1] = log_probs[1:3, 2] = log_probs[2, 5:37] = LOW
    log_probs[3, 3] += 4.0
    log_probs[4, :2] = log_probs[4, 3:] = LOW  # the limit
    got = Sampling(**own).probs(log_probs[None])[0]
    torch.testing.assert_close(got, torch.stack([law(row, **own) for row in log_probs]))
    forced = torch.tensor([[[LOW, -200.0, LOW]]])  # fairseq has no probability of it left
    assert Sampling(**own).probs(forced).tolist() == [[[0.0, 1.0, 0.0]]]


def test_accepting_and_replacing_gives_the_verifiers_distribution() -> None:
    """By count, not by draws; some drafters are sure, rule out what is likely, are the verifier."""
    lots = torch.Generator().manual_seed(2)
    p, q = torch.rand(2, 8, 9, dtype=torch.float64, generator=lots) ** 4
    p[0, 4:], q[0, :4], q[1, 2:], p[2, 1:], q[3] = 0, 0, 0, 0, p[3]
    p, q = p / p.sum(1, keepdim=True), q / q.sum(1, keepdim=True)
    kept, rest = q * acceptance(p, q), residual(p, q)
    redrawn = (1 - kept.sum(1, keepdim=True)) * rest / rest.sum(1, keepdim=True)
    torch.testing.assert_close(kept + redrawn, p)
    torch.testing.assert_close(kept.sum(1), torch.minimum(p, q).sum(1))  # as often as can be
    undrafted = torch.zeros_like(p)
    assert acceptance(p, undrafted).eq(0).all() and residual(p, undrafted).equal(p)


SHORT = Limits(max_len_b=3)

#: drafter, flags, limits, length of the beginnings, prefixes of the two rows, models
CASES: dict[str, tuple[str, dict[str, Any], Limits, int, list[list[int]], int]] = {
    "itself": ("itself", {}, Limits(), 2, [], 1),
    "topp": ("other", {"sampling_topp": 0.7}, Limits(max_len_b=4, min_len=2), 2, [], 1),
    "topk": ("noisy", {"sampling_topk": 5}, Limits(max_len_b=2), 3, [], 1),
    "limits": ("noisy", {}, Limits(temperature=0.8, unkpen=-4.0, max_len_b=3), 2, [], 1),
    "native": ("noisy", {"drafter_shortlist": 30, "sampling_topk": 32}, SHORT, 2, [], 1),
    "stops": ("noisy", {"draft_confidence": 0.5, "adaptive_block": True}, SHORT, 2, [], 1),
    "prefix": ("noisy", {}, Limits(temperature=1.2, min_len=3), 3, [[5, 9], [6, 1]], 1),
    "ensemble": ("noisy", {"sampling_topk": 6}, SHORT, 2, [], 2),
}


@pytest.mark.parametrize("name", CASES)
def test_beginnings_are_as_frequent_as_fairseqs_would_be(name: str) -> None:
    kind, own, limits, length, prefixes, count = CASES[name]
    dtype = torch.float32 if name == "native" else torch.float64
    task, model = built("default", dtype)
    models = [model, built("default", dtype, seed=4)[1]][:count]
    args = argparse.Namespace(**limits.flags(), decoding="assisted", sampling=True, beam=5, **own)
    args.drafter_path = lend(task, model, drafter("default", kind, dtype))
    generator = task.build_generator(models, args)
    assert not generator.lossless
    texts = sources(task, (7, 4))
    sample = collate(task, [text for text in texts for _ in range(1500)])
    forced = torch.tensor(prefixes).repeat_interleave(1500, dim=0) if prefixes else None
    torch.manual_seed(5)
    drawn = watched(task, generator, models, sample, forced)
    for b, text in enumerate(texts):
        prefix, rows = (prefixes or [[], []])[b], drawn[1500 * b : 1500 * (b + 1)]
        rules = rules_for(
            task.target_dictionary, models, len(text), prefix=prefix, **limits.reference()
        )
        verify = gad.verifier(models, text.tolist(), rules)
        flags = {k.removeprefix("sampling_"): v for k, v in own.items() if "sampling" in k}
        shares = joint(verify, rules, length, **flags)
        counts = Counter(tuple(row.tokens[:length]) for row in rows)
        assert counts.keys() <= shares.keys()
        assert_drawn([counts[tokens] for tokens in shares], list(shares.values()), sigmas=5)
        for row in rows[:20]:
            assert row.tokens.index(rules.eos) == len(row.tokens) - 1 <= rules.max_len
            scores = [rules.apply(s, i) for i, s in enumerate(verify(row.tokens[:-1]))]
            for token, score, got in zip(row.tokens, scores, row.row.scores, strict=True):
                assert got == pytest.approx(float(score[token]), abs=1e-4)
        accepted = [p.num_accepted / p.num_drafted for r in rows for p in r.row.passes[:1]]
        assert (min(accepted) == 1) == (kind == "itself") and max(accepted) > 0
    if name == "topk":  # --seed repeats a run
        torch.manual_seed(5)
        again = watched(task, generator, models, sample)
        assert [row.tokens for row in again] == [row.tokens for row in drawn]
