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
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ...errors import UsageError
from ...output import printable
from ...records import Record
from .symbols import typed
from .trace_records import LARGEST, read_sentence
from .trace_view import Cell, Sentence

if TYPE_CHECKING:
    import networkx as nx

#: The methods whose passes are iterates of the output; the graph of ``greedy`` is a chain.
DECODINGS = ("greedy", "pj", "pgj", "hgj")


@dataclass(frozen=True)
class DependencyGraph:
    """The pass in which each token of an output became final, and the tokens it depends on.

    Passes count from 1, positions from 0. A token is final from the first pass on from which every
    pass predicts the output's token at its position. Committed tokens stay final. A position
    outside a pass's window is not final, whatever an earlier pass predicted there.
    """

    sentence: Sentence
    decoding: str  # the method
    # T passes by n positions; None where an earlier pass had committed the position, or where the
    # pass did not predict it
    predictions: list[list[Cell | None]]

    @functools.cached_property
    def final_pass(self) -> list[int]:
        """The n passes, from 1, in which the tokens became final; T + 1: the last has another."""
        final = []
        for position in range(len(self.tokens)):
            number = self.num_passes + 1
            while number > 1 and self.is_right(number - 1, position):
                number -= 1
            final.append(number)
        return final

    @functools.cached_property
    def finals(self) -> list[Cell]:
        """The n predictions of the tokens, each of its ``final_pass``.

        Raises:
            UsageError: a token was never predicted at its position.
        """
        finals = []
        for position, number in enumerate(self.final_pass):
            cell = self.predictions[number - 1][position] if number <= self.num_passes else None
            if cell is None:
                raise UsageError(
                    f"{self.sentence.name} contradicts itself: what it commits at position "
                    f"{position} is not what the model predicted there"
                )
            finals.append(cell)
        return finals

    @property
    def tokens(self) -> list[str]:
        """The n tokens of the output, ``</s>`` included."""
        return self.sentence.output

    @property
    def num_passes(self) -> int:
        """T, the number of decoder passes."""
        return len(self.predictions)

    @property
    def log_probs(self) -> list[float]:
        """The n natural log-probabilities, each from the token's ``final_pass``."""
        return [cell.log_prob for cell in self.finals if cell.log_prob is not None]  # all have one

    @functools.cached_property
    def waves(self) -> list[list[int]]:
        """Return the positions that became final together, wave by wave, from left to right.

        A pass in which no token became final makes no wave.
        """
        waves: dict[int, list[int]] = {}
        for position, number in enumerate(self.final_pass):
            waves.setdefault(number, []).append(position)
        return [waves[number] for number in sorted(waves)]

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
        cell = self.predictions[number - 1][position]
        if cell is None:
            return position < self.sentence.passes[number - 1].start
        return cell.token == self.tokens[position]

    def graph(self) -> "nx.DiGraph[int]":
        """Return the graph for networkx.

        Nodes are positions with ``token``, ``final_pass``, ``log_prob``, ``probability``,
        ``runner_up``, ``runner_up_log_prob`` and ``parallel``; edges are ``edges``.
        """
        import networkx as nx

        graph: nx.DiGraph[int] = nx.DiGraph(name=self.sentence.name)
        for position, (cell, log_prob) in enumerate(zip(self.finals, self.log_probs)):
            graph.add_node(
                position,
                token=cell.token,
                final_pass=self.final_pass[position],
                log_prob=log_prob,
                probability=math.exp(log_prob),
                runner_up=cell.runner_up,
                runner_up_log_prob=cell.runner_up_log_prob,
                parallel=self.parallel[position],
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
    count = len(sentence.output)
    if not count:
        raise UsageError(f"{name} has no output; allowed: at least </s>")
    if sentence.reordered:
        raise UsageError(f"{name}: got a trace of another order; allowed: from left to right")
    predictions: list[list[Cell | None]] = []
    for entry in sentence.passes:
        log_probs = (cell.log_prob for cell in entry.predicted)
        if not all(value is not None and -LARGEST < value < 1e-3 for value in log_probs):
            raise UsageError(
                f"{name}, pass {entry.number}: 'log_probs' lacks a value, or holds one of a wrong "
                "kind"
            )
        window = [None] * entry.start + list(entry.predicted) + [None] * count
        predictions.append(window[:count])
    graph = DependencyGraph(sentence, decoding, predictions)
    _ = graph.finals  # refuses a record that contradicts itself
    return graph


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
    how = " ".join([graph.decoding, *typed(graph.sentence.flags)])
    return f"{printable(graph.sentence.name)} ({how})"
