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

Beyond the papers: a draft ends where it no longer pays (``draft_confidence``), and a drafter on the
verifier's encoder needs no encoder pass.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ..decoding.drafting import BlockSizes
from ..decoding.engine.chunk import ChunkScorer
from ..decoding.engine.projection import DraftProjection
from ..decoding.helper import check_shared_encoder, same_encoder
from ..decoding.loop import Drafter, Proposal, Verdict, no_draft
from ..decoding.row import Row
from ..decoding.sampling import Sampling, draw
from ..decoding.token_rules import Scored, TokenRules, starts_of
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
        # At a row's last position only </s> is allowed, so it is not drafted.
        last = self.scorer.decoder.max_positions()
        rooms = [min(row.room - 1, last - len(row.tokens)) for row in rows]
        counts = [min(room, self.sizes[b]) for b, room in enumerate(rooms)]
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
        counts = [len(d) + (not d or d[-1] != self.rules.eos) for d in drafts]
        confidences = [list(map(math.exp, row)) for row in sure] if self.traced else None
        probs = torch.cat(drawn_from, dim=1) if drawn_from else None
        return Proposal(drafts, counts, confidences, probs)

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
        return AssistantDrafter(
            self.draft_scorer,
            self.projection,
            rules,
            self.block_sizes(rows),
            self.config.draft_confidence,
            self.record_tokens,
            self.sampling,
        )


def _only(probs: Tensor, live: Sequence[int]) -> Tensor:
    """Return the distributions of these rows, and 0 for the others: B×1×N."""
    kept = torch.zeros_like(probs)
    kept[live] = probs[live]
    return kept
