"""Sentences that wait are decoded together, in batches.

A decoding thread takes the sentence whose turn it is, and with it those of the same model and
options that are most like it in length. So a lone sentence is decoded alone, at once, and many
together; ``auto_fast`` has measured what is fastest for a batch of either size. A sentence is
answered when it is done, while others of its batch are written. Into a batch that greedy search
writes, others enter then. Native passes compute a row to the last bit alike in any batch
(docs/exactness.md).
"""

import heapq
import logging
import math
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from functools import partial
from itertools import islice, takewhile
from typing import NamedTuple

from ..errors import UsageError
from ..threads import num_threads, set_threads
from ..translator.translation import OnFinish, OnPass, Translation
from ..translator.translator import Translator
from .fleet import Fleet
from .settings import ServerSettings

logger = logging.getLogger(__name__)

#: The share of a batch's time for which the next one waits to become as large; after a lone
#: sentence nothing is waited for.
LINGER = 0.2

#: Sentences of a batch, those that enter it among them, for each of its first ones, at most; the
#: next batch may be of another size, and decoded in another way.
ROUNDS = 8

#: Batches by which the time that waiting takes is estimated.
RECENT = 50


class DecodingWay(NamedTuple):
    """How a sentence is decoded; a batch has one way.

    Attributes:
        pair: the model's languages.
        decoding: ``--decoding``; None: as ``paradec translate``.
        beam: ``--beam``.
        others: next best outputs of it that are wanted.
        drafted: there is an earlier translation as a draft.
        traced: the passes are watched.
    """

    pair: tuple[str, str]
    decoding: str | None = None
    beam: int = 1
    others: int = 0
    drafted: bool = False
    traced: bool = False


class Done(NamedTuple):
    """A decoded sentence.

    Attributes:
        translation: what became of it.
        begin: when its batch began, by ``time.perf_counter``.
        end: and ended.
    """

    translation: Translation
    begin: float
    end: float


class Job(NamedTuple):
    """A sentence that waits.

    Attributes:
        turn: when it is its turn, on the scheduler's clock.
        text: the sentence.
        way: how it is decoded.
        draft: an earlier translation.
        watch: who is told of the passes.
        future: becomes a Done; who cancels it does not wait any more.
    """

    turn: int
    text: str
    way: DecodingWay
    draft: str
    watch: OnPass | None
    future: Future[Done]


def form(waiting: Sequence[Job], size: int) -> tuple[list[Job], list[Job]]:
    """Form a batch of what waits; return it, and the rest in order.

    The first is the one whose turn it is; the others are those of its way that are most like it in
    length. What is watched is decoded alone.

    Args:
        waiting: at least one.
        size: sentences of a batch, at most.
    """
    first = min(waiting, key=lambda job: job.turn)
    like = [job for job in waiting if job.way == first.way and job is not first]
    others = heapq.nsmallest(
        0 if first.way.traced else size - 1,
        like,
        key=lambda job: abs(len(job.text) - len(first.text)),
    )
    batch = [first, *others]
    taken = set(map(id, batch))
    return batch, [job for job in waiting if id(job) not in taken]


def entering(
    waiting: Sequence[Job], way: DecodingWay, count: int, longest: int
) -> tuple[list[Job], list[Job]]:
    """Choose what enters a running batch: those whose turn it is; return them, and the rest.

    Where one of them does not fit, none behind it enters: the batch ends, and it has its turn.

    Args:
        waiting: in any order.
        way: of the batch.
        count: so many, at most.
        longest: characters of a sentence, at most.
    """
    turns = sorted(waiting, key=lambda job: job.turn)
    fit = takewhile(lambda job: job.way == way and len(job.text) <= longest, turns)
    chosen = list(islice(fit, count))
    taken = set(map(id, chosen))
    return chosen, [job for job in waiting if id(job) not in taken]


def begun(chosen: Sequence[Job]) -> list[Job]:
    """Return those whose clients still wait; they cannot be cancelled any more."""
    return [job for job in chosen if job.future.set_running_or_notify_cancel()]


def answer(job: Job, begin: float, translation: Translation) -> None:
    """Answer a sentence of a batch that began at a time."""
    job.future.set_result(Done(translation, begin, time.perf_counter()))


class Full(Exception):
    """Too many sentences wait; ``seconds``: when that may have changed."""

    def __init__(self, seconds: int) -> None:
        self.seconds = seconds


class Left(Exception):
    """A watch raises this where nobody waits for the passes any more."""


class Scheduler:
    """Decoding threads, and the sentences that wait for them.

    The turns are fair: sentence k of a request is behind the first k of every other, so that a long
    text does not hold up short ones; and who comes later is behind what is decoded then, so that
    short ones without end do not hold up a long text.

    Args:
        fleet: the models.
        settings: of the server.
        decoded: is told of each batch: how it was decoded, what became of it, its seconds.
    """

    def __init__(
        self,
        fleet: Fleet,
        settings: ServerSettings,
        decoded: Callable[[DecodingWay, Sequence[Translation], float], None],
    ) -> None:
        self.settings, self.decoded = settings, decoded
        self._waiting: list[Job] = []
        # One lock; notified for threads that wait for any sentence, and for those that want more.
        lock = threading.RLock()
        self._changed, self._enough = threading.Condition(lock), threading.Condition(lock)
        self._wanted: list[int] = []  # by the threads that wait for more
        self._clock, self._open = 0, True  # the clock: behind the turn that was decoded last
        self._recent: deque[tuple[int, float]] = deque(maxlen=RECENT)  # sentences, seconds
        self._cores = settings.cores or max(1, num_threads() // settings.threads)
        owned = [fleet.models]
        for _ in range(settings.threads - 1):
            owned.append({pair: translator.twin() for pair, translator in fleet.models.items()})
        self._threads = [
            threading.Thread(target=self._work, args=(models,), daemon=True, name=f"decoding-{i}")
            for i, models in enumerate(owned)
        ]
        for thread in self._threads:
            thread.start()

    @property
    def waiting(self) -> int:
        """The number of sentences that wait."""
        return len(self._waiting)

    def submit(
        self,
        way: DecodingWay,
        sentences: Sequence[str],
        drafts: Sequence[str] | None = None,
        watches: Sequence[OnPass | None] | None = None,
    ) -> list[Future[Done]]:
        """Let sentences wait.

        Args:
            way: how they are decoded.
            sentences: plain text.
            drafts: with ``way.drafted``: earlier translations.
            watches: with ``way.traced``: who is told of the passes.

        Raises:
            Full: too many wait already.
        """
        with self._changed:
            self._forget()
            waiting = len(self._waiting)
            if waiting > 0 and waiting + len(sentences) > self.settings.max_waiting:
                raise Full(self._seconds_of(waiting))
            jobs = [
                Job(
                    self._clock + k,
                    text,
                    way,
                    drafts[k] if drafts else "",
                    watches[k] if watches else None,
                    Future(),
                )
                for k, text in enumerate(sentences)
            ]
            self._waiting += jobs
            self._changed.notify_all()
            if self._wanted and len(self._waiting) >= min(self._wanted):
                self._enough.notify_all()
        return [job.future for job in jobs]

    def _forget(self) -> None:
        """Take out the sentences whose clients have left."""
        self._waiting = [job for job in self._waiting if not job.future.cancelled()]

    def close(self, seconds: float) -> None:
        """Decode what waits, but at most so long, and end the threads."""
        with self._changed:
            self._open = False
            self._changed.notify_all()
            self._enough.notify_all()
        end = time.monotonic() + seconds
        for thread in self._threads:
            thread.join(max(0.0, end - time.monotonic()))

    def _seconds_of(self, waiting: int) -> int:
        """Estimate how long so many sentences take, from recent batches: 1 to 60 seconds."""
        sentences = sum(count for count, _ in self._recent)
        seconds = sum(taken for _, taken in self._recent)
        each = seconds / sentences / len(self._threads) if sentences else 0.0
        return min(60, max(1, math.ceil(waiting * each)))

    # ---- a decoding thread ---------------------------------------------------------------------

    def _work(self, models: dict[tuple[str, str], Translator]) -> None:
        """Decode batches until the scheduler is closed."""
        set_threads(self._cores)  # there is a number for each thread
        count, seconds = 1, 0.0
        while batch := self._next(count, LINGER * seconds):
            count, begin = len(batch), time.perf_counter()
            self._decode(models[batch[0].way.pair], batch)
            seconds = (time.perf_counter() - begin) * count / len(batch)

    def _next(self, count: int, seconds: float) -> list[Job]:
        """Wait for sentences, and take a batch of them; an empty one: it is closed.

        Args:
            count: sentences of the last batch. Clients that got its answers are about to ask again:
                so many are waited for,
            seconds: but no longer than this.
        """
        with self._changed:
            while True:
                self._changed.wait_for(lambda: self._waiting or not self._open)
                if len(self._waiting) < count:
                    self._wanted.append(count)
                    self._enough.wait_for(
                        lambda: len(self._waiting) >= count or not self._open, seconds
                    )
                    self._wanted.remove(count)
                if not self._waiting:  # others took them, or their clients left
                    if self._open:
                        continue
                    return []
                chosen, self._waiting = form(self._waiting, self.settings.batch_size)
                self._clock = chosen[0].turn + 1
                if live := begun(chosen):
                    return live

    def _decode(self, translator: Translator, batch: list[Job]) -> None:
        """Decode a batch; if that fails, its sentences one by one: the others are not to suffer.

        Sentences that enter it are appended.
        """
        begin = time.perf_counter()
        try:
            translations = self._translate(translator, batch, begin)
            translations += [job.future.result(0).translation for job in batch[len(translations) :]]
        except Left as error:
            batch[0].future.set_exception(error)
            return
        except Exception as error:
            left = [job for job in batch if not job.future.done()]
            if len(batch) == 1 or isinstance(error, UsageError):  # of options, which all share
                for job in left:
                    job.future.set_exception(error)
                return
            logger.error("a batch of %d fails (%s)", len(batch), type(error).__name__)
            for job in left:
                self._decode(translator, [job])
            return
        end = time.perf_counter()
        with self._changed:  # ``submit`` goes through them
            self._recent.append((len(batch), end - begin))
        self.decoded(batch[0].way, translations, end - begin)
        for job, translation in zip(batch, translations, strict=True):
            if not job.future.done():
                answer(job, begin, translation)

    def _translate(
        self, translator: Translator, batch: list[Job], begin: float
    ) -> list[Translation]:
        """Translate a batch that began at a time; answer what is done before the others are.

        Returns:
            The translations of its first sentences; those that entered it have been answered.
        """
        way, size = batch[0].way, len(batch)
        more = self.settings.rules
        if way.decoding is not None:
            more["decoding"] = way.decoding
        if way.beam > 1:
            more["beam"] = way.beam
        if self.settings.speed_profile is not None and way.decoding in (None, "auto_fast"):
            more["speed_profile"] = self.settings.speed_profile
        return list(
            translator.results(
                [job.text for job in batch],
                batch_size=size,
                max_tokens=self.settings.max_tokens,
                buffer_size=size,
                drafts=[job.draft for job in batch] if way.drafted else None,
                others=way.others,
                on_pass=[job.watch for job in batch] if way.traced else None,
                on_finish=[partial(answer, job, begin) for job in batch] if size > 1 else None,
                admit=partial(self._more, batch, size) if size > 1 and not way.drafted else None,
                **more,
            )
        )

    def _more(self, batch: list[Job], size: int, count: int) -> list[tuple[str, OnFinish]]:
        """Return sentences that enter a batch.

        None do where a new batch would be far larger or smaller than this one, or it is old.

        Args:
            batch: its sentences; these are appended.
            size: so many it has had at once.
            count: so many have left it.
        """
        settings, begin = self.settings, time.perf_counter()
        longest = max(settings.max_tokens // size, *(len(job.text) for job in batch[:size]))
        with self._changed:
            self._forget()
            new = min(size - count + len(self._waiting), settings.batch_size)
            if not 0.5 * size <= new <= 1.25 * size or len(batch) >= ROUNDS * size:
                return []
            chosen, self._waiting = entering(self._waiting, batch[0].way, count, longest)
            if chosen:
                self._clock = chosen[-1].turn + 1
        live = begun(chosen)
        batch += live
        return [(job.text, partial(answer, job, begin)) for job in live]
