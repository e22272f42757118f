"""Parts of ``paradec serve`` without a server: limits at their exact values, streams, counters."""

import asyncio
import socket
from collections.abc import AsyncIterator, Awaitable, Sequence
from concurrent.futures import Future
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from starlette.datastructures import Headers
from starlette.requests import Request

from fairseq_paradec.errors import UsageError
from fairseq_paradec.serve import guard as guards
from fairseq_paradec.serve.app import GONE, Routes, read_body, unless_gone, with_errors
from fairseq_paradec.serve.bodies import TranslateRequest
from fairseq_paradec.serve.fleet import Fleet
from fairseq_paradec.serve.guard import READ_ON, Guard, Refused, error, is_local
from fairseq_paradec.serve.metrics import Metrics
from fairseq_paradec.serve.run import bound
from fairseq_paradec.serve.scheduler import DecodingWay, Done, Full, Left
from fairseq_paradec.serve.settings import ServerSettings
from fairseq_paradec.serve.work import LONG, Counts, Stream, is_long, translate
from fairseq_paradec.translator.documents import Document
from fairseq_paradec.translator.translation import Translation

PAIR = ("en", "de")
WAY = DecodingWay(PAIR)
SETTINGS = ServerSettings(models=(), max_body=10, max_characters=10, max_beam=4)


# ---- bodies --------------------------------------------------------------------------------------


class Conversation:
    """A request whose body comes in parts to a Guard; the application reads it to its end."""

    def __init__(self, settings: ServerSettings, *parts: bytes, **headers: object) -> None:
        last = len(parts) - 1
        self.parts = [
            {"type": "http.request", "body": part, "more_body": number < last}
            for number, part in enumerate(parts)
        ]
        self.sent: list[Any] = []
        self.guard = Guard(self.application, settings, lambda *answered: None)
        named = [
            (name.replace("_", "-").encode(), str(text).encode()) for name, text in headers.items()
        ]
        scope = {"type": "http", "method": "POST", "headers": named}
        asyncio.run(self.guard(scope, self.receive, self.send))

    async def receive(self) -> Any:
        return self.parts.pop(0)

    async def send(self, message: Any) -> None:
        self.sent.append(message)

    async def application(self, scope: Any, receive: Any, send: Any) -> None:
        try:
            while (await receive())["more_body"]:
                pass
        except Refused as fault:
            return await error(fault.status_code, fault.detail)(scope, receive, send)
        await error(200, "")(scope, receive, send)

    @property
    def status(self) -> int:
        return self.sent[0]["status"]


@pytest.mark.parametrize("says", [True, False], ids=["with its length", "without"])
@pytest.mark.parametrize(
    ("parts", "status"),
    [
        ([b"a" * 10], 200),
        ([b"a" * 11], 413),
        ([b"a" * 4, b"a" * 6], 200),
        ([b"a" * 4, b"a" * 6, b"a"], 413),
    ],
)
def test_a_body_may_have_the_bytes_of_the_limit_and_no_more(parts, status, says):
    more = {"content_length": sum(map(len, parts))} if says else {}
    assert Conversation(SETTINGS, *parts, **more).status == status


@pytest.mark.parametrize(
    ("length", "headers", "left"),
    [
        (READ_ON * 10, {}, 0),
        (READ_ON * 10 + 1, {}, 2),
        (11, {"expect": "100-continue"}, 2),  # it is not sent unless that is asked for
    ],
)
def test_a_body_that_is_too_large_is_read_so_that_the_answer_is(length, headers, left):
    asked = Conversation(SETTINGS, b"a" * 5, b"a" * 6, content_length=length, **headers)
    assert (asked.status, len(asked.parts)) == (413, left)


def test_memory_of_bodies_is_given_back_once_nobody_asks(monkeypatch):
    given: list[None] = []
    monkeypatch.setattr(guards, "give_back_memory", lambda: given.append(None))
    monkeypatch.setattr(guards, "MUCH", 5)
    guard = Conversation(SETTINGS, b"a" * 6).guard
    assert (guard._open, guard._taken) == (0, 6)
    guard._open = 1
    guard._give_back()
    assert not given
    guard._open = 0
    guard._give_back()
    guard._give_back()
    assert len(given) == 1


def test_who_may_ask():
    def may(origin: str, asked: str, **settings: Any) -> bool:
        guard = Guard(None, replace(SETTINGS, **settings), lambda *answered: None)
        return guard._may_ask(Headers({"origin": origin, "host": asked}))

    assert may("http://a.org", "b.org", origins=("*",))
    assert not may("http://a.org", "b.org", origins=("http://b.org",))
    assert not may("http://a.org", "a.org")  # the server is at 127.0.0.1
    assert may("http://a.org", "a.org", host="0.0.0.0")
    assert [is_local(name) for name in ("localhost", "127.0.0.9", "::1")] == [True] * 3
    assert [is_local(name) for name in ("10.0.0.1", "192.168.1.2", "a.org")] == [False] * 3


# ---- what is asked -------------------------------------------------------------------------------


def routes(settings: ServerSettings) -> Routes:
    return Routes(None, None, None, settings)


def test_texts_may_have_the_characters_of_the_limit_and_no_more():
    routes(SETTINGS)._check_length(["a" * 4, "b" * 5, ""])
    with pytest.raises(Refused, match="have 11 characters; allowed: 10"):
        routes(SETTINGS)._check_length(["a" * 4, "b" * 6, ""])


def test_a_beam_may_be_as_wide_as_the_limit_and_holds_all_alternatives():
    def beam(others: int, **asked: Any) -> int:
        request = TranslateRequest(q="", target="de", **asked)
        return routes(SETTINGS)._way(PAIR, request, others, False).beam

    assert (beam(0), beam(0, beam=4), beam(3), beam(2, beam=4), beam(3, beam=2)) == (1, 4, 4, 4, 4)
    for others, asked in ((0, {"beam": 5}), (4, {})):
        with pytest.raises(Refused, match="got 5; allowed: at most 4"):
            beam(others, **asked)


def test_a_form_has_several_texts_and_empty_ones():
    async def receive() -> Any:
        return {"type": "http.request", "body": b"q=a&q=&target=de", "more_body": False}

    kind = (b"content-type", b"application/x-www-form-urlencoded")
    request = Request({"type": "http", "headers": [kind]}, receive)
    assert asyncio.run(read_body(request, TranslateRequest)).q == ["a", ""]


def test_who_is_refused_reads_when_to_come_again():
    def full() -> None:
        raise Full(7)

    with pytest.raises(Refused) as refused:
        with_errors(full)
    assert (refused.value.status_code, refused.value.headers) == (503, {"Retry-After": "7"})


def test_a_client_that_leaves_takes_its_work_along():
    async def receive() -> Any:
        return {"type": "http.disconnect"}

    async def run() -> bool:
        work: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        with pytest.raises(Refused) as refused:
            await unless_gone(Request({"type": "http"}, receive), work)
        assert (refused.value.status_code, refused.value.detail) == GONE
        await asyncio.sleep(0)
        return work.cancelled()

    assert asyncio.run(run())


def test_other_processes_are_told_all_settings():
    settings = ServerSettings(models=("a", "b"), api_keys=("c",), origins=("d",), drain=1.5)
    assert ServerSettings.from_json(settings.as_json()) == settings


def test_a_client_that_does_not_read_is_left_after_the_time_of_a_request():
    for seconds, milliseconds in ((1.5, 1500), (1e9, (1 << 31) - 1)):
        with bound(ServerSettings(models=(), port=0, timeout=seconds)) as listening:
            option = listening.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT)
            assert option == milliseconds


# ---- languages -----------------------------------------------------------------------------------


class Detector:
    """In place of lingua's: every text is probably Danish."""

    def compute_language_confidence_values(self, text: str) -> list[Any]:
        return [
            SimpleNamespace(
                language=SimpleNamespace(iso_code_639_1=SimpleNamespace(name=code)), value=value
            )
            for code, value in (("DA", 0.75), ("DE", 0.24), ("EN", 0.01), ("FR", 0.0099))
        ]


def fleet(*pairs: tuple[str, str], detector: Any = None) -> Fleet:
    made = Fleet([])
    made.models = dict.fromkeys(pairs)
    made.detector = detector
    return made


def test_languages_that_are_likely_are_named_by_how_likely_they_are():
    sure = {"da": 75.0, "de": 24.0, "en": 1.0}
    rows = fleet(detector=Detector()).detect("Hej")
    assert {row["language"]: row["confidence"] for row in rows} == sure
    detector = Detector()
    detector.compute_language_confidence_values = lambda text: [
        SimpleNamespace(language=SimpleNamespace(iso_code_639_1=SimpleNamespace(name=c)), value=0)
        for c in ("CS", "SK")
    ]
    assert fleet(detector=detector).detect("x") == [{"language": "cs", "confidence": 0}]


def test_the_source_is_the_likeliest_that_has_a_model():
    models = (("en", "fr"), ("de", "fr"), ("fr", "de"))
    assert fleet(*models, detector=Detector()).source_of("Hej", "fr") == ("de", 24.0)
    alone = fleet(("nl", "de"), ("fr", "en"), detector=Detector())
    assert alone.source_of("Hej", "de") == ("nl", None)
    known = fleet(("da", "de"), detector=Detector())
    assert known.source_of("Hej", "de") == ("da", 75.0)
    assert fleet(("nl", "de")).source_of("Hej", "de") == ("nl", None)
    with pytest.raises(LookupError, match="none of nl, cs"):
        fleet(("nl", "de"), ("cs", "de"), detector=Detector()).source_of("Hej", "de")
    with pytest.raises(LookupError, match="lingua is not installed"):
        fleet(*models).source_of("Hej", "fr")
    with pytest.raises(LookupError, match="target: 'en' is not supported; allowed: de, fr"):
        fleet(*models).source_of("Hej", "en")


def test_languages_are_listed_by_their_codes():
    assert fleet(("xx", "de"), ("de", "fr"), ("de", "en")).languages() == [
        {"code": "de", "name": "German", "targets": ["en", "fr"]},
        {"code": "xx", "name": "xx", "targets": ["de"]},
    ]


# ---- work ----------------------------------------------------------------------------------------


def test_texts_are_long_from_some_characters_on():
    assert not is_long(["a" * (LONG - 50)]) and is_long(["a" * (LONG - 49)])
    assert not is_long([""] * (LONG // 50)) and is_long([""] * (LONG // 50 + 1))


def done(text: str, **more: Any) -> Done:
    return Done(Translation(text, 0.0, None, 1), 0.0, 1.0)._replace(**more)


def test_a_request_costs_what_its_sentences_do():
    counts = Counts()
    assert counts.milliseconds == 0
    for accepted, rejected, begin, end in ((1, 2, 2.0, 4.0), (10, 20, 1.0, 3.0), (0, 0, 3.0, 3.5)):
        sentence = Translation("a", 0.0, None, 3, accepted, rejected, 5)
        counts.add(Done(sentence, begin, end))
    assert (counts.passes, counts.tokens) == (9, 15)
    assert (counts.accepted, counts.rejected, counts.milliseconds) == (11, 22, 3000.0)


class Waiting:
    """A scheduler of sentences that wait until a test decodes them."""

    def __init__(self) -> None:
        self.sentences: list[str] = []
        self.futures: list[Future[Done]] = []
        self.watches: Sequence[Any] = ()

    def submit(
        self, way: DecodingWay, sentences: Sequence[str], drafts: Any = None, watches: Any = None
    ) -> list[Future[Done]]:
        self.sentences, self.watches = list(sentences), watches or ()
        self.futures = [Future() for _ in sentences]
        return self.futures


async def parts_of(stream: Stream) -> list[Any]:
    return [part async for part in stream.parts()]


def test_a_stream_has_the_order_of_its_text_and_takes_the_second_translation_of_a_lost_thing():
    async def run() -> tuple[list[Any], Stream]:
        scheduler = Waiting()
        document = Document("See %s now. A dog.", "text", "en")
        stream = Stream(scheduler, WAY, document, None)
        assert scheduler.sentences == ["See %s now.", "See now.", "A dog."]
        texts = ["Sieh.", "Sieh nun.", "Ein Hund."]
        for future, text in reversed([*zip(scheduler.futures, texts, strict=True)]):
            future.set_result(done(text))
        return await parts_of(stream), stream

    parts, stream = asyncio.run(run())
    assert parts == ["Sieh %s nun. ", "Ein Hund."]
    assert stream.counts.passes == 3 and stream.notes == ["placed by position: %s in Sieh nun."]


def test_passes_are_sent_before_what_they_wrote_and_end_with_their_reader():
    async def run() -> None:
        scheduler = Waiting()
        document = Document("One. Two.", "text", "en")
        stream = Stream(scheduler, WAY._replace(traced=True), document, None)
        first, second = scheduler.watches
        second({"start": 7})
        first({"start": 0})
        scheduler.futures[0].set_result(done("Eins."))
        parts = stream.parts()
        assert isinstance(parts, AsyncIterator)
        assert [await anext(parts) for _ in range(3)] == [
            (1, {"start": 7}),
            (0, {"start": 0}),
            "Eins. ",
        ]
        await parts.aclose()
        assert scheduler.futures[1].cancelled()
        with pytest.raises(Left):
            second({"start": 8})

    asyncio.run(run())


def test_of_a_request_that_fails_or_is_left_nothing_more_is_decoded():
    async def ask(scheduler: Waiting) -> Awaitable[Any]:
        texts = ["One. Two.", "Three."]
        work = asyncio.ensure_future(translate(scheduler, WAY, texts, "text", None))
        while not scheduler.futures:
            await asyncio.sleep(0)
        return work

    async def run(fails: bool) -> list[bool]:
        scheduler = Waiting()
        work = await ask(scheduler)
        if fails:
            scheduler.futures[0].set_exception(UsageError("wrong"))
        else:
            await asyncio.sleep(0)
            work.cancel()
        with pytest.raises((UsageError, asyncio.CancelledError)):
            await work
        return [future.cancelled() for future in scheduler.futures]

    assert asyncio.run(run(True)) == [False, True, True]
    assert asyncio.run(run(False)) == [True, True, True]


def test_each_text_gets_its_own_sentences_and_alternatives():
    async def run() -> Any:
        scheduler = Waiting()
        texts = ["One. Two.", "", "Three.", "Four."]
        work = asyncio.ensure_future(
            translate(scheduler, WAY._replace(others=2), texts, "text", None)
        )
        while not scheduler.futures:
            await asyncio.sleep(0)
        for number, future in enumerate(scheduler.futures):
            others = (f"{number}b", f"{number}c")[: 2 - number % 2]  # every second has one alone
            future.set_result(Done(Translation(f"{number}a", 0.0, None, 1, others=others), 0, 1))
        return await work

    answer = asyncio.run(run())
    assert [text.text for text in answer.texts] == ["0a 1a", "", "2a", "3a"]
    assert answer.others == [["0b 1b", "0c 1b"], ["", ""], ["2b", "2c"], ["3b", "3b"]]


# ---- counters ------------------------------------------------------------------------------------


def test_every_counter_counts_what_it_says():
    metrics = Metrics()
    row = Translation("a", 0.0, None, 2, 3, 4, 5)
    metrics.decoded(WAY, [row, row], 0.25)
    metrics.decoded(DecodingWay(PAIR, "pgj", drafted=True), [row, row, row], 0.5)
    metrics.answered("/translate", 200, 0.75)
    lines = metrics.text(lambda: 6).decode().splitlines()
    for decoding, sentences, seconds in (("default", 2, 0.25), ("pgj", 3, 0.5)):
        by = f'{{decoding="{decoding}",model="en-de"}}'
        for name, count in (
            ("sentences_total", sentences),
            ("tokens_total", 5 * sentences),
            ("passes_total", 2 * sentences),
            ("batch_sentences_sum", sentences),
            ("batch_seconds_sum", seconds),
        ):
            assert f"paradec_{name}{by} {float(count)}" in lines
    predicted = [line for line in lines if line.startswith("paradec_prediction_tokens_total{")]
    by = 'decoding="pgj",model="en-de"'
    assert predicted == [
        f'paradec_prediction_tokens_total{{{by},verdict="accepted"}} 9.0',
        f'paradec_prediction_tokens_total{{{by},verdict="rejected"}} 12.0',
    ]
    assert 'paradec_requests_total{path="/translate",status="200"} 1.0' in lines
    assert 'paradec_request_seconds_sum{path="/translate"} 0.75' in lines
    assert "paradec_waiting_sentences 6.0" in lines
