"""The references themselves, against fairseq and against counts made by hand."""

from collections.abc import Sequence
from typing import Any

import pytest
from reference.greedy import assert_same_or_tie, rules_for
from reference.jacobi import Sentence, first_guess, greedy, hybrid, parallel_jacobi, sentence
from support.builders import built

PAD, EOS = 1, 2


def test_a_difference_that_is_no_tie_is_refused() -> None:
    """The judge can fail: a wrong token, a missing one."""
    task, model = built("default")
    row = [7, 8, 9, EOS]
    rules = rules_for(task.target_dictionary, [model], len(row), max_len_b=8)
    tokens = greedy(sentence([model], row, rules)).tokens
    assert assert_same_or_tie([model], row, rules, tokens, tokens) == 0
    wrong = [(tokens[0] + 1) % 40, *tokens[1:]]
    with pytest.raises(AssertionError, match="no tie"):
        assert_same_or_tie([model], row, rules, wrong, tokens)
    with pytest.raises(AssertionError, match="cut short"):
        assert_same_or_tie([model], row, rules, tokens[:-1], tokens)


def toy(next_token: Any, source: int = 4, max_len: int = 100) -> Sentence:
    """A model that is a function of the tokens before, and says `</s>` at position 6."""

    def predict(guesses: Sequence[int]) -> list[int]:
        end = min(6, max_len)
        return [EOS if i >= end else next_token(guesses[:i]) for i in range(len(guesses))]

    return Sentence(predict, (10,) * (source - 1) + (EOS,), max_len, EOS, PAD)


def count(before: Sequence[int]) -> int:
    """10, 11, 12, ... whatever came before: what Jacobi is best at."""
    return 10 + len(before)


def follow(before: Sequence[int]) -> int:
    """Each token needs the one before it: what Jacobi cannot help."""
    return before[-1] + 1 if before else 10


BEST, WORST = toy(count), toy(follow)

#: What is run, and where its passes start. Tokens are 10 to 15 and `</s>`, seven passes for greedy.
BY_HAND: list[tuple[Any, Sentence, tuple[Any, ...], dict[str, Any], list[int]]] = [
    (greedy, BEST, (), {}, [0, 1, 2, 3, 4, 5, 6]),
    # A guess pass and a confirming pass a block; the last block is `</s>` at once, and final.
    (hybrid, BEST, (3,), {}, [0, 0, 3, 3, 6]),
    # Equation 5 waits for 6-8 to settle; a block ends after as many passes as positions.
    (hybrid, BEST, (3,), {"stop": "unchanged"}, [0, 0, 3, 3, 6, 6]),
    (hybrid, WORST, (3,), {"stop": "unchanged"}, [0, 0, 0, 3, 3, 3, 6, 6]),
    (hybrid, BEST, (1,), {"stop": "unchanged"}, [0, 1, 2, 3, 4, 5, 6]),
    (hybrid, WORST, (3,), {"window": "sliding"}, [0, 1, 2, 3, 4, 5, 6]),
    # Pass 1 finds 10, guesses 11 12; pass 2 confirms these, predicts 13; 4-6 are all <pad> again.
    (hybrid, BEST, (3,), {"window": "sliding"}, [0, 1, 4, 5]),
    # Windows of 5, 2, 4, 2 and 4: those of two agree whole, and leave no guesses.
    (hybrid, BEST, (5,), {"window": "sliding", "adaptive": True}, [0, 1, 3, 4, 6]),
    # Source length 2: windows 0-1, 2-3, 4-7; two passes each, one confirms the end.
    (parallel_jacobi, toy(count, 2), (), {}, [0, 0, 2, 2, 4, 4]),
    # One block of seven: a guess pass, a confirming pass, and nothing more to wait for.
    (parallel_jacobi, BEST, (), {"length": "oracle"}, [0, 0]),
    # Position 6 is `</s>` from the first pass on, so the 7th pass changes nothing any more.
    (parallel_jacobi, WORST, (), {"length": "oracle", "stop": "unchanged"}, [0] * 7),
    # Blocks 0-2, 3 (cut at 4), then one token a pass: 4, 5, `</s>`.
    (hybrid, BEST, (3, 4), {}, [0, 0, 3, 4, 5, 6]),
    # Windows are cut at the limit, where `</s>` is forced.
    (hybrid, toy(count, max_len=4), (3,), {}, [0, 0, 3, 3]),
]


@pytest.mark.parametrize(("method", "x", "sizes", "flags", "starts"), BY_HAND)
def test_passes_counted_by_hand(method, x, sizes, flags, starts):
    found = method(x, *sizes, **flags)
    assert found.starts == starts
    assert found.tokens == [10, 11, 12, 13, 14, 15, EOS][: x.max_len] + [EOS] * (x.max_len < 6)


def test_padding_is_a_first_guess() -> None:
    assert first_guess("pad", BEST, [5], 3, []) == [PAD] * 3


def test_the_start_is_a_first_guess() -> None:
    assert first_guess("bos", BEST, [5], 3, []) == [EOS] * 3


@pytest.mark.parametrize(
    ("written", "guess"), [([], [21, 22, 23]), ([5, 5], [23, EOS, EOS])], ids=["start", "behind"]
)
def test_the_source_is_a_first_guess(written: list[int], guess: list[int]) -> None:
    sentence = Sentence(BEST.predict, (21, 22, 23, EOS), 100, EOS, PAD)
    assert first_guess("source-copy", sentence, written, 3, []) == guess


@pytest.mark.parametrize(
    ("written", "size", "passes", "guess"),
    [
        pytest.param([], 2, [], [PAD, PAD], id="nothing written"),
        pytest.param([5], 2, [[4, 6]], [PAD, PAD], id="not seen"),
        pytest.param([5], 2, [[5, 6, 5, 7, 8, 9]], [7, 8], id="the rightmost place"),
        pytest.param([5], 3, [[5, 6, 5, 7]], [7, PAD, PAD], id="short of the block"),
        pytest.param([5], 2, [[5, 6], [3, 5]], [6, PAD], id="where something follows"),
        pytest.param([5], 2, [[5, 6], [5, 7]], [7, PAD], id="the latest pass"),
    ],
)
def test_what_followed_before_is_a_first_guess(
    written: list[int], size: int, passes: list[list[int]], guess: list[int]
) -> None:
    assert first_guess("ngram", BEST, written, size, passes) == guess
