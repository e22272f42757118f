"""Jacobi decoding of one sentence, written like the paper's Algorithms 1, 2 and 3. Slow.

Santilli et al. (ACL 2023), section 3. No cache, no batch: every pass predicts all positions from 0
anew with a full forward. Everything is counted, nothing inferred.
Where the paper's stopping condition (equation 5) waits for a whole block to be unchanged, the
`prefix` rule leaves as soon as what is needed is final: if the guesses before a position agree with
their predictions, the PREDICTION there is right, whatever was guessed there.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from fairseq.models.transformer import TransformerModelBase

from .greedy import Rules, known_log_probs

#: Guesses (y_0 .. y_{n-1}) -> predictions for the positions 0 .. n-1, each from the guesses before.
Predict = Callable[[Sequence[int]], list[int]]

#: The predictions of one pass, as `ngram` remembers them.
Run = list[int]


@dataclass
class Result:
    """What a decoder made: tokens with `</s>`, and where each pass's window began."""

    tokens: list[int] = field(default_factory=list)
    starts: list[int] = field(default_factory=list)

    @property
    def num_passes(self) -> int:
        return len(self.starts)


@dataclass(frozen=True)
class Sentence:
    """All that the algorithms know of the sentence they decode."""

    predict: Predict  # one pass of the model under greedy's rules
    source: tuple[int, ...]  # with `</s>`
    max_len: int  # last position that can be predicted; `</s>` is the only prediction there
    eos: int  # also the decoder's start symbol
    pad: int

    @property
    def num_positions(self) -> int:
        """How many positions can be predicted at most."""
        return self.max_len + 1


def sentence(
    models: Sequence[TransformerModelBase], source: Sequence[int], rules: Rules
) -> Sentence:
    """Bind fairseq's full forward and greedy's rules to one source sentence."""
    log_probs = known_log_probs(models, source, rules)

    def predict(guesses: Sequence[int]) -> list[int]:
        inputs = guesses[:-1]  # the last guess is nobody's predecessor
        rows = enumerate(log_probs(inputs))
        return [int(rules.apply(row, i, inputs[:i]).argmax()) for i, row in rows]

    return Sentence(predict, tuple(source), rules.max_len, rules.eos, rules.pad)


def greedy(x: Sentence) -> Result:
    """Equation 3, solved by substitution: one token a pass."""
    result = Result()
    _greedy_tail(x, result)
    return result


def parallel_jacobi(
    x: Sentence, init: str = "pad", stop: str = "prefix", length: str = "grow"
) -> Result:
    """Algorithm 1: the whole target is one block.

    Its length is not known. `oracle` takes greedy's; `grow` starts at the source's length and adds
    a block each time that doubles what has been covered.
    """
    total = greedy(x).num_passes if length == "oracle" else len(x.source)
    boundaries = [0, min(total, x.num_positions)]
    while boundaries[-1] < x.num_positions:
        total *= 2
        boundaries.append(min(total, x.num_positions))
    result = Result()
    _blocks(x, boundaries, init, stop, result)
    return result


def hybrid(
    x: Sentence,
    block_size: int,
    hybrid_length: int | None = None,
    init: str = "pad",
    stop: str = "prefix",
    window: str = "block",
    adaptive: bool = False,
    length: str = "grow",
) -> Result:
    """Algorithm 3: Algorithm 2, blocks left to right (or a window that slides), up to
    `hybrid_length` positions, then greedy until `</s>`. `oracle`: the target's length is known,
    and no block goes beyond it."""
    end = x.num_positions if hybrid_length is None else min(hybrid_length, x.num_positions)
    if length == "oracle":
        end = greedy(x).num_passes
    result = Result()
    if window == "sliding":
        assert stop == "prefix"
        finished = _sliding(x, block_size, end, init, result, adaptive)
    else:
        boundaries = [*range(0, end, block_size), end]
        finished = _blocks(x, boundaries, init, stop, result)
    if not finished:
        _greedy_tail(x, result)
    return result


def reference(
    x: Sentence,
    decoding: str,
    block_size: int = 5,
    jacobi_window: str = "block",
    jacobi_init: str = "pad",
    jacobi_length: str = "grow",
    jacobi_stop: str = "prefix",
    hybrid_length: int | None = None,
    adaptive_block: bool = False,
) -> Result:
    """The algorithm that these flags name."""
    if decoding == "greedy":
        return greedy(x)
    if decoding == "pj":
        return parallel_jacobi(x, jacobi_init, jacobi_stop, jacobi_length)
    assert decoding == "hgj" or (decoding == "pgj" and hybrid_length is None), decoding
    how = (jacobi_init, jacobi_stop, jacobi_window, adaptive_block, jacobi_length)
    return hybrid(x, block_size, hybrid_length, *how)


def _greedy_tail(x: Sentence, result: Result) -> None:
    """One token a pass, from wherever `result` is, until `</s>`."""
    while not result.tokens or result.tokens[-1] != x.eos:
        at = len(result.tokens)
        token = x.predict([*result.tokens, x.pad])[at]
        result.tokens.append(token)
        result.starts.append(at)


def _blocks(x: Sentence, boundaries: Sequence[int], init: str, stop: str, result: Result) -> bool:
    """Jacobi inside each block, Gauss-Seidel from block to block; True once `</s>` is final."""
    history: list[Run] = []
    for start, end in pairwise(boundaries):
        done = result.tokens
        y = first_guess(init, x, done, end - start, history)
        num_final = 0  # of this block
        for count in range(1, end - start + 1):  # Algorithms 1 and 2: never more passes
            old = y
            y = x.predict([*done, *old])[start:]
            # Predictions before the first disagreement, and the one there, are right.
            was_final, num_final = num_final, min(_agreeing(old, y) + 1, end - start)
            result.starts.append(start)
            history.append(y if stop == "unchanged" else y[was_final:])
            if stop == "unchanged":
                if old == y or count == end - start:  # equation 5, or everything has converged
                    break
            elif num_final == end - start or x.eos in y[:num_final]:
                break
        final = y[:num_final]
        if x.eos in final:
            result.tokens = [*done, *final[: final.index(x.eos) + 1]]
            return True
        result.tokens = [*done, *final]
    return False


def _sliding(
    x: Sentence, block_size: int, limit: int, init: str, result: Result, adaptive: bool
) -> bool:
    """A window that moves on by what is final after every pass; True once `</s>` is final.

    If it is adaptive, it is one longer than what it last agreed on and the token behind that.
    """
    longest = block_size
    history: list[Run] = []
    old: list[int] = []  # guesses that the last pass left
    while len(result.tokens) < limit:
        done = result.tokens
        size = min(longest, limit - len(done))
        old = old[:size]
        old += first_guess(init, x, [*done, *old], size - len(old), history)
        y = x.predict([*done, *old])[len(done) :]
        num_final = min(_agreeing(old, y) + 1, size)
        longest = min(block_size, _agreeing(old, y) + 2) if adaptive else block_size
        result.starts.append(len(done))
        history.append(y)
        final = y[:num_final]
        if x.eos in final:
            result.tokens = [*done, *final[: final.index(x.eos) + 1]]
            return True
        result.tokens = [*done, *final]
        old = y[num_final:]
    return False


def _agreeing(old: Sequence[int], new: Sequence[int]) -> int:
    """How many leading guesses came out as they went in."""
    count = 0
    while count < len(old) and old[count] == new[count]:
        count += 1
    return count


def first_guess(
    init: str, x: Sentence, before: Sequence[int], count: int, history: Sequence[Run]
) -> list[int]:
    """The first guess for the `count` positions after the tokens `before`.

    The history is the predictions of every pass of this sentence so far, oldest first.
    """
    if init == "pad":
        return [x.pad] * count
    if init == "bos":
        return [x.eos] * count
    at = len(before)
    if init == "source-copy":
        return [x.source[i] if i < len(x.source) else x.eos for i in range(at, at + count)]
    assert init == "ngram", init
    found = _continuation(before[-1], history) if before else []
    return (found + [x.pad] * count)[:count]


def _continuation(key: int, history: Sequence[Run]) -> Run:
    """What followed the most recent `key` that anything followed."""
    for run in reversed(history):
        for i in reversed(range(len(run) - 1)):
            if run[i] == key:
                return run[i + 1 :]
    return []
