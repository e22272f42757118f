"""Self-drafting: the model in 8 or 4 bits drafts token by token, and itself verifies.

Source: Zhao et al. 2025 (QSpec): one model in two precisions, and one cache, in which verification
overwrites what drafting wrote. There the precise form has quantised weights too; here it is the
model as it is, so that outputs are greedy search's.

| Zhao et al. 2025                       | here                                                 |
|----------------------------------------|------------------------------------------------------|
| drafting, 4-bit weights and activations| ``AssistantDrafter`` on int8 weights, for int8 on    |
|                                        | int4 (``drafter_dtype``), and activations of 8 bits; |
|                                        | the best words by the verifier's projection          |
| verifying, 16-bit activations          | the loop with rule ExactMatch, in the engine's dtype |
| the reuse of the cache                 | ``ChunkScorer.join``, ``SelfDrafter``; natively      |

Nothing is trained.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from ..batch import Numbers
from ..config import DecodingConfig
from ..decoding.assistant import AssistantDrafter
from ..decoding.loop import Proposal, Verdict
from ..engine.chunk import ChunkScorer
from ..engine.native.drafts import NativeDrafting
from ..engine.native.library import halves
from ..engine.native.projection import NativeProjection
from ..engine.projection import DraftProjection
from ..errors import option_error
from ..row import Row
from ..token_rules import TokenRules
from .assisted import AssistedDecoder
from .base import Context


class SelfDraftDecoder(AssistedDecoder):
    """``--decoding self_draft``; of an ensemble, the first model drafts.

    Raises:
        UsageError: drafts would have the dtype of the passes that verify.
    """

    def __init__(self, models: Sequence[Any], config: DecodingConfig, context: Context) -> None:
        super().__init__(models, config, context._replace(drafter=models[0]))
        self.helper = None
        if isinstance(self.scorer, ChunkScorer) and self.scorer.native and self.draft_scorer.native:
            self.projection = ExactBest(self.scorer, self.draft_scorer.model, self.words)
        dtype = self.draft_engine.dtype_of(models[0])
        if dtype == self.engine.dtype_of(models[0]):
            raise option_error(
                "--engine-dtype",
                dtype,
                "with self_draft another dtype than drafts have (--drafter-dtype, by default int8)",
            )

    def with_draft_dtype(self, config: DecodingConfig) -> DecodingConfig:
        """Return options in which int4 drafts for int8, where that reads fewer bytes."""
        chosen = config.is_given("drafter_dtype") or self.engine.dtype != "int8"
        alone = getattr(self.models[0], "is_packed_only", False)  # there is nothing to pack
        if chosen or alone or not self.scorer.native or not halves():
            return config
        return replace(config, drafter_dtype="int4")

    def make_draft_scorer(self, drafter: Any) -> ChunkScorer:
        """Return the drafter's scorer; of one that joins the verifier's only what it reads."""
        joins = (self.engine.dtype, self.draft_engine.dtype) == ("int8", "int4") and halves()
        joins = joins and isinstance(self.scorer, ChunkScorer) and self.scorer.native
        return ChunkScorer(drafter, self.draft_engine, joins)

    def make_drafter(
        self, rows: Sequence[Row], source: Numbers, rules: TokenRules
    ) -> AssistantDrafter:
        """Return the drafter for one batch."""
        return SelfDrafter(*self.drafting(rows, rules))

    def _encode(self, source: Numbers) -> None:
        """Run the encoder; drafts for an ensemble have one of their own."""
        if not self.on_verifiers_encoder:
            return super()._encode(source)
        self.scorer.encode(source)
        self.draft_scorer.join(self.scorer)


class ExactBest(DraftProjection):
    """The drafter's projection in fewer bits; the best words have scores of the verifier's in int8.

    A rough projection finds which words come into question, and a few rows of the exact one decide
    among them. So its weights may have 2 bits.
    """

    def __init__(self, verifier: ChunkScorer, model: Any, words: Any) -> None:
        super().__init__(model, None, words)
        self._verifier = verifier
        self._both: tuple[Any, Any, Any] = (None, None, None)

    def part(self, projection: Any, rules: TokenRules) -> Any:
        """Return the projection with the verifier's for the best words."""
        exact = self._verifier.projection
        if not isinstance(projection, NativeProjection) or not isinstance(exact, NativeProjection):
            return projection  # an adaptive softmax
        if self._both[0] is not projection or self._both[1] is not exact:
            both = projection._replace(linear=projection.linear.with_exact(exact.linear))
            self._both = projection, exact, both
        return self._both[2]


class SelfDrafter(AssistantDrafter):
    """Drafts on the verifier's cache, if both are native: see ``ChunkScorer.join``.

    The loop then keeps what is committed, and picks rows.
    """

    flag = "--path"

    def propose(self, rows: Sequence[Row]) -> Proposal:
        """Draft; then only the committed tokens count as cached again."""
        lengths = self.scorer.cache.lengths
        proposal = super().propose(rows)
        if self.scorer.joined:
            self.scorer.keep(lengths)
        return proposal

    def natively(self) -> NativeDrafting | None:
        """Describe the drafter to the native loop, in which committed tokens alone count, too."""
        return super().natively()

    def observe(self, verdict: Verdict) -> None:
        """Adapt the blocks; a cache of its own keeps the accepted tokens."""
        if self.scorer.joined:
            self.sizes.observe(verdict.num_accepted, verdict.own)
        else:
            super().observe(verdict)
