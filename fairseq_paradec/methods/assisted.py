"""Speculative decoding: a small Transformer drafts token by token, the model verifies.

Sources: Leviathan, Kalman and Matias 2023; Chen et al. 2023. For translation with a shallow decoder
on a deep encoder: Kasai et al. 2021.

| Leviathan et al. 2023                | here                                                 |
|--------------------------------------|------------------------------------------------------|
| M_q, the approximation model         | the model of ``--drafter-path``                      |
| M_p, the target model                | the model of ``--path``                              |
| gamma                                | ``block_size``, at most                              |
| Algorithm 1, greedy (section 3.2)    | ``AssistantDrafter``, the loop, rule ExactMatch      |
| Algorithm 1, sampling                | other draws of the distribution: engine/sampling.py  |

A draft may be a tree (``draft_tree``; Miao et al. 2024). Beyond the papers: a draft ends where it
no longer pays (``draft_confidence``), and a drafter on the verifier's encoder encodes nothing.
"""

from collections.abc import Sequence
from typing import Any

from ..batch import Numbers
from ..decoding.assistant import AssistantDrafter, TreeAssistant
from ..decoding.helper import check_shared_encoder, same_encoder
from ..engine.chunk import ChunkScorer
from ..row import Row
from ..token_rules import TokenRules
from .drafted import DraftedDecoder


class AssistedDecoder(DraftedDecoder):
    """``--decoding assisted``; the drafter is any Transformer with the verifier's dictionaries."""

    def make_draft_scorer(self, drafter: Any) -> ChunkScorer:
        """Return the drafter's scorer."""
        return ChunkScorer(drafter, self.draft_engine)

    def shares_encoder(self, models: Sequence[Any], drafter: Any) -> bool:
        """Return whether both encoders are the same, as trained or by chance."""
        if getattr(drafter, "shares_encoder", False):
            check_shared_encoder(models, drafter, self.config.drafter_path)
            return True
        return len(models) == 1 and same_encoder(models[0], drafter)

    def make_drafter(
        self, rows: Sequence[Row], source: Numbers, rules: TokenRules
    ) -> AssistantDrafter:
        """Return the drafter for one batch."""
        most, given = self.config.draft_tree, self.drafting(rows, rules)
        return AssistantDrafter(*given) if most is None else TreeAssistant(most, *given)

    def drafting(self, rows: Sequence[Row], rules: TokenRules) -> tuple[Any, ...]:
        """Return the arguments of AssistantDrafter."""
        return (
            self.draft_scorer,
            self.projection,
            rules,
            self.block_sizes(rows),
            self.config.draft_confidence,
            self.record_tokens,
        )
