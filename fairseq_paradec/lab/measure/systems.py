"""The compared systems: decoders of this package, and fairseq's search.

A system gets sentences by their number in the test set and returns text. ``translate`` includes
everything that a user waits for: batching, the copy to the device, encoder, decoder, and
detokenisation.
"""

import copy
import dataclasses
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import torch
from fairseq import utils

from ...decoding.audit import Audit
from ...methods.configure import configure
from ...methods.stock import StockDecoder
from ...plugin.generators import batch_of
from ...plugin.models.heads import PREFIX
from ...plugin.tasks import loading
from ...registry import METHODS
from ..analysis.blocks import METHOD, block_sizes
from ..analysis.promises import EXACT, OTHER_DTYPE
from . import DTYPES
from .specs import Spec
from .text import plain_text, text_language

# The labels of systems besides EXACT and OTHER_DTYPE.
BEAM, RELAXED, PEER, OTHER_MODEL = "beam search", "relaxed", "peer", "other model"

_DTYPES = dict(zip(DTYPES, (torch.float32, torch.float16, torch.bfloat16), strict=True))


def torch_dtype(name: str) -> torch.dtype:
    """Return what torch calls a ``--dtype``."""
    return _DTYPES[name]


@dataclasses.dataclass
class Output:
    """One translation."""

    tokens: list[str]  # symbols of the target dictionary, without ``</s>``
    text: str  # the detokenised text; for an image its intensities
    # decoder passes; for fairseq's own search those of the batch; None if unknown
    passes: int | None
    blocks: int | None = None  # for blockwise decoding the number of blocks; None for other methods
    # of each pass, the number of drafted tokens
    drafted: list[int] = dataclasses.field(default_factory=list)
    # of each pass, the number of accepted tokens
    accepted: list[int] = dataclasses.field(default_factory=list)


class System(Protocol):
    """One row of the benchmark."""

    label: str  # its name in every table
    command: str  # its specification
    promise: str  # ``EXACT``, ``BEAM``, ``RELAXED``, ``OTHER_MODEL``, ``OTHER_DTYPE`` or ``PEER``
    parameters: int  # the number of parameters of its models
    dtype: str  # of its weights
    threads: int | None  # its own number of CPU threads; None: the run's
    files: list[str]  # its checkpoints
    models: list[Any]  # its fairseq models
    task: Any  # fairseq's task, with the test set and dictionaries

    def translate(self, sentences: Sequence[int]) -> list[Output]:
        """Translate one batch: the sentences with these numbers, in this order."""

    def provenance(self) -> Mapping[str, Any]:
        """Return how the last batch was decoded, as docs/trace.md describes it."""

    def tie(self, sentence: int, ours: list[str], theirs: list[str]) -> bool:
        """Return whether two outputs first differ at tokens with nearly equal log-probabilities."""


class Models:
    """Loads each checkpoint once; all have one dtype and one device."""

    def __init__(self, data: str, subset: str, dtype: str, device: str) -> None:
        self.data, self.subset, self.dtype, self.device = data, subset, dtype, device
        self._loaded: dict[str, tuple[list[Any], Any]] = {}

    def load(self, path: str) -> tuple[list[Any], Any]:
        """Return models and task of a checkpoint (or several with ``:`` between them)."""
        if path not in self._loaded:
            models, task = loading.load(self.data, path)
            for model in models:
                model.to(device=self.device, dtype=_DTYPES[self.dtype])
            self._loaded[path] = models, task
        models, task = self._loaded[path]
        if self.subset not in task.datasets:
            task.load_dataset(self.subset)
        return models, task

    def on(self, subset: str) -> "Models":
        """Return the same models for another subset."""
        other = copy.copy(self)
        other.subset = subset
        return other


class FairseqSystem:
    """A decoder that fairseq's task builds: this package's, or fairseq's own search.

    Args:
        spec: the specification.
        models: loads the checkpoints.
        path: the benchmark's own checkpoint.
        common: fairseq's options that all decoders share.

    Raises:
        UsageError: a flag is wrong, or belongs to the whole run.
    """

    threads: int | None = None

    def __init__(self, spec: Spec, models: Models, path: str, common: dict[str, Any]) -> None:
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
        self.language = text_language(models.data, self.task.cfg.target_lang)
        self.generator = self.task.build_decoder(self.models, config)
        self.promise = self._promise(models, path)
        drafter = getattr(self.generator, "drafter", None)
        heads = getattr(self.generator, "heads", None)
        helpers = [] if heads is None else [heads]
        if drafter is not None:
            # On the verifier's encoder the drafter's own copy has nothing to do.
            own = getattr(drafter, "shares_encoder", False)
            shared = getattr(self.generator, "on_verifiers_encoder", own)
            helpers = [drafter.decoder if shared else drafter]
        if config.drafter_path is not None:
            self.files = [*self.files, config.drafter_path]
        self.parameters = count_parameters([*self.models, *helpers])

    def _promise(self, models: Models, path: str) -> str:
        """Return the label of the output: exact, beam search, relaxed, ..."""
        own, wanted = self.files, path.split(os.pathsep)
        if [*map(os.path.realpath, own)] != [*map(os.path.realpath, wanted)]:
            if not same_greedy(self.models, models.load(path)[0]):
                return OTHER_MODEL
        generator, config = self.generator, self.generator.config
        stock = isinstance(generator, StockDecoder)
        beam = generator.plain if stock else METHODS[config.decoding].reads_beam(config)
        if not (self.lossless or beam):
            return RELAXED
        if self.dtype != models.dtype:
            return OTHER_DTYPE
        return EXACT if self.lossless else BEAM

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

    def search(self, sentences: Sequence[int]) -> list[list[dict[str, Any]]]:
        """Return the n-best lists of one batch, as fairseq has them."""
        sample = self.sample(sentences)
        with torch.inference_mode():
            hypos = self.task.inference_step(self.generator, self.models, sample)
        # The collater sorts by length.
        by_number = dict(zip(sample["id"].tolist(), hypos, strict=True))
        return [by_number[i] for i in sentences]

    def translate(self, sentences: Sequence[int]) -> list[Output]:
        """Translate one batch."""
        return [self.output(hypos[0]) for hypos in self.search(sentences)]

    def output(self, hypo: dict[str, Any]) -> Output:
        """Return a hypothesis as text."""
        # In one copy: fairseq would wait for the device at every token.
        tokens = self.task.target_dictionary.string(hypo["tokens"].cpu()).split()
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

    def tie_of_lists(
        self, sentence: int, ours: Sequence[list[int]], theirs: Sequence[list[int]]
    ) -> bool:
        """Return whether two n-best lists that differ do so by a tie, as the audit says it.

        Args:
            sentence: its number.
            ours: the tokens of the hypotheses.
            theirs: those of fairseq's search, whose beam is as many.
        """
        names = {"unkpen": "unk_penalty"}
        limits = {names.get(name, name): value for name, value in self.common.items()}
        judge = Audit(self.models, self.task.target_dictionary, len(theirs), **limits)
        first, second = (
            [[{"tokens": torch.tensor(tokens, device=self.device)} for tokens in hypos]]
            for hypos in (ours, theirs)
        )
        (verdict,) = judge.compare_with(batch_of(self.sample([sentence])), first, second)
        return bool(verdict["tie"])

    def sample(self, sentences: Sequence[int]) -> dict[str, Any]:
        """Return a batch on the device."""
        sample = self.dataset.collater([self.dataset[i] for i in sentences])
        return utils.move_to_cuda(sample) if self.device == "cuda" else sample


def count_parameters(models: Sequence[Any]) -> int:
    """Return the number of parameters of all models, shared ones once."""
    return sum(p.numel() for p in {id(p): p for m in models for p in m.parameters()}.values())


def same_greedy(ours: Sequence[Any], theirs: Sequence[Any]) -> bool:
    """Return whether models have the same greedy output: equal weights without the heads'.

    Heads on a frozen base do not change its output; a fine-tuned base, or a learned first head,
    does.
    """
    if len(ours) != len(theirs):
        return False
    for pair in zip(ours, theirs, strict=True):
        if any(0 in model.block_heads.learned for model in pair if hasattr(model, "block_heads")):
            return pair[0] is pair[1]
        first, second = (
            {name: w for name, w in m.state_dict().items() if not name.startswith(PREFIX)}
            for m in pair
        )
        if first.keys() != second.keys():
            return False
        if not all(
            w.shape == second[name].shape and torch.equal(w, second[name])
            for name, w in first.items()
        ):
            return False
    return True


def decode(
    system: System, sentences: Sequence[int], size: int, advance: Callable[[int], Any]
) -> list[Output]:
    """Translate sentences in batches of a size, in their order; advance by the size of each."""
    outputs: list[Output] = []
    for start in range(0, len(sentences), size):
        outputs += system.translate(sentences[start : start + size])
        advance(len(outputs) - start)
    return outputs
