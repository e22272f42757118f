"""Beam search in one native call: fairseq's hypotheses, and exactly those of single steps."""

import argparse
import itertools
import signal
import threading
import time
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
from fairseq.sequence_generator import SequenceGenerator
from support.builders import (
    Limits,
    batch,
    source_rows,
    task_for,
    tiny_model,
    tiny_reordered,
    tiny_task,
)
from support.multiword import MODELS, RAGGED, assert_same, settled_twin, twin

from fairseq_paradec.decoding.beam import BeamSearch
from fairseq_paradec.engine import slots
from fairseq_paradec.engine.chunk import ChunkScorer
from fairseq_paradec.engine.native.beam import Searching
from fairseq_paradec.engine.settings import Engine
from fairseq_paradec.errors import UsageError
from fairseq_paradec.plugin.generators import batch_of
from fairseq_paradec.target_order import order_of

#: Models whose steps see less than all words before: they are searched step by step.
STEPWISE = ("independent", "vanilla_mask", "double_token-vanilla")
LIMITS = {
    "plain": Limits(max_len_b=40),
    "long": Limits(max_len_b=60, min_len=50, unkpen=0.7),
    "short": Limits(max_len_b=4, lenpen=0.6),
    "ratio": Limits(max_len_a=0.8, max_len_b=2, unnormalized=True),
    "least": Limits(max_len_b=9, min_len=6, temperature=1.7, unkpen=3.0),
    "warm": Limits(max_len_b=9, min_len=6, temperature=1.7, suppressed=(5, 6, 9)),
}


def model_of(task: Any, variant: str = "default") -> Any:
    model = tiny_model(task, variant, torch.float32, max_target_positions=70)
    model._is_generation_fast = True
    return model


def search(
    task: Any, model: Any, sample: Any, limits: Limits, beam: int, prefix: Any = None, **flags: Any
) -> list[list[dict[str, Any]]]:
    """All hypotheses of each row."""
    pairs = order_of(model).double_token
    kind = "double_token_beam" if pairs else "multiword_beam"
    given = limits.flags() | {"decoding": kind, "beam": beam, "engine": "native"}
    words = task.target_dictionary
    suppressed = [words[token] for token in limits.suppressed if token < len(words)]
    generator = task.build_generator(
        [model],
        argparse.Namespace(**given | flags),
        extra_gen_cls_kwargs={"tokens_to_suppress": suppressed},
    )
    found: list[list[dict[str, Any]]] = task.inference_step(
        generator, [model], sample, prefix_tokens=prefix
    )
    return found


def same(found: Any, wanted: Any, exactly: bool) -> None:
    """The hypotheses of all rows, in order, with their scores."""
    for row, want in zip(found, wanted, strict=True):
        assert [h["tokens"].tolist() for h in row] == [h["tokens"].tolist() for h in want]
        for one, other in zip(row, want, strict=True):
            for name in ("score", "positional_scores"):
                near = 0 if exactly else 1e-4
                torch.testing.assert_close(one[name], other[name].to(one[name]), atol=near, rtol=0)


@pytest.mark.parametrize("form", ["fp32", "bf16", "int8"])
@pytest.mark.parametrize("limits", LIMITS.values(), ids=LIMITS)
def test_one_call_is_the_single_steps(limits: Limits, form: str) -> None:
    """Ragged batches, outputs that outgrow the cache, few words, prefixes: to the last bit."""
    for size, beam, lengths in ((60, 5, [7, 3, 12, 1]), (7, 4, [2, 5]), (300, 2, [9])):
        task = tiny_task(size=size)
        model, sample = model_of(task), batch(task, lengths)
        for prefix in (None, torch.tensor([[4, 5]] * len(lengths))):
            if prefix is not None and limits.max_len_a:
                continue
            found = search(task, model, sample, limits, beam, prefix, engine_dtype=form)
            with mock.patch.object(BeamSearch, "_at_once", False):
                steps = search(task, model, sample, limits, beam, prefix, engine_dtype=form)
            same(found, steps, exactly=True)
            assert [row[0]["steps"] for row in found] == [row[0]["steps"] for row in steps]


@pytest.mark.parametrize("limits", [LIMITS[name] for name in ("plain", "long", "short")])
@pytest.mark.parametrize("variant", ["default", "prenorm"])
def test_hypotheses_are_fairseqs(variant: str, limits: Limits) -> None:
    task = task_for(variant)
    model, sample = model_of(task, variant), batch(task, [9, 4, 6, 2, 13])
    for beam in (1, 2, 5):
        stock = SequenceGenerator(
            [model], task.target_dictionary, beam_size=beam, **limits.stock()
        ).generate([model], sample)
        same(search(task, model, sample, limits, beam), stock, exactly=False)


@pytest.mark.parametrize("form", ["fp32", "bf16", "int8"])
def test_hypotheses_do_not_depend_on_the_batch(form: str) -> None:
    task = tiny_task()
    model, limits = model_of(task), Limits(max_len_b=20)
    sample = batch(task, [9, 4, 6, 2, 13, 1])
    together = search(task, model, sample, limits, 4, engine_dtype=form)
    for row, want in enumerate(together):
        source = sample["net_input"]["src_tokens"][row]
        alone = {"src_tokens": source[source != 1][None]}
        alone["src_lengths"] = torch.tensor([alone["src_tokens"].size(1)])
        same(search(task, model, {"net_input": alone}, limits, 4, engine_dtype=form), [want], True)


def test_words_outside_the_vocabulary_are_refused() -> None:
    task = tiny_task()
    model, sample = model_of(task), batch(task, [3])
    scorer = ChunkScorer(model, Engine(kind="native"))  # the first input would have no vector
    scorer.encode(sample["net_input"]["src_tokens"].numpy())
    args = argparse.Namespace(decoding="greedy", beam=1)
    decoder, given = task.build_generator([model], args).decoder, batch_of(sample)
    rows, rules = decoder._make_rows(given, itertools.repeat(None)), decoder._make_rules(given)
    for start in (-1, 10**6):
        with pytest.raises(IndexError, match="not in the model's vocabulary"):
            scorer.search(rules.at(rows), Searching([start], 2, 3))


#: Models whose steps write several words, or words in another order, and see all words before.
ORDERS = [name for name in MODELS if name not in STEPWISE]


def reordered(given: str, size: int = 40) -> tuple[Any, Any]:
    """A task and its model, as ``support.multiword`` has them, whose weights last."""
    arch, seed, options = MODELS[given]
    task = tiny_task(size=size)
    model = tiny_reordered(task, arch, seed=seed, **options).float()
    model._is_generation_fast = True
    return task, model


@pytest.mark.parametrize("form", ["fp32", "bf16", "int8"])
@pytest.mark.parametrize("given", ORDERS)
def test_one_call_is_the_single_steps_of_several_words(given: str, form: str) -> None:
    """Hypotheses that end within a step, at limits within one, few words: to the last bit."""
    for size, beam, lengths in ((60, 5, [7, 3, 12, 1]), (7, 4, [2, 5]), (40, 1, [9, 4])):
        task, model = reordered(given, size)
        sample = batch(task, lengths)
        for limits in (LIMITS["plain"], LIMITS["short"], LIMITS["warm"]):
            found = search(task, model, sample, limits, beam, engine_dtype=form)
            with mock.patch.object(BeamSearch, "_at_once", False):
                steps = search(task, model, sample, limits, beam, engine_dtype=form)
            same(found, steps, exactly=True)
            assert [row[0]["steps"] for row in found] == [row[0]["steps"] for row in steps]


@pytest.mark.parametrize("given", ["ibdecoder_sa", "imdecoder-6", "double_token"])
def test_one_call_ranks_by_googles_formula(given: str) -> None:
    """Of hypotheses that one step ends more than are wanted: others are kept than by fairseq's."""
    others, limits = 0, Limits(max_len_b=9, lenpen=3.0)
    for size in (7, 12, 40):
        task, model = reordered(given, size)
        for seed in range(4):
            sample = batch(task, RAGGED, seed=seed)
            found = search(task, model, sample, limits, 3, length_formula="google")
            plain = search(task, model, sample, limits, 3)
            with mock.patch.object(BeamSearch, "_at_once", False):
                steps = search(task, model, sample, limits, 3, length_formula="google")
            same(found, steps, exactly=True)
            for row, other in zip(found, plain, strict=True):
                texts = [sorted(h["tokens"].tolist() for h in some) for some in (row, other)]
                others += texts[0] != texts[1]
    assert others > 0


@pytest.mark.parametrize("given", ["ibdecoder_sa", "double_token"])
def test_a_settled_search_of_native_passes_is_the_twins(given: str) -> None:
    task, model = reordered(given)
    sample, limits = batch(task, RAGGED, seed=5), Limits(max_len_b=9, lenpen=0.6)
    hypos = search(task, model, sample, limits, 3, beam_stop="settled")
    for source, got in zip(source_rows(sample), hypos, strict=True):
        want, passes = settled_twin(model, source, 3, limits, "fairseq")
        assert_same(got, want)
        assert got[0]["steps"] == passes


@pytest.mark.parametrize("limits", [LIMITS[name] for name in ("plain", "short", "ratio", "warm")])
@pytest.mark.parametrize("given", ORDERS)
def test_several_words_in_one_call_are_the_twins(given: str, limits: Limits) -> None:
    """Algorithm 1 of Zhang et al. 2020 and of Imamura and Sumita 2020, as in tests/reference."""
    task, model = reordered(given)
    sample = batch(task, RAGGED, seed=5)
    for beam in (1, 3):
        hypos = search(task, model, sample, limits, beam)
        for source, got in zip(source_rows(sample), hypos, strict=True):
            assert_same(got, twin([model], source, beam, limits))


def test_a_forced_end_ends_the_search() -> None:
    """No hypothesis lives behind it, and no pass follows; another row goes on."""
    task = tiny_task()
    model, sample, limits = model_of(task), batch(task, [7, 3]), LIMITS["plain"]
    prefix = torch.tensor([[4, 5, 2], [4, 5, 1]])
    found = search(task, model, sample, limits, 4, prefix)
    with mock.patch.object(BeamSearch, "_at_once", False):
        steps = search(task, model, sample, limits, 4, prefix)
    same(found, steps, exactly=True)
    assert [row[0]["steps"] for row in found] == [row[0]["steps"] for row in steps]
    assert found[0][0]["steps"] == 3 < found[1][0]["steps"]


@pytest.mark.parametrize("decoding", ["multiword_beam", "self_draft"])
def test_a_pass_of_many_rows_is_read_in_parts(decoding: str) -> None:
    """320 hypotheses, and what each sentence's are alone: to the last bit."""
    task = tiny_task(size=300)
    model, limits, flags = model_of(task), Limits(max_len_b=6), {"decoding": decoding}
    sample = batch(task, [5, 3, 7, 2, 4, 6, 3, 5])
    together = search(task, model, sample, limits, 40, **flags)
    for row, source in enumerate(source_rows(sample)):
        tokens = torch.tensor([source])
        alone = {"src_tokens": tokens, "src_lengths": torch.tensor([tokens.size(1)])}
        same([together[row]], search(task, model, {"net_input": alone}, limits, 40, **flags), True)


@pytest.mark.parametrize("decoding", ["multiword_beam", "self_draft"])
def test_a_beam_that_memory_has_no_room_for_is_refused(
    decoding: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "meminfo").write_text("MemAvailable: 1000 kB\n")
    monkeypatch.setattr(slots, "_MEMORY", tmp_path / "meminfo")
    monkeypatch.setattr(slots, "_SMALL", 2**20)
    task = tiny_task(size=300)
    model, sample = model_of(task), batch(task, [5])
    search(task, model, sample, Limits(max_len_b=6), 5, decoding=decoding)
    with pytest.raises(UsageError, match=r"200 rows, whose cache takes .*--beam"):
        search(task, model, sample, Limits(max_len_b=6), 200, decoding=decoding)


@pytest.mark.parametrize("decoding", ["multiword_beam", "self_draft"])
def test_ctrl_c_ends_a_wide_beam(decoding: str) -> None:
    """Its search takes minutes, and a step of it a second."""
    task = tiny_task(size=3000)
    model, sample = model_of(task), batch(task, [9])
    sent: list[float] = []

    def send() -> None:
        sent.append(time.monotonic())
        signal.raise_signal(signal.SIGINT)

    threading.Timer(1, send).start()
    with pytest.raises(KeyboardInterrupt):
        search(task, model, sample, Limits(max_len_b=60, min_len=60), 2900, decoding=decoding)
    assert time.monotonic() - sent[0] < 5  # a second, on a machine that is not busy
