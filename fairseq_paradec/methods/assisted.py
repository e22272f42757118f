"""Speculative decoding: a small Transformer drafts token by token, the model verifies.

Sources: Leviathan, Kalman and Matias 2023; Chen et al. 2023. For translation with a shallow decoder
on a deep encoder: Kasai et al. 2021.

| Leviathan et al. 2023                | here                                                 |
|--------------------------------------|------------------------------------------------------|
| M_q, the approximation model         | the model of ``--drafter-path``                      |
| M_p, the target model                | the model of ``--path``                              |
| gamma                                | ``block_size``, at most                              |
| Algorithm 1, greedy (section 3.2)    | ``AssistantDrafter``, the loop, rule ExactMatch      |
| Algorithm 1, sampling                | the same with ``decoding/sampling.py``               |

A draft may be a tree (``draft_tree``; Miao et al. 2024). Beyond the papers: a draft ends where it
no longer pays (``draft_confidence``), and a drafter on the verifier's encoder encodes nothing.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ..decoding.drafting import BlockSizes, propose_trees
from ..decoding.engine.chunk import ChunkScorer
from ..decoding.engine.masks import Tree
from ..decoding.engine.projection import DraftProjection
from ..decoding.helper import check_shared_encoder, same_encoder
from ..decoding.loop import Drafter, Proposal, Verdict, no_draft, num_to_score
from ..decoding.row import Row
from ..decoding.sampling import Sampling, draw
from ..decoding.token_rules import Scored, TokenRules, starts_of
from ..decoding.trees import CHOICES, Growth
from ..errors import nan_error
from .drafted import DraftedGenerator


class AssistantDrafter(Drafter):
    """Drafts each token greedily, or draws it, given the drafts before it.

    The pass that begins a draft also reads what the verifier committed since the last one.

    Args:
        scorer: the drafter's; its encoder has not run yet.
        projection: the draft projection, of all tokens or of a shortlist.
        rules: which tokens are allowed at a position.
        sizes: the largest number of drafted tokens of each row.
        confidence: a draft ends once the drafter's probability of it is below this; 0: never.
        traced: also give the drafted tokens' probabilities, for a trace.
        sampling: draws the tokens; None: the best ones.
    """

    def __init__(
        self,
        scorer: ChunkScorer,
        projection: DraftProjection,
        rules: TokenRules,
        sizes: BlockSizes,
        confidence: float,
        traced: bool = False,
        sampling: Sampling | None = None,
    ) -> None:
        self.scorer = scorer
        self.projection = projection
        self.rules = rules
        self.sizes = sizes
        self.least = math.log(confidence) if confidence > 0 else -math.inf
        self.traced = traced
        self.sampling = sampling
        self.read = [0] * len(sizes.sizes)  # of each row, how many committed inputs were cached

    def propose(self, rows: Sequence[Row]) -> Proposal:
        """Draft up to a row's block size, its limit, the first ``</s>`` or its least probability.

        A pass is over all rows; those whose drafts have ended read filling.
        """
        counts = self._counts(rows)
        if max(counts) <= 0:
            return no_draft(len(rows))
        hidden = self._read(rows)  # B×1×D
        drafts: list[list[int]] = [[] for _ in rows]
        drawn_from: list[Tensor] = []  # B×1×N each
        sure: list[list[float]] = [[] for _ in rows]  # log-probabilities, or scores
        starts = starts_of(rows)
        live = [b for b, count in enumerate(counts) if count > 0]
        while True:
            scored, probs = self._choose(hidden, rows, starts)
            if probs is not None:
                drawn_from.append(_only(probs, live))
            tokens, scores = scored.tokens[:, 0].tolist(), scored.scores[:, 0].tolist()
            for b in live:
                drafts[b].append(tokens[b])
                sure[b].append(scores[b])
            live = [b for b in live if self._goes_on(drafts[b], counts[b], sum(sure[b]))]
            if not live:
                break
            hidden = self.scorer.step(scored.tokens)
            lengths = list(self.scorer.cache.lengths)
            for b in live:
                lengths[b] += 1
            self.scorer.keep(lengths)
            starts = [start + 1 for start in starts]
        confidences = [list(map(math.exp, row)) for row in sure] if self.traced else None
        probs = torch.cat(drawn_from, dim=1) if drawn_from else None
        return Proposal(drafts, num_to_score(drafts, self.rules.eos), confidences, probs)

    def _counts(self, rows: Sequence[Row]) -> list[int]:
        """Return how many tokens in a row may be drafted for each row."""
        # At a row's last position only </s> is allowed, so it is not drafted.
        last = self.scorer.decoder.max_positions()
        rooms = [min(row.room - 1, last - len(row.tokens)) for row in rows]
        return [min(room, self.sizes[b]) for b, room in enumerate(rooms)]

    def _goes_on(self, draft: list[int], count: int, sure: float) -> bool:
        """Return whether another token is drafted."""
        return len(draft) < count and draft[-1] != self.rules.eos and sure >= self.least

    def _choose(
        self, hidden: Tensor, rows: Sequence[Row], starts: list[int]
    ) -> tuple[Scored, Tensor | None]:
        """Choose the drafter's next token for each row; return it and what it was drawn from."""
        probs = None
        if self.sampling is None:
            scored = self.projection.choose(
                self.scorer.projection, hidden, self.rules, rows, starts,
                normalised=self.traced or self.least > -math.inf,
            )  # fmt: skip
        else:
            log_probs = self.projection.log_probs(self.scorer.projection, hidden, self.rules)
            self.rules.restrict(log_probs, rows, starts)
            probs = self.sampling.probs(log_probs)  # B×1×N
            tokens = draw(probs)
            scored = Scored(tokens, probs.gather(2, tokens[:, :, None]).squeeze(2).log())
        if bool(torch.isnan(scored.scores).any()):
            raise nan_error("--drafter-path", [self.scorer.model])
        return scored, probs

    def _read(self, rows: Sequence[Row]) -> Tensor:
        """Read the committed tokens that are not cached: -> B×1×D, the states after the last."""
        cached = self.scorer.cache.lengths
        inputs = [[self.rules.start, *row.tokens] for row in rows]
        new = [tokens[n:] for tokens, n in zip(inputs, cached, strict=True)]
        width = max(map(len, new))
        chunk = [tokens + [self.rules.pad] * (width - len(tokens)) for tokens in new]
        hidden = self.scorer.step(torch.tensor(chunk, device=self.rules.device))
        self.read = [len(tokens) for tokens in inputs]
        self.scorer.keep(self.read)
        where = torch.tensor([len(tokens) - 1 for tokens in new], device=hidden.device)
        return hidden.gather(1, where[:, None, None].expand(-1, 1, hidden.size(2)))

    def observe(self, verdict: Verdict) -> None:
        """Keep the accepted tokens, as far as they are cached, and adapt the blocks."""
        self.sizes.observe(verdict.num_accepted)
        wanted = map(sum, zip(self.read, verdict.num_accepted, strict=True))
        self.scorer.keep(list(map(min, self.scorer.cache.lengths, wanted)))

    def drop(self, stay: Sequence[int]) -> None:
        """Keep the block sizes and the cache of these rows."""
        self.sizes.drop(stay)
        self.scorer.reorder(stay)
        self.read = [self.read[b] for b in stay]


class TreeAssistant(AssistantDrafter):
    """Drafts trees: of each level's nodes the likeliest are read in one pass.

    Args:
        most_nodes: of a tree.
        args: see AssistantDrafter.
    """

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
        hidden = self._read(rows)  # B×1×D
        device, starts = self.rules.device, starts_of(rows)
        self.trees = [Growth(self.most_nodes, n, self.least, self.rules.eos) for n in counts]
        level = 0
        while True:
            depths = torch.full(hidden.shape[:2], level, dtype=torch.int32, device=device)
            tokens, log_probs = self.projection.candidates(
                self.scorer.projection, hidden, self.rules, rows, CHOICES, starts, depths
            )
            if bool(torch.isnan(log_probs).any()):
                raise nan_error("--drafter-path", [self.scorer.model])
            for tree, *offered in zip(self.trees, tokens.tolist(), log_probs.tolist(), strict=True):
                tree.offer(*offered)
            width = max(len(tree.front) for tree in self.trees)
            if width == 0:
                break
            hidden = self._read_fronts(width, level)
            level += 1
        return propose_trees([tree.cut() for tree in self.trees])

    def _read_fronts(self, width: int, level: int) -> Tensor:
        """Read the front of each tree: -> B×F×D."""
        cached, device = self.scorer.cache.lengths, self.rules.device
        size = max(n - read for n, read in zip(cached, self.read, strict=True)) + width
        chunk, sees = [], []
        for tree, n, read in zip(self.trees, cached, self.read, strict=True):
            paths = tree.reads(n - read)
            blank = width - len(paths)
            chunk.append([*(tree.tokens[i] for i in tree.front), *[self.rules.pad] * blank])
            seen = [[slot in path for slot in range(size)] for path in paths]
            sees.append(seen + [[False] * size] * blank)
        depths = torch.full((len(cached), width), level, dtype=torch.int32, device=device)
        tree_mask = Tree(self.read, torch.tensor(sees, device=device), depths)
        hidden = self.scorer.step(torch.tensor(chunk, device=device), tree_mask)
        fronts = [len(tree.front) for tree in self.trees]
        self.scorer.keep([n + more for n, more in zip(cached, fronts, strict=True)])
        return hidden

    def observe(self, verdict: Verdict) -> None:
        """Keep the accepted path, as far as it was read, and adapt the blocks."""
        if verdict.paths is None:
            return super().observe(verdict)
        self.sizes.observe(verdict.num_accepted)
        kept: list[list[int]] = []
        for tree, path, start in zip(self.trees, verdict.paths, self.read, strict=True):
            read = max((tree.read[node] for node in path), key=len, default=[])
            kept.append([start + slot for slot in read])
        self.scorer.gather(self.read, kept)


class AssistedGenerator(DraftedGenerator):
    """``--decoding assisted``; the drafter is any Transformer with the verifier's dictionaries."""

    def make_draft_scorer(self, drafter: Any) -> ChunkScorer:
        """Return the drafter's scorer."""
        return ChunkScorer(drafter, self.engine)

    def shares_encoder(self, models: Sequence[Any], drafter: Any) -> bool:
        """Return whether both encoders are the same, as trained or by chance."""
        if getattr(drafter, "shares_encoder", False):
            check_shared_encoder(models, drafter, self.config.drafter_path)
            return True
        return len(models) == 1 and same_encoder(models[0], drafter)

    def make_drafter(
        self, rows: Sequence[Row], net_input: dict[str, Tensor], rules: TokenRules
    ) -> AssistantDrafter:
        """Return the drafter for one batch."""
        given = (
            self.draft_scorer,
            self.projection,
            rules,
            self.block_sizes(rows),
            self.config.draft_confidence,
            self.record_tokens,
            self.sampling,
        )
        most = self.config.draft_tree
        return AssistantDrafter(*given) if most is None else TreeAssistant(most, *given)


def _only(probs: Tensor, live: Sequence[int]) -> Tensor:
    """Return the distributions of these rows, and 0 for the others: B×1×N."""
    kept = torch.zeros_like(probs)
    kept[live] = probs[live]
    return kept
