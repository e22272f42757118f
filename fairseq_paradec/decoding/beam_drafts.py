"""Beam search in fewer passes: the beam's own next steps are drafted, and verified in one pass.

All hypotheses of a sentence are paths of one tree of tokens, whose nodes lie in one row of the
cache. A round has three parts:

1. *Draft*: from the live hypotheses the drafter runs D steps of the search. Each token that a
   hypothesis of these steps has is a node; hypotheses that begin alike share nodes.
2. *Verify*: one pass of the model reads all nodes that it has not read, and so gives the words
   that can follow each of them.
3. *Replay*: the search takes its steps with the model's own scores, as long as every live
   hypothesis is a node that has been read. The nodes that no live hypothesis begins with or goes
   through leave the cache.

A step of the search reads nothing but the live hypotheses, their scores, and the model's words
behind each of them. The replay has the same three, so it is the search, whatever was drafted.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from ..engine.masks import Tree
from ..engine.scorers import Scorer
from ..row import Row
from ..token_rules import Best, Positions, TokenRules
from .beam import Extension
from .beam_output import Written


class Words(NamedTuple):
    """The best words behind a node; see ``Best``."""

    tokens: list[int]  # K of them, the best first
    scores: list[float]  # their log-probabilities
    end: float  # that of ``</s>``


class Nodes:
    """A sentence's tree of tokens. Node 0 is the decoder's first input, at depth 0.

    Attributes:
        tokens: of each node.
        parents: of each node, a smaller number; -1 of node 0.
        depths: of each node; its token is the output's token of this number.
        known: the words behind each node that the model has read.
        lived: the nodes that a live hypothesis of the search had.
    """

    def __init__(self, start: int) -> None:
        self.tokens, self.parents, self.depths = [start], [-1], [0]
        self.known: dict[int, Words] = {}
        self.lived = {0}
        self._children: dict[tuple[int, int], int] = {}

    def child(self, parent: int, token: int) -> int:
        """Return the node of a token behind a node; it may be a new one."""
        node = self._children.setdefault((parent, token), len(self.tokens))
        if node == len(self.tokens):
            self.tokens.append(token)
            self.parents.append(parent)
            self.depths.append(self.depths[parent] + 1)
        return node

    def path(self, node: int) -> list[int]:
        """Return the nodes from node 0 to this one."""
        nodes = []
        while node >= 0:
            nodes.append(node)
            node = self.parents[node]
        return nodes[::-1]

    def written(self, node: int, total: float, eos: int) -> Written:
        """Return the hypothesis that ends behind a node, with the model's own scores."""
        path = self.path(node)
        hypothesis = Written(total, [self.tokens[n] for n in path[1:]], [], [])
        for parent, word in zip(path, [*hypothesis.words, eos], strict=True):
            tokens, scores, end = self.known[parent]
            hypothesis.word_scores.append(end if word == eos else scores[tokens.index(word)])
            rank = tokens.index(word) if word in tokens else len(tokens)
            hypothesis.ranks.append(rank)
            other = 1 if rank == 0 else 0
            hypothesis.runners_up.append((tokens[other], scores[other]))
        return hypothesis


@dataclass
class Beam:
    """A sentence's search between two steps."""

    row: Row  # the sentence
    tree: Nodes  # its tokens
    nodes: list[int]  # the live hypotheses, W of them, each the node that it ends with
    totals: list[float]  # their scores
    written: int = 0  # how many words they have, t
    num_finished: int = 0  # how many hypotheses are finished
    ends: bool = False  # whether the search is over

    @property
    def is_read(self) -> bool:
        """Whether the model has read all live hypotheses."""
        return all(node in self.tree.known for node in self.nodes)

    @property
    def needed(self) -> set[int]:
        """The nodes on paths to live hypotheses, and those behind them."""
        if self.ends:
            return set()
        behind = set(self.nodes)
        for node, parent in enumerate(self.tree.parents):
            if parent in behind:
                behind.add(node)
        return behind.union(*map(self.tree.path, self.nodes))


class Reader:
    """A model that reads nodes; those of a sentence lie in one row of its cache, behind each other.

    Args:
        scorer: its encoder has run.
        best: returns the best words at the positions of a chunk for the output of ``step``.
        rules: which tokens are allowed.
        batch: the number of sentences.

    Attributes:
        held: of each row, the nodes in the cache, by slot.
        dtype: of the last scores.
    """

    dtype = np.dtype(np.float32)

    def __init__(
        self,
        scorer: Scorer,
        best: Callable[[object, Positions], Best],
        rules: TokenRules,
        batch: int,
    ) -> None:
        self.scorer, self.best, self.rules = scorer, best, rules
        self.held: list[list[int]] = [[] for _ in range(batch)]

    def read(
        self, beams: Sequence[Beam], wanted: Sequence[Sequence[int]]
    ) -> list[dict[int, Words]]:
        """Read nodes in one pass, and what is missing of the paths to them.

        Returns:
            Of each sentence, the words behind what was read.
        """
        new: list[list[int]] = []
        for beam, nodes, held in zip(beams, wanted, self.held, strict=True):
            new.append(sorted(set[int]().union(*map(beam.tree.path, nodes)).difference(held)))
        width = max(map(len, new))
        size = max(map(len, self.held)) + width
        depths = np.zeros((len(beams), width), np.int32)
        chunk = np.full((len(beams), width), self.rules.pad)
        sees = np.zeros((len(beams), width, size), bool)
        for b, (beam, nodes) in enumerate(zip(beams, new, strict=True)):
            tree, held = beam.tree, self.held[b]
            held += nodes
            slots = {node: slot for slot, node in enumerate(held)}
            for i, node in enumerate(nodes):
                chunk[b, i], depths[b, i] = tree.tokens[node], tree.depths[node]
                sees[b, i, [slots[n] for n in tree.path(node)]] = True
        bases = [0] * len(beams)
        hidden = self.scorer.step(chunk, Tree(bases, sees, depths))
        self.roll_back()
        texts = [
            [[beam.tree.tokens[n] for n in beam.tree.path(node)[1:]] for node in nodes]
            for beam, nodes in zip(beams, new, strict=True)
        ]
        at = self.rules.at([beam.row for beam in beams], bases, depths, texts)
        best = self.best(hidden, at)
        self.dtype = best.scores.dtype
        parts = zip(*(part.tolist() for part in best), strict=True)
        return [
            {node: Words(*words) for node, words in zip(nodes, zip(*part, strict=True))}
            for nodes, part in zip(new, parts, strict=True)
        ]

    def roll_back(self) -> None:
        """Let the cache have the held nodes alone."""
        self.scorer.keep(list(map(len, self.held)))

    def keep(self, wanted: Sequence[set[int]]) -> None:
        """Keep these nodes of each row in the cache, as far as they are there."""
        slots = [
            [slot for slot, node in enumerate(held) if node in nodes]
            for held, nodes in zip(self.held, wanted, strict=True)
        ]
        self.scorer.gather([0] * len(slots), slots)
        self.held = [[held[i] for i in s] for held, s in zip(self.held, slots, strict=True)]

    def drop(self, stay: Sequence[int]) -> None:
        """Keep these rows."""
        self.scorer.reorder(stay)
        self.held = [self.held[b] for b in stay]


class Round(NamedTuple):
    """What a pass did for a sentence."""

    start: int  # how many words the hypotheses had before it
    depth: int  # how many steps were drafted
    steps: int  # how many steps were taken, at least 1
    nodes: int  # how many nodes the pass read
    # these nodes; see ``PassRecord``. None: not kept.
    tree: list[tuple[int, int, bool]] | None = None


@dataclass(frozen=True)
class DraftedBeamSearch:
    """A search over the hypotheses of a batch."""

    verifier: Reader  # the model
    drafter: Reader  # the model that drafts. Its ``held`` is the verifier's if both have one cache.
    joined: bool  # whether they have
    depth: int  # D, the most steps of a draft
    beam_size: int  # the number of hypotheses that a sentence finishes, B
    # a step of the search; see ``BeamSearch.extend``
    extend: Callable[[Best, np.ndarray], Extension]
    rank: Callable[[Written], float]  # the value by which finished hypotheses are compared
    rules: TokenRules  # which tokens are allowed

    def run(self, rows: Sequence[Row]) -> tuple[list[list[Written]], list[list[Round]]]:
        """Search until each sentence has its hypotheses; the encoders have run.

        Returns:
            B lists of hypotheses, in the order in which they finish, and each sentence's rounds.
        """
        finished: list[list[Written]] = [[] for _ in rows]
        rounds: list[list[Round]] = [[] for _ in rows]
        read: list[list[list[int]]] = [[] for _ in rows]
        beams = all_beams = [Beam(row, Nodes(self.rules.start), [0], [0.0]) for row in rows]
        while beams:
            # 1. Draft: the nodes of each sentence that the model has not read.
            drafts = [replace(beam) for beam in beams]
            nodes = self._draft(drafts)
            # 2. Verify.
            for beam, words in zip(beams, self.verifier.read(beams, nodes), strict=True):
                beam.tree.known |= words
            # 3. Replay.
            starts = [beam.written for beam in beams]
            self._replay(beams, finished)
            for beam, draft, new, start in zip(beams, drafts, nodes, starts, strict=True):
                round_ = Round(start, draft.written - start, beam.written - start, len(new))
                rounds[beam.row.index].append(round_)
                read[beam.row.index].append(new)
            # 4. What no live hypothesis needs leaves the cache; finished sentences leave the batch.
            needed = [beam.needed for beam in beams]
            for reader in (self.verifier,) if self.joined else (self.verifier, self.drafter):
                reader.keep(needed)
            stay = [b for b, beam in enumerate(beams) if not beam.ends]
            if len(stay) < len(beams):
                beams = [beams[b] for b in stay]
                if beams:
                    self.verifier.drop(stay)
                    self.drafter.drop(stay)
        for beam in all_beams:
            trees = _trees(beam.tree, read[beam.row.index])
            both = zip(rounds[beam.row.index], trees, strict=True)
            rounds[beam.row.index] = [round_._replace(tree=tree) for round_, tree in both]
        return finished, rounds

    def _draft(self, beams: Sequence[Beam]) -> list[list[int]]:
        """Run the search by the drafter's words where the model's are not known.

        Args:
            beams: of all sentences, copied; written to.

        Returns:
            Of each sentence, the nodes of live hypotheses that the model has not read.
        """
        if self.joined:
            self.drafter.held = [list(held) for held in self.verifier.held]
        guessed: list[dict[int, Words]] = [{} for _ in beams]
        nodes: list[list[int]] = [[] for _ in beams]
        for level in range(self.depth + 1):
            wanted: list[list[int]] = []
            for beam, some in zip(beams, nodes, strict=True):
                here = [] if beam.ends else beam.nodes
                wanted.append([node for node in here if node not in beam.tree.known])
                some += wanted[-1]
            active = [b for b, beam in enumerate(beams) if not beam.ends]
            if level == self.depth or not active:
                break
            if any(wanted):
                for known, new in zip(guessed, self.drafter.read(beams, wanted), strict=True):
                    known |= new
            words = [guessed[b] | beams[b].tree.known for b in active]
            self._step([beams[b] for b in active], words)
        if self.joined:
            self.verifier.roll_back()
        return nodes

    def _replay(self, beams: Sequence[Beam], finished: list[list[Written]]) -> None:
        """Take the steps whose live hypotheses the model has read."""
        while active := [beam for beam in beams if not beam.ends and beam.is_read]:
            ended = self._step(active, [beam.tree.known for beam in active])
            for beam, ends in zip(active, ended, strict=True):
                beam.tree.lived.update(beam.nodes)
                hypos = [beam.tree.written(*end, self.rules.eos) for end in ends]
                done = finished[beam.row.index]
                done += sorted(hypos, key=self.rank, reverse=True)[: self.beam_size - len(done)]

    def _step(
        self, beams: Sequence[Beam], words: Sequence[dict[int, Words]]
    ) -> list[list[tuple[int, float]]]:
        """Extend beams by a step of the search.

        Args:
            beams: S of them, not at their ends; written to, and new hypotheses are added to trees.
            words: of each, the words behind all live hypotheses.

        Returns:
            Of each sentence, the hypotheses that end: the node that each ends behind, and its
            score.
        """
        width, count = max(len(beam.nodes) for beam in beams), len(words[0][beams[0].nodes[0]][0])
        none = Words([self.rules.pad] * count, [-math.inf] * count, -math.inf)
        some, totals = [], []
        for beam, known in zip(beams, words, strict=True):
            blank = width - len(beam.nodes)
            some.append([*(known[node] for node in beam.nodes), *[none] * blank])
            totals.append(beam.totals + [-math.inf] * blank)
        dtype = self.verifier.dtype
        best = Best(
            np.array([[words.tokens for words in row] for row in some])[:, :, None],
            np.array([[words.scores for words in row] for row in some], dtype)[:, :, None],
            np.array([[words.end for words in row] for row in some], dtype)[:, :, None],
        )
        ended, alive = self.extend(best, np.array(totals, dtype))
        ends, more = (
            zip(*(part.tolist() for part in (group.parents, group.scores, group.words[..., 0])))
            for group in (ended, alive)
        )
        finished = []
        for beam, ending, living in zip(beams, ends, more, strict=True):
            before = beam.nodes
            triples = list(zip(*ending, strict=True))
            finished.append([(before[p], score) for p, score, _ in triples if math.isfinite(score)])
            triples = [triple for triple in zip(*living, strict=True) if math.isfinite(triple[1])]
            beam.nodes = [beam.tree.child(before[parent], word) for parent, _, word in triples]
            beam.totals = [score for _, score, _ in triples]
            beam.written += 1
            beam.num_finished = min(self.beam_size, beam.num_finished + len(finished[-1]))
            full = beam.num_finished == self.beam_size
            beam.ends = full or beam.written > beam.row.limit or not beam.nodes
        return finished


def _trees(tree: Nodes, read: Sequence[Sequence[int]]) -> list[list[tuple[int, int, bool]]]:
    """Return the nodes that each pass read; see ``PassRecord``."""
    number = {-1: -1}
    for nodes in read:
        for node in sorted(nodes):
            number[node] = len(number) - 1
    return [
        [(tree.tokens[n], number[tree.parents[n]], n in tree.lived) for n in sorted(nodes)]
        for nodes in read
    ]
