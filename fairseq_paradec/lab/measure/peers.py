"""Other engines on the same checkpoint: what they have in common, and CTranslate2."""

import abc
import functools
import os
import tempfile
from collections.abc import Mapping, Sequence
from typing import Any

from ...decoding.provenance import provenance
from ...model.model import Model
from ..analysis.benchmark_tables import threads as counted
from . import CTRANSLATE2
from .ctranslate2_model import write
from .outputs import PEER, Output
from .own import Loader
from .sentences import Data
from .text import plain_text, target_language, text_language


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
        self, label: str, engine: str, dtype: str, threads: int | None, models: Loader, path: str
    ) -> None:
        self.label, self.command = label, f"--peers {engine}: {label}"
        self.engine, self.dtype, self.threads = engine, dtype, threads
        self.models, self.task = models.load(path)
        self.files = path.split(os.pathsep)
        self.parameters = models.parameters(self.models)
        self.dataset = self.task.dataset(models.subset)
        self.language = text_language(models.data, target_language(models.data))

    def translate(self, sentences: Sequence[int]) -> list[Output]:
        """Translate one batch."""
        outputs = self.search([self.dataset[i]["source"] for i in sentences])
        return [Output(tokens, plain_text(tokens, self.language), None) for tokens in outputs]

    @abc.abstractmethod
    def search(self, sources: Sequence[Any]) -> list[list[str]]:
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
        models: Loader,
        path: str,
        common: Mapping[str, Any],
    ) -> None:
        label = f"CTranslate2 {search_name(beam)}, {compute_type}, {counted(threads)}"
        super().__init__(label, CTRANSLATE2, compute_type, threads, models, path)
        self._translator = translator(converted(path, models.data), compute_type, threads)
        self._limits = {
            "beam_size": beam,
            "max_decoding_length": int(common.get("max_len_b", 200)),
            "min_decoding_length": int(common.get("min_len", 1)),
        }

    def search(self, sources: Sequence[Any]) -> list[list[str]]:
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
        UsageError: CTranslate2 is not installed, or has no layout for the model.
    """
    folder = Data(data)
    words = folder.source_dictionary, folder.target_dictionary
    return converted_model(Model.read(path, *words), [each.symbols for each in words])


def converted_model(model: Model, words: Sequence[Sequence[str]]) -> str:
    """Convert a model; see ``converted``, and ``ctranslate2_model.write`` for the words."""
    keep = tempfile.TemporaryDirectory(prefix="paradec-ctranslate2-")
    _KEPT.append(keep)
    write(model, words, keep.name)
    return keep.name


_KEPT: list[tempfile.TemporaryDirectory[str]] = []
