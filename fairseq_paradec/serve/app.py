"""The routes."""

import asyncio
import hmac
import json
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Sequence
from contextlib import asynccontextmanager
from typing import Any, TypeVar
from urllib.parse import parse_qs

from fastapi import FastAPI, Request, Response
from fastapi.responses import JSONResponse, StreamingResponse
from pydantic import BaseModel, ValidationError
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp

from .. import __version__
from ..errors import UsageError
from ..translator.documents import Document
from . import bodies, pages
from .fleet import Fleet
from .guard import Guard, Refused, error, logger
from .metrics import Metrics
from .scheduler import DecodingWay, Full, Scheduler
from .settings import ServerSettings
from .work import Counts, Stream, aside, is_long, translate

M = TypeVar("M", bound=BaseModel)
T = TypeVar("T")

#: What nobody reads any more; the log has the status.
GONE = (499, "the client has left")


def make_app(settings: ServerSettings, fleet: Fleet | None = None) -> ASGIApp:
    """Return the application that serves some models.

    Args:
        settings: of the server.
        fleet: the models; None: ``settings.models`` are loaded.

    Raises:
        UsageError: a model folder is none, two are of the same languages, or ``settings.decoding``
            does not fit one.
    """
    fleet, metrics = fleet or Fleet(settings.models), Metrics()
    given = {"decoding": settings.decoding}
    if settings.decoding in (None, "auto_fast"):
        given["speed_profile"] = settings.speed_profile
    given |= settings.rules
    fleet.warm_up({name: value for name, value in given.items() if value is not None})
    scheduler = Scheduler(fleet, settings, metrics.decoded)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        yield
        await asyncio.to_thread(scheduler.close, settings.drain)

    app = FastAPI(
        title="paradec serve",
        version=__version__,
        description="Translations by parallel decoding.",
        docs_url=None,
        redoc_url=None,
        lifespan=lifespan,
    )

    @app.exception_handler(HTTPException)
    async def refused(request: Request, fault: Exception) -> Response:
        assert isinstance(fault, HTTPException)
        return error(fault.status_code, fault.detail, fault.headers)

    @app.exception_handler(Exception)
    async def failed(request: Request, fault: Exception) -> Response:
        return error(500, "internal error")  # the guard, to which it is raised, too, logs it

    Routes(fleet, scheduler, metrics, settings).add_to(app)
    outer: ASGIApp = app
    if settings.origins:
        allowed = {"allow_methods": ["GET", "POST"], "allow_headers": ["*"]}
        outer = CORSMiddleware(app, allow_origins=settings.origins, **allowed)  # type: ignore[arg-type]
    return Guard(outer, settings, metrics.answered)


class Routes:
    """What the routes need.

    Args:
        fleet: the models.
        scheduler: decodes.
        metrics: counts.
        settings: of the server.
    """

    def __init__(
        self, fleet: Fleet, scheduler: Scheduler, metrics: Metrics, settings: ServerSettings
    ) -> None:
        self.fleet, self.scheduler = fleet, scheduler
        self.metrics, self.settings = metrics, settings

    def add_to(self, app: FastAPI) -> None:
        """Add the routes to an application."""
        errors, most = bodies.ERRORS, self.settings.max_beam
        sources, targets = ([*dict.fromkeys(side)] for side in zip(*self.fleet.models, strict=True))
        known: dict[str, Any] = {
            **dict.fromkeys(("source", "source_language"), {"enum": ["auto", *sources]}),
            **dict.fromkeys(("target", "target_language"), {"enum": targets}),
            "model": {"enum": self.fleet.names},
            "beam": {"maximum": most},
            "alternatives": {"maximum": most - 1},
        }
        app.post(
            "/translate",
            response_model=bodies.TranslateAnswer,
            response_model_exclude_none=True,
            responses=errors,
            openapi_extra=bodies.accepts(bodies.TranslateRequest, known),
        )(self.translate)
        app.get("/languages", response_model=list[bodies.Language])(self.languages)
        app.post(
            "/detect",
            response_model=list[bodies.Detected],
            responses=errors | {501: {"model": bodies.Error, "description": "no detector"}},
            openapi_extra=bodies.accepts(bodies.DetectRequest, known),
        )(self.detect)
        app.post(
            "/v1/translations",
            response_model=bodies.TranslationAnswer,
            responses=errors,
            openapi_extra=bodies.accepts(bodies.TranslationRequest, known),
        )(self.translations)
        app.get("/health", response_model=bodies.Health)(self.health)
        app.get("/metrics", response_class=Response)(self.tell)
        app.get("/docs", include_in_schema=False)(lambda: pages.description(app.openapi()))
        for path in pages.FILES:
            app.get(path, include_in_schema=False)(pages.sender(path))

    # ---- LibreTranslate's ----------------------------------------------------------------------

    async def translate(self, request: Request) -> Any:
        """Translate a text, or several."""
        asked = await read_body(request, bodies.TranslateRequest)
        self._check_key(request, asked.api_key)
        texts = [asked.q] if isinstance(asked.q, str) else asked.q
        given = asked.prediction
        predictions = [given] if isinstance(given, str) else given
        if predictions is not None and len(predictions) != len(texts):
            raise Refused(400, f"prediction: got {len(predictions)}, and {len(texts)} texts")
        self._check_length([*texts, *(predictions or [])])
        pair, sure = self._pair("\n".join(texts), asked.source, asked.target)
        way = self._way(pair, asked, asked.alternatives, predictions is not None)
        translated = await unless_gone(
            request, translate(self.scheduler, way, texts, asked.format, predictions)
        )
        self._log_texts(texts)
        answer = {
            "translatedText": [text.text for text in translated.texts],
            "notes": [note for text in translated.texts for note in text.notes],
            "tokens": translated.counts.tokens,
            **costs(translated.counts),
        }
        if asked.alternatives > 0:
            answer["alternatives"] = translated.others
        if sure is not None:
            answer["detectedLanguage"] = [{"language": pair[0], "confidence": sure}] * len(texts)
        if isinstance(asked.q, str):
            for name in {"translatedText", "alternatives", "detectedLanguage"} & answer.keys():
                answer[name] = answer[name][0]
        return JSONResponse(answer)  # FastAPI would check it by the model, and copy it

    async def languages(self) -> Any:
        """List source languages and their targets."""
        return self.fleet.languages()

    async def detect(self, request: Request) -> Any:
        """Say in which language a text is."""
        asked = await read_body(request, bodies.DetectRequest)
        self._check_key(request, asked.api_key)
        self._check_length([asked.q])
        try:
            return await asyncio.to_thread(self.fleet.detect, asked.q)
        except LookupError as fault:
            raise Refused(501, str(fault)) from fault

    # ---- /v1/translations ----------------------------------------------------------------------

    async def translations(self, request: Request) -> Any:
        """Translate a text; with `stream` its parts are sent as they are done."""
        asked = await read_body(request, bodies.TranslationRequest)
        self._check_key(request, "")
        given = asked.prediction
        self._check_length([asked.text, *([given] if given else [])])
        pair, _ = self._pair(asked.text, asked.source_language, asked.target_language)
        name = "-".join(pair)
        if asked.model not in (None, name):
            raise Refused(400, f"model: got {asked.model!r}; allowed: {name}, or none")
        head = {"id": f"translation-{uuid.uuid4().hex}", "created": int(time.time()), "model": name}
        way = self._way(pair, asked, 0, given is not None)
        self._log_texts([asked.text])
        if asked.passes and not asked.stream:
            raise Refused(400, "passes needs stream")
        if asked.stream:
            way = way._replace(traced=asked.passes)
            events = self._events(head, way, asked)
            first = await anext(events)  # what is wrong with the request is said by its status
            return StreamingResponse(joined(first, events), media_type="text/event-stream")
        predictions = None if given is None else [given]
        translated = await unless_gone(
            request, translate(self.scheduler, way, [asked.text], asked.format, predictions)
        )
        (text,) = translated.texts
        answer = {"object": "translation", "text": text.text, "notes": text.notes}
        return JSONResponse(head | answer | {"usage": usage(translated.counts)})

    async def _events(
        self, head: dict[str, Any], way: DecodingWay, asked: bodies.TranslationRequest
    ) -> AsyncIterator[str]:
        """Yield the events of a translation: ``translation.pass``, ``.chunk``, ``[DONE]``."""
        text, given = asked.text, asked.prediction
        document = await aside(is_long([text]), Document, text, asked.format, way.pair[0])
        drafts = None if given is None else document.drafts(given)
        stream = with_errors(lambda: Stream(self.scheduler, way, document, drafts))
        parts = stream.parts()
        try:
            async for part in parts:
                if isinstance(part, str):
                    yield event(head | chunk(part))
                else:
                    number, watched = part
                    name = {"object": "translation.pass", "sentence": number}
                    yield event(head | name | {"pass": watched})
            last = chunk("", "stop") | {"notes": stream.notes, "usage": usage(stream.counts)}
            yield event(head | last)
            yield "data: [DONE]\n\n"
        except UsageError as fault:
            raise Refused(400, str(fault)) from fault
        finally:
            await parts.aclose()

    # ---- about the server ----------------------------------------------------------------------

    async def health(self) -> Any:
        """Say that the server works, and what it has."""
        return {
            "models": self.fleet.names,
            "waiting": self.scheduler.waiting,
            "decoders": self.fleet.decoders,
            "needs_key": bool(self.settings.api_keys),
            "version": __version__,
        }

    async def tell(self) -> Response:
        """Tell what was counted, in Prometheus's form."""
        text = self.metrics.text(lambda: self.scheduler.waiting)
        return Response(text, media_type="text/plain; version=0.0.4; charset=utf-8")

    # ---- what is asked -------------------------------------------------------------------------

    def _check_key(self, request: Request, given: str) -> None:
        """Refuse a request without a key, if keys are needed."""
        keys = self.settings.api_keys
        scheme, _, bearer = request.headers.get("authorization", "").partition(" ")
        if scheme.lower() != "bearer":
            bearer = ""
        known = [
            hmac.compare_digest(key.encode(), shown.encode())
            for key in keys
            for shown in (given, bearer.strip())
        ]
        if keys and not any(known):
            raise Refused(403, "the API key is missing or wrong")

    def _check_length(self, texts: Sequence[str]) -> None:
        """Refuse texts that are too long together; an empty one counts as a character."""
        most, count = self.settings.max_characters, sum(max(1, len(text)) for text in texts)
        if count > most:
            text = f"the texts have {count} characters; allowed: {most}"
            raise Refused(413, f"{text} (paradec serve --max-characters)")

    def _pair(self, text: str, source: str, target: str) -> tuple[tuple[str, str], float | None]:
        """Return the languages of a request, and how sure a detected one is."""
        sure = None
        if source == "auto":
            try:
                source, sure = self.fleet.source_of(text, target)
            except LookupError as fault:
                raise Refused(400, str(fault)) from fault
        if (source, target) not in self.fleet.models:
            allowed = ", ".join(self.fleet.names)
            given = f"{source} to {target}".encode("unicode_escape").decode()
            raise Refused(400, f"{given} is not supported; allowed: {allowed}")
        return (source, target), sure

    def _way(
        self,
        pair: tuple[str, str],
        asked: bodies.TranslateRequest | bodies.TranslationRequest,
        others: int,
        drafted: bool,
    ) -> DecodingWay:
        """Return how a request is decoded."""
        beam = max(asked.beam or 1, others + 1)
        if beam > self.settings.max_beam:
            allowed = f"at most {self.settings.max_beam} (paradec serve --max-beam)"
            raise Refused(400, f"beam, or alternatives + 1: got {beam}; allowed: {allowed}")
        return DecodingWay(pair, asked.decoding or self.settings.decoding, beam, others, drafted)

    def _log_texts(self, texts: Sequence[str]) -> None:
        """Log the texts of a request, if that is asked for."""
        if self.settings.log_texts:
            logger.info("texts: %s", json.dumps(texts, ensure_ascii=False))


async def read_body(request: Request, model: type[M]) -> M:
    """Read the body of a request, JSON or a form."""
    try:
        raw = await request.body()
    except ClientDisconnect:
        raise Refused(*GONE) from None
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    is_form = kind == bodies.FORM
    if kind.startswith("multipart/"):
        raise Refused(400, f"content-type: got {kind}; allowed: {', '.join(bodies.TYPES)}")
    try:
        if is_form:
            fields = parse_qs(raw.decode(), keep_blank_values=True, errors="strict")
            values = {name: given if given[1:] else given[0] for name, given in fields.items()}
            return model.model_validate(values)
        return model.model_validate_json(raw)
    except ValidationError as fault:
        wrong = fault.errors(include_input=False, include_url=False)[0]
        name = f"{wrong['loc'][0]}: " if wrong["loc"] else ""
        read_as = f" (content-type is {bodies.FORM})" if is_form else ""
        raise Refused(400, f"{name}{wrong['msg']}{read_as}") from None
    except ValueError:
        raise Refused(400, "the body is no form in UTF-8") from None


async def unless_gone(request: Request, work: Awaitable[T]) -> T:
    """Wait for something unless the client leaves, or what was asked cannot be done."""
    task = asyncio.ensure_future(work)
    gone = asyncio.ensure_future(left(request))
    try:
        await asyncio.wait({task, gone}, return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise Refused(*GONE)
        return with_errors(task.result)
    finally:
        task.cancel()
        gone.cancel()


async def left(request: Request) -> None:
    """Wait until the client leaves; the body has been read."""
    while (await request.receive())["type"] != "http.disconnect":
        pass


def with_errors(function: Any) -> Any:
    """Call a function, and turn its errors into answers."""
    try:
        return function()
    except UsageError as fault:
        raise Refused(400, str(fault)) from fault
    except Full as fault:
        wait = {"Retry-After": str(fault.seconds)}
        raise Refused(503, "too many sentences wait (paradec serve --max-waiting)", wait) from fault


def costs(counts: Counts) -> dict[str, Any]:
    """Return what a request has cost, for its answer."""
    return {
        "passes": counts.passes,
        "accepted_prediction_tokens": counts.accepted,
        "rejected_prediction_tokens": counts.rejected,
        "milliseconds": counts.milliseconds,
    }


def usage(counts: Counts) -> dict[str, Any]:
    """Return the same in the form of ``/v1``."""
    return {"completion_tokens": counts.tokens, **costs(counts)}


def chunk(text: str, finish: str | None = None) -> dict[str, Any]:
    """Return a part of a text, as an event has it."""
    choice = {"index": 0, "delta": {"content": text}, "finish_reason": finish}
    return {"object": "translation.chunk", "choices": [choice]}


def event(value: dict[str, Any]) -> str:
    """Return a server-sent event."""
    return f"data: {json.dumps(value, ensure_ascii=False, allow_nan=False)}\n\n"


async def joined(first: str, rest: AsyncIterator[str]) -> AsyncIterator[str]:
    """Yield a first event and the rest; a fault in between is an event, too."""
    yield first
    try:
        async for later in rest:
            yield later
    except Exception as fault:
        logger.error("a stream fails (%s)", type(fault).__name__)
        yield event({"error": "internal error"})
