"""Speculative sampling: the output has the distribution of fairseq's own --sampling."""

import argparse
import json
import math
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from fairseq import options
from reference import gad
from reference.greedy import rules_for
from reference.sampling import joint, law
from support.assisted import drafter
from support.builders import DEMO, Limits, built, collate, lend, sources
from support.chance import assert_drawn
from support.exact import watched

from fairseq_paradec.engine import sampling as of_arrays
from fairseq_paradec.engine.torch import sampling as of_tensors
from fairseq_paradec.lab.analysis.promises import SAMPLED, promise_of
from fairseq_paradec.token_rules import Sampling

LOW = -math.inf


@pytest.fixture(params=(of_arrays, of_tensors))
def module(request: pytest.FixtureRequest) -> Any:
    """The module that draws from arrays, and that of tensors."""
    return request.param


def given_to(module: Any, *tensors: torch.Tensor) -> list[Any]:
    """Tensors as a module takes them."""
    return [each.clone() if module is of_tensors else each.numpy().copy() for each in tensors]


def test_truncation_is_fairseqs(module: Any) -> None:
    """Also of tokens that are forbidden or made likelier, whose probabilities add up to no 1."""
    log_probs = torch.randn(6, 99, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    log_probs = (3 * log_probs).log_softmax(dim=1)
    log_probs[5] = (log_probs[5] / 9).log_softmax(dim=0)  # nearly flat
    log_probs[:, 1] = log_probs[1:3, 2] = log_probs[2, 5:37] = LOW
    log_probs[3, 3] += 4.0
    log_probs[4, :2] = log_probs[4, 3:] = LOW  # the limit
    forced = torch.tensor([[[LOW, -200.0, LOW]]])  # fairseq has no probability of it left
    cases = [{}, {"topk": 4}, {"topk": 40}, {"topp": 0.6}, {"topp": 1.0}, {"topp": 0.3, "topk": 2}]
    for own in cases:
        scores, end = given_to(module, log_probs[None], forced)
        got = torch.as_tensor(module.distributions(Sampling(**own), scores))[0]
        torch.testing.assert_close(got, torch.stack([law(row, **own) for row in log_probs]))
        assert module.distributions(Sampling(**own), end).tolist() == [[[0.0, 1.0, 0.0]]]


def test_draws_are_as_frequent_as_their_weights(module: Any) -> None:
    """Also by numbers at the ends of their range; nothing of weight 0 is drawn."""
    weights = torch.rand(300, generator=torch.Generator().manual_seed(2)) ** 6
    weights[:130] = weights[200] = weights[299] = 0
    lots = torch.from_numpy(np.random.default_rng(3).random((1, 100_000)))
    lots[0, :2] = torch.tensor([0, np.nextafter(1, 0)])
    given = given_to(module, weights.expand(1, 100_000, 300), lots)
    drawn = torch.as_tensor(module.draw(*given))
    counts = drawn[0].bincount(minlength=300)
    assert counts[weights == 0].eq(0).all()
    assert_drawn(counts.tolist(), (weights / weights.sum()).tolist(), sigmas=5)


SHORT = Limits(max_len_b=3)

#: drafter, flags, limits, length of the beginnings, prefixes of the two rows, models
CASES: dict[str, tuple[str, dict[str, Any], Limits, int, list[list[int]], int]] = {
    "itself": ("itself", {}, Limits(), 2, [], 1),
    "topp": ("other", {"sampling_topp": 0.7}, Limits(max_len_b=4, min_len=2), 2, [], 1),
    "topk": ("noisy", {"sampling_topk": 5}, Limits(max_len_b=2), 3, [], 1),
    "limits": ("noisy", {}, Limits(temperature=0.8, unkpen=-4.0, max_len_b=3), 2, [], 1),
    "native": ("other", {"drafter_shortlist": 30, "sampling_topk": 32}, SHORT, 2, [], 1),
    "tree": ("other", {"draft_tree": 9, "draft_confidence": 0.0}, SHORT, 2, [], 1),
    "stops": ("noisy", {"draft_confidence": 0.5, "adaptive_block": True}, SHORT, 2, [], 1),
    "greedy": ("", {"sampling_topk": 9}, Limits(temperature=1.3, max_len_b=4), 2, [], 1),
    "greedy, native": ("", {"sampling_topp": 0.8}, SHORT, 2, [], 1),
    "prefix": ("noisy", {}, Limits(temperature=1.2, min_len=3), 3, [[5, 9], [6, 1]], 1),
    "ensemble": ("noisy", {"sampling_topk": 6}, SHORT, 2, [], 2),
}


@pytest.mark.parametrize("name", CASES)
def test_beginnings_are_as_frequent_as_fairseqs_would_be(name: str, tmp_path: Path) -> None:
    kind, own, limits, length, prefixes, count = CASES[name]
    dtype = torch.float32 if "native" in name else torch.float64
    task, model = built("default", dtype)
    models = [model, built("default", dtype, seed=4)[1]][:count]
    args = argparse.Namespace(**limits.flags(), decoding="greedy", sampling=True, **own)
    if kind:
        args.decoding = "assisted"
        args.drafter_path = lend(task, model, drafter("default", kind, dtype))
    args.stats_file = str(tmp_path / "stats.jsonl")
    generator = task.build_generator(models, args)
    texts = sources(task, (7, 4))
    sample = collate(task, [text for text in texts for _ in range(1500)])
    forced = torch.tensor(prefixes).repeat_interleave(1500, dim=0) if prefixes else None
    np.random.seed(5)
    drawn = watched(task, generator, models, sample, forced)
    for b, text in enumerate(texts):
        rows, words = drawn[1500 * b : 1500 * (b + 1)], task.target_dictionary
        given = limits.reference() | {"prefix": prefixes[b] if prefixes else ()}
        rules = rules_for(words, models, len(text), **given)
        verify = gad.verifier(models, text.tolist(), rules)
        flags = {k.removeprefix("sampling_"): v for k, v in own.items() if "sampling" in k}
        shares = joint(verify, rules, length, **flags)
        counts = Counter(tuple(row.tokens[:length]) for row in rows)
        assert counts.keys() <= shares.keys()
        assert_drawn([counts[tokens] for tokens in shares], list(shares.values()), sigmas=5)
        for row in rows[:20]:
            assert row.tokens.index(rules.eos) == len(row.tokens) - 1 <= rules.max_len
            scores = [
                rules.apply(s, i, row.tokens[:i]) for i, s in enumerate(verify(row.tokens[:-1]))
            ]
            want = [float(s[token]) for s, token in zip(scores, row.tokens, strict=True)]
            assert row.row.scores == pytest.approx(want, abs=1e-4)
        if not kind:
            continue
        accepted = [p.num_accepted / p.num_drafted for r in rows for p in r.row.passes[:1]]
        # Models of random weights that are no kin hardly ever draw the same.
        assert (kind == "other" or max(accepted) > 0) and (kind != "itself" or min(accepted) == 1)
    record = json.loads(Path(args.stats_file).read_text().splitlines()[0])
    assert record["sampling"]["temperature"] == limits.temperature
    assert not record["lossless"] and promise_of(record) == SAMPLED
    if name == "topk":  # --seed repeats a run
        np.random.seed(5)
        again = watched(task, generator, models, sample)
        assert [row.tokens for row in again] == [row.tokens for row in drawn]


def test_fairseqs_commands_take_sampling_without_beam() -> None:
    both = "--decoding assisted --sampling"
    for words, beam in {both: 1, f"{both} --beam 4 --nbest 4": 4, both[:19]: 5}.items():
        given = [str(DEMO), "--path", "model.pt", *words.split()]
        parsed = options.parse_args_and_arch(options.get_generation_parser(), given)
        assert parsed.beam == beam
