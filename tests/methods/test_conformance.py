"""Every method under every limit: fairseq's tokens and scores, and the passes of its slow twin.

Every two levels of two factors meet in some row of the table. A row is decoded once.
"""

import itertools
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from reference.jacobi import reference, sentence
from support import assisted, blockwise, earlier, exact, gad, multiword, trees
from support.builders import source_rows
from support.conformance import CASES, FACTORS, Setting, allowed, generator_of, row_name, setting_of
from support.pairwise import Row, pairwise

from fairseq_paradec.engine.native import beam as native_beam
from fairseq_paradec.engine.native import drafts
from fairseq_paradec.registry import METHODS

#: Methods that have their twins or judges elsewhere: beams that end in other places, and the choice
#: between other methods.
ELSEWHERE = {"double_token_beam": "test_multiword_beam.py", "auto_fast": "test_auto_fast.py"}

ROWS = pairwise(FACTORS, allowed, varied="case")

#: Rows in which a rule decides what is drafted: trees, and drafts of native passes.
RULED = [
    {"case": case, "variant": variant, "limits": "no repeats", "prefix": "none"}
    | {"batch": "ragged", "models": 1, "dtype": dtype, "suppressed": ()}
    for case in CASES
    for variant in ("prenorm", "gelu")
    for dtype in (["float64"] if "draft_tree" in dict(case.flags) else ["native"])
    if case.family in ("assisted", "gad", "blockwise") and case.exact and not case.given
]

#: Methods whose drafts depend on what their tokens were drafted by: with earlier outputs no twin.
STATEFUL = ("gad", "blockwise", "pj", "pgj", "hgj")


def twin(setting: Setting, row: int, source: Sequence[int], prefix: Sequence[int]) -> Any:
    """Tokens, scores (None if the twin has none), number of passes, and passes if it has them."""
    flags, limits = dict(setting.case.flags), setting.limits
    family = setting.case.family
    if setting.case.given:
        result = earlier.twin(setting, row, source, prefix)
    elif family == "jacobi":
        asked = sentence(setting.models, source, setting.rules(source, prefix))
        result = reference(asked, **flags)
        return result.tokens, None, result.num_passes, None
    elif family == "self":
        result = assisted.twin(replace(setting, given=setting.models[0]), source, prefix)
    elif "draft_tree" in flags:
        result = trees.twin(setting, source, prefix)
    elif family == "assisted":
        result = assisted.twin(setting, source, prefix)
    elif family in ("gad", "nat"):
        result = gad.twin(setting.given, source, limits, prefix, setting.script, **flags)
    else:
        del flags["decoding"]
        result = blockwise.twin(setting.given, source, limits, prefix, **flags)
        verified = [b for b in result.blocks if b.predicted[0] != 2]
        passes = [(0, 0, 0)]
        passes += [(b.start + 1, len(b.predicted) - 1, b.size - 1) for b in verified]
        assert len(passes) == result.passes
        return result.tokens, result.scores, len(passes), passes
    passes = [(p.start, len(p.draft), p.num_accepted) for p in result.passes]
    return result.tokens, result.scores, len(passes), passes


def test_every_method_has_a_case() -> None:
    assert {one.method for one in CASES} | ELSEWHERE.keys() == METHODS.keys()


def test_every_two_levels_meet() -> None:
    met = {frozenset(pair) for row in ROWS for pair in itertools.combinations(row.items(), 2)}
    for a, b in itertools.combinations(FACTORS, 2):
        for x, y in itertools.product(FACTORS[a], FACTORS[b]):
            assert frozenset([(a, x), (b, y)]) in met or not allowed({a: x, b: y})
    assert all(map(allowed, ROWS))


@pytest.mark.parametrize("row", [*ROWS, *RULED], ids=row_name)
def test_conformance(row: Row, monkeypatch: pytest.MonkeyPatch) -> None:
    setting = setting_of(row)
    task, models, sample, limits = setting.task, setting.models, setting.sample, setting.limits
    generator, sources = generator_of(setting), source_rows(sample)
    if setting.case.family == "multiword":
        beam, hypos = setting.flags["beam"], task.inference_step(generator, models, sample)
        for got, source in zip(hypos, sources, strict=True):
            want = multiword.twin(models, source, beam, limits)
            multiword.assert_same(got[: len(want)], want)
        return
    flags = dict(setting.case.flags)
    if setting.case.family == "beams":
        if row["dtype"] == "native":
            for model in (*models, *filter(None, [setting.given])):
                monkeypatch.setattr(model, "_is_generation_fast", True, raising=False)
            generator = generator_of(setting)
        task.inference_step(generator, models, sample, prefix_tokens=setting.forced)
        for model in models:
            if hasattr(model, "set_beam_size"):  # BART's, whose forward would stay another one
                model.set_beam_size(1)
        audit = generator.decoder.audit
        assert audit.sentences == len(sources)  # n-best lists, by fairseq's search
        assert audit.beyond == 0 and audit.ties <= 1
        return
    found, ties = exact.watched(task, generator, models, sample, setting.forced), 0
    if row["dtype"] == "native":
        for module in (drafts, native_beam):  # a call for each part of a pass
            monkeypatch.setattr(module, "AT_MOST", 0)
        given = getattr(setting.given, "drafter", setting.given)
        drafters = [given] if setting.case.family in ("assisted", "gad") else []
        for model in (*models, *drafters):  # native passes take models whose weights last
            monkeypatch.setattr(model, "_is_generation_fast", True, raising=False)
        torchs = found
        itself = setting.case.family == "self"
        if "drafter_dtype" in METHODS[setting.case.method].reads and not itself:
            found = exact.watched(task, generator_of(setting), models, sample, setting.forced)
            for ours, other in zip(found, torchs, strict=True):  # drafts in int8
                assert ours.tokens == other.tokens or not setting.case.exact
            setting = replace(setting, flags=setting.flags | {"drafter_dtype": "fp32"})
        generator = generator_of(setting)
        found = exact.watched(task, generator, models, sample, setting.forced)
    for i, (ours, source, prefix) in enumerate(zip(found, sources, setting.prefixes, strict=True)):
        tied = 0
        if setting.case.exact:
            stocks = setting.exact[i]
            tied = exact.same_or_tie(task, models, limits, ours.hypo, stocks, source, prefix)
            ties += tied
        one_by_one = flags.get("adaptive_block") is None and "draft_tree" not in flags
        has_twin = not setting.case.given or (one_by_one and setting.case.method not in STATEFUL)
        if row["dtype"] == "float64" and not tied and has_twin:
            same_as_twin(ours, twin(setting, i, source, prefix))
        if row["dtype"] == "native":
            assert ours.tokens == torchs[i].tokens
            assert itself or ours.passes == torchs[i].passes
            scores = [one.hypo["positional_scores"] for one in (ours, torchs[i])]
            torch.testing.assert_close(*scores, atol=2e-4, rtol=0)
    assert ties <= (0 if row["dtype"] == "float64" else 1)


def same_as_twin(ours: exact.Decoded, want: Any) -> None:
    """Check tokens, scores, number of passes and every pass."""
    tokens, scores, count, passes = want
    assert ours.tokens == tokens
    assert ours.hypo["steps"] == count
    if scores is not None:
        assert ours.row.scores == pytest.approx(scores, abs=1e-4)
    if passes is not None:
        assert ours.passes == passes
