"""Batches by length without fairseq and torch: those of fairseq-interactive."""

import subprocess
import sys
from collections.abc import Iterator

import hypothesis
import numpy as np
import pytest
import torch
from fairseq.data import Dictionary, LanguagePairDataset
from hypothesis import strategies as st
from support.commands import ROOT, succeed

from fairseq_paradec.batch import Batch
from fairseq_paradec.model.dictionary import EOS, PAD
from fairseq_paradec.translator.batches import by_length, collate

WORDS = Dictionary()
for _number in range(40):
    WORDS.add_symbol(f"w{_number}")


def dataset(sentences: list[list[int]]) -> LanguagePairDataset:
    """fairseq's, as its task builds it for sentences from outside."""
    tokens = [torch.tensor(sentence) for sentence in sentences]
    return LanguagePairDataset(tokens, [*map(len, tokens)], WORDS, tgt_dict=WORDS)


def fairseqs(
    sentences: list[list[int]], batch_size: int, max_tokens: int, longest: int
) -> Iterator[list[int]]:
    """The places of fairseq's batches; sentences that it would leave out are alone at the end."""
    data = dataset(sentences)
    alone = data.src_sizes > min(max_tokens, longest)
    order = np.argsort(data.src_sizes, kind="stable")
    yield from map(list, data.batch_by_size(order[~alone[order]], max_tokens, batch_size))
    yield from ([place] for place in np.flatnonzero(alone).tolist())


def same(found: tuple[list[int], Batch], sentences: list[list[int]], places: list[int]) -> None:
    """Check that a batch is fairseq's; it orders sentences of one length at will."""
    data = dataset(sentences)
    theirs = data.collater([data[place] for place in places])
    order, batch = found
    assert batch.tokens.dtype == np.int64
    assert batch.lengths.tolist() == theirs["net_input"]["src_lengths"].tolist()
    rows = dict(zip(theirs["id"].tolist(), theirs["net_input"]["src_tokens"].tolist()))
    assert dict(zip(order, batch.tokens.tolist())) == rows
    assert len(order) == len(places)


SENTENCES = st.lists(
    st.lists(st.integers(PAD, len(WORDS) - 1), max_size=12).map(lambda some: [*some, EOS]),
    min_size=1,
    max_size=30,
)


def test_batches_are_those_of_fairseq() -> None:
    seen = set()

    @hypothesis.settings(max_examples=400, derandomize=True, deadline=None, database=None)
    @hypothesis.given(SENTENCES, st.integers(1, 9), st.integers(1, 60), st.integers(1, 14))
    def any_sentences(
        sentences: list[list[int]], batch_size: int, max_tokens: int, longest: int
    ) -> None:
        limits = batch_size, max_tokens, longest
        wanted = [*fairseqs(sentences, *limits)]
        batches = [*by_length(sentences, *limits)]
        assert [sorted(order) for order, _ in batches] == [*map(sorted, wanted)]
        for batch, places in zip(batches, wanted, strict=True):
            same(batch, sentences, places)
        seen.update((len(batch), len(batches) > 3) for _, batch in batches)

    any_sentences()
    assert len(seen) > 10


def test_a_batch_of_all_is_that_of_fairseq() -> None:
    sentences = [[5, EOS], [6, 7, PAD, EOS], [8, 9, EOS], [EOS]]
    same(collate(sentences, range(4)), sentences, [0, 1, 2, 3])
    assert collate(sentences, range(4))[1].tokens.tolist()[-1] == [PAD] * 3 + [EOS]
    same(collate(sentences, [2, 0]), sentences, [2, 0])


def test_no_sentence_makes_no_batch() -> None:
    assert [*by_length([], 4, 100, 100)] == []


@pytest.mark.parametrize("size", [1, 3])
def test_the_first_batch_does_not_wait_for_the_others(size: int) -> None:
    batches = by_length([[4, EOS]] * 7, size, 100, 100)
    assert len(next(batches)[1]) == size


def test_batches_need_numpy_alone() -> None:
    code = (
        "import sys; sys.modules['torch'] = sys.modules['fairseq'] = None\n"
        "from fairseq_paradec.translator.batches import collate\n"
        "from fairseq_paradec.translator import text_processing\n"
        "print(collate([[4, 2]], [0])[1].tokens.tolist())"
    )
    words = [sys.executable, "-P", "-c", code]
    done = subprocess.run(words, env={"PYTHONPATH": str(ROOT)}, capture_output=True, text=True)
    assert succeed(done).stdout == "[[4, 2]]\n"
