"""The decoding dependency graph of a sentence: which tokens depend on which (DDGviz).

Source: Santilli et al. 2023, section 3.5 and Figures 4 and 6. A Jacobi decoder predicts every
position of a block again in each pass. A token that is right from an early pass on does not depend
on earlier tokens that were still wrong then; tokens that become right in the same pass are decoded
in parallel. The paper compares each iterate with greedy search's output. So does this module,
because these decoders give greedy search's output.

Pure functions of the records that docs/trace.md describes. The graph of greedy search is a chain:
every token depends on the one before it.
"""

import functools
import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import networkx as nx

from ...errors import UsageError
from ...output import printable
from ...records import Record
from .symbols import typed
from .trace_records import LARGEST, read_sentence

#: The methods whose passes are iterates of the output; the graph of ``greedy`` is a chain.
DECODINGS = ("greedy", "pj", "pgj", "hgj")


@dataclass(frozen=True)
class Prediction:
    """The model's prediction at one position in one pass."""

    token: str  # its choice
    log_prob: float  # its natural log-probability, given the guesses of that pass
    runner_up: str | None  # the second best token; None where only one was allowed
    runner_up_log_prob: float | None  # of ``runner_up``


@dataclass(frozen=True)
class DependencyGraph:
    """The pass in which each token of an output became final, and the tokens it depends on.

    Passes count from 1, positions from 0. A token is final from the first pass on from which every
    pass predicts the output's token at its position. Committed tokens stay final. A position
    outside a pass's window is not final, whatever an earlier pass predicted there.
    """

    name: str  # of the sentence
    decoding: str  # the method
    flags: dict[str, Any]  # the values of the method's own flags
    tokens: list[str]  # the n tokens of the output, ``</s>`` included
    num_passes: int  # T, the number of decoder passes
    final_pass: list[int]  # n passes, from 1, in which the tokens became final
    log_probs: list[float]  # n natural log-probabilities, each from the token's ``final_pass``
    # n second best tokens of the same passes; None where only one was allowed
    runner_up: list[str | None]
    runner_up_log_probs: list[float | None]  # of ``runner_up``
    # T lists of n; None where an earlier pass had committed the position, or where the pass did not
    # predict it
    predictions: list[list[Prediction | None]]
    starts: list[int]  # T numbers of tokens that earlier passes had committed

    @functools.cached_property
    def waves(self) -> list[list[int]]:
        """Return the positions that became final together, wave by wave, from left to right.

        A pass in which no token became final makes no wave.
        """
        found: dict[int, list[int]] = {}
        for position, number in enumerate(self.final_pass):
            found.setdefault(number, []).append(position)
        return [found[number] for number in sorted(found)]

    @property
    def edges(self) -> list[tuple[int, int]]:
        """Return (from, to): each token with each token of the wave before, on which it depends.

        Edges to older waves follow from these and are left out, as in the paper's Figure 4.
        """
        waves = self.waves
        return [
            (position, earlier)
            for before, wave in zip(waves, waves[1:])
            for position in wave
            for earlier in before
        ]

    @functools.cached_property
    def parallel(self) -> list[bool]:
        """Return for each token whether another one became final in the same pass."""
        sizes = Counter(self.final_pass)
        return [sizes[number] > 1 for number in self.final_pass]

    @property
    def summary(self) -> str:
        """Return the counts of tokens, passes and parallel tokens in one line."""
        count = len(self.tokens)
        return (
            f"tokens: {count}, passes: {self.num_passes}, "
            f"tokens per pass: {count / self.num_passes:.2f}, "
            f"decoded in parallel: {sum(self.parallel)}"
        )

    def is_right(self, number: int, position: int) -> bool:
        """Return whether a pass (from 1) has the output's token at a position (from 0)."""
        prediction = self.predictions[number - 1][position]
        if prediction is None:
            return position < self.starts[number - 1]
        return prediction.token == self.tokens[position]

    def graph(self) -> "nx.DiGraph[int]":
        """Return the graph for networkx.

        Nodes are positions with ``token``, ``final_pass``, ``log_prob``, ``probability``,
        ``runner_up``, ``runner_up_log_prob`` and ``parallel``; edges are ``edges``.
        """
        graph: nx.DiGraph[int] = nx.DiGraph(name=self.name)
        for position, (token, parallel) in enumerate(zip(self.tokens, self.parallel)):
            graph.add_node(
                position,
                token=token,
                final_pass=self.final_pass[position],
                log_prob=self.log_probs[position],
                probability=math.exp(self.log_probs[position]),
                runner_up=self.runner_up[position],
                runner_up_log_prob=self.runner_up_log_probs[position],
                parallel=parallel,
            )
        graph.add_edges_from(self.edges)
        return graph


# ---- records -> graphs -------------------------------------------------------------------------


def method(record: Record) -> str:
    """Return the method that decoded a sentence; for ``auto_fast``, the chosen one."""
    name = str(record.get("decoding", ""))
    if name != "auto_fast":
        return name
    return str(record.get("chosen") or "greedy").split()[0]


def from_record(record: Record, name: str) -> DependencyGraph:
    """Make a graph of a sentence's record.

    Raises:
        UsageError: the method is no Jacobi decoder or greedy search, or the record is malformed or
            contradicts itself.
    """
    decoding = method(record)
    if decoding not in DECODINGS:
        raise UsageError(
            f"{name}: got a trace of {decoding!r}; allowed: {', '.join(DECODINGS)}, whose passes "
            "guess the output itself; `paradec trace` shows the others"
        )
    sentence = read_sentence(record, name)
    tokens, entries = sentence.output, record["trace"]
    if not tokens:
        raise UsageError(f"{name} has no output; allowed: at least </s>")
    if any("positions" in entry for entry in entries):
        raise UsageError(f"{name}: got a trace of another order; allowed: from left to right")
    predictions = [
        _predictions(entry, len(tokens), f"{name}, pass {number}")
        for number, entry in enumerate(entries, start=1)
    ]
    starts = [entry["start"] for entry in entries]
    final_pass = _final_passes(tokens, predictions, starts)
    found = []
    for position, number in enumerate(final_pass):
        one = predictions[number - 1][position] if number <= len(entries) else None
        if one is None:
            raise UsageError(
                f"{name} contradicts itself: what it commits at position {position} is not what "
                "the model predicted there"
            )
        found.append(one)
    return DependencyGraph(
        name=name,
        decoding=decoding,
        flags=sentence.flags,
        tokens=tokens,
        num_passes=len(entries),
        final_pass=final_pass,
        log_probs=[one.log_prob for one in found],
        runner_up=[one.runner_up for one in found],
        runner_up_log_probs=[one.runner_up_log_prob for one in found],
        predictions=predictions,
        starts=starts,
    )


def _predictions(entry: Mapping[str, Any], length: int, where: str) -> list[Prediction | None]:
    """Return what a pass predicted at each position of an output of ``length`` tokens."""
    row: list[Prediction | None] = [None] * length
    count = len(entry["verifier"])
    columns = [_column(entry, key, count, where) for key in _COLUMNS]
    for i, values in enumerate(zip(entry["verifier"], *columns)):
        if entry["start"] + i < length:
            row[entry["start"] + i] = Prediction(*values)
    return row


def _is_log_prob(value: Any) -> bool:
    """Return whether a value is the logarithm of a probability, but for rounding; not NaN."""
    return type(value) in (float, int) and -LARGEST < value < 1e-3


def _is_log_prob_or_null(value: Any) -> bool:
    return value is None or _is_log_prob(value)


def _is_token_or_null(value: Any) -> bool:
    return value is None or isinstance(value, str)


#: Fields of a pass with a value for each predicted token, and the check of a value.
_COLUMNS: dict[str, Callable[[Any], bool]] = {
    "log_probs": _is_log_prob,
    "runner_up": _is_token_or_null,
    "runner_up_log_probs": _is_log_prob_or_null,
}


def _column(entry: Mapping[str, Any], key: str, count: int, where: str) -> list[Any]:
    """Return one of these fields, checked."""
    values = entry.get(key)
    if type(values) is not list or len(values) != count:
        raise UsageError(f"{where}: {key!r} is missing or no list of {count}, one per prediction")
    if not all(map(_COLUMNS[key], values)):
        raise UsageError(f"{where}: {key!r} holds a value of a wrong kind")
    return values


def _final_passes(
    tokens: list[str], predictions: list[list[Prediction | None]], starts: list[int]
) -> list[int]:
    """Return for each position the pass from which on every pass has the output's token there.

    If the last pass has another token, this is the number of passes plus one.
    """
    final = [len(predictions) + 1] * len(tokens)
    still = [True] * len(tokens)
    for number in range(len(predictions), 0, -1):
        row, start = predictions[number - 1], starts[number - 1]
        for position, token in enumerate(tokens):
            one = row[position]
            right = position < start if one is None else one.token == token
            still[position] = still[position] and right
            if still[position]:
                final[position] = number
    return final


# ---- graphs -> text ----------------------------------------------------------------------------


def as_text(graph: DependencyGraph, source: Sequence[str] | None = None) -> str:
    """Return a graph for a terminal: a line per pass with the tokens that became final in it.

    Each token has its position and its probability in that pass; an empty pass has a ``-``.
    """
    last = str(graph.num_passes)
    lines = [heading(graph)]
    if source is not None:
        lines.append(f"source{' ' * len(last)} {' '.join(map(printable, source))}")
    for number in range(1, graph.num_passes + 1):
        shown = [
            f"{position}:{printable(token)} {math.exp(graph.log_probs[position]):.2f}"
            for position, token in enumerate(graph.tokens)
            if graph.final_pass[position] == number
        ]
        lines.append(f"pass {number:>{len(last)}}  {'  '.join(shown) or '-'}")
    return "\n".join([*lines, graph.summary])


def heading(graph: DependencyGraph) -> str:
    """Return a sentence's name and its decoding with flags."""
    return f"{printable(graph.name)} ({' '.join([graph.decoding, *typed(graph.flags)])})"
