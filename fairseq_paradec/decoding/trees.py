"""Draft trees: several continuations of a sentence in one verifying pass; one path is kept.

Sources: Miao et al. 2024 (SpecInfer: tree attention, token tree verification); Cai et al. 2024
(Medusa: trees of independent predictions). A tree is a list of nodes, each behind its parent; a
parent of -1 is the last committed token. Nodes are taken by the drafter's probability of the path
to them, so a tree of N nodes has the N most likely paths.
"""

import heapq
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ..engine.chunk import pick
from ..engine.masks import Tree
from ..token_rules import Positions, Scored, TokenRules
from .acceptance import ExactMatch

if TYPE_CHECKING:
    from ..engine.scorers import Scorer
    from ..row import Row

#: How many tokens a drafter offers at a node: its best.
CHOICES = 4
#: Of N nodes, an autoregressive drafter reads at most N / FRONT at once.
FRONT = 6


class Nodes(NamedTuple):
    """A tree."""

    tokens: list[int]  # N drafted tokens
    parents: list[int]  # N, the number of each node's parent, smaller than its own, or -1
    confidences: list[float]  # N, the drafter's probability of each token behind its parent

    def texts(self) -> list[list[int]]:
        """Return the tokens on the way to the root, which are none, and to each node: N+1 lists."""
        texts: list[list[int]] = [[]]
        for token, parent in zip(self.tokens, self.parents, strict=True):
            texts.append([*texts[parent + 1], token])
        return texts


def likeliest(
    tokens: list[list[int]], log_probs: list[list[float]], depth: int, most: int, eos: int
) -> Nodes:
    """Build a tree from predictions of the next positions that do not depend on each other.

    Args:
        tokens: K×C, the best tokens of each position, the best first.
        log_probs: K×C, theirs.
        depth: the length of the longest path, at most K.
        most: N.
        eos: ``</s>``, behind which nothing is drafted.
    """
    tree = Nodes([], [], [])
    # Above 0 is an <unk> with a negative penalty.
    log_probs = [[min(score, 0.0) for score in row] for row in log_probs]
    # Negative log-probability of the path; depth, rank and parent of the node; that of the parent.
    heap = [(-log_probs[0][0], 0, 0, -1, 0.0)] if depth > 0 else []
    while heap and len(tree.tokens) < most:
        cost, at, rank, parent, before = heapq.heappop(heap)
        if rank + 1 < len(tokens[at]):
            sibling = before - log_probs[at][rank + 1]
            heapq.heappush(heap, (sibling, at, rank + 1, parent, before))
        if cost == math.inf:
            break  # forbidden tokens
        token = tokens[at][rank]
        tree.tokens.append(token)
        tree.parents.append(parent)
        tree.confidences.append(math.exp(log_probs[at][rank]))
        if at + 1 < depth and token != eos:
            node = len(tree.tokens) - 1
            heapq.heappush(heap, (cost - log_probs[at + 1][0], at + 1, 0, node, cost))
    return tree


class Growth:
    """A row's tree while an autoregressive drafter grows it, level by level.

    Args:
        most: N.
        depth: the length of the longest path.
        least: the log-probability below which nothing is drafted behind a path.
        eos: ``</s>``, behind which nothing is drafted.

    Attributes:
        front: the nodes that the drafter reads next.
    """

    def __init__(self, most: int, depth: int, least: float, eos: int) -> None:
        self.most, self.depth, self.least, self.eos = most, depth, least, eos
        self.tokens: list[int] = []
        self.parents: list[int] = []
        self.scores: list[float] = []  # log-probabilities of paths, and of tokens behind a parent
        self.shares: list[float] = []
        self.read: list[list[int]] = []  # of each node: its ancestors and itself in the cache
        self.front: list[int] = [-1] if depth > 0 else []
        self._level = 0

    def offer(self, tokens: list[list[int]], log_probs: list[list[float]]) -> None:
        """Add the best tokens behind each node of the front, F×C, and choose the next front."""
        begin = len(self.tokens)
        for node, best, scores in zip(self.front, tokens, log_probs, strict=False):
            before = self.scores[node] if node >= 0 else 0.0
            for token, score in zip(best, scores, strict=True):
                if score > -math.inf:
                    self.tokens.append(token)
                    self.parents.append(node)
                    # Above 0 is an <unk> with a negative penalty.
                    self.shares.append(min(score, 0.0))
                    self.scores.append(before + self.shares[-1])
                    self.read.append([])
        self._level += 1
        self.front = []
        if self._level < self.depth:
            here = [n for n in self._best() if n >= begin and self.tokens[n] != self.eos]
            here = [n for n in here if self.scores[n] >= self.least]
            self.front = here[: max(1, self.most // FRONT)]

    def text(self, node: int) -> list[int]:
        """Return the tokens on the way to a node."""
        return [] if node < 0 else [*self.text(self.parents[node]), self.tokens[node]]

    def reads(self, slot: int) -> list[list[int]]:
        """Let the drafter read the front into slots from ``slot`` on; return what each sees."""
        for at, node in enumerate(self.front, slot):
            parent = self.parents[node]
            self.read[node] = [*(self.read[parent] if parent >= 0 else []), at]
        return [self.read[node] for node in self.front]

    def _best(self) -> list[int]:
        """Return the N likeliest nodes, the likeliest first, and a parent before its children."""
        return sorted(range(len(self.tokens)), key=lambda n: (-self.scores[n], n))[: self.most]

    def cut(self) -> Nodes:
        """Keep the N likeliest nodes."""
        best = self._best()
        number = {-1: -1} | {node: i for i, node in enumerate(best)}
        self.read = [self.read[node] for node in best]
        return Nodes(
            [self.tokens[n] for n in best],
            [number[self.parents[n]] for n in best],
            [math.exp(self.shares[n]) for n in best],
        )


class Trees(NamedTuple):
    """The trees of a pass."""

    nodes: list[Nodes]  # of each row
    mask: Tree  # of the chunk of the last committed tokens and the nodes, B×(N+1)

    def slots(self, paths: list[list[int]]) -> tuple[list[int], list[list[int]]]:
        """Return what stays cached, as ``Cache.gather`` takes it: these nodes of each row."""
        starts = [base + 1 for base in self.mask.bases]
        return starts, [[s + n for n in row] for s, row in zip(starts, paths, strict=True)]


def plant(nodes: list[Nodes], bases: Sequence[int]) -> Trees:
    """Return the trees of a pass.

    Args:
        nodes: of each row.
        bases: B, the slots of the last committed tokens.
    """
    width = 1 + max(len(row.tokens) for row in nodes)
    sees, depths = [], []
    for row in nodes:
        seen = [[True] + [False] * (width - 1)]
        depth = [0]
        for node, parent in enumerate(row.parents):
            path = seen[parent + 1].copy()
            path[node + 1] = True
            seen.append(path)
            depth.append(depth[parent + 1] + 1)
        blank = width - len(seen)
        sees.append(seen + seen[:1] * blank)
        depths.append(depth + [0] * blank)
    return Trees(nodes, Tree(bases, np.array(sees), np.array(depths, np.int32)))


class Branches(NamedTuple):
    """What is looked at of a pass over trees: one path of each row, from the root to a leaf.

    The path begins with the longest that the verifier accepts; of several that are equally long,
    which a relaxed rule may accept, with its likeliest. Behind it come each node's likeliest
    children.
    """

    nodes: list[list[int]]  # of each row, the path's nodes
    # the states of the last committed token and these nodes, B×(K+1)×D; of the first behind
    hidden: Any
    at: Positions  # what they predict
    scored: Scored | None  # the choices there; None: they are not known yet


def branches(
    scorer: "Scorer",
    hidden: Any,
    rules: TokenRules,
    rows: "Sequence[Row]",
    trees: Trees,
    acceptance: ExactMatch,
    whole: bool,
) -> Branches:
    """Find the path of each row's tree that is looked at.

    Args:
        scorer: the verifier.
        hidden: of its pass over the trees.
        rules: which tokens are allowed.
        rows: the sentences.
        trees: the pass's.
        acceptance: judges the nodes.
        whole: the draft's scores are needed, too, for a relaxed rule or a trace.
    """
    depths, texts = trees.mask.depths, [nodes.texts() for nodes in trees.nodes]
    chosen = None
    if whole:
        passes, scores = _judge(scorer, hidden, rules, rows, trees, acceptance)
    else:
        chosen = scorer.choose(hidden, rules.at(rows, depths=depths, behind=texts))
        passes = [
            [tokens[i] == choices[parent + 1] for i, parent in enumerate(parents)]
            for (tokens, parents, _), choices in zip(
                trees.nodes, chosen.tokens.tolist(), strict=True
            )
        ]
        scores = [[0.0] * len(row) for row in passes]
    paths = [
        _to_leaf(nodes.parents, _best_path(nodes.parents, passed, score))
        for nodes, passed, score in zip(trees.nodes, passes, scores, strict=True)
    ]
    width = 1 + max(map(len, paths))
    positions = [[0, *(n + 1 for n in path)] + [0] * (width - 1 - len(path)) for path in paths]
    where = np.array(positions)
    behind = [[own[i] for i in row] for own, row in zip(texts, positions, strict=True)]
    at = rules.at(rows, depths=pick(depths, where), behind=behind)
    scored = None
    if chosen is not None:
        scored = Scored(pick(chosen.tokens, where), pick(chosen.scores, where))
    return Branches(paths, pick(hidden, where), at, scored)


def _judge(
    scorer: "Scorer",
    hidden: Any,
    rules: TokenRules,
    rows: "Sequence[Row]",
    trees: Trees,
    acceptance: ExactMatch,
) -> tuple[list[list[bool]], list[list[float]]]:
    """Return which nodes pass by themselves, and the verifier's log-probabilities of them."""
    depths = trees.mask.depths
    width = depths.shape[1] - 1
    draft = np.array([[*n.tokens, *[rules.pad] * (width - len(n.tokens))] for n in trees.nodes])
    behind = [[p + 1 for p in (*n.parents, *[0] * (width - len(n.tokens)))] for n in trees.nodes]
    parents = np.array(behind)  # B×N
    texts = zip(trees.nodes, map(Nodes.texts, trees.nodes), strict=True)
    before = [[own[parent + 1] for parent in nodes.parents] for nodes, own in texts]
    at = rules.at(rows, depths=pick(depths, parents), behind=before)
    scored = scorer.choose(pick(hidden, parents), at, draft)
    assert scored.draft_scores is not None
    return acceptance.passes(draft, scored).tolist(), scored.draft_scores.tolist()


def _best_path(parents: list[int], passes: list[bool], scores: list[float]) -> list[int]:
    """Return the longest path of nodes that pass; of equally long ones that of the best score."""
    paths: dict[int, tuple[int, float, list[int]]] = {-1: (0, 0.0, [])}
    for node, parent in enumerate(parents):
        if passes[node] and parent in paths:
            length, score, path = paths[parent]
            paths[node] = (length + 1, score + scores[node], [*path, node])
    return max(paths.values(), key=lambda ranked: ranked[:2])[2]


def _to_leaf(parents: list[int], path: list[int]) -> list[int]:
    """Prolong a path to a leaf, by each node's likeliest child, which comes first."""
    last = path[-1] if path else -1
    for node, parent in enumerate(parents):
        if parent == last and node > last:
            path.append(node)
            last = node
    return path
