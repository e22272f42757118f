"""Every sentence of a batch has an output, whatever decodes; outputs begin as the model's do."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from support.commands import DEMO

import fairseq_paradec
from fairseq_paradec.batch import Batch, Hooks
from fairseq_paradec.errors import UsageError
from fairseq_paradec.methods.each_sentence import decode_each, problems_of
from fairseq_paradec.model.dictionary import EOS, PAD, UNK, Dictionary

WORDS = Dictionary.of_lines(["a 1", "b 1", "c 1"])
A, B, C = range(4, 7)
TOKENS = np.array([[PAD, PAD, A, EOS], [PAD, PAD, PAD, EOS], [A, B, C, EOS], [PAD, B, C, EOS]])


class Echo:
    """A decoder: each output is the prefix, the draft and the source; it keeps its batches."""

    def __init__(self) -> None:
        self.batches: list[Batch] = []

    def decode(self, batch: Batch) -> Any:
        self.batches.append(batch)
        sources = batch.tokens.tolist()
        drafts = batch.drafts or [[] for _ in sources]
        starts = [[] for _ in sources] if batch.prefix is None else batch.prefix.tolist()
        return [
            [{"tokens": np.array([*start, *draft, *source])}]
            for start, draft, source in zip(starts, drafts, sources, strict=True)
        ]


def decoded(first: str | None = None, problems: Any = (None,) * 4, **more: Any) -> Any:
    """What becomes of the batch by a model with this first token: outputs, and the decoder."""
    echo, model = Echo(), SimpleNamespace(first_target_token=first)
    batch = Batch(TOKENS, np.arange(4) + 10, **more)
    hypos = decode_each(echo.decode, batch, problems, [model], WORDS)
    return [hypo["tokens"].tolist() for (hypo,) in hypos], hypos, echo.batches


def test_a_problem_is_named():
    problems = problems_of(Batch(TOKENS), 3, WORDS)
    assert problems == [
        None,
        "is empty",
        "(a b c </s> ...) has 4 tokens, and the model takes 3",
        None,
    ]
    assert problems_of(Batch(TOKENS), 4, WORDS) == [None, "is empty", None, None]


def test_a_sentence_with_a_problem_is_not_decoded(caplog):
    """What belongs to the others goes with them: prefixes, constraints, drafts, numbers, hooks."""
    rows, hooks = np.arange(4)[:, None] + 4, [print, repr, str, len]
    outputs, hypos, batches = decoded(
        problems=problems_of(Batch(TOKENS), 3, WORDS),
        prefix=rows,
        constraints=rows + 1,
        drafts=[[A], [], [B], [C]],
        hooks=Hooks(on_pass=hooks, on_finish=hooks[::-1]),
    )
    (batch,) = batches
    assert batch.prefix.tolist() == [[4], [7]] and batch.constraints.tolist() == [[5], [8]]
    assert batch.numbers == [10, 13] and batch.drafts == [[A], [C]]
    assert batch.hooks == Hooks(on_pass=[print, len], on_finish=[len, print])
    assert outputs == [[4, A, PAD, A, EOS], [EOS], [EOS], [7, C, B, C, EOS]]
    assert [hypo.get("problem") for (hypo,) in hypos] == problems_of(Batch(TOKENS), 3, WORDS)
    assert [record.getMessage() for record in caplog.records] == [
        "sentence 11 is empty; its output is empty",
        "sentence 12 (a b c </s> ...) has 4 tokens, and the model takes 3; its output is empty",
    ]


def test_nothing_is_decoded_where_every_sentence_has_a_problem():
    outputs, _, batches = decoded(problems=["is empty"] * 4)
    assert outputs == [[EOS]] * 4 and not batches


def test_outputs_and_drafts_begin_with_the_models_first_token():
    """A prefix or draft that begins with it stays; an empty draft is none."""
    _, _, (batch,) = decoded("b", drafts=[[A], [], [B, A], [C]])
    assert batch.prefix.tolist() == [[B]] * 4
    assert batch.drafts == [[B, A], [], [B, A], [B, C]]
    for own, wanted in (([B, A], [B, A]), ([A, B], [B, A, B])):
        _, _, (batch,) = decoded("b", prefix=np.array([own] * 4))
        assert batch.prefix.tolist() == [wanted] * 4
    some = np.array([[B], [B], [A], [B]])
    assert decoded("b", prefix=some)[2][0].prefix.tolist() == [[B, B], [B, B], [B, A], [B, B]]
    assert WORDS.index("x") == UNK
    with pytest.raises(UsageError, match="--path: got 'a model whose outputs begin with x'"):
        decoded("x")


@pytest.mark.fairseq
@pytest.mark.parametrize(
    "options", [{"decoding": "beam", "beam": 1, "diverse_beam_groups": 1}, {"audit": True}]
)
def test_fairseqs_search_takes_arrays(options: dict[str, Any]):
    """By itself and as the judge of the audit; the decoder's dictionaries are the core's."""
    translator = fairseq_paradec.load(DEMO)
    options = {"decoding": "greedy"} | options
    text = ["A dog runs.", "Two men sit."]
    assert translator.translate(text, **options) == translator.translate(text, decoding="greedy")
    greedy = translator.generator({"decoding": "greedy"})
    assert greedy.words is translator.targets and greedy.sources is translator.sources
    if "audit" in options:
        audit = translator.generator(options).audit
        assert audit.sentences == audit.identical == 2


@pytest.mark.parametrize(
    "part, given",
    [
        ("tokens", [[A, EOS]]),
        ("tokens", np.array([A, EOS])),
        ("tokens", np.array([[0.5, 2.0]])),
        ("prefix", np.array([A, B, C, A])),
        ("prefix", np.array([[A], [B]])),
        ("prefix", np.zeros((0, 1), np.int64)),
        ("ids", np.arange(3)),
        ("drafts", [[A]]),
        ("on_pass", [None]),
        ("on_finish", [None] * 5),
    ],
)
def test_parts_of_a_batch_fit_each_other(part: str, given: Any) -> None:
    hooks = {part: given} if part.startswith("on_") else {}
    parts = {"tokens": TOKENS} | ({"hooks": Hooks(**hooks)} if hooks else {part: given})
    with pytest.raises(UsageError, match=f"^Batch: {part}: got .*; allowed: "):
        Batch(**parts)


@pytest.mark.parametrize("decoding", ["greedy", "self_draft", "multiword_beam"])
@pytest.mark.parametrize("token", [-3, 7944])
def test_a_prefix_has_words_of_the_dictionary(token: int, decoding: str) -> None:
    """Another number was taken for ``<s>``."""
    translator = fairseq_paradec.load(DEMO)
    decoder = translator.generator({"decoding": decoding})
    batch = Batch(np.array([[A, B, EOS]]), prefix=np.array([[5, token]]))
    with pytest.raises(UsageError, match=f"^Batch: prefix: got {token}; allowed: .* 7944 words"):
        decoder.decode(batch)
    with pytest.raises(UsageError, match="^Batch: tokens: got 'no row'; allowed: "):
        decoder.decode(batch.take([]))
