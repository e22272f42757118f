"""Drafters that write token by token: one continuation, or a tree of them."""

import math
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np

from ..engine.chunk import ChunkScorer
from ..engine.masks import Tree
from ..engine.native.drafts import NativeDrafting
from ..engine.native.library import Drafted, DraftedBy
from ..engine.projection import DraftProjection
from ..errors import nan_error
from ..row import Row
from ..token_rules import TokenRules, starts_of
from .drafting import BlockSizes, propose_trees
from .loop import Drafter, Proposal, Verdict, no_draft, num_to_score
from .trees import CHOICES, Growth
from .writing import read_rows, write


class AssistantDrafter(Drafter):
    """Drafts each token given the drafts before it.

    The pass that begins a draft also reads what the verifier committed since the last one.

    Args:
        scorer: the drafter's; its encoder has not run yet.
        projection: the draft projection, of all tokens or of a shortlist.
        rules: which tokens are allowed at a position.
        sizes: the largest number of drafted tokens of each row.
        confidence: a draft ends once the drafter's probability of it is below this; 0: never.
        traced: also give the drafted tokens' probabilities, for a trace.
    """

    flag = "--drafter-path"  # names the scorer's model

    def __init__(
        self,
        scorer: ChunkScorer,
        projection: DraftProjection,
        rules: TokenRules,
        sizes: BlockSizes,
        confidence: float,
        traced: bool = False,
    ) -> None:
        self.scorer = scorer
        self.projection = projection
        self.rules = rules
        self.sizes = sizes
        self.least = math.log(confidence) if confidence > 0 else -math.inf
        self.traced = traced
        self.read = [0] * len(sizes.sizes)  # of each row, how many committed inputs were cached

    def propose(self, rows: Sequence[Row]) -> Proposal:
        """Draft up to a row's block size, its limit, ``</s>`` or the least probability."""
        counts = self._counts(rows)
        if max(counts) <= 0:
            return no_draft(len(rows))
        self.read = [1 + len(row.tokens) for row in rows]
        written = write(
            self.scorer,
            self.projection.part(self.scorer.projection, self.rules),
            self.rules,
            rows,
            counts,
            self.least,
            self.traced or self.least > -math.inf,
        )
        if written.has_nan:
            raise nan_error(self.flag, [self.scorer.model])
        drafts, scores = written
        confidences = [list(map(math.exp, row)) for row in scores] if self.traced else None
        return Proposal(drafts, num_to_score(drafts, self.rules.eos), confidences)

    def natively(self) -> NativeDrafting | None:
        """Describe the drafter to the native loop, unless it is traced."""
        part = self.projection.part(self.scorer.projection, self.rules)
        if self.traced or not self.scorer.writes(part):
            return None
        how = Drafted(
            by=DraftedBy.TOKENS,
            joined=self.scorer.joined,
            most=self.sizes.most,
            adaptive=self.sizes.adaptive,
            least=self.least,
            normalised=self.least > -math.inf,
            positions=self.scorer.max_positions,
        )
        return NativeDrafting(
            how, self.scorer, part.linear, partial(nan_error, self.flag, [self.scorer.model])
        )

    def _counts(self, rows: Sequence[Row]) -> list[int]:
        """Return how many tokens in a row may be drafted for each row."""
        # At a row's last position only </s> is allowed, so it is not drafted.
        last = self.scorer.max_positions
        rooms = [min(row.room - 1, last - len(row.tokens)) for row in rows]
        return [min(room, self.sizes[b]) for b, room in enumerate(rooms)]

    def observe(self, verdict: Verdict) -> None:
        """Keep the accepted tokens, as far as they are cached, and adapt the blocks."""
        self.sizes.observe(verdict.num_accepted, verdict.own)
        if not verdict.asked:
            return
        wanted = map(sum, zip(self.read, verdict.num_own, strict=True))
        self.scorer.keep(list(map(min, self.scorer.cache.lengths, wanted)))

    def drop(self, stay: Sequence[int]) -> None:
        """Keep the block sizes and the cache of these rows."""
        self.sizes.drop(stay)
        self.scorer.reorder(stay)
        self.read = [self.read[b] for b in stay]


class TreeAssistant(AssistantDrafter):
    """Drafts trees: of each level's nodes the likeliest are read in one pass."""

    def __init__(self, most_nodes: int, *args: Any) -> None:
        super().__init__(*args)
        self.most_nodes = most_nodes
        self.trees: list[Growth] = []

    def propose(self, rows: Sequence[Row]) -> Proposal:
        """Draft the likeliest paths of each row, of at most its block size."""
        counts = self._counts(rows)
        self.trees = []
        if max(counts) <= 0:
            return no_draft(len(rows))
        hidden = read_rows(self.scorer, rows, self.rules)  # B×1×D
        self.read = [1 + len(row.tokens) for row in rows]
        starts = starts_of(rows)
        self.trees = [Growth(self.most_nodes, n, self.least, self.rules.eos) for n in counts]
        level = 0
        while True:
            depths = np.full(hidden.shape[:2], level, np.int32)
            texts = [[tree.text(node) for node in tree.front] for tree in self.trees]
            at = self.rules.at(rows, starts, depths, texts)
            tokens, log_probs = self.projection.candidates(
                self.scorer.projection, hidden, at, CHOICES
            )
            if np.isnan(log_probs).any():
                raise nan_error(self.flag, [self.scorer.model])
            for tree, *offered in zip(self.trees, tokens.tolist(), log_probs.tolist(), strict=True):
                tree.offer(*offered)
            width = max(len(tree.front) for tree in self.trees)
            if width == 0:
                break
            hidden = self._read_fronts(width, level)
            level += 1
        return propose_trees([tree.cut() for tree in self.trees])

    def _read_fronts(self, width: int, level: int) -> Any:
        """Read the front of each tree: -> B×F×D."""
        cached = self.scorer.cache.lengths
        size = max(n - start for n, start in zip(cached, self.read, strict=True)) + width
        chunk, sees = [], []
        for tree, n, start in zip(self.trees, cached, self.read, strict=True):
            paths = tree.reads(n - start)
            blank = width - len(paths)
            chunk.append([*(tree.tokens[i] for i in tree.front), *[self.rules.pad] * blank])
            seen = [[slot in path for slot in range(size)] for path in paths]
            sees.append(seen + [[False] * size] * blank)
        depths = np.full((len(cached), width), level, np.int32)
        hidden = self.scorer.step(np.array(chunk), Tree(self.read, np.array(sees), depths))
        fronts = [len(tree.front) for tree in self.trees]
        self.scorer.keep([n + more for n, more in zip(cached, fronts, strict=True)])
        return hidden

    def observe(self, verdict: Verdict) -> None:
        """Keep the accepted path, as far as it was read, and adapt the blocks."""
        if verdict.paths is None:
            return super().observe(verdict)
        self.sizes.observe(verdict.num_accepted, verdict.own)
        kept: list[list[int]] = []
        own = zip(verdict.paths, verdict.own or [True] * len(verdict.paths), strict=True)
        paths = [path if ours else [] for path, ours in own]
        for tree, path, start in zip(self.trees, paths, self.read, strict=True):
            read = max((tree.read[node] for node in path), key=len, default=[])
            kept.append([start + slot for slot in read])
        self.scorer.gather(self.read, kept)
