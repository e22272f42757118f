"""Base classes of the methods: a fairseq SequenceGenerator with a scorer and reports."""

from __future__ import annotations

import abc
import math
import threading
import time
import weakref
from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import Any

import torch
from fairseq import search
from fairseq.sequence_generator import SequenceGenerator
from torch import Tensor

from ..decoding.acceptance import ExactMatch
from ..decoding.audit import Audit
from ..decoding.engine.scorers import Scorer, build_scorer
from ..decoding.engine.settings import DRAFTS, Engine
from ..decoding.hypotheses import hypothesis
from ..decoding.loop import Drafter, draft_and_verify
from ..decoding.provenance import NATIVE, TORCH, provenance
from ..decoding.row import Row
from ..decoding.sampling import Sampling
from ..decoding.token_rules import TokenRules
from ..errors import nan_error, option_error
from ..options import DecodingConfig
from ..records import Record
from ..target_order import TargetOrder, order_of
from .registry import METHODS
from .reports import Reports


class MethodGenerator(SequenceGenerator, abc.ABC):
    """Base of every method; a subclass decodes a batch.

    fairseq's commands build and call it like their own SequenceGenerator. It takes and applies
    fairseq's limits (``max_len_a``, ``min_len``, ``unk_penalty``, ``tokens_to_suppress``, ...).

    Args:
        models: one model, or several as an ensemble.
        tgt_dict: the target dictionary.
        config: the options of decoding.
        src_dict: the source dictionary; ``source-copy`` and the reports' source text need it.
        keep_history: put each pass's tokens into ``history`` (fairseq's --retain-iter-history).
        kwargs: other arguments of fairseq's SequenceGenerator.

    Raises:
        UsageError: a limit contradicts the model's, or ``</s>`` is suppressed.
    """

    def __init__(
        self,
        models: Sequence[Any],
        tgt_dict: Any,
        config: DecodingConfig,
        src_dict: Any = None,
        keep_history: bool = False,
        **kwargs: Any,
    ) -> None:
        # fairseq passes the beam size to some decoders (BART's), whose full forward then fails.
        beam_size = kwargs.pop("beam_size", 1)
        super().__init__(models, tgt_dict, **kwargs)
        self.beam_size = min(beam_size, self.vocab_size - 1)
        suppressed = self.token_indices_to_suppress
        self.suppressed = () if suppressed is None else tuple(sorted(set(suppressed.tolist())))
        if self.eos in self.suppressed:
            raise option_error(
                "tokens_to_suppress", tgt_dict[self.eos], "other tokens: with it each output ends"
            )
        self.config = config
        self.sampling: Sampling | None = None
        if isinstance(self.search, search.Sampling):
            self.sampling = Sampling(self.search.sampling_topk, self.search.sampling_topp)
        self.src_dict = src_dict
        self.helper: Any = None  # the drafter or heads of another checkpoint
        self.engine = Engine(config.engine_dtype, config.compile, kind=config.engine)
        self.scorer = self.make_scorer(models)
        if "drafter_dtype" in METHODS[config.decoding].reads and config.drafter_dtype is None:
            config = replace(config, drafter_dtype=DRAFTS if self.scorer.native else None)
            self.config = config
        self.record_tokens = keep_history or config.trace_file is not None
        self.audit = Audit(list(models), tgt_dict, **kwargs) if config.audit else None
        self._lock = threading.Lock()
        self._check_min_len()
        if config.draft_tree is not None and hasattr(models[0], "image_sizes"):
            raise option_error(
                "--draft-tree", config.draft_tree, "nothing with a model whose attention is local"
            )
        self.reports = Reports(config, tgt_dict, src_dict, self.audit, self.sampling is not None)
        self.stats = self.reports.stats
        # fairseq has no call at the end of decoding, so the reports close when this is deleted.
        weakref.finalize(self, self.reports.close)

    # ---- overridden by methods -----------------------------------------------------------------

    def make_scorer(self, models: Sequence[Any]) -> Scorer:
        """Return the scorer of the models, the verifier."""
        return build_scorer(list(models), self.engine)

    @property
    def lossless(self) -> bool:
        """Whether the method guarantees the output of greedy search in fp32."""
        if self.sampling is not None:
            return False
        left_to_right = order_of(self.model.models[0]) == TargetOrder()
        method = METHODS[self.config.decoding]
        return method.is_lossless(self.config, self.beam_size, left_to_right)

    def provenance(self) -> Record:
        """Return a record's fields of provenance for the last batch; see docs/trace.md."""
        fields = provenance(
            self.lossless,
            NATIVE if self.scorer.native else TORCH,
            self.engine.dtype_of(self.model.models[0]),
            self.scorer.compiled,
            self.model.models,
            self.helper,
        )
        if self.sampling is not None:
            fields["sampling"] = asdict(self.sampling) | {"temperature": self.temperature}
        return fields

    def _prepare(self, rows: Sequence[Row], net_input: dict[str, Tensor], rules: TokenRules) -> Any:
        """Prepare a batch outside the timer, for ``_decode``; the default returns None."""

    @abc.abstractmethod
    def _decode(
        self, net_input: dict[str, Tensor], rows: Sequence[Row], rules: TokenRules, prepared: Any
    ) -> list[list[dict[str, Any]]]:
        """Encode and decode one batch.

        Args:
            net_input: fairseq's ``net_input``.
            rows: the sentences; the method writes their tokens, scores and passes.
            rules: fairseq's limits.
            prepared: the result of ``_prepare``.

        Returns:
            B lists of hypotheses, the best one first.
        """

    def join(self, scorers: dict[Any, Any], record_tokens: bool) -> None:
        """Share scorers with other generators on the same models.

        Args:
            scorers: the shared scorers by kind, one per kind, so that weights are gathered once.
            record_tokens: keep each pass's tokens.
        """
        self.record_tokens = record_tokens
        self.scorer = self._one_of(scorers, "scorer", self.scorer)

    def _one_of(self, scorers: dict[Any, Any], name: str, own: Any) -> Any:
        """Return the shared scorer of a kind; the first generator's own becomes the shared one."""
        return scorers.setdefault((name, self.config.compile), own)

    def compile_seconds(self) -> float:
        """Return the seconds of compilation so far, which are not part of the decoding time."""
        return self.engine.compiling.seconds

    # ---- one batch -----------------------------------------------------------------------------

    def _generate(
        self,
        sample: dict[str, Any],
        prefix_tokens: Tensor | None = None,
        constraints: Tensor | None = None,
        bos_token: int | None = None,
    ) -> list[list[dict[str, Any]]]:
        """Decode one batch; fairseq's entry point.

        Args:
            sample: fairseq's batch, with ``net_input``.
            prefix_tokens: B×P tokens that the outputs begin with, padded at the end.
            constraints: refused.
            bos_token: the decoder's first input, ``</s>`` by default.

        Returns:
            B lists of hypotheses.
        """
        if constraints is not None:
            raise option_error("--constraints", "constraints", "none with this --decoding")
        with self._lock:
            return self._generate_alone(sample, prefix_tokens, bos_token)

    def _generate_alone(
        self, sample: dict[str, Any], prefix_tokens: Tensor | None, bos_token: int | None
    ) -> list[list[dict[str, Any]]]:
        """Decode one batch; see ``_generate``. A generator has one cache."""
        net_input = sample["net_input"]
        rows = self._make_rows(net_input, prefix_tokens)
        rules = self._make_rules(prefix_tokens, bos_token, net_input["src_tokens"].device)
        prepared = self._prepare(rows, net_input, rules)
        compiling, begin = self.compile_seconds(), time.perf_counter()
        hypos = self._decode(net_input, rows, rules, prepared)
        seconds = time.perf_counter() - begin - (self.compile_seconds() - compiling)
        self._refuse_nan(rows)
        verdicts: Sequence[dict[str, Any] | None] = [None] * len(rows)
        if self.audit is not None:
            verdicts = self.audit.compare(sample, hypos, prefix_tokens, bos_token)
        self.reports.add(sample, rows, hypos, seconds, verdicts, self.provenance)
        return hypos

    def _hypotheses(self, rows: Sequence[Row], rules: TokenRules) -> list[list[dict[str, Any]]]:
        """Make the one hypothesis of each finished row."""
        return [
            [hypothesis(row, rules.device, self.normalize_scores, self.len_penalty)] for row in rows
        ]

    def _make_rows(self, net_input: dict[str, Tensor], prefix_tokens: Tensor | None) -> list[Row]:
        """Make the rows of a batch, each with its own length limit."""
        batch = net_input["src_tokens"].tolist()
        sources = [[token for token in tokens if token != self.pad] for tokens in batch]
        prefixes = [[] for _ in sources] if prefix_tokens is None else prefix_tokens.tolist()
        rows = []
        for index, (source, prefix) in enumerate(zip(sources, prefixes, strict=True)):
            wanted = int(self.max_len_a * len(source) + self.max_len_b)
            limit = min(max(wanted, self.min_len), self.max_len - 1)
            rows.append(Row(index, source, limit, prefix))
        return rows

    def _check_min_len(self) -> None:
        """Refuse a minimal length above the length limit or the model's positions.

        With max_len_a each sentence has its own limit, which the minimal length overrides.
        """
        limit = self.max_len - 1
        if self.max_len_a == 0:
            limit = min(limit, self.max_len_b)
        if self.min_len > limit:
            raise option_error(
                "--min-len",
                self.min_len,
                f"at most the length limit, here {limit} tokens (--max-len-b, model's positions)",
            )

    def _make_rules(
        self, prefix_tokens: Tensor | None, bos_token: int | None, device: torch.device
    ) -> TokenRules:
        """Collect fairseq's limits."""
        return TokenRules(
            pad=self.pad,
            unk=self.unk,
            eos=self.eos,
            start=self.eos if bos_token is None else bos_token,
            min_len=self.min_len,
            unk_penalty=self.unk_penalty,
            temperature=self.temperature,
            forced_len=0 if prefix_tokens is None else prefix_tokens.size(1),
            device=device,
            suppressed=self.suppressed,
        )

    def _refuse_nan(self, rows: Sequence[Row]) -> None:
        """Raise an error if a model's log-probabilities are NaN."""
        if any(math.isnan(score) for row in rows for score in row.scores):
            raise nan_error("--path", self.model.models)


class ParallelGenerator(MethodGenerator):
    """Base of the methods that draft and verify.

    A subclass defines its drafter, and its acceptance rule if that is not ExactMatch.
    """

    @abc.abstractmethod
    def make_drafter(
        self, rows: Sequence[Row], net_input: dict[str, Tensor], rules: TokenRules
    ) -> Drafter:
        """Return the drafter for one batch; called outside the timer."""

    def acceptance(self) -> ExactMatch:
        """Return the rule by which drafted tokens are accepted."""
        return ExactMatch()

    def _prepare(
        self, rows: Sequence[Row], net_input: dict[str, Tensor], rules: TokenRules
    ) -> Drafter:
        """Make the drafter."""
        return self.make_drafter(rows, net_input, rules)

    def _decode(
        self,
        net_input: dict[str, Tensor],
        rows: Sequence[Row],
        rules: TokenRules,
        prepared: Drafter,
    ) -> list[list[dict[str, Any]]]:
        """Encode and run the loop."""
        self._encode(net_input)
        self._write(rows, rules, prepared)
        return self._hypotheses(rows, rules)

    def _write(self, rows: Sequence[Row], rules: TokenRules, drafter: Drafter) -> None:
        """Run the loop; the encoder has run."""
        accept = self.acceptance()
        draft_and_verify(
            self.scorer, rows, drafter, accept, rules, self.record_tokens, self.sampling
        )

    def _encode(self, net_input: dict[str, Tensor]) -> None:
        """Run the encoder."""
        self.scorer.encode(net_input)
