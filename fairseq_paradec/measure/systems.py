"""What the benchmark compares: decoders of this package, fairseq's search, and CTranslate2.

A system gets sentences by their number in the test set and returns text. Everything that a user
waits for lies inside ``translate``: batching, the copy to the device, encoder, decoder, and turning
tokens into detokenised text.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import os
import shlex
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

import torch
from fairseq import checkpoint_utils, utils
from fairseq import options as fairseq_options
from fairseq.sequence_generator import EnsembleModel
from omegaconf import OmegaConf

from ..analysis.blocks import METHOD, block_sizes
from ..decoding.audit import Audit
from ..errors import UsageError, option_error
from ..methods.base import MethodGenerator
from ..methods.registry import METHODS, STOCK_DECODINGS
from ..options import ENGINE_FLAGS, METHOD_FLAGS
from . import loading
from .text import plain_text, text_language

# Named by what a system promises. Only "exact" can be shown wrong, by one token.
EXACT, BEAM, RELAXED, PEER = "exact", "beam search", "relaxed", "peer"
OTHER_MODEL, OTHER_DTYPE = "other model", "other dtype"

DTYPES = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}

# fairseq's flags that all decoders share: given to one alone they would compare unlike things.
COMMON = ("max_len_a", "max_len_b", "min_len", "unkpen", "temperature")
_INSTEAD = {
    **{name: "--" + name.replace("_", "-") for name in COMMON},
    "fp16": "--dtype fp16",
    "memory_efficient_fp16": "--dtype fp16",
    "bf16": "--dtype bf16",
    "memory_efficient_bf16": "--dtype bf16",
    "cpu": "--device cpu",
    "gen_subset": "--subset",
    "batch_size": "--batch-sizes",
    "max_tokens": "--batch-sizes",
}
# What makes fairseq's search something else than a plain beam.
_OTHER_SEARCH = (
    "no_repeat_ngram_size", "match_source_len", "diverse_beam_groups", "diverse_beam_strength",
    "diversity_rate", "sampling", "sampling_topk", "sampling_topp",
)  # fmt: skip
# The flags of fairseq-generate that a decoder here may have: those that building it reads.
OF_A_DECODER = (
    "decoding", "path", "beam", "lenpen", "unnormalized", *_OTHER_SEARCH, *METHOD_FLAGS,
    *ENGINE_FLAGS,
)  # fmt: skip


@dataclasses.dataclass
class Output:
    """One translation.

    Attributes:
        tokens: as symbols of the target dictionary, without ``</s>``.
        text: detokenised; of an image its intensities.
        passes: decoder passes, of fairseq's own search those of the batch; None where the system
            does not tell.
        blocks: of blockwise decoding, how many blocks the output came in; None of other methods.
    """

    tokens: list[str]
    text: str
    passes: int | None
    blocks: int | None = None


class System(Protocol):
    """One row of the benchmark.

    Attributes:
        label: its name in every table.
        command: what the user typed for it.
        promise: ``EXACT``, ``BEAM``, ``RELAXED``, ``OTHER_MODEL``, ``OTHER_DTYPE``
            or ``PEER``.
        parameters: of all its models.
        dtype: of its weights.
        threads: CPU threads of its own; None if it takes the run's.
        files: its checkpoints.
        models: its fairseq models.
        task: fairseq's task, with the test set and dictionaries.
    """

    label: str
    command: str
    promise: str
    parameters: int
    dtype: str
    threads: int | None
    files: list[str]
    models: list[Any]
    task: Any

    def translate(self, sentences: Sequence[int]) -> list[Output]:
        """Translate one batch: the sentences of these numbers, in this order."""

    def tie(self, sentence: int, ours: list[str], theirs: list[str]) -> bool:
        """Say whether two outputs part at tokens that the model hardly tells apart."""


class Models:
    """Loads each checkpoint once, in one dtype and on one device for all.

    Args:
        data: fairseq's data folder.
        subset: of it.
        dtype: a key of ``DTYPES``.
        device: ``cpu`` or ``cuda``.
    """

    def __init__(self, data: str, subset: str, dtype: str, device: str) -> None:
        self.data, self.subset, self.dtype, self.device = data, subset, dtype, device
        self._loaded: dict[str, tuple[list[Any], Any]] = {}

    def load(self, path: str) -> tuple[list[Any], Any]:
        """Return models and task of a checkpoint (or several with ``:`` between them)."""
        if path not in self._loaded:
            models, task = loading.load(self.data, path)
            for model in models:
                model.to(device=self.device, dtype=DTYPES[self.dtype])
            if self.subset not in task.datasets:
                task.load_dataset(self.subset)
            self._loaded[path] = models, task
        return self._loaded[path]


class FairseqSystem:
    """A decoder that fairseq's task builds: this package's, or fairseq's own search.

    Args:
        spec: what the user typed: ``[LABEL=]DECODING [flags of fairseq-generate]``.
        models: where checkpoints come from.
        path: the benchmark's own checkpoint.
        common: fairseq's options that all decoders share.
        label: instead of the spec's own.

    Raises:
        UsageError: flags that cannot be, or that belong to the whole run.
    """

    threads: int | None = None

    def __init__(
        self,
        spec: str,
        models: Models,
        path: str,
        common: dict[str, Any],
        label: str | None = None,
    ) -> None:
        own_label, self.command = split_label(spec)
        self.label = label or own_label
        self.options, self.given = _parse(self.command, models.data, path)
        for name, value in common.items():
            setattr(self.options, name, value)
        self.common = common
        self.files = self.options.path.split(os.pathsep)
        self.models, self.task = models.load(self.options.path)
        self.dtype, self.device = self.options.engine_dtype or models.dtype, models.device
        self.dataset = self.task.dataset(models.subset)
        self.language = text_language(models.data, self.task.cfg.target_lang)
        self.generator = self.task.build_generator(self.models, self.options)
        self.promise = self._promise(models, path)
        drafter = getattr(self.generator, "drafter", None)
        heads = getattr(self.generator, "heads", None)
        helpers = [] if heads is None else [heads]
        if drafter is not None:
            # On the verifier's encoder the drafter's own copy has nothing to do.
            helpers = [drafter.decoder if drafter.shares_encoder else drafter]
        if self.options.drafter_path is not None:
            self.files = [*self.files, self.options.drafter_path]
        self.parameters = count_parameters([*self.models, *helpers])
        self._counted: CountedModel | None = None
        if not isinstance(self.generator, MethodGenerator):
            self._counted = self.generator.model = CountedModel(self.models)

    def _promise(self, models: Models, path: str) -> str:
        """Return what the output is promised to be."""
        own, wanted = self.files, path.split(os.pathsep)
        if [*map(os.path.realpath, own)] != [*map(os.path.realpath, wanted)]:
            if len(wanted) > 1 or not is_base_of(models.load(path)[0][0], self.models[0]):
                return OTHER_MODEL
        if self.options.engine_dtype not in (None, models.dtype):
            return OTHER_DTYPE
        if self.options.decoding in STOCK_DECODINGS:
            if any(name in self.given for name in _OTHER_SEARCH):
                return RELAXED
            return EXACT if self.options.beam == 1 else BEAM
        if self.generator.lossless:
            return EXACT
        return BEAM if METHODS[self.options.decoding].beam else RELAXED

    def translate(self, sentences: Sequence[int]) -> list[Output]:
        """Translate one batch.

        Args:
            sentences: their numbers in the test set.
        """
        sample = self._sample(sentences)
        if self._counted is not None:
            self._counted.passes = 0
        with torch.inference_mode():
            hypos = self.task.inference_step(self.generator, self.models, sample)
        # The collater sorts by length.
        found: dict[int, Output] = {}
        for number, hypo in zip(sample["id"].tolist(), hypos, strict=True):
            tokens = self.task.target_dictionary.string(hypo[0]["tokens"]).split()
            text = plain_text(tokens, self.language)
            found[number] = Output(tokens, text, self._passes(hypo[0]), self._blocks(hypo[0]))
        return [found[i] for i in sentences]

    def _passes(self, hypo: dict[str, Any]) -> int:
        """Return the sentence's decoder passes; of fairseq's own search, the batch's."""
        return int(hypo["steps"]) if self._counted is None else self._counted.passes

    def _blocks(self, hypo: dict[str, Any]) -> int | None:
        """Return how many blocks an output of blockwise decoding came in."""
        config = getattr(self.generator, "config", None)
        if config is None or config.decoding != METHOD or "num_accepted" not in hypo:
            return None
        return len(block_sizes(hypo["num_accepted"], len(hypo["tokens"])))

    def tie(self, sentence: int, ours: list[str], theirs: list[str]) -> bool:
        """Say whether two outputs part at tokens that the model hardly tells apart.

        Args:
            sentence: its number.
            ours: tokens.
            theirs: fairseq greedy's.
        """
        dictionary = self.task.target_dictionary
        sample = self._sample([sentence])
        first, second = (
            [[{"tokens": torch.tensor([*map(dictionary.index, tokens), dictionary.eos()])}]]
            for tokens in (ours, theirs)
        )
        with torch.no_grad():
            limits = {
                "unk_penalty": self.common.get("unkpen", 0.0),
                "temperature": self.common.get("temperature", 1.0),
            }
            judge = Audit(self.models, dictionary, **limits)
            (verdict,) = judge.compare_with(sample, first, second)
        return bool(verdict["tie"])

    def _sample(self, sentences: Sequence[int]) -> dict[str, Any]:
        """Return a batch on the device."""
        sample = self.dataset.collater([self.dataset[i] for i in sentences])
        return utils.move_to_cuda(sample) if self.device == "cuda" else sample


class CTranslate2System:
    """The same checkpoint in CTranslate2, an inference engine in C++ (CPU).

    Args:
        beam: its size; 1 is greedy.
        compute_type: CTranslate2's: ``float32`` or ``int8``.
        models: where the checkpoint and the test set come from.
        path: the checkpoint.
        common: fairseq's options that all decoders share.

    Raises:
        UsageError: CTranslate2 is not installed, or cannot convert the model.
    """

    def __init__(
        self,
        beam: int,
        compute_type: str,
        models: Models,
        path: str,
        common: dict[str, Any],
    ) -> None:
        name = "greedy" if beam == 1 else f"beam {beam}"
        self.label = f"CTranslate2 {name}, {compute_type}"
        self.command = f"--peers ({compute_type}, beam {beam})"
        self.promise, self.dtype = PEER, compute_type
        self.models, self.task = models.load(path)
        self.files = path.split(os.pathsep)
        self.parameters = count_parameters(self.models)
        self.dataset = self.task.dataset(models.subset)
        self.language = text_language(models.data, self.task.cfg.target_lang)
        self.threads: int | None = None
        self._folder = converted(path, models.data)
        self._limits = {
            "beam_size": beam,
            "max_decoding_length": int(common.get("max_len_b", 200)),
            "min_decoding_length": int(common.get("min_len", 1)),
        }
        self.use_threads(1)

    def use_threads(self, threads: int) -> None:
        """Take another number of threads."""
        import ctranslate2

        self.threads = threads
        self._translator = ctranslate2.Translator(
            self._folder, device="cpu", compute_type=self.dtype, intra_threads=threads
        )

    def tune_threads(self, sentences: Sequence[int], most: int) -> None:
        """Take the number of threads that is fastest at batch 1.

        Args:
            sentences: to be translated, once each after a warm-up.
            most: threads to try up to.
        """
        seconds = {}
        for threads in range(1, most + 1):
            self.use_threads(threads)
            for turn in range(2):
                begin = time.perf_counter()
                for sentence in sentences:
                    self.translate([sentence])
                if turn:
                    seconds[threads] = time.perf_counter() - begin
        self.use_threads(min(seconds, key=seconds.__getitem__))

    def translate(self, sentences: Sequence[int]) -> list[Output]:
        """Translate one batch.

        Args:
            sentences: their numbers in the test set.
        """
        dictionary = self.task.source_dictionary
        sources = [dictionary.string(self.dataset[i]["source"]).split() for i in sentences]
        results = self._translator.translate_batch(sources, **self._limits)
        outputs = [result.hypotheses[0] for result in results]
        return [Output(tokens, plain_text(tokens, self.language), None) for tokens in outputs]

    def tie(self, sentence: int, ours: list[str], theirs: list[str]) -> bool:
        """Nothing is promised, so nothing is excused."""
        return False


@functools.cache
def converted(path: str, data: str) -> str:
    """Convert a checkpoint for CTranslate2, into a folder that goes when the process does.

    Raises:
        UsageError: CTranslate2 is not installed, or does not know the model.
    """
    try:
        from ctranslate2.converters import FairseqConverter
    except ImportError as error:
        raise option_error(
            "--peers", "ctranslate2", "an installed package: pip install fairseq_paradec[peers]"
        ) from error
    keep = tempfile.TemporaryDirectory(prefix="paradec-ctranslate2-")
    _KEPT.append(keep)
    folder, plain = Path(keep.name) / "model", Path(keep.name) / "model.pt"
    try:
        # The converter reads fairseq's older checkpoints, whose options lie in one namespace.
        state = checkpoint_utils.load_checkpoint_to_cpu(path)
        options = {**_options(state["cfg"]["task"]), **_options(state["cfg"]["model"])}
        options |= {"arch": options.get("arch", options["_name"]), "task": "translation"}
        torch.save({"args": argparse.Namespace(**options), "model": state["model"]}, plain)
        FairseqConverter(str(plain), data).convert(str(folder))
    except Exception as error:
        raise UsageError(f"--peers: CTranslate2 cannot convert {path}: {error}") from error
    return str(folder)


def _options(config: Any) -> dict[str, Any]:
    """Return a part of a checkpoint's configuration, in whichever form it was saved."""
    if isinstance(config, argparse.Namespace):
        return vars(config)
    return dict(OmegaConf.to_container(config) if OmegaConf.is_config(config) else config)


_KEPT: list[tempfile.TemporaryDirectory[str]] = []


def split_label(spec: str) -> tuple[str, str]:
    """Split ``LABEL=DECODING flags``; without a label the whole is its own.

    Raises:
        UsageError: nothing is left.
    """
    label, sign, command = spec.partition("=")
    if not sign or " --" in label or label.strip().startswith("--"):
        label = command = spec
    if not command.strip() or not label.strip():
        raise option_error("--decoder", spec, "[LABEL=]DECODING [flags of fairseq-generate]")
    return " ".join(label.split()), command.strip()


def _parse(command: str, data: str, path: str) -> tuple[argparse.Namespace, list[str]]:
    """Read a decoder's flags by fairseq-generate's own parser; return also which were given."""
    try:
        words = shlex.split(command)
    except ValueError as error:
        raise option_error("--decoder", command, f"flags as a shell takes them ({error})") from None

    def refuse(message: str) -> None:
        raise UsageError(f"--decoder: got {command!r}: {message}")

    def parsed(*flags: str) -> argparse.Namespace:
        parser = fairseq_options.get_generation_parser()
        parser.error = refuse
        return fairseq_options.parse_args_and_arch(parser, [data, "--path", path, *flags])

    idle, found = parsed(), parsed("--decoding", *words)
    given = [name for name, value in vars(found).items() if value != getattr(idle, name, None)]
    for name in given:
        if name not in OF_A_DECODER:
            instead = _INSTEAD.get(name)
            raise UsageError(
                f"--decoder: got {command!r}, and --{name.replace('_', '-')} is no flag of one "
                "decoder; allowed: "
                + (
                    f"{instead} of the benchmark, for all decoders"
                    if instead
                    else ", ".join("--" + n.replace("_", "-") for n in OF_A_DECODER[1:])
                )
            )
    return found, given


def count_parameters(models: Sequence[Any]) -> int:
    """Return the number of parameters of all models, shared ones once."""
    return sum(p.numel() for p in {id(p): p for m in models for p in m.parameters()}.values())


def is_base_of(base: Any, model: Any) -> bool:
    """Say whether a model is another one and heads, so that it has the same greedy output.

    One whose heads were trained on a frozen base is; one whose base was fine-tuned, or whose first
    head is learned, is not.

    Args:
        base: a Transformer.
        model: perhaps of --arch blockwise_transformer.
    """
    heads = getattr(model, "block_heads", None)
    if heads is None or 0 in heads.learned:
        return False
    weights, own = base.state_dict(), model.state_dict()
    return all(
        name in own and own[name].shape == weight.shape and torch.equal(own[name], weight)
        for name, weight in weights.items()
    )


class CountedModel(EnsembleModel):
    """fairseq's ensemble; counts its decoder passes, of which fairseq's own search does not tell.

    Attributes:
        passes: so many since it was last set.
    """

    passes = 0

    def forward_decoder(self, *args: Any, **kwargs: Any) -> Any:
        """Count the pass, and run it as fairseq does."""
        self.passes += 1
        return super().forward_decoder(*args, **kwargs)
