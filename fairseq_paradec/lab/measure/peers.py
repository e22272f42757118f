"""Other engines on the same checkpoint: what they have in common, and CTranslate2."""

import abc
import argparse
import functools
import os
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ... import extras
from ...decoding.provenance import provenance
from ...errors import UsageError
from ...plugin.files import options_of, read_checkpoint
from ..analysis.benchmark_tables import threads as counted
from . import CTRANSLATE2
from .systems import PEER, Models, Output, count_parameters
from .text import plain_text, text_language


class Peer(abc.ABC):
    """A checkpoint in another engine.

    Attributes:
        passes: unknown; others are those of ``System``.

    Args:
        label: its name in every table.
        engine: as records name it.
        dtype: of its weights, as the engine names it.
        threads: its own number of CPU threads; None: the run's.
        models: where the checkpoint and the test set come from.
        path: the checkpoint.
    """

    promise = PEER

    def __init__(
        self, label: str, engine: str, dtype: str, threads: int | None, models: Models, path: str
    ) -> None:
        self.label, self.command = label, f"--peers {engine}: {label}"
        self.engine, self.dtype, self.threads = engine, dtype, threads
        self.models, self.task = models.load(path)
        self.files = path.split(os.pathsep)
        self.parameters = count_parameters(self.models)
        self.dataset = self.task.dataset(models.subset)
        self.language = text_language(models.data, self.task.cfg.target_lang)

    def translate(self, sentences: Sequence[int]) -> list[Output]:
        """Translate one batch."""
        outputs = self.search([self.dataset[i]["source"] for i in sentences])
        return [Output(tokens, plain_text(tokens, self.language), None) for tokens in outputs]

    @abc.abstractmethod
    def search(self, sources: Sequence[Tensor]) -> list[list[str]]:
        """Return the words of each translation; sources are of unequal lengths, with ``</s>``."""

    def tie(self, sentence: int, ours: list[str], theirs: list[str]) -> bool:
        """Return False: a peer is not lossless, so its differences are no ties."""
        return False

    def provenance(self) -> Mapping[str, Any]:
        """Return how batches are decoded, as docs/trace.md describes it."""
        return provenance(False, self.engine, self.dtype, self.models)


class CTranslate2System(Peer):
    """The same checkpoint in CTranslate2, an inference engine in C++ (CPU).

    Raises:
        UsageError: CTranslate2 is not installed, or cannot convert the model.
    """

    def __init__(
        self,
        beam: int,
        compute_type: str,
        threads: int,
        models: Models,
        path: str,
        common: dict[str, Any],
    ) -> None:
        label = f"CTranslate2 {search_name(beam)}, {compute_type}, {counted(threads)}"
        super().__init__(label, CTRANSLATE2, compute_type, threads, models, path)
        self._translator = translator(converted(path, models.data), compute_type, threads)
        self._limits = {
            "beam_size": beam,
            "max_decoding_length": int(common.get("max_len_b", 200)),
            "min_decoding_length": int(common.get("min_len", 1)),
        }

    def search(self, sources: Sequence[Tensor]) -> list[list[str]]:
        """Return the words of each translation."""
        dictionary = self.task.source_dictionary
        words = [dictionary.string(source).split() for source in sources]
        results = self._translator.translate_batch(words, **self._limits)
        return [result.hypotheses[0] for result in results]


def search_name(beam: int) -> str:
    """Return a search's name; a beam of 1 is greedy."""
    return "greedy" if beam == 1 else f"beam {beam}"


def translator(folder: str, compute_type: str, threads: int) -> Any:
    """Load a converted model, on the CPU."""
    import ctranslate2

    return ctranslate2.Translator(
        folder, device="cpu", compute_type=compute_type, intra_threads=threads
    )


def numbers_of_threads(cores: int, given: Sequence[int]) -> list[int]:
    """Return the numbers of threads that a peer is tried with.

    They are the given ones, and 1, 2, 4, ... up to all cores.
    """
    doubled = {2**i for i in range(cores.bit_length())}
    return sorted({cores, *given, *doubled})


@functools.cache
def converted(path: str, data: str) -> str:
    """Convert a checkpoint for CTranslate2, in a folder that is removed when the process ends.

    Raises:
        UsageError: CTranslate2 is not installed, or does not support the model.
    """
    # The converter reads fairseq's older checkpoints, whose options lie in one namespace.
    state = read_checkpoint(path)
    options = {**options_of(state["cfg"]["task"]), **options_of(state["cfg"]["model"])}
    options |= {"arch": options.get("arch", options["_name"])}
    return _convert(options, state["model"], data, path)


def converted_model(model: Any, task: Any, args: Any) -> str:
    """Convert a Transformer that was built here from these options; see ``converted``."""
    with tempfile.TemporaryDirectory() as data:
        task.source_dictionary.save(f"{data}/dict.source.txt")
        task.target_dictionary.save(f"{data}/dict.target.txt")
        languages = {"source_lang": "source", "target_lang": "target"}
        options = vars(args) | languages | {"arch": "transformer"}
        return _convert(options, model.state_dict(), data, "random weights")


def _convert(options: dict[str, Any], weights: dict[str, Any], data: str, name: str) -> str:
    """Convert weights; ``name`` is theirs, for messages."""
    with extras.named(f"--peers {CTRANSLATE2}"):
        from ctranslate2.converters import FairseqConverter
    keep = tempfile.TemporaryDirectory(prefix="paradec-ctranslate2-")
    _KEPT.append(keep)
    folder, plain = Path(keep.name) / "model", Path(keep.name) / "model.pt"
    try:
        args = argparse.Namespace(**options | {"task": "translation"})
        torch.save({"args": args, "model": weights}, plain)
        FairseqConverter(str(plain), data).convert(str(folder))
    except Exception as error:
        raise UsageError(f"--peers: CTranslate2 cannot convert {name}: {error}") from error
    return str(folder)


_KEPT: list[tempfile.TemporaryDirectory[str]] = []
