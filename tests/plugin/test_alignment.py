"""``--print-alignment`` and ``--replace-unk`` by our generators: what fairseq's search prints."""

import argparse
from typing import Any

import numpy as np
import pytest
from fairseq import utils
from support.builders import (
    DEMO_DRAFTER,
    batch,
    built,
    collate,
    demo,
    tiny_blockwise,
    tiny_reordered,
)

from fairseq_paradec.errors import UsageError

GREEDY = ("greedy", "self_draft", "hgj", "gad")


def written(task: Any, models: list[Any], sample: Any, decoding: str, **options: Any) -> list[Any]:
    """The hypotheses of all sentences by a decoding."""
    if decoding == "gad":
        options["drafter_path"] = str(DEMO_DRAFTER)
    generator = task.build_generator(models, argparse.Namespace(decoding=decoding, **options))
    rows = task.inference_step(generator, models, sample)
    return [hypo for row in rows for hypo in row]


def compare(ours: list[Any], theirs: list[Any], kind: str) -> None:
    """Check tokens and alignments."""
    for one, other in zip(ours, theirs, strict=True):
        assert one["tokens"].tolist() == other["tokens"].tolist()
        assert type(one["alignment"]) is type(other["alignment"]) is list
        if kind == "hard":
            assert one["alignment"] == other["alignment"]
        else:  # printed with six digits
            values, wanted = (np.array(each["alignment"], float) for each in (one, other))
            np.testing.assert_allclose(values, wanted, atol=3e-6)


@pytest.mark.parametrize("kind", ["hard", "soft"])
@pytest.mark.parametrize("beam", [1, 3])
def test_alignments_are_those_of_fairseqs_search(beam: int, kind: str) -> None:
    task, model, sentences = demo()
    sample = collate(task, sentences[:24])
    options = {"print_alignment": kind, "beam": beam, "max_len_b": 60}
    theirs = written(task, [model], sample, "beam", **options)
    for decoding in GREEDY if beam == 1 else ("multiword_beam", "self_draft"):
        compare(written(task, [model], sample, decoding, **options), theirs, kind)


@pytest.mark.parametrize("variant", ["prenorm", "align", "default"])
def test_alignments_of_other_models(variant: str) -> None:
    """By the mean of two; by the heads of a model that attends to all of an output."""
    task, model = built(variant)
    sample = batch(task, (7, 3, 9, 2))
    options = {"print_alignment": "soft", "beam": 1, "max_len_b": 12}
    models = [model, built(variant, seed=1)[1]]
    for context in (False, True) if variant == "align" else (False,):
        for each in models:
            each.full_context_alignment = context
        try:
            for some in (models[:1], models):
                theirs = written(task, some, sample, "beam", **options)
                compare(written(task, some, sample, "greedy", **options), theirs, "soft")
        finally:
            for each in models:
                del each.full_context_alignment


def test_unknown_words_are_replaced() -> None:
    """By the source word that is looked at, or what a file says of it."""
    task, model, sentences = demo()
    words, sources = task.target_dictionary, task.source_dictionary
    sample = collate(task, sentences[:8])
    options = {"replace_unk": "", "unkpen": -14.0, "max_len_b": 20, "beam": 1}
    theirs = written(task, [model], sample, "beam", **options)
    ours = written(task, [model], sample, "greedy", **options)
    compare(ours, theirs, "hard")
    replaced = 0
    for hypo, tokens in zip(ours, sample["net_input"]["src_tokens"], strict=True):
        source = sources.string(tokens[tokens != words.pad()])
        plain, places = hypo["tokens"].tolist()[:-1], dict((t, s) for s, t in hypo["alignment"])
        looked_at = [source.split()[places[t]] for t in range(len(plain))]
        for known in ({}, dict.fromkeys(source.split(), "known")):
            output = words.string(hypo["tokens"])
            text = utils.replace_unk(output, source, hypo["alignment"], known, "<unk>")
            wanted = [
                known.get(looked_at[t], looked_at[t]) if token == words.unk() else words[token]
                for t, token in enumerate(plain)
            ]
            assert text.split() == wanted
        replaced += plain.count(words.unk())
    assert replaced > 10
    assert utils.load_align_dict("@@ ") == {}  # no file follows the flag
    assert utils.load_align_dict(None) is None


def test_heads_have_the_alignments_of_their_model() -> None:
    task, _ = built("default")
    model, sample = tiny_blockwise(task), batch(task, (6, 2, 9))
    options = {"print_alignment": "soft", "max_len_b": 12}
    ours = written(task, [model], sample, "blockwise", **options)
    compare(ours, written(task, [model], sample, "greedy", **options), "soft")


def test_what_cannot_be_aligned_is_refused() -> None:
    task, model = built("default")
    reordered = tiny_reordered(task)
    for models, said, options in (
        (
            [model],
            "--print-alignment: got 'both'; allowed: hard, soft",
            {"print_alignment": "both"},
        ),
        (
            [model],
            "--replace-unk words excludes --print-alignment soft",
            {"print_alignment": "soft", "replace_unk": "words"},
        ),
        (
            [reordered],
            "--print-alignment: got 'hard'.*none where words are not written from left to right",
            {"print_alignment": "hard", "decoding": "multiword_beam", "beam": 2},
        ),
    ):
        with pytest.raises(UsageError, match=said):
            task.build_generator(models, argparse.Namespace(**{"decoding": "greedy"} | options))
