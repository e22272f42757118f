"""fairseq's own search as a decoder, which measuring commands and auto_fast compare with."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from ..batch import Batch, Numbers
from ..config import ALL, DecodingConfig
from ..decoding.provenance import FAIRSEQ, provenance
from ..decoding.stock_search import count_passes, errors_named, search_batch, search_of_flags
from ..engine.settings import Engine
from ..errors import option_error
from ..forks import computing
from ..records import PassRecord, Record
from ..row import Row
from ..token_rules import TokenRules
from .base import Context, Turns, check_lengths

#: Options that turn fairseq's search into another one than plain beam search.
OTHER_SEARCH = (
    "match_source_len",
    "diverse_beam_groups",
    "diverse_beam_strength",
    "diversity_rate",
    "sampling",
    "sampling_topk",
    "sampling_topp",
)


class StockDecoder:
    """fairseq's own search, with the interface of a Decoder.

    Attributes:
        search: fairseq's SequenceGenerator.
    """

    def __init__(self, models: Sequence[Any], config: DecodingConfig, context: Context) -> None:
        self.models, self.config = list(models), config
        check_lengths(config, min(model.max_decoder_positions() for model in models))
        self.search = search_of_flags(
            self.models,
            context.words,
            config,
            tokens_to_suppress=tuple(context.tokens_to_suppress),
        )
        self._counted = count_passes(self.search, self.models)
        self._turns = Turns()

    @property
    def plain(self) -> bool:
        """Whether it is plain beam search."""
        return all(getattr(self.config, name) == ALL[name].default for name in OTHER_SEARCH)

    @property
    def lossless(self) -> bool:
        """Whether the output is greedy search's."""
        return self.config.beam == 1 and self.plain

    def provenance(self) -> Record:
        """Return a record's fields of provenance; see docs/trace.md."""
        dtype = Engine().dtype_of(self.models[0])
        return provenance(self.lossless, FAIRSEQ, dtype, self.models)

    def _check_limit(self, width: int) -> None:
        """Refuse a batch whose limit, which is of its width, is below the minimal length."""
        config = self.config
        limit = int(config.max_len_a * width + config.max_len_b)
        if limit < config.min_len:
            given = f"{config.max_len_a} with --max-len-b {config.max_len_b}"
            allowed = f"what leaves {width} source tokens --min-len {config.min_len} tokens or more"
            raise option_error("--max-len-a", given, allowed)

    def decode(self, batch: Batch) -> list[list[dict[str, Any]]]:
        """Decode one batch; see Decoder. ``steps`` of a hypothesis are the batch's passes."""
        self._check_limit(batch.tokens.shape[1])
        named = errors_named(self.search, self.models, batch.constraints)
        with computing(), self._turns, named:  # it keeps its count, and the batch's lengths
            self._counted.passes = 0
            outputs = search_batch(self.search, self.models, batch)
            passes = self._counted.passes
        for hypos in outputs:
            for hypo in hypos:
                hypo |= {"steps": passes, "history": []}
        return outputs

    # ---- as a candidate of auto_fast -------------------------------------------------------------

    def join(self, scorers: dict[Any, Any], record_tokens: bool) -> None:
        """Share nothing."""

    def _prepare(self, rows: Sequence[Row], source: Numbers, rules: TokenRules) -> Any:
        """Return None; the search needs no preparation."""

    def _decode(
        self, source: Numbers, rows: Sequence[Row], rules: TokenRules, prepared: Any
    ) -> list[list[dict[str, Any]]]:
        """Search; each row gets the best hypothesis, and one pass per token."""
        prefix = np.array([row.prefix for row in rows]) if rules.forced_len > 0 else None
        outputs = self.decode(Batch(source, prefix=prefix, start=rules.start, pad=rules.pad))
        for row, hypos in zip(rows, outputs, strict=True):
            row.tokens = hypos[0]["tokens"].tolist()
            row.scores = hypos[0]["positional_scores"].tolist()
            row.passes = [PassRecord(i, 0, 0, 1) for i in range(len(row.tokens))]
            row.finished = True
            for hypo in hypos:
                hypo["steps"] = len(hypo["tokens"])
        return outputs
