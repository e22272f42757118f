"""An output depends neither on its batch nor on its draft: text and score, to the last bit.

In every dtype, int8 included: a number does not change its decimal point with what is decoded
beside it.
"""

import functools
import random
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.commands import DEMO

import fairseq_paradec
from fairseq_paradec.engine.native import cache
from fairseq_paradec.engine.native.library import halves
from fairseq_paradec.model.model import Model
from fairseq_paradec.translator.translation import OnFinish, Translation

SENTENCES = (DEMO / "raw" / "demo.en").read_text(encoding="utf-8").splitlines()[:14]
SENTENCES += ["It costs 18.10 euros.", "18,10", "A dog.", "A dog.", "Two men sit, and a man sits."]

ASSISTANT = str(DEMO / "assistant.pt")
#: Decoders whose output is greedy search's, with drafts of many kinds.
DRAFTED = [
    {"decoding": "self_draft"},
    {"decoding": "self_draft", "block_size": 2},
    {"decoding": "self_draft", "drafter_dtype": "int4"},
    {"decoding": "assisted", "block_size": 5, "drafter_path": ASSISTANT},
    {"decoding": "assisted", "draft_tree": 12, "drafter_path": ASSISTANT},
    {"decoding": "hgj", "block_size": 5},
    {"decoding": "gad", "drafter_path": str(DEMO / "drafter.pt")},
    {"decoding": "blockwise", "drafter_path": str(DEMO / "heads.pt")},
]
DTYPES = ("fp32", "bf16", "int8")


@functools.cache
def model() -> Any:
    return fairseq_paradec.load(DEMO)


def outputs(dtype: str, batch_size: int, **options: Any) -> list[tuple[str, float | None]]:
    found = model().results(SENTENCES, batch_size, engine_dtype=dtype, engine="native", **options)
    return [(one.text, one.score) for one in found]


@functools.cache
def greedy(dtype: str) -> list[tuple[str, float | None]]:
    """One sentence after the other, a token a pass."""
    return outputs(dtype, 1, decoding="greedy")


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("batch_size", [2, 7, 64])
def test_the_batch_does_not_matter(dtype: str, batch_size: int) -> None:
    assert outputs(dtype, batch_size, decoding="greedy") == greedy(dtype)


def entering(dtype: str, seed: int) -> list[tuple[int, tuple[str, float | None]]]:
    """Let sentences enter a batch at random; return what is told, by their numbers."""
    chance = random.Random(seed)
    left = chance.choices(range(len(SENTENCES)), k=40)
    found: list[tuple[int, tuple[str, float | None]]] = []

    def end(line: int, one: Translation) -> None:
        found.append((line, (one.text, one.score)))

    def more(most: int) -> list[tuple[str, OnFinish]]:
        lines = [left.pop() for _ in range(chance.randint(0, min(most, len(left))))]
        return [(SENTENCES[line], partial(end, line)) for line in lines]

    first = [left.pop() for _ in range(chance.randint(2, 9))]
    ends = [partial(end, line) for line in first]
    options: dict[str, Any] = {"decoding": "greedy", "engine_dtype": dtype, "engine": "native"}
    texts = [SENTENCES[line] for line in first]
    assert len([*model().results(texts, on_finish=ends, admit=more, **options)]) == len(first)
    assert len(found) > len(first)
    return found


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("seed", range(4))
def test_what_enters_a_running_batch_does_not_matter(
    dtype: str, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cache._pages, "take", lambda count: np.full(count, np.nan, np.float32))
    assert all(one == greedy(dtype)[line] for line, one in entering(dtype, seed))


def test_what_enters_a_running_batch_begins_as_all_outputs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Model, "first_target_token", "Frau")
    alone = outputs("fp32", 1, decoding="greedy")
    assert alone[0][0].startswith("Frau")
    assert all(one == alone[line] for line, one in entering("fp32", 0))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("options", DRAFTED, ids=lambda one: "-".join(map(str, one.values()))[:20])
def test_the_draft_does_not_matter(dtype: str, options: dict[str, Any]) -> None:
    if options["decoding"] == "self_draft" and dtype == "int8" and not halves():
        options = {"drafter_dtype": "bf16"} | options  # its own would be no other
    for batch_size in (1, 7, 64):
        assert outputs(dtype, batch_size, **options) == greedy(dtype)


@pytest.mark.parametrize(
    "folder", [DEMO, DEMO.parent / "demo-small.en-de"], ids=lambda one: one.name
)
def test_drafts_in_few_bits_leave_every_demo_sentence_as_it_is(folder: Path) -> None:
    """The model in 4 and 2 bits drafts for itself in 8, and is right in most of its tokens."""
    if not halves():
        pytest.skip("int4 is int8 here")
    model = fairseq_paradec.load(folder)
    lines = (folder / "raw" / "demo.en").read_text(encoding="utf-8").splitlines()

    def found(batch_size: int, decoding: str) -> list[Translation]:
        options = {"decoding": decoding, "engine_dtype": "int8", "engine": "native"}
        return [*model.results(lines, batch_size, **options)]

    plain = found(1, "greedy")
    for batch_size in (1, 7, 64):
        drafted = found(batch_size, "self_draft")
        for one, want in zip(drafted, plain, strict=True):
            assert (one.text, one.score) == (want.text, want.score)
        assert 4 * sum(one.passes for one in drafted) < sum(one.passes for one in plain)


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_batch_of_a_beam_does_not_matter(dtype: str) -> None:
    alone = outputs(dtype, 1, decoding="multiword_beam", beam=5)
    assert outputs(dtype, 64, decoding="multiword_beam", beam=5) == alone


@pytest.mark.parametrize(
    "options", [{"decoding": "greedy"}, *DRAFTED], ids=lambda one: str(one)[14:34]
)
def test_what_a_cache_held_before_does_not_matter(
    options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cache._pages, "take", lambda count: np.full(count, np.nan, np.float32))
    for batch_size in (1, 64):
        assert outputs("fp32", batch_size, **options) == greedy("fp32")


def test_memory_of_a_cache_that_is_gone_is_used_again() -> None:
    cache._pages.forget()
    pieces = [cache._pages.take(count) for count in (cache._LARGE, 16, 3 * cache._LARGE)]
    places = [piece.ctypes.data for piece in pieces]
    cache._pages.give_back(pieces)
    again = cache._pages.take(2 * cache._LARGE)
    assert again.ctypes.data == places[2]
    assert cache._pages.take(cache._LARGE - 5).ctypes.data == places[0]
    cache._pages.give_back([again, np.empty(cache._KEPT // 4, np.float32)])
    kept = cache._pages._kept
    assert [piece.ctypes.data for piece in kept] == [places[2]]  # both were too much
    cache._pages.take(4 * cache._LARGE)
    assert not kept  # a larger one takes its part
    cache._pages.forget()
