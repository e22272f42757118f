"""A decoder that this package builds, as a system of a benchmark."""

import abc
import os
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from ...config import DecodingConfig
from ...methods.configure import configure
from ...methods.stock import StockDecoder
from ...registry import METHODS
from ..analysis.blocks import METHOD, block_sizes
from ..analysis.promises import OTHER_DTYPE
from .outputs import BEAM, OTHER_MODEL, RELAXED, Output
from .specs import Spec
from .text import plain_text, target_language, text_language


class NotRun(Exception):
    """A decoder is not run here; the text says what it needs."""


class Loader(Protocol):
    """Loads each checkpoint of a comparison once; all have one dtype and one device."""

    data: str  # the data folder
    subset: str  # of it
    dtype: str  # of ``--dtype``
    device: str  # ``cpu`` or ``cuda``
    exact: str  # the promise of greedy search's output: ``EXACT``, or ``AS_OURS`` without fairseq

    def load(self, path: str) -> tuple[list[Any], Any]:
        """Return the models of a checkpoint, and the task, with the subset and dictionaries."""

    def parameters(self, models: Sequence[Any]) -> int:
        """Return the number of parameters of models that it loaded."""

    def same_greedy(self, ours: Sequence[Any], theirs: Sequence[Any]) -> bool:
        """Return whether models that it loaded have the same greedy output.

        Their weights are equal but for those of heads, of which the first is not learned.
        """

    def on(self, subset: str) -> "Loader":
        """Return the same models for another subset."""

    def system(self, spec: Spec, path: str, common: Mapping[str, Any]) -> "OwnSystem":
        """Build a decoder; see ``OwnSystem``.

        Raises:
            NotRun: it needs a package that is not installed.
        """


class OwnSystem(abc.ABC):
    """A decoder that this package builds.

    Args:
        spec: the specification.
        models: loads the checkpoints.
        path: the benchmark's own checkpoint.
        common: fairseq's options that all decoders share.

    Raises:
        UsageError: a flag is wrong, or belongs to the whole run.
    """

    threads: int | None = None

    def __init__(self, spec: Spec, models: Loader, path: str, common: Mapping[str, Any]) -> None:
        self.label, self.command = spec.label, spec.command
        self.common, self.options = common, dict(spec.options)
        if spec.path is not None:
            self.options["path"] = spec.path
        path_of = spec.path or path
        self.files = path_of.split(os.pathsep)
        self.models, self.task = models.load(path_of)
        config = configure(**spec.options, **common)
        self.dtype, self.device = config.engine_dtype or models.dtype, models.device
        self.dataset = self.task.dataset(models.subset)
        self.language = text_language(models.data, target_language(models.data))
        self.generator = self.build(config, models, path_of)
        self.promise = self._promise(models, path)
        drafter = getattr(self.generator, "drafter", None)
        heads = getattr(self.generator, "heads", None)
        # On the verifier's encoder the drafter's own copy has nothing to do.
        own = getattr(drafter, "shares_encoder", False)
        shared = bool(getattr(self.generator, "on_verifiers_encoder", own))
        self.parameters = self.count(heads if drafter is None else drafter, shared)
        if config.drafter_path is not None:
            self.files = [*self.files, config.drafter_path]

    def _promise(self, models: Loader, path: str) -> str:
        """Return the label of the output: exact, beam search, relaxed, ..."""
        own, wanted = self.files, path.split(os.pathsep)
        if [*map(os.path.realpath, own)] != [*map(os.path.realpath, wanted)]:
            if not models.same_greedy(self.models, models.load(path)[0]):
                return OTHER_MODEL
        generator, config = self.generator, self.generator.config
        stock = isinstance(generator, StockDecoder)
        beam = generator.plain if stock else METHODS[config.decoding].reads_beam(config)
        if not (self.lossless or beam):
            return RELAXED
        if self.dtype != models.dtype:
            return OTHER_DTYPE
        return models.exact if self.lossless else BEAM

    @abc.abstractmethod
    def build(self, config: DecodingConfig, models: Any, path: str) -> Any:
        """Build the decoder of the models, which ``models`` loaded from ``path``."""

    @abc.abstractmethod
    def count(self, helper: Any, shared: bool) -> int:
        """Return the number of parameters of the models and what drafts for them.

        Args:
            helper: a drafter, heads, or None.
            shared: whether the drafter's encoder is the models'.
        """

    @abc.abstractmethod
    def search(self, sentences: Sequence[int]) -> list[list[dict[str, Any]]]:
        """Return the n-best lists of one batch, as fairseq has them."""

    @abc.abstractmethod
    def symbols(self, tokens: Any) -> list[str]:
        """Return the symbols of a hypothesis' tokens, without ``</s>``."""

    @abc.abstractmethod
    def tie_of_lists(
        self, sentence: int, ours: Sequence[list[int]], theirs: Sequence[list[int]]
    ) -> bool:
        """Return whether two n-best lists that differ do so by a tie.

        Args:
            sentence: its number.
            ours: the tokens of the hypotheses.
            theirs: those of the judge's.
        """

    @property
    def drafts_by(self) -> str | None:
        """The kind of its drafter: ``Method.drafter``; None: it has none."""
        method = METHODS.get(self.options["decoding"])
        return None if method is None else method.drafter

    @property
    def lossless(self) -> bool:
        """Whether the output is guaranteed to be these models' greedy output in fp32."""
        return bool(self.generator.lossless)

    def provenance(self) -> Mapping[str, Any]:
        """Return how the last batch was decoded, as docs/trace.md describes it."""
        facts: Mapping[str, Any] = self.generator.provenance()
        return facts

    def translate(self, sentences: Sequence[int]) -> list[Output]:
        """Translate one batch."""
        return [self.output(hypos[0]) for hypos in self.search(sentences)]

    def output(self, hypo: dict[str, Any]) -> Output:
        """Return a hypothesis as text."""
        tokens = self.symbols(hypo["tokens"])
        text, passes = plain_text(tokens, self.language), int(hypo["steps"])
        # A search without drafts has no such counts.
        drafted, accepted = (
            hypo.get(name, [0] * passes) for name in ("num_drafted", "num_accepted")
        )
        return Output(tokens, text, passes, self._blocks(hypo), drafted, accepted)

    def _blocks(self, hypo: dict[str, Any]) -> int | None:
        """Return how many blocks an output of blockwise decoding came in."""
        if self.generator.config.decoding != METHOD or "num_accepted" not in hypo:
            return None
        return len(block_sizes(hypo["num_accepted"], len(hypo["tokens"])))

    def tie(self, sentence: int, ours: list[str], theirs: list[str]) -> bool:
        """Return whether two outputs first differ at tokens with nearly equal log-probabilities."""
        words = self.task.target_dictionary
        both = ([[*map(words.index, tokens), words.eos()]] for tokens in (ours, theirs))
        return self.tie_of_lists(sentence, *both)
