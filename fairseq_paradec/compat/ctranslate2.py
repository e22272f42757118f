"""CTranslate2's Translator, by this package's decoders.

``import fairseq_paradec.compat.ctranslate2 as ctranslate2`` is the one line that a program changes.
Words of its vocabulary go in and out, as there; what it opens is a model folder of this package, or
one that CTranslate2 converted. docs/ctranslate2.md says what is the same, and what is not.
"""

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import islice, zip_longest
from os import PathLike, fspath
from pathlib import Path
from queue import SimpleQueue
from typing import Any, Generic, TypeVar

import numpy as np

from ..errors import UsageError, option_error
from ..threads import computing_on
from .opening import CTRANSLATE2, MODEL_FOLDER, open_model
from .options import COMPUTE_TYPES, NAMES, Options
from .words import ScoringResult, TranslationResult, Worker

__all__ = [
    "AsyncScoringResult",
    "AsyncTranslationResult",
    "ScoringResult",
    "TranslationResult",
    "Translator",
    "__version__",
    "contains_model",
    "get_cuda_device_count",
    "get_supported_compute_types",
    "set_random_seed",
]

#: The CTranslate2 whose interface this is; programs compare it.
__version__ = "4.8.5"

T = TypeVar("T")
#: Words in, in a batch or one text.
Words = Sequence[str]
#: So many batches an iterable is read ahead, so that texts of like length come together.
_AHEAD = 16


class _Async(Generic[T]):
    """A result that may not be there yet."""

    def __init__(self, batch: "Future[list[T]]", place: int) -> None:
        self._batch, self._place = batch, place

    def done(self) -> bool:
        """Return whether it is there."""
        return self._batch.done()

    def result(self) -> T:
        """Wait for it, and return it, or raise the error of its batch."""
        return self._batch.result()[self._place]


class AsyncTranslationResult(_Async[TranslationResult]):
    """A translation that may not be there yet."""


class AsyncScoringResult(_Async[ScoringResult]):
    """A score that may not be there yet."""


class Translator:
    """Translates lists of words by a model.

    Args:
        model_path: a model folder of this package, or one that CTranslate2 converted.
        device: ``cpu``, or ``auto``, which is the same.
        device_index: 0.
        compute_type: float32, int8 or bfloat16, with CTranslate2's names; ``default``: as the model
            is stored; ``auto``: int8. A dictionary has one for each device.
        inter_threads: batches that are translated at once, at most.
        intra_threads: threads of a batch; 0: OMP_NUM_THREADS, or else all cores.
        max_queued_batches: read by nobody: what is asynchronous waits in a queue without end.
        flash_attention: False.
        tensor_parallel: False.
        files: None.

    Raises:
        UsageError: the folder holds no model that the core reads, or an argument is not known here.
    """

    def __init__(
        self,
        model_path: str | PathLike[str],
        device: str = "cpu",
        *,
        device_index: int | list[int] = 0,
        compute_type: str | Mapping[str, str] = "default",
        inter_threads: int = 1,
        intra_threads: int = 0,
        max_queued_batches: int = 0,
        flash_attention: bool = False,
        tensor_parallel: bool = False,
        files: object = None,
    ) -> None:
        for name, given, fits, allowed in (
            ("device", device, device in ("cpu", "auto"), "cpu, auto"),
            ("device_index", device_index, device_index in (0, [0]), "0"),
            ("inter_threads", inter_threads, _is_count(inter_threads, 1), "1 or more"),
            ("intra_threads", intra_threads, _is_count(intra_threads, 0), "0 or more"),
            ("flash_attention", flash_attention, not flash_attention, "False"),
            ("tensor_parallel", tensor_parallel, not tensor_parallel, "False"),
            ("files", files, files is None, "None, and model_path"),
        ):
            if not fits:
                raise option_error(name, given, allowed)
        self._path, self._inter, self._intra = (
            Path(fspath(model_path)),
            inter_threads,
            intra_threads,
        )
        self._wanted = _type_of(compute_type)
        self._lock = threading.Lock()
        self._pool: ThreadPoolExecutor | None = None
        self._waiting = self._active = 0
        self.load_model()

    # ---- the model -----------------------------------------------------------------------------

    def load_model(self, keep_cache: bool = False) -> None:
        """Load the model again after ``unload_model``."""
        opened = open_model(self._path)
        kind = self._wanted if self._wanted != "default" else opened.stored
        if self._wanted == "auto":
            kind = "int8"
        self._type = "int8_float32" if kind == "int8" else kind
        self._workers: SimpleQueue[Worker] = SimpleQueue()
        for number in range(self._inter):
            twin = opened if number == 0 else opened.twin()
            self._workers.put(Worker(twin, COMPUTE_TYPES[kind]))
        self._loaded = True

    def unload_model(self, to_cpu: bool = False) -> None:
        """Leave the model; ``load_model`` reads it again."""
        self._loaded, self._workers = False, SimpleQueue()

    @property
    def model_is_loaded(self) -> bool:
        """Whether the model is there."""
        return self._loaded

    @property
    def device(self) -> str:
        """``cpu``."""
        return "cpu"

    @property
    def device_index(self) -> list[int]:
        """``[0]``."""
        return [0]

    @property
    def compute_type(self) -> str:
        """CTranslate2's name of the type that is computed with."""
        return self._type

    @property
    def num_translators(self) -> int:
        """How many batches are translated at once."""
        return self._inter

    @property
    def num_queued_batches(self) -> int:
        """Batches that wait."""
        return self._waiting

    @property
    def num_active_batches(self) -> int:
        """Batches that wait or are translated."""
        return self._waiting + self._active

    @property
    def tensor_parallel(self) -> bool:
        """False."""
        return False

    # ---- translate -----------------------------------------------------------------------------

    def translate_batch(
        self,
        source: Sequence[Words],
        target_prefix: Sequence[Words | None] | None = None,
        *,
        max_batch_size: int = 0,
        batch_type: str = "examples",
        asynchronous: bool = False,
        **options: Any,
    ) -> list[Any]:
        """Translate lists of words.

        Args:
            source: the words of each text.
            target_prefix: of each text the words that its translation begins with, or None.
            max_batch_size: texts, or words, of a batch; 0: all.
            batch_type: ``examples`` or ``tokens``.
            asynchronous: return at once, with results that have ``result()``.
            options: CTranslate2's, of ``Options``.

        Returns:
            A TranslationResult of each text, or an AsyncTranslationResult.

        Raises:
            UsageError: an option is wrong or not known here, or a text is longer than the model's
                positions.
        """
        how = options_of(options)
        prefixes: Sequence[Words | None] = target_prefix or [None] * len(_texts("source", source))
        if len(prefixes) != len(source):
            raise option_error(
                "target_prefix", f"{len(prefixes)} of them", f"{len(source)}, one for each text"
            )

        def work(worker: Worker, places: Sequence[int]) -> list[TranslationResult]:
            some = [source[place] for place in places]
            return worker.translate(some, [prefixes[place] for place in places], how)

        batches = _batches(source, max_batch_size, batch_type)
        return self._run(work, batches, len(source), asynchronous and AsyncTranslationResult)

    def translate_iterable(
        self,
        source: Iterable[Words],
        target_prefix: Iterable[Words | None] | None = None,
        max_batch_size: int = 32,
        batch_type: str = "examples",
        **options: Any,
    ) -> Iterator[TranslationResult]:
        """Translate texts of an iterable, which is read some batches ahead; yield in its order.

        Args:
            source: the words of each text.
            target_prefix: see ``translate_batch``.
            max_batch_size: texts, or words, of a batch.
            batch_type: ``examples`` or ``tokens``.
            options: see ``translate_batch``.
        """
        options_of(options)
        pairs = ((text, None) for text in source) if target_prefix is None else None
        both = pairs or _together(source, target_prefix or ())
        size: dict[str, Any] = {"max_batch_size": max_batch_size, "batch_type": batch_type}
        for texts, prefixes in _windows(both, max_batch_size):
            yield from self.translate_batch(texts, prefixes, **size, **options)

    # ---- score ---------------------------------------------------------------------------------

    def score_batch(
        self,
        source: Sequence[Words],
        target: Sequence[Words],
        *,
        max_batch_size: int = 0,
        batch_type: str = "examples",
        max_input_length: int = 1024,
        offset: int = 0,
        asynchronous: bool = False,
    ) -> list[Any]:
        """Return the log-probabilities of translations.

        Args:
            source: the words of each text.
            target: those of its translation.
            max_batch_size: texts, or words, of a batch; 0: all.
            batch_type: ``examples`` or ``tokens``.
            max_input_length: texts are cut behind so many words, with ``</s>``; 0: nowhere.
            offset: leave out so many of the first words.
            asynchronous: return at once, with results that have ``result()``.

        Returns:
            A ScoringResult of each text, or an AsyncScoringResult.
        """
        if len(_texts("source", source)) != len(_texts("target", target)):
            raise option_error("target", f"{len(target)} texts", f"{len(source)}, as source has")

        def work(worker: Worker, places: Sequence[int]) -> list[ScoringResult]:
            pairs = [(source[place], target[place]) for place in places]
            return worker.score(pairs, max_input_length, offset)

        batches = _batches(source, max_batch_size, batch_type)
        return self._run(work, batches, len(source), asynchronous and AsyncScoringResult)

    def score_iterable(
        self,
        source: Iterable[Words],
        target: Iterable[Words],
        max_batch_size: int = 64,
        batch_type: str = "examples",
        **options: Any,
    ) -> Iterator[ScoringResult]:
        """Score translations of iterables; see ``score_batch`` and ``translate_iterable``."""
        size: dict[str, Any] = {"max_batch_size": max_batch_size, "batch_type": batch_type}
        for texts, targets in _windows(_together(source, target), max_batch_size):
            yield from self.score_batch(texts, targets, **size, **options)

    # ---- workers -------------------------------------------------------------------------------

    def _run(
        self,
        work: Callable[[Worker, Sequence[int]], list[T]],
        batches: Sequence[Sequence[int]],
        count: int,
        later: Any,
    ) -> list[Any]:
        """Work on batches, each by a worker that is free.

        Args:
            work: returns the results of a batch of places.
            batches: the places of each.
            count: texts of all.
            later: the class of results that may not be there yet; False: wait for all.
        """
        if not self._loaded:
            raise UsageError("the model was unloaded; allowed: load_model() before")
        done: list[Any] = [None] * count
        if not later and (len(batches) == 1 or self._inter == 1):
            for places in batches:
                for place, result in zip(places, self._work(work, places), strict=True):
                    done[place] = result
            return done
        with self._lock:
            self._waiting += len(batches)
            if self._pool is None:
                self._pool = ThreadPoolExecutor(self._inter, thread_name_prefix="paradec-door")
        for places in batches:
            future = self._pool.submit(self._queued, work, places)
            for number, place in enumerate(places):
                done[place] = (later or _Async)(future, number)
        return done if later else [each.result() for each in done]

    def _queued(self, work: Callable[[Worker, Sequence[int]], list[T]], places: Any) -> list[T]:
        """Work on a batch that has waited."""
        with self._lock:
            self._waiting -= 1
        return self._work(work, places)

    def _work(self, work: Callable[[Worker, Sequence[int]], list[T]], places: Any) -> list[T]:
        """Work on a batch by the next free worker."""
        workers = self._workers
        worker = workers.get()
        with self._lock:
            self._active += 1
        try:
            with computing_on(self._intra):
                return work(worker, places)
        finally:
            with self._lock:
                self._active -= 1
            workers.put(worker)


def options_of(given: Mapping[str, Any]) -> Options:
    """Return the options of a call.

    Raises:
        TypeError: a name is none of CTranslate2's, as there.
        UsageError: see ``Options``.
    """
    if unknown := sorted(given.keys() - NAMES):
        raise TypeError(f"translate_batch() got an unexpected keyword argument {unknown[0]!r}")
    return Options(**given)


def _type_of(given: str | Mapping[str, str]) -> str:
    """Return the type of computing for the CPU.

    Raises:
        UsageError: it is not known here.
    """
    name = given if isinstance(given, str) else given.get("cpu", "default")
    allowed = ("default", "auto", *COMPUTE_TYPES)
    if name not in allowed:
        raise option_error("compute_type", name, ", ".join(allowed))
    return name


def _is_count(value: object, least: int) -> bool:
    """Return whether a value is a whole number from ``least`` up."""
    return type(value) is int and value >= least


def _texts(name: str, given: Any) -> Any:
    """Return lists of words.

    Raises:
        UsageError: it is one text, or no list.
    """
    if isinstance(given, (str, bytes)) or not isinstance(given, Sequence):
        raise option_error(name, given, "a list of lists of words")
    if any(isinstance(words, (str, bytes)) for words in given):
        raise option_error(name, given, "a list of lists of words")
    return given


def _together(source: Iterable[Words], others: Iterable[Any]) -> Iterator[tuple[Words, Any]]:
    """Yield each text with what belongs to it.

    Raises:
        UsageError: there are more of one.
    """
    end: Any = object()
    for number, pair in enumerate(zip_longest(source, others, fillvalue=end)):
        if end in pair:
            raise option_error("source", f"{number} texts in one iterable", "as many in both")
        yield pair


def _windows(pairs: Iterator[tuple[Words, Any]], size: int) -> Iterator[tuple[Any, Any]]:
    """Yield texts, and what belongs to each, of some batches at a time.

    Raises:
        UsageError: a batch is to have no text.
    """
    if not _is_count(size, 1):
        raise option_error("max_batch_size", size, "a whole number from 1 up")
    while window := list(islice(pairs, _AHEAD * size)):
        texts, others = zip(*window, strict=True)
        yield texts, others


def _batches(source: Sequence[Words], size: int, kind: str) -> list[list[int]]:
    """Return the places of each batch, texts of like length together.

    Raises:
        UsageError: the size or the kind is wrong.
    """
    if not _is_count(size, 0):
        raise option_error("max_batch_size", size, "a whole number from 0 up")
    if kind not in ("examples", "tokens"):
        raise option_error("batch_type", kind, "examples, tokens")
    if not source:
        return []
    if not size:
        return [[*range(len(source))]]
    batches: list[list[int]] = []
    for place in sorted(range(len(source)), key=lambda place: -len(source[place])):
        longest = len(source[batches[-1][0]]) if batches else 0
        room = size if kind == "examples" else size // max(1, longest)
        if not batches or len(batches[-1]) >= room:
            batches.append([])
        batches[-1].append(place)
    return batches


def contains_model(path: str | PathLike[str]) -> bool:
    """Return whether a folder holds a model that Translator opens."""
    folder = Path(fspath(path))
    return any((folder / name).is_file() for name in (MODEL_FOLDER, CTRANSLATE2))


def get_supported_compute_types(device: str = "cpu", device_index: int = 0) -> set[str]:
    """Return the types of computing that a device knows."""
    if device != "cpu":
        raise option_error("device", device, "cpu")
    return {*COMPUTE_TYPES}


def get_cuda_device_count() -> int:
    """Return 0: Translator computes on the CPU."""
    return 0


def set_random_seed(seed: int) -> None:
    """Let what is drawn from now on be the same in each run: numpy's random numbers."""
    np.random.seed(seed)
