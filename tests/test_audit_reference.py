"""The references themselves, against fairseq and against counts made by hand."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
import torch
from reference.greedy import (
    assert_same_or_tie,
    full_log_probs,
    plain_guesses,
    rules_for,
    stock_greedy,
)
from reference.jacobi import (
    Sentence,
    first_guess,
    greedy,
    gs_jacobi,
    hybrid,
    parallel_jacobi,
    sentence,
)
from support.builders import VARIANTS, Limits, batch, built, source_rows

PAD, EOS = 1, 2


@pytest.mark.parametrize("variant", VARIANTS)
def test_full_forward_is_fairseqs_own_search(variant: str) -> None:
    """Substitution over full forwards = SequenceGenerator: tokens and scores, every model."""
    task, model = built(variant)
    sample = batch(task, [3, 7, 5, 9, 2], seed=1)
    want = stock_greedy(task, [model], sample, **Limits().stock())
    for hypo, row in zip(want, source_rows(sample), strict=True):
        rules = rules_for(task.target_dictionary, [model], len(row), **Limits().reference())
        tokens = greedy(sentence([model], row, rules)).tokens
        assert tokens == hypo["tokens"].tolist()
        log_probs = full_log_probs(model, row, tokens[:-1])
        scores = log_probs[torch.arange(len(tokens)), tokens]
        torch.testing.assert_close(
            scores.double(), hypo["positional_scores"].double(), atol=2e-5, rtol=0
        )


@pytest.mark.parametrize("variant", ["default", "learned_positions", "bart"])
def test_a_pad_guess_is_a_token_like_any_other(variant: str) -> None:
    """It hides nothing, stands at its own position, is seen later, and leaves no trace behind."""
    _, model = built(variant)
    source = [7, 8, 9, EOS]
    clean = full_log_probs(model, source, [5, 6, 7])
    padded = full_log_probs(model, source, [5, PAD, 7])
    torch.testing.assert_close(padded[:2], clean[:2])
    assert (padded[2:] - clean[2:]).abs().max() > 1e-3
    # Written at <pad>'s row of the embedding, token 6's vector must give what token 6 gives:
    # so the position of <pad> and of what follows is right, and it is attended to.
    weight = model.decoder.embed_tokens.weight
    kept = weight[PAD].clone()
    with torch.no_grad():
        weight[PAD] = weight[6]
        same = full_log_probs(model, source, [5, PAD, 7])
        weight[PAD] = kept
    keep = torch.arange(clean.size(1)) != PAD  # a tied projection has changed there
    torch.testing.assert_close(
        same[:, keep].softmax(-1), clean[:, keep].softmax(-1), atol=1e-6, rtol=0
    )
    with plain_guesses(model.decoder):
        pass
    assert model.decoder.padding_idx == PAD
    torch.testing.assert_close(full_log_probs(model, source, [5, 6, 7]), clean)


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


def toy(
    next_token: Callable[[Sequence[int]], int], length: int, max_len: int = 100, source: int = 4
) -> Sentence:
    """A model that is a function of the tokens before, and says `</s>` at position `length`."""

    def predict(guesses: Sequence[int]) -> list[int]:
        return [
            EOS if i >= min(length, max_len) else next_token(guesses[:i])
            for i in range(len(guesses))
        ]

    return Sentence(predict, (10,) * (source - 1) + (EOS,), max_len, EOS, PAD)


def independent(length: int, max_len: int = 100, source: int = 4) -> Sentence:
    """10, 11, 12, ... whatever came before: what Jacobi is best at."""
    return toy(lambda before: 10 + len(before), length, max_len, source)


def chain(length: int, max_len: int = 100, source: int = 4) -> Sentence:
    """Each token needs the one before it: what Jacobi cannot help."""
    return toy(lambda before: before[-1] + 1 if before else 10, length, max_len, source)


def constant(length: int) -> Sentence:
    """Always the same token."""
    return toy(lambda before: 10, length)


class TestCountsMadeByHand:
    """Passes of toy models, worked out on paper."""

    def test_greedy(self) -> None:
        """One token a pass, `</s>` counted."""
        assert greedy(independent(6)).num_passes == 7

    def test_independent_blocks(self) -> None:
        """Blocks 0-2, 3-5, 6: a guess pass and a confirming pass each; `</s>` alone needs one.

        The last block is 6-8; its first prediction is `</s>`, final at once.
        """
        result = gs_jacobi(independent(6), 3)
        assert result.tokens == [10, 11, 12, 13, 14, 15, EOS]
        assert [p.num_final for p in result.passes] == [1, 3, 1, 3, 1]

    def test_independent_blocks_unchanged(self) -> None:
        """Equation 5 waits for 6-8 to settle: two passes there too."""
        result = gs_jacobi(independent(6), 3, stop="unchanged")
        assert result.tokens == [10, 11, 12, 13, 14, 15, EOS]
        assert [p.start for p in result.passes] == [0, 0, 3, 3, 6, 6]

    def test_chain(self) -> None:
        """Nothing gained, nothing lost; `unchanged` pays one more pass a block."""
        assert gs_jacobi(chain(6), 3).num_passes == 7
        assert gs_jacobi(chain(6), 3, window="sliding").num_passes == 7
        # 0-2 and 3-5: three passes find the tokens, one confirms; 6-8 (all `</s>`): two.
        assert gs_jacobi(chain(6), 3, stop="unchanged").num_passes == 10

    def test_blocks_of_one(self) -> None:
        """Greedy; under equation 5 every token twice, as `<pad>` is never right."""
        assert gs_jacobi(independent(6), 1).num_passes == 7
        assert gs_jacobi(independent(6), 1, stop="unchanged").num_passes == 14

    def test_sliding_window_keeps_guesses(self) -> None:
        """Pass 1 finds 10 and guesses 11 12; pass 2 confirms them, predicts 13, and so on."""
        result = gs_jacobi(independent(6), 3, window="sliding")
        # windows: [0 1 2] -> 1 final; [1 2 3], 11 12 right -> 3 final; [4 5 6] all <pad> -> 1;
        # [5 6 7] with 15 </s> right -> `</s>` final.
        assert [(p.start, p.num_final) for p in result.passes] == [(0, 1), (1, 3), (4, 1), (5, 3)]

    def test_whole_sentence_grows(self) -> None:
        """Source length 2: windows 0-1, 2-3, 4-7; two passes each, one confirms the end."""
        result = parallel_jacobi(independent(6, source=2))
        assert [(p.start, len(p.predictions)) for p in result.passes] == [
            (0, 2),
            (0, 2),
            (2, 2),
            (2, 2),
            (4, 4),
            (4, 4),
        ]

    def test_whole_sentence_oracle(self) -> None:
        """One block of seven: a guess pass, a confirming pass, and nothing more to wait for."""
        assert parallel_jacobi(independent(6), length="oracle").num_passes == 2
        unchanged = parallel_jacobi(independent(6), stop="unchanged", length="oracle")
        assert unchanged.num_passes == 2
        assert parallel_jacobi(chain(6), length="oracle").num_passes == 7
        # 6 passes make positions 0-5 right; position 6 is `</s>` from the first pass on, so the
        # 7th pass changes nothing any more.
        assert parallel_jacobi(chain(6), stop="unchanged", length="oracle").num_passes == 7

    def test_hybrid_length(self) -> None:
        """Blocks 0-2, 3 (cut at 4), then one token a pass: 4, 5, `</s>`."""
        result = hybrid(independent(6), 3, 4)
        assert [(p.start, len(p.predictions)) for p in result.passes] == [
            (0, 3),
            (0, 3),
            (3, 1),
            (4, 1),
            (5, 1),
            (6, 1),
        ]
        assert hybrid(independent(6), 3, None).num_passes == gs_jacobi(independent(6), 3).num_passes

    def test_length_limit(self) -> None:
        """Windows are cut at the limit, where `</s>` is forced."""
        result = gs_jacobi(independent(50, max_len=4), 3)
        assert result.tokens == [10, 11, 12, 13, EOS]
        assert [(p.start, len(p.predictions)) for p in result.passes] == [
            (0, 3),
            (0, 3),
            (3, 2),
            (3, 2),
        ]

    def test_end_in_the_middle_of_a_block(self) -> None:
        """The prefix rule leaves at `</s>`; equation 5 waits, and cuts."""
        assert gs_jacobi(constant(1), 5).tokens == [10, EOS]
        assert gs_jacobi(constant(1), 5).num_passes == 2
        assert gs_jacobi(constant(1), 5, stop="unchanged").tokens == [10, EOS]


class TestFirstGuesses:
    """What --jacobi-init puts where nothing is known yet."""

    x = independent(6, source=4)

    def test_fixed(self) -> None:
        """One symbol everywhere."""
        assert first_guess("pad", self.x, [5], 3, []) == [PAD] * 3
        assert first_guess("bos", self.x, [5], 3, []) == [EOS] * 3

    def test_source_copy(self) -> None:
        """The source's token of the same position, the start symbol beyond its end."""
        x = Sentence(self.x.predict, (21, 22, 23, EOS), 100, EOS, PAD)
        assert first_guess("source-copy", x, [], 3, []) == [21, 22, 23]
        assert first_guess("source-copy", x, [5, 5], 3, []) == [23, EOS, EOS]

    def test_ngram(self) -> None:
        """Latest pass first, rightmost place first, only where something follows."""
        assert first_guess("ngram", self.x, [], 2, []) == [PAD] * 2
        assert first_guess("ngram", self.x, [5], 2, [[4, 6]]) == [PAD] * 2
        assert first_guess("ngram", self.x, [5], 2, [[5, 6, 5, 7, 8, 9]]) == [7, 8]
        assert first_guess("ngram", self.x, [5], 3, [[5, 6, 5, 7]]) == [7, PAD, PAD]
        assert first_guess("ngram", self.x, [5], 2, [[5, 6], [3, 5]]) == [6, PAD]
        assert first_guess("ngram", self.x, [5], 2, [[5, 6], [5, 7]]) == [7, PAD]
