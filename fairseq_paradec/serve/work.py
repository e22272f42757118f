"""From a request's texts to sentences that wait, and from their translations to the answer."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar

from ..records import Pass
from ..translator.documents import Document, Text
from .scheduler import DecodingWay, Done, Left, Scheduler

#: Characters of a text that is split and put together beside the requests of others.
LONG = 2000

T = TypeVar("T")


@dataclass
class Counts:
    """What a request has cost, over its sentences.

    Attributes:
        passes: runs of the decoder.
        tokens: of the outputs.
        accepted: tokens of predictions that the outputs took.
        rejected: the predictions' other tokens.
        begin: when the first batch began; None: none has.
        end: when the last one ended.
    """

    passes: int = 0
    tokens: int = 0
    accepted: int = 0
    rejected: int = 0
    begin: float | None = None
    end: float = 0.0

    def add(self, done: Done) -> None:
        """Count a sentence."""
        translation = done.translation
        self.passes += translation.passes
        self.tokens += translation.tokens
        self.accepted += translation.accepted
        self.rejected += translation.rejected
        self.begin = done.begin if self.begin is None else min(self.begin, done.begin)
        self.end = max(self.end, done.end)

    @property
    def milliseconds(self) -> float:
        """From the beginning of the first batch to the end of the last."""
        return 0.0 if self.begin is None else round(1000 * (self.end - self.begin), 2)


@dataclass
class Answer:
    """Translated texts.

    Attributes:
        texts: with notes, in order.
        others: for each text its next best translations.
        counts: over all of them.
    """

    texts: list[Text] = field(default_factory=list)
    others: list[list[str]] = field(default_factory=list)
    counts: Counts = field(default_factory=Counts)


def is_long(texts: Sequence[str]) -> bool:
    """Return whether splitting texts takes long enough to be done beside other requests."""
    return sum(len(text) + 50 for text in texts) > LONG


async def aside(long: bool, function: Callable[..., T], *args: Any) -> T:
    """Call a function, in another thread if it may take long."""
    return await asyncio.to_thread(function, *args) if long else function(*args)


async def translate(
    scheduler: Scheduler,
    way: DecodingWay,
    texts: Sequence[str],
    format: str,
    predictions: Sequence[str] | None,
) -> Answer:
    """Translate texts; if this is cancelled, its sentences wait no more.

    Args:
        scheduler: decodes.
        way: how.
        texts: of any length.
        format: ``text``, ``html`` or ``markdown``.
        predictions: for each text an earlier translation; None: there are none.

    Raises:
        Full: too many sentences wait already.
        UsageError: the decoder, or its options, do not fit.
    """
    long = is_long(texts)
    source = way.pair[0]
    documents = await aside(long, lambda: [Document(text, format, source) for text in texts])
    drafts = None
    if predictions is not None:
        drafts = await aside(long, _drafts, documents, predictions)
    sentences = [sentence for document in documents for sentence in document.sentences]
    futures = scheduler.submit(way, sentences, drafts)
    try:
        for future in futures:  # one after the other: the loop wakes for few of them
            if not future.done():
                await asyncio.wrap_future(future)
        done = [future.result() for future in futures]
    finally:  # if one fails, or nobody waits any more, the others need not be decoded
        for future in futures:
            future.cancel()
    return await aside(long, _join, documents, done, way.others)


def _drafts(documents: Sequence[Document], predictions: Sequence[str]) -> list[str]:
    """Return the drafts of the sentences of all texts."""
    pairs = zip(documents, predictions, strict=True)
    return [draft for document, text in pairs for draft in document.drafts(text)]


def _join(documents: Sequence[Document], done: Sequence[Done], others: int) -> Answer:
    """Put the translations of sentences together."""
    answer, first = Answer(), 0
    for document in documents:
        part = done[first : first + len(document.sentences)]
        first += len(part)
        for sentence in part:
            answer.counts.add(sentence)
        answer.texts.append(document.join([_text(sentence) for sentence in part]))
        answer.others.append(
            [
                document.join([_text(sentence, k) for sentence in part]).text
                for k in range(1, others + 1)
            ]
        )
    return answer


def _text(done: Done, place: int = 0) -> str | None:
    """Return the translation at a place of the n-best list; the last there is; None: there is none.

    Args:
        done: a sentence.
        place: 0: the best.
    """
    translation = done.translation
    if translation.problem:
        return None
    return [translation.text, *translation.others][min(place, len(translation.others))]


class Stream:
    """A text that is translated while its beginning is sent already.

    Args:
        scheduler: decodes.
        way: how; if traced, the passes are sent, too.
        document: the text.
        drafts: of its sentences; None: none.

    Raises:
        Full: too many sentences wait already.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        way: DecodingWay,
        document: Document,
        drafts: Sequence[str] | None,
    ) -> None:
        self.document, self.counts = document, Counts()
        self.notes: list[str] = []
        self._left = False
        self._told: asyncio.Queue[tuple[int, Pass] | int] = asyncio.Queue()
        self._loop = asyncio.get_running_loop()
        watches = None
        if way.traced:
            watches = [self._watch(k) for k in range(len(document.sentences))]
        self._futures = scheduler.submit(way, document.sentences, drafts, watches)
        for number, future in enumerate(self._futures):
            future.add_done_callback(partial(self._end, number))

    def _watch(self, number: int) -> Callable[[Pass], None]:
        """Return who is told of a sentence's passes, in a decoding thread."""

        def tell(watched: Pass) -> None:
            if self._left:
                raise Left
            self._put((number, watched))

        return tell

    def _end(self, number: int, future: Future[Done]) -> None:
        """Note that a sentence is done."""
        self._put(number)

    def _put(self, told: tuple[int, Pass] | int) -> None:
        """Put a pass that is to be sent, or the number of a sentence that is done."""
        self._loop.call_soon_threadsafe(self._told.put_nowait, told)

    async def parts(self) -> AsyncIterator[str | tuple[int, Pass]]:
        """Yield the translated text part by part, and passes with their sentences' numbers."""
        translations: list[str | None] = [None] * len(self._futures)
        finished: set[int] = set()
        try:
            for piece in self.document.pieces:
                if not isinstance(piece, str) and piece.has_words:
                    last = piece.number + (2 if piece.things else 1)
                    for number in range(piece.number, last):
                        while number not in finished:
                            told = await self._told.get()
                            if isinstance(told, int):
                                finished.add(told)
                            else:
                                yield told
                        done = self._futures[number].result()
                        self.counts.add(done)
                        translations[number] = _text(done)
                if text := self.document.written(piece, translations, self.notes):
                    yield text
        finally:  # the client may have left
            self._left = True
            for future in self._futures:
                future.cancel()
