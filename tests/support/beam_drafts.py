"""Beam search with drafts beside fairseq's search and the slow twin."""

import argparse
import math
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from reference import beam_drafts as paper
from reference.greedy import fairseqs_search, rules_for

from fairseq_paradec.methods.beam_drafts import BeamAssistedDecoder
from support import assisted
from support.builders import Limits, built, lend


def decoder(variant: str, kind: str, dtype: Any, beam: int, limits: Limits, **flags: Any) -> Any:
    """The decoder of ``assisted`` with a beam, its task and model; ``kind``: the drafter's."""
    task, model = built(variant, dtype)
    flags = {"decoding": "assisted", "nbest": beam, "beam": beam} | flags
    if flags["decoding"] == "assisted":
        flags["drafter_path"] = lend(task, model, assisted.drafter(variant, kind, dtype))
    args = argparse.Namespace(**limits.flags(), **flags)
    found = task.build_generator([model], args).decoder
    assert isinstance(found, BeamAssistedDecoder)
    return found, task, model


def fairseqs(
    task: Any, models: Sequence[Any], sample: Any, beam: int, limits: Limits, prefixes: Any = None
) -> list[list[dict[str, Any]]]:
    """The hypotheses of fairseq's own search."""
    search = fairseqs_search(models, task.target_dictionary, beam_size=beam, **limits.stock())
    with torch.no_grad():
        found: list[list[dict[str, Any]]] = search.generate(models, sample, prefix_tokens=prefixes)
    for model in models:
        if hasattr(model, "set_beam_size"):  # BART's, whose forward would stay another one
            model.set_beam_size(1)
    return found


def assert_fairseqs(
    search: Any,
    task: Any,
    models: Sequence[Any],
    sample: Any,
    beam: int,
    limits: Limits,
    prefixes: Any = None,
) -> list[list[dict[str, Any]]]:
    """A decoder's hypotheses, which are those of fairseq's own search."""
    found = task.inference_step(search, models, sample, prefix_tokens=prefixes)
    want = fairseqs(task, models, sample, beam, limits, prefixes)
    for got, other in zip(found, want, strict=True):
        assert_same(got, other)
    return list(found)


def assert_same(got: Sequence[dict[str, Any]], want: Sequence[dict[str, Any]]) -> None:
    """All hypotheses of a sentence: tokens, scores, and those of the tokens, in their order."""
    assert [one["tokens"].tolist() for one in got] == [one["tokens"].tolist() for one in want]
    for one, other in zip(got, want, strict=True):
        # Rounding grows with the scores: a negative --lenpen multiplies, --temperature divides. By
        # AVX2 two of these 1,000 settings are 1.2e-5 and 1.6e-5 apart.
        assert float(one["score"]) == pytest.approx(float(other["score"]), rel=2e-5, abs=1e-4)
        values = [each["positional_scores"].tolist() for each in (one, other)]
        # They are differences of sums, and round as the largest of them does.
        largest = max((abs(one) for one in values[1] if math.isfinite(one)), default=0.0)
        assert values[0] == pytest.approx(values[1], rel=0, abs=max(1e-4, 2e-5 * largest))


def twin(
    task: Any, pair: Sequence[Any], source: Sequence[int], beam: int, depth: int, limits: Limits
) -> Any:
    """What the twin makes of a model and its drafter: hypotheses with scores, and passes."""
    rules = rules_for(task.target_dictionary, pair[:1], len(source), **limits.reference())
    verify, draft = (paper.asker([one], source, rules) for one in pair)
    finished, passes = paper.search(verify, draft, rules, beam, depth)
    assert finished == paper.plain(verify, rules, beam)
    return paper.ranked(finished, limits.lenpen, limits.unnormalized), passes
