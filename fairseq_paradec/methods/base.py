"""Base classes of the methods: a decoder with a scorer and reports."""

import abc
import contextlib
import math
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, replace
from functools import partial
from itertools import repeat
from typing import Any, NamedTuple

import numpy as np

from ..batch import Batch, Hooks, Numbers
from ..config import ALL, RULE_OPTIONS, DecodingConfig
from ..decoding.acceptance import ExactMatch
from ..decoding.given import GivenDrafter
from ..decoding.hypotheses import hypothesis
from ..decoding.loop import Drafter, draft_and_verify, native_form
from ..decoding.provenance import NATIVE, TORCH, provenance
from ..engine.chunk import ChunkScorer
from ..engine.native.drafts import native_drafts
from ..engine.scorers import Scorer, build_scorer
from ..engine.settings import Engine
from ..errors import UsageError, excludes, nan_error, option_error
from ..forks import computing
from ..model_checks import attends_locally
from ..records import Record
from ..registry import METHODS
from ..row import Entering, Row
from ..target_order import TargetOrder, order_of
from ..token_rules import TokenRules
from .reports import Reports
from .rules import rules_of

#: Rows that are drawn side by side where a sentence has several draws: one takes memory for some
#: distributions over all words. A batch of more sentences is drawn whole.
DRAWN = 64


class Context(NamedTuple):
    """What a decoder is given besides models and options."""

    words: Any  # the target dictionary
    # the source dictionary; ``source-copy`` and the reports' source text need it
    sources: Any = None
    drafter: Any = None  # the loaded drafter or heads of ``--drafter-path``; None: there is none
    tokens_to_suppress: Sequence[str] = ()  # symbols that are never chosen


def of_torch(name: str) -> contextlib.AbstractContextManager[Any]:
    """Return a context of torch's by its name; an empty one where torch is not loaded."""
    context: contextlib.AbstractContextManager[Any]
    context = getattr(sys.modules.get("torch"), name, contextlib.nullcontext)()
    return context


class Turns:
    """Batches of one decoder, which has one cache, are decoded one after the other.

    Raises:
        UsageError: a function that a batch calls would wait for the end of this batch.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._thread: int | None = None  # that decodes

    def __enter__(self) -> None:
        me = threading.get_ident()
        if self._thread == me:
            raise UsageError(
                "on_pass, on_finish, admit: a function of these decodes by the decoder that calls "
                "it, which waits for it; allowed: after the batch, or with other options"
            )
        self._lock.acquire()
        self._thread = me

    def __exit__(self, *error: object) -> None:
        self._thread = None
        self._lock.release()


class Decoder(abc.ABC):
    """Decodes batches by one method; a subclass says how.

    ``build_decoder`` makes one. fairseq's commands have a generator around it.

    Args:
        models: one model, or several as an ensemble.
        config: the options of decoding.
        context: dictionaries and drafter.

    Raises:
        UsageError: a limit contradicts the model's, or ``</s>`` is suppressed.
    """

    def __init__(self, models: Sequence[Any], config: DecodingConfig, context: Context) -> None:
        self.models, self.config, self.context = list(models), config, context
        for model in models:
            model.eval()  # returns None for a model that is prepared for inference
        self.words, self.sources = context.words, context.sources
        self.pad, self.unk, self.eos = self.words.pad(), self.words.unk(), self.words.eos()
        method = METHODS[config.decoding]
        beam = config.beam if method.reads_beam(config) else 1
        self.beam_size = min(beam, len(self.words) - 1)  # <pad> is never chosen
        #: The longest output, with ``</s>``, by the models' positions.
        self.max_len = min(model.max_decoder_positions() for model in models)
        symbols = context.tokens_to_suppress
        self._rules = rules_of(self.models, config, self.words, symbols, self.beam_size)
        self.sampling = self._rules.sampling
        self.draws = config.nbest if config.sampling else 1  # outputs of a sentence
        self._unnumbered = 0  # sentences without a number that outputs were drawn of
        self.helper: Any = None  # the drafter or heads of another checkpoint
        self.engine = Engine(config.engine_dtype, config.engine)
        self.scorer = self.make_scorer(models)
        if "drafter_dtype" in method.reads and config.drafter_dtype is None:
            config = replace(config, drafter_dtype=method.drafts if self.scorer.native else None)
            self.config = config
        self.record_tokens = config.retain_iter_history or config.trace_file is not None
        self.audit: Any = None
        if config.audit:
            from ..decoding.audit import Audit  # it imports torch

            self.audit = Audit.of(self.models, config, context, self.beam_size)
        self._turns = Turns()
        check_lengths(config, self.max_len)
        if config.draft_tree is not None and attends_locally(models[0]):
            raise excludes("--draft-tree", config.draft_tree, "a model whose attention is local")
        sampled = self.sampling is not None
        self.reports = Reports(config, self.words, self.sources, self.audit, sampled)
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
        left_to_right = order_of(self.models[0]) == TargetOrder()
        method = METHODS[self.config.decoding]
        return method.is_lossless(self.config, self.beam_size, left_to_right)

    @property
    def takes_drafts(self) -> bool:
        """Whether a batch may have earlier outputs as drafts: see ``refuse_drafts``."""
        return False

    def provenance(self) -> Record:
        """Return a record's fields of provenance for the last batch; see docs/trace.md."""
        fields = provenance(
            self.lossless,
            NATIVE if self.scorer.native else TORCH,
            self.engine.dtype_of(self.models[0]),
            self.models,
            self.helper,
        )
        names = ("no_repeat_ngram_size", *RULE_OPTIONS)
        rules = {name: getattr(self.config, name) for name in names}
        if rules := {name: rule for name, rule in rules.items() if rule != ALL[name].default}:
            fields["rules"] = rules
        if self.sampling is not None:
            fields["sampling"] = asdict(self.sampling) | {"temperature": self.config.temperature}
            if self.config.seed is not None:
                fields["sampling"]["seed"] = self.config.seed
        return fields

    def _prepare(self, rows: Sequence[Row], source: Numbers, rules: TokenRules) -> Any:
        """Prepare a batch outside the timer, for ``_decode``; the default returns None."""
        return None

    @abc.abstractmethod
    def _decode(
        self, source: Numbers, rows: Sequence[Row], rules: TokenRules, prepared: Any
    ) -> list[list[dict[str, Any]]]:
        """Encode and decode one batch.

        Args:
            source: the sentences' tokens, B×S, padded.
            rows: the sentences; the method writes their tokens, scores and passes.
            rules: fairseq's limits.
            prepared: the result of ``_prepare``.

        Returns:
            B lists of hypotheses, the best one first.
        """

    def join(self, scorers: dict[Any, Any], record_tokens: bool) -> None:
        """Share scorers with other decoders on the same models.

        Args:
            scorers: the shared scorers by kind, one per kind, so that weights are gathered once.
            record_tokens: keep each pass's tokens.
        """
        self.record_tokens = record_tokens
        self.scorer = self._one_of(scorers, "scorer", self.scorer)

    def _one_of(self, scorers: dict[Any, Any], name: str, own: Any) -> Any:
        """Return the shared scorer of a kind; the first generator's own becomes the shared one."""
        return scorers.setdefault(name, own)

    # ---- one batch -----------------------------------------------------------------------------

    def decode(self, batch: Batch) -> list[list[dict[str, Any]]]:
        """Decode one batch.

        Where several outputs of a sentence are drawn, the batch's hooks are not called.

        Returns:
            B lists of hypotheses, as fairseq's, of arrays.

        Raises:
            UsageError: the batch has constraints.
        """
        if batch.constraints is not None:
            raise option_error("--constraints", "constraints", "none with this --decoding")
        with computing(), self._turns, of_torch("no_grad"):
            streams = self._streams(batch)
            if self.draws == 1:
                return self._decode_alone(batch, streams)
            return self._draw(batch, streams)

    def attention(
        self, source: Numbers, outputs: Sequence[Sequence[int]], layer: int, heads: int
    ) -> list[np.ndarray]:
        """Return where the tokens of outputs look in their sources, by one native pass.

        Args:
            source: the sentences' tokens, B×S, padded.
            outputs: T tokens of each.
            layer: the decoder's layer, from 0 up.
            heads: the mean of so many of its first heads.

        Returns:
            Of each sentence T×S, S without padding: the weights when each token was predicted.
        """
        scorer = self.scorer
        assert isinstance(scorer, ChunkScorer) and scorer.native
        tokens = np.full((len(outputs), max(map(len, outputs))), self.eos, np.int64)
        for row, output in zip(tokens, outputs, strict=True):
            row[1 : len(output)] = output[:-1]
        with computing(), self._turns:
            scorer.encode(source)
            looks = scorer.passes.attention(scorer.cache, tokens, layer, heads)
        lengths = (source != self.pad).sum(1).tolist()
        each = zip(looks, outputs, lengths, strict=True)
        return [look[: len(output), :length] for look, output, length in each]

    def _draw(
        self, batch: Batch, streams: Iterator[np.random.Generator | None]
    ) -> list[list[dict[str, Any]]]:
        """Draw several outputs of each sentence, the best first; ``streams``: see ``_streams``."""
        rows = [b for b in range(len(batch)) for _ in range(self.draws)]
        size, hypos = max(len(batch), DRAWN), []
        for first in range(0, len(rows), size):
            part = replace(batch.take(rows[first : first + size]), hooks=Hooks())
            hypos += [hypo for (hypo,) in self._decode_alone(part, streams)]
        lists = (hypos[first : first + self.draws] for first in range(0, len(rows), self.draws))
        return [sorted(drawn, key=lambda hypo: -hypo["score"]) for drawn in lists]

    def _decode_alone(
        self, batch: Batch, streams: Iterator[np.random.Generator | None]
    ) -> list[list[dict[str, Any]]]:
        """Decode one batch, a row by the next of ``streams``; see ``decode``."""
        rows, hooks = self._make_rows(batch, streams), batch.hooks
        entered: list[Row] = []
        if hooks.admit is not None and self.audit is None and self.config.stats_file is None:
            for row in rows:
                row.admit = partial(self._enter, hooks.admit, entered, rows[0].prefix)
        if any(row.given for row in rows):
            refuse_drafts(self, self.config)
        rules = self._make_rules(batch)
        prepared = self._prepare(rows, batch.tokens, rules)
        begin = time.perf_counter()
        with of_torch("inference_mode"):
            hypos = self._decode(batch.tokens, rows, rules, prepared)
        seconds = time.perf_counter() - begin
        self._refuse_nan(rows)
        for row in rows:
            if row.on_pass is not None:
                row.on_pass(row.passes)
        verdicts: Sequence[dict[str, Any] | None] = [None] * len(rows)
        if self.audit is not None:
            verdicts = self.audit.compare(batch, hypos)
        self.reports.add(batch, rows, hypos, seconds, verdicts, self.provenance)
        self.reports.count(entered)
        return hypos

    def _enter(
        self,
        admit: Callable[[int], Batch | None],
        entered: list[Row],
        prefix: list[int],
        count: int,
    ) -> Entering | None:
        """Make the rows of sentences that enter the batch.

        Args:
            admit: the batch's hook.
            entered: the rows so far; these are appended.
            prefix: of all rows.
            count: so many sentences, at most.
        """
        batch = admit(count)
        if batch is None:
            return None
        rows = self._make_rows(batch, repeat(None))  # who draws asks for none
        for row in rows:
            row.prefix = prefix
        entered += rows
        return Entering(rows, batch.tokens)

    def _hypotheses(self, rows: Sequence[Row], rules: TokenRules) -> list[list[dict[str, Any]]]:
        """Make the one hypothesis of each finished row."""
        return [[self._hypothesis(row)] for row in rows]

    def _hypothesis(self, row: Row) -> dict[str, Any]:
        """Make the hypothesis of a finished row."""
        return hypothesis(row, not self.config.unnormalized, self.config.lenpen)

    def _tell(self, on_finish: Callable[[dict[str, Any]], None], row: Row) -> None:
        """Tell the hypothesis of a finished row to who waits for it."""
        self._refuse_nan([row])
        on_finish(self._hypothesis(row))

    def _streams(self, batch: Batch) -> Iterator[np.random.Generator | None]:
        """Return random numbers for each draw of each sentence, in order, if outputs are drawn.

        With a seed they depend on that, on the sentence's number, and on which of its draws it is.
        Without, numpy's global random numbers say what they are; fairseq's ``--seed`` sets these.
        """
        if self.sampling is None:
            return repeat(None)
        seed = self.config.seed
        key = np.random.randint(1 << 32, size=4).tolist() if seed is None else [seed]
        numbers: Iterable[int]
        if batch.ids is not None:
            numbers = batch.ids.tolist()
        else:
            numbers = range(self._unnumbered, self._unnumbered + len(batch))
            self._unnumbered += len(batch)
        draws = range(self.draws)
        return (np.random.default_rng([*key, number, k]) for number in numbers for k in draws)

    def _make_rows(self, batch: Batch, streams: Iterator[np.random.Generator | None]) -> list[Row]:
        """Make the rows of a batch, each with its own length limit, and the next of ``streams``.

        Raises:
            UsageError: the batch has no sentence, or a prefix a token that no word has.
        """
        config, hooks, rows = self.config, batch.hooks, []
        if not len(batch):
            raise option_error("Batch: tokens", "no row", "a sentence or more")
        if batch.prefix is not None and batch.prefix.size:
            for token in (batch.prefix.min(), batch.prefix.max()):
                if not 0 <= token < len(self.words):
                    allowed = f"numbers of the dictionary's {len(self.words)} words"
                    raise option_error("Batch: prefix", int(token), allowed)
        prefixes = [[] for _ in batch.tokens] if batch.prefix is None else batch.prefix.tolist()
        for index, (tokens, prefix) in enumerate(zip(batch.tokens.tolist(), prefixes, strict=True)):
            source = [token for token in tokens if token != self.pad]
            wanted = int(config.max_len_a * len(source) + config.max_len_b)
            limit = min(max(wanted, config.min_len), self.max_len - 1)
            row = Row(index, source, limit, prefix)
            if (stream := next(streams)) is not None:
                row.lots = stream.random(limit + 1)
            if batch.drafts:
                row.given = list(batch.drafts[index])
            if hooks.on_pass:
                row.on_pass = hooks.on_pass[index]
            if hooks.on_finish and (on_finish := hooks.on_finish[index]) is not None:
                row.on_finish = partial(self._tell, on_finish)
            rows.append(row)
        return rows

    def _make_rules(self, batch: Batch) -> TokenRules:
        """Return the rules of a batch."""
        rules, ct2 = self._rules, batch.as_ctranslate2 is not None
        return replace(
            rules,
            start=self.eos if batch.start is None else batch.start,
            forced_len=0 if batch.prefix is None else batch.prefix.shape[1],
            of_logits=rules.of_logits or ct2,
            renormalised=rules.renormalised or ct2,
            as_ctranslate2=batch.as_ctranslate2,
        )

    def _refuse_nan(self, rows: Sequence[Row]) -> None:
        """Raise an error if a model's log-probabilities are NaN."""
        if any(math.isnan(score) for row in rows for score in row.scores):
            raise nan_error("--path", self.models)


class ParallelDecoder(Decoder):
    """Base of the methods that draft and verify.

    A subclass defines its drafter, and its acceptance rule if that is not ExactMatch.

    Attributes:
        pass_by_pass: make each pass a call of its own, as what times a pass's parts wants it; else
            the native library makes many in one.
    """

    pass_by_pass = False

    @abc.abstractmethod
    def make_drafter(self, rows: Sequence[Row], source: Numbers, rules: TokenRules) -> Drafter:
        """Return the drafter for one batch; called outside the timer."""

    def acceptance(self) -> ExactMatch:
        """Return the rule by which drafted tokens are accepted."""
        return ExactMatch()

    def _prepare(self, rows: Sequence[Row], source: Numbers, rules: TokenRules) -> Drafter:
        """Make the drafter, with earlier outputs before its drafts if there are any."""
        drafter = self.make_drafter(rows, source, rules)
        if any(row.given for row in rows):
            drafter = GivenDrafter(drafter, rows, self.eos)
        return drafter

    @property
    def takes_drafts(self) -> bool:
        """Whether it accepts the verifier's own tokens only, each as soon as it is drafted."""
        return self.lossless and type(self.acceptance()) is ExactMatch

    def _decode(
        self,
        source: Numbers,
        rows: Sequence[Row],
        rules: TokenRules,
        prepared: Drafter,
    ) -> list[list[dict[str, Any]]]:
        """Encode and run the loop."""
        self._encode(source)
        self._write(rows, rules, prepared)
        return self._hypotheses(rows, rules)

    def _write(self, rows: Sequence[Row], rules: TokenRules, drafter: Drafter) -> None:
        """Run the loop, in the native library if it can; the encoder has run."""
        accept, scorer = self.acceptance(), self.scorer
        watched = self.pass_by_pass or self.record_tokens or any(row.on_pass for row in rows)
        drafting = None
        if accept.known_to_library and rules.sampling is None and not watched:
            drafting = native_form(drafter)
        if isinstance(scorer, ChunkScorer) and scorer.writes(scorer.projection) and drafting:
            return native_drafts(scorer, drafting, rows, rules, self._encode_entering)
        draft_and_verify(self.scorer, rows, drafter, accept, rules, self.record_tokens)

    def _encode(self, source: Numbers) -> None:
        """Run the encoder."""
        self.scorer.encode(source)

    def _encode_entering(self, source: Numbers) -> None:
        """Run the encoder for sentences that enter the batch."""
        assert isinstance(self.scorer, ChunkScorer)
        self.scorer.add(source)


def check_lengths(config: DecodingConfig, max_len: int) -> None:
    """Refuse a minimal length above the length limit or the model's positions.

    With max_len_a each sentence has its own limit, which the minimal length overrides, but in
    fairseq's search.

    Args:
        config: the options of decoding.
        max_len: the longest output, with ``</s>``, by the models' positions.

    Raises:
        UsageError: no output could be long enough.
    """
    limit = max_len - 1
    if config.max_len_a == 0:
        limit = min(limit, config.max_len_b)
    if config.min_len > limit and not config.is_given("min_len"):
        allowed = "a whole number from 1 up; or 0 with --max-len-a above 0, or with --min-len 0"
        raise option_error("--max-len-b", config.max_len_b, allowed)
    if config.min_len > limit:
        raise option_error(
            "--min-len",
            config.min_len,
            f"at most the length limit, here {limit} tokens (--max-len-b, model's positions)",
        )


def refuse_drafts(decoder: Any, config: DecodingConfig, named: str | None = None) -> None:
    """Refuse earlier outputs as drafts where they could change an output, or would not be read.

    Args:
        decoder: what is to read them.
        config: its options.
        named: the decoding that the user named, if it is another's name.

    Raises:
        UsageError: the decoder does not write greedy's output by verifying.
    """
    if getattr(decoder, "takes_drafts", False):
        return
    able = [method.name for method in METHODS.values() if method.is_lossless_by_default]
    beam = getattr(decoder, "beam_size", 1)
    if config.sampling:
        raise excludes("--drafts", True, "--sampling: drafts are of greedy search")
    if beam > 1 and config.decoding in able and config.latency_budget_ms is None:
        raise excludes("--drafts", True, f"--beam {beam}: drafts are of greedy search")
    raise UsageError(
        f"--drafts needs a --decoding whose outputs no draft changes: {', '.join(able)}, without "
        "flags that accept or keep more than the model's own tokens; "
        f"got --decoding {named or config.decoding}"
    )
