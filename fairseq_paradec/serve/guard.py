"""What every request meets first: limits, headers, counters and a line in the log."""

import asyncio
import ipaddress
import logging
import time
import traceback
from collections.abc import Callable, Mapping
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ..memory import give_back_memory
from .settings import ServerSettings

logger = logging.getLogger("fairseq_paradec.serve")

#: A page loads what the server itself sends, and asks nobody else.
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
HEADERS = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cache-control": "no-store",
}

#: A body that is too large is read on to so many times its limit, so that the client gets to read
#: the answer; a longer one ends with the connection.
READ_ON = 100

#: After so many bytes of bodies their memory is given back to the system, once nobody asks.
MUCH = 1 << 24


class Refused(HTTPException):
    """A request that is not answered; it has a status and a line of text."""


def error(status: int, text: str, headers: Mapping[str, str] | None = None) -> JSONResponse:
    """Return an answer that is an error, as LibreTranslate's are."""
    return JSONResponse({"error": text}, status, headers)


class Guard:
    """An application around another.

    Args:
        app: the other.
        settings: of the server.
        answered: is told of each answer: path of the route, status, seconds.
    """

    def __init__(
        self, app: ASGIApp, settings: ServerSettings, answered: Callable[[str, int, float], None]
    ) -> None:
        self.app, self.settings, self.answered = app, settings, answered
        self._open, self._taken = 0, 0  # requests; bytes of bodies since memory was given back

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        begin, status, method = time.perf_counter(), 0, scope["method"]
        if method == "HEAD":  # answered as GET is; uvicorn leaves the body out
            scope = {**scope, "method": "GET"}

        async def answer(message: Message) -> None:
            nonlocal status
            begins = message["type"] == "http.response.start"
            if begins:
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)  # which may wait until the client has read earlier answers
            if begins:
                status = message["status"]

        seconds = self.settings.timeout
        self._open += 1
        try:
            async with asyncio.timeout(seconds):
                await self._answer(scope, receive, answer)
        except TimeoutError:
            if status == 0:
                late = error(504, f"the request took longer than {seconds:g} seconds")
                await late(scope, receive, answer)
            else:  # the connection ends, and the answer is seen to be cut off
                logger.warning("an answer was cut off after %g seconds", seconds)
        except asyncio.CancelledError:  # the server ends, and has waited for --drain seconds
            if status == 0:
                again = {"Retry-After": "1"}
                await error(503, "the server ends", again)(scope, receive, answer)
            raise
        except Exception as fault:
            self._tell(fault)
            if status == 0:
                await error(500, "internal error")(scope, receive, answer)
        finally:
            taken = time.perf_counter() - begin
            path = getattr(scope.get("route"), "path", "other")
            self.answered(path, status, taken)
            logger.info("%s %s %d %.1f ms", method, path, status, 1000 * taken)
            self._open -= 1
            if self._taken > MUCH and not self._open:
                asyncio.get_running_loop().call_later(1, self._give_back)

    def _give_back(self) -> None:
        """Give memory of large bodies back, if still nobody asks."""
        if self._taken > MUCH and not self._open:
            self._taken = 0
            give_back_memory()

    def _tell(self, fault: Exception) -> None:
        """Log a fault of ours; its message may hold a text."""
        where = "".join(traceback.format_tb(fault.__traceback__))
        said = f": {fault}" if self.settings.log_texts else ""
        logger.error("internal error: %s%s\n%s", type(fault).__name__, said, where)

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request that is not refused at once."""
        headers, most = Headers(scope=scope), self.settings.max_body
        if not self._may_ask(headers):
            text = "cross-origin requests are not allowed (paradec serve --allow-origin)"
            return await error(403, text)(scope, receive, send)
        length = headers.get("content-length", "0")
        if length.isdecimal() and int(length) > most:
            waits = headers.get("expect", "").lower() == "100-continue"
            if not waits and int(length) <= READ_ON * most:
                while (message := await receive()).get("more_body", False):
                    del message
            return await error(413, too_large(most))(scope, receive, send)
        size = 0

        async def read() -> Message:
            nonlocal size
            message = await receive()
            size += len(message.get("body", b""))
            self._taken += len(message.get("body", b""))
            if size > most:
                raise Refused(413, too_large(most))
            return message

        await self.app(scope, read, send)

    def _may_ask(self, headers: Headers) -> bool:
        """Return whether the page that asks is this server's own, or one of an allowed origin."""
        origin = headers.get("origin")
        if origin is None or {"*", origin} & {*self.settings.origins}:
            return True
        try:
            page = urlsplit(origin)
        except ValueError:
            return False
        if page.netloc != headers.get("host"):
            return False
        # A stranger's name may lead to this machine, and then its page looks like our own.
        return is_local(page.hostname or "") or not is_local(self.settings.host)


def is_local(host: str) -> bool:
    """Return whether a name or address is this machine's own, which others cannot reach."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def too_large(most: int) -> str:
    """Return what is said of a body that is too large."""
    return f"the body has more than {most} bytes (paradec serve --max-body)"
