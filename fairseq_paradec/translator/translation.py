"""What is asked of a line, and what becomes of it."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from ..records import Pass, PassRecord


class Translation(NamedTuple):
    """What became of a line.

    Attributes:
        text: plain text; empty if there is a problem.
        score: fairseq's of the hypothesis; None if there is a problem.
        problem: why the line cannot be translated.
        passes: runs of the decoder that it took part in.
        accepted: tokens of its draft that the output took, ``</s>`` counted; 0 without a draft.
        rejected: the draft's other tokens.
        tokens: of the output, with ``</s>``.
        others: the next best outputs of a beam search, or further draws, as plain text, best first.
        other_scores: their scores.
    """

    text: str
    score: float | None
    problem: str | None
    passes: int = 0
    accepted: int = 0
    rejected: int = 0
    tokens: int = 0
    others: tuple[str, ...] = ()
    other_scores: tuple[float, ...] = ()


#: Is told the passes of a sentence, each as it is done, as a trace has them.
OnPass = Callable[[Pass], None]
#: Is told what became of a sentence.
OnFinish = Callable[[Translation], None]
#: Gives up to so many further sentences, each with who is told what became of it.
Admit = Callable[[int], Sequence[tuple[str, OnFinish]]]


class Line(NamedTuple):
    """A line, the tokens of its draft, and who is told of it; None: there is none."""

    text: str
    draft: list[int] | None
    on_pass: OnPass | None
    on_finish: OnFinish | None


def translation_of(
    hypos: Sequence[dict[str, Any]],
    plain: Callable[[dict[str, Any]], str],
    draft: Sequence[int] | None = None,
) -> Translation:
    """Return what became of a line.

    Args:
        hypos: its hypotheses, best first; of the best alone more than the text is kept.
        plain: returns the text of a hypothesis.
        draft: the tokens of its draft.
    """
    best, *others = hypos
    if "problem" in best:
        return Translation("", None, best["problem"])
    accepted = rejected = 0
    if draft:
        both = zip(best["num_accepted"], best["given"], strict=True)
        accepted = sum(count for count, given in both if given)
        rejected = max(0, len(draft) + 1 - accepted)  # its </s> is accepted, too
    return Translation(
        text=plain(best),
        score=float(best["score"]),
        problem=None,
        passes=int(best.get("steps", 0)),
        accepted=accepted,
        rejected=rejected,
        tokens=len(best["tokens"]),
        others=tuple(map(plain, others)),
        other_scores=tuple(float(hypo["score"]) for hypo in others),
    )


def telling(
    on_pass: OnPass | None, words: Callable[[int], str]
) -> Callable[[Sequence[PassRecord]], None] | None:
    """Return a batch's hook of an OnPass, by a dictionary's words: it tells each pass once."""
    if on_pass is None:
        return None
    told = 0

    def tell(passes: Sequence[PassRecord]) -> None:
        nonlocal told
        for record in passes[told:]:
            on_pass(record.as_json(words))
        told = len(passes)

    return tell
