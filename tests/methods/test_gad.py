"""GAD, GAD++ and the drafter alone, against fairseq's own search and a slow twin of the paper."""

import argparse
import copy
import json
import math
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
from fairseq import checkpoint_utils
from reference.block_nat import block_logits
from reference.greedy import stock_greedy
from support import builders
from support.builders import DEMO_DRAFTER, Limits, batch, built, lend, save_drafter, tiny_drafter
from support.exact import RAGGED, check, refused
from support.gad import SEED, Pair, lots, pair, run

from fairseq_paradec.engine.block import BlockScorer
from fairseq_paradec.errors import UsageError
from fairseq_paradec.plugin.compat import loading

#: Prefix lengths of four rows, call by call; the rows that stay for the next call.
GROWTH: list[tuple[list[int], list[int]]] = [
    ([0, 0, 0, 0], [0, 1, 2, 3]),
    ([1, 7, 3, 0], [0, 1, 3]),  # row 2 is done
    ([1, 8, 12], [1, 2]),  # row 0 is done
    ([30, 13], [0, 1]),  # beyond the first capacity
    ([31, 40], [1]),
    ([62], [0]),  # with the block beyond the last position
]


#: Options of drafters; "wide" has an encoder of another width.
DRAFTERS: dict[str, dict[str, Any]] = {
    "masks": {},
    "soft-copy": {"soft_copy": True, "decoder_normalize_before": True, "no_scale_embedding": True},
    "wide": {"decoder_embed_dim": 32},
    "sizes": {"random_block_size": True, "drafter_positions": "sinusoidal"},
}


@pytest.mark.parametrize("kind", DRAFTERS)
@pytest.mark.parametrize("attention", ["bidirectional", "prefix_causal"])
def test_blocks_are_those_of_the_twin(attention: str, kind: str) -> None:
    """Ragged prefixes, rows that leave, a cache that grows."""
    task, verifier = built("other_dims")
    options = DRAFTERS[kind] | ({"verifier": verifier} if kind == "wide" else {})
    model = tiny_drafter(task, attention, seed=SEED, **options)
    sample = batch(task, (9, 6, 3, 2), left_pad=(kind == "masks") == (attention != "bidirectional"))
    rows = builders.source_rows(sample)
    words = torch.randint(4, 40, (4, 64), generator=lots("prefixes")).tolist()
    scorer, live, size = BlockScorer(model), [0, 1, 2, 3], 4
    masks = [None] * (size if kind == "sizes" else 6)  # the first 4 of its block
    with torch.inference_mode():
        scorer.encode(sample["net_input"]["src_tokens"].numpy())
        for lengths, stay in GROWTH:
            prefixes = [words[b][:n] for b, n in zip(live, lengths, strict=True)]
            got = scorer.log_probs(scorer.fill(prefixes, size))
            for b, prefix, scores in zip(live, prefixes, got, strict=True):
                want = block_logits(model, rows[b], prefix, masks, attention)[:size]
                torch.testing.assert_close(scores, want.log_softmax(-1), atol=1e-9, rtol=0)
            if len(stay) < len(live):
                scorer.reorder(stay)
                live = [live[i] for i in stay]
    assert scorer.cache.capacity > 32
    if attention == "prefix_causal":
        assert scorer.cache.lengths == [62]


@pytest.mark.parametrize("decoding", [None, "auto", "nat", "gad", "gad_pp"])
def test_blocks_are_as_long_as_in_training_unless_told(decoding: str | None) -> None:
    """A block model is decoded by nat. Of two equal scores a strict rule takes greedy's."""
    given = pair("learned_positions", "causal")
    drafts = decoding in ("gad", "gad_pp")
    strict = ({"accept_topk": 1}, {"accept_margin": 0.0}) if decoding == "gad_pp" else ()
    for own in ({}, {"block_size": 3}, *strict):
        args = argparse.Namespace(decoding=decoding, **own)
        args.drafter_path = given.path if drafts else None
        models = list(given.models) if drafts else [given.drafter]
        generator = given.task.build_generator(models, args).decoder
        assert generator.config.decoding == (decoding if drafts else "nat")
        assert generator.config.block_size == own.get("block_size", builders.DRAFTER_BLOCK_SIZE)
        exact = decoding == "gad" or own in strict
        assert generator.lossless == exact and (not drafts or generator.acceptance().exact == exact)


@pytest.mark.parametrize(
    ("variant", "kind"), [("prenorm", "bidirectional-copy-shared"), ("mbart", "causal-copy-shared")]
)
def test_a_shared_encoder_is_a_copy_of_it(
    variant: str, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same drafts, and the drafter's own encoder does not run."""
    given = pair(variant, kind)
    own = copy.deepcopy(given.drafter)
    own.shares_encoder = False
    apart = Pair(given.task, given.models, own, lend(given.task, given.models[0], own))
    sample = batch(given.task, RAGGED, seed=1)
    spies = [mock.Mock(wraps=encoder.forward) for encoder in (given.drafter.encoder, own.encoder)]
    monkeypatch.setattr(given.drafter.encoder, "forward", spies[0])
    monkeypatch.setattr(own.encoder, "forward", spies[1])
    flags = {"decoding": "gad_pp", "accept_topk": 40, "accept_margin": 6.0, "block_size": 5}
    ours, theirs = ([(o.tokens, o.passes) for o in run(p, sample, **flags)] for p in (given, apart))
    assert ours == theirs
    assert [spy.call_count for spy in spies] == [0, 1]


@pytest.fixture
def loads(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    seen: list[str] = []
    load = checkpoint_utils.load_model_ensemble_and_task

    def spy(filenames: list[str], *args: Any, **kwargs: Any) -> Any:
        seen.extend(filenames)
        return load(filenames, *args, **kwargs)

    monkeypatch.setattr(loading.checkpoint_utils, "load_model_ensemble_and_task", spy)
    return seen


def is_greedy(task: Any, generator: Any, model: Any) -> None:
    sample = batch(task, RAGGED)
    hypos = task.inference_step(generator, [model], sample)
    for hypo, want in zip(hypos, stock_greedy(task, [model], sample, max_len_b=16), strict=True):
        assert hypo[0]["tokens"].tolist() == want["tokens"].tolist()


def test_a_drafter_is_loaded_once_for_each_precision(tmp_path: Path, loads: list[str]) -> None:
    """On the rounded verifier's encoder, too; generators leave each other's drafter as it is."""
    task = builders.task_for("default")
    model = builders.tiny_model(task, "default", torch.float32)
    drafter = tiny_drafter(task, dtype=torch.float32, verifier=model)
    path = save_drafter(task, drafter, tmp_path / "drafter.pt")
    args = argparse.Namespace(decoding="gad", drafter_path=path, **Limits().flags())
    first = task.build_generator([model], args).decoder
    assert task.build_generator([model], args).decoder.drafter is first.drafter
    assert loads == [path]
    for dtype in (torch.float16, torch.bfloat16):
        half = copy.deepcopy(model).to(dtype)
        other = task.build_generator([half], args).decoder
        hypos = task.inference_step(other, [half], batch(task, RAGGED))
        assert all(hypo[0]["tokens"][-1] == 2 for hypo in hypos)
        assert other.drafter.decoder.mask_vector.dtype == dtype
    for name, weight in drafter.state_dict().items():
        assert torch.equal(weight, first.drafter.state_dict()[name])
    is_greedy(task, first, model)


def test_a_verifier_may_be_validated_by_gad(tmp_path: Path, loads: list[str]) -> None:
    """--eval-bleu-args: its generator is built with the model, and loads the drafter once."""
    task = builders.task_for("default")
    drafter = tiny_drafter(task, dtype=torch.float32)
    path = save_drafter(task, drafter, tmp_path / "drafter.pt")
    task.cfg.eval_bleu = True
    task.cfg.eval_bleu_args = json.dumps({"decoding": "gad", "drafter_path": path, "max_len_b": 16})
    flags = argparse.Namespace(**vars(builders.tiny_model(task).flags), arch="transformer")
    model = task.build_model(flags).eval()
    assert loads == [path]
    assert task.sequence_generator.decoder.config.decoding == "gad"
    is_greedy(task, task.sequence_generator, model)
    task.cfg.eval_bleu_args = "{}"
    task.build_model(argparse.Namespace(**vars(drafter.flags), arch="block_nat"))
    assert task.sequence_generator.decoder.config.decoding == "nat"


def test_what_cannot_be_is_named(tmp_path: Path) -> None:
    task, model = built("default")
    other, drafter = built("default", seed=1)[1], tiny_drafter(task)
    shared = lend(task, model, tiny_drafter(task, verifier=model))
    elsewhere = lend(task, model, tiny_drafter(task, verifier=other))
    narrow = lend(task, model, tiny_drafter(task, verifier=built("other_dims")[1]))
    short = lend(task, model, tiny_drafter(task, max_source_positions=20))
    plain = lend(task, model, drafter)
    (text := tmp_path / "text.pt").write_text("no weights")
    files = tiny_drafter(task, dtype=torch.float32)
    french = save_drafter(task, files, tmp_path / "fr.pt", source_lang="en", target_lang="fr")
    german = builders.tiny_task()
    german.cfg.source_lang, german.cfg.target_lang = "en", "de"
    nat, hgj = {"decoding": "nat"}, {"decoding": "hgj"}
    long = {"block_size": builders.DRAFTER_POSITIONS + 1}

    def gad(path: Any) -> dict[str, str]:
        return {"decoding": "gad", "drafter_path": str(path)}

    for within, models, flags, words in (
        (task, [model], gad(tmp_path), "--drafter-path: |a folder"),
        (task, [model], gad(text), "--drafter-path: |text.pt|no checkpoint at all"),
        (german, [model], gad(french), "--drafter-path: |en-de|en-fr"),
        (task, [model], gad(elsewhere), f"--drafter-path: |{elsewhere}|this verifier's encoder"),
        (task, [model], gad(narrow), "--drafter-path: |this verifier's encoder"),
        (task, [model], gad(short), "--drafter-path: |64 source tokens|20"),
        (task, [model, other], gad(shared), "--path|2 models"),
        (task, [model], gad(plain) | long, "at most 64"),
        (task, [drafter], nat | long, "--block-size|65|at most 64"),
        (task, [drafter], hgj, "--path|--arch block_nat|nat"),
        (task, [drafter], gad(plain), "--path|block_nat"),
        (task, [model, drafter], {}, "--path|--arch block_nat|nat"),
        (task, [model], nat, "--path|TransformerModel|block_nat"),
        (task, [drafter, drafter], {}, "--path|2 models|block_nat"),
    ):
        refused(within, models, words, **flags)


def test_probabilities_that_are_no_numbers_name_their_model() -> None:
    task, model = built("default")
    drafter = tiny_drafter(task)
    broken = [copy.deepcopy(model), copy.deepcopy(drafter)]
    broken[0].decoder.layers[1].fc2.weight.data[3, 3] = math.nan
    broken[1].decoder.mask_vector.data[3] = math.nan
    for verifier, block_model, decoding, said in (
        (broken[0], drafter, "gad", "--path: the model .TransformerModel."),
        (model, broken[1], "gad_pp", "--drafter-path: the model .BlockNatModel."),
        (model, broken[1], "nat", "--path: the model .BlockNatModel."),
    ):
        given = Pair(task, (verifier,), block_model, lend(task, verifier, block_model))
        with pytest.raises(UsageError, match=f"^{said} gives NaN"):
            run(given, batch(task, RAGGED), decoding=decoding)


def test_the_shipped_pair_is_exact() -> None:
    """Real sentences in ragged batches, that end by themselves."""
    task, model, rows = builders.demo()
    for first in range(0, len(rows), 50):
        sample = builders.collate(task, rows[first : first + 50])
        want = stock_greedy(task, [model], sample, max_len_b=60)
        for own in ({}, {"block_size": 1}, {"block_size": 16}):
            flags = {"decoding": "gad", "drafter_path": str(DEMO_DRAFTER), **own}
            check(task, [model], sample, flags, Limits(max_len_b=60), None, 1, want)
