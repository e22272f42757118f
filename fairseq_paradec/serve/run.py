"""The processes of a server: one, or several that listen at one address."""

import asyncio
import gc
import logging
import os
import resource
import signal
import socket
import sys
import tempfile
from pathlib import Path

import httptools
import uvicorn
from starlette.types import ASGIApp
from uvicorn.config import STARTUP_FAILURE
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.supervisors import Multiprocess

from ..errors import UsageError, option_error
from ..translator import model_folder
from .guard import logger
from .settings import Settings

#: The environment's variable by which workers are told the settings.
TOLD = "PARADEC_SERVE"

#: Bytes of a request's head, at most.
MOST_HEAD = 1 << 16

#: Bytes that are parsed at once; so many small requests wait in memory that these have, at most.
PIECE = 1 << 12


class _Flow(FlowControl):
    """Whether a connection is read; while it is held, no request that is answered reads on."""

    held = False

    def resume_reading(self) -> None:
        """Read on."""
        if not self.held:
            super().resume_reading()


class Connection(HttpToolsProtocol):
    """uvicorn's, with limits and an order that its own does not have.

    It is closed if for ``config.timeout_keep_alive`` seconds no request begins, the first one and
    one whose head comes byte by byte among them; and if head, trailers and sizes of chunks have
    ``MOST_HEAD`` bytes more than eight times the body's. What comes while a request waits for the
    answer to another is neither parsed nor read on. A wrong request is refused behind the answers
    to those before it. One that asks for another protocol is answered in this one.
    """

    flow: _Flow
    _end: asyncio.TimerHandle | None = None
    _head = 0  # bytes of the request so far, less eight for each of its body
    _fault = ""  # why nothing is parsed any more
    _goes_on = False  # whether the parser reads the head of a request again

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin to wait for a request."""
        super().connection_made(transport)  # type: ignore[arg-type]
        self.flow = _Flow(transport)  # type: ignore[arg-type]
        self._unread = bytearray()
        self._wait()

    def data_received(self, data: bytes) -> None:
        """Read on."""
        self._unread += data
        self._parse()

    def _parse(self) -> None:
        """Parse what has come, until a request waits for the answer to another."""
        while self._unread and not (self.pipeline or self._fault or self.transport.is_closing()):
            self._unset_keepalive_if_required()
            piece = bytes(self._unread[:PIECE])
            del self._unread[:PIECE]
            self._head += len(piece)
            try:
                self.parser.feed_data(piece)
            except httptools.HttpParserUpgrade as upgrade:
                self._unread[:0] = piece[upgrade.args[0] :]
                self._go_on()
            except httptools.HttpParserError:
                self._fault = "The request is no HTTP."
            if self._head > MOST_HEAD:
                self._fault = f"The head has more than {MOST_HEAD} bytes."
        held, self.flow.held = self.flow.held, bool(self._unread or self._fault)
        if self.flow.held:
            self.flow.pause_reading()
        elif held and not self.pipeline:
            self.flow.resume_reading()
        if self._fault and not self.pipeline and not self.transport.is_closing():
            one = self.cycle
            if one is None or one.response_complete or one.more_body:  # else it is answered first
                self.logger.warning(self._fault)
                self.send_400_response(self._fault)

    def _go_on(self) -> None:
        """Go on behind a head that asks for another protocol; httptools has skipped the body."""
        frame = [
            name + b": " + value + b"\r\n"
            for name, value in self.headers
            if name in (b"content-length", b"transfer-encoding")
        ]
        self.parser = httptools.HttpRequestParser(self)
        self._goes_on = True
        self.parser.feed_data(b"".join([b"POST / HTTP/1.1\r\n", *frame, b"\r\n"]))
        self._goes_on = False

    def on_headers_complete(self) -> None:
        """Begin to answer a request.

        Raises:
            ValueError: it names no host, or several.
        """
        if self._goes_on:
            return
        hosts = [name for name, _ in self.headers].count(b"host")
        if hosts > 1 or (hosts == 0 and self.parser.get_http_version() == "1.1"):
            raise ValueError("host")
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        """Note a part of the body."""
        self._head -= 8 * len(body)
        super().on_body(body)

    def on_message_complete(self) -> None:
        """Begin to count anew."""
        if not self.parser.should_upgrade():  # else it goes on
            self._head = 0
            super().on_message_complete()

    def on_response_complete(self) -> None:
        """Begin to wait for the next one."""
        super().on_response_complete()
        self._wait()
        self._parse()

    def connection_lost(self, exc: Exception | None) -> None:
        """Wait no more."""
        super().connection_lost(exc)
        self._unread.clear()
        if self._end is not None:
            self._end.cancel()

    def _wait(self) -> None:
        if self._end is not None:
            self._end.cancel()
        self._end = self.loop.call_later(self.timeout_keep_alive, self._close_if_idle)

    def _close_if_idle(self) -> None:
        if self.cycle is None or self.cycle.response_complete:
            self.transport.close()


def config_of(settings: Settings, app: ASGIApp | str) -> uvicorn.Config:
    """Return uvicorn's settings."""
    return uvicorn.Config(
        app,
        factory=isinstance(app, str),
        host=settings.host,
        port=settings.port,
        workers=settings.workers,
        http=Connection,
        ws="none",
        log_config=None,
        log_level="warning",
        access_log=False,
        server_header=False,
        proxy_headers=False,
        timeout_keep_alive=settings.idle,  # type: ignore[arg-type]
        timeout_graceful_shutdown=settings.drain,  # type: ignore[arg-type]
        timeout_worker_healthcheck=600,  # loading a model takes time
    )


def set_up_log(settings: Settings) -> None:
    """Log to standard error; texts of users only if that is asked for."""
    if not logger.handlers:
        handler = logging.StreamHandler(sys.stderr)
        handler.setFormatter(logging.Formatter("%(asctime)s %(message)s"))
        logger.addHandler(handler)
        logger.setLevel(logging.INFO)
        logger.propagate = False
    if not settings.log_texts:  # it quotes the beginning of sentences that it leaves out
        logging.getLogger("fairseq_paradec.plugin.tasks.batches").setLevel(logging.ERROR)


def worker() -> ASGIApp:
    """Return the application of a process that uvicorn has started."""
    from .. import register
    from .app import make_app

    settings = Settings.from_json(os.environ[TOLD])
    register()
    set_up_log(settings)
    app = make_app(settings)
    gc.freeze()  # see ``serve``
    return app


def bound(settings: Settings) -> socket.socket:
    """Return a socket that listens at the address.

    Raises:
        UsageError: the address is taken, or none of this machine.
    """
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    try:
        listening = socket.create_server(
            (settings.host, settings.port), family=family, backlog=2048
        )
    except OSError as error:
        given = f"{settings.host}:{settings.port}"
        allowed = f"a free address of this machine ({error.strerror})"
        raise option_error("--host, --port", given, allowed) from error
    # asyncio does so only for a socket that names its protocol. Else the body of an answer waits
    # until the client has acknowledged the head: 40 ms on a connection that is kept.
    listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    if hasattr(socket, "TCP_USER_TIMEOUT"):  # Linux's; a client that does not read is left then
        unread = min(round(1000 * settings.timeout), (1 << 31) - 1)
        listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, unread)
    return listening


def url_of(host: str, port: int) -> str:
    """Return the address for a browser; one of IPv6 is in brackets there."""
    return f"http://{f'[{host}]' if ':' in host else host}:{port}/"


def serve(settings: Settings) -> None:
    """Serve until SIGTERM or Ctrl-C; requests that were accepted are finished first.

    Raises:
        UsageError: a model folder is none, two are of the same languages, or the address is taken.
        KeyboardInterrupt: after Ctrl-C.
    """
    set_up_log(settings)
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))  # idle connections are files, too
    with bound(settings) as listening:
        port = listening.getsockname()[1]
        where = url_of(settings.host, port)
        if settings.workers > 1:
            _serve_by_many(settings, listening, where)
            return
        from .app import make_app

        app = make_app(settings)
        gc.freeze()  # what is loaded stays; a collection that goes through it holds up all requests
        logger.info("serving at %s", where)
        # uvicorn finishes, and then sends itself the signal again: this is what ends with 0.
        before = signal.signal(signal.SIGTERM, lambda *_: None)
        try:
            uvicorn.Server(config_of(settings, app)).run(sockets=[listening])
        finally:
            signal.signal(signal.SIGTERM, before)


def _serve_by_many(settings: Settings, listening: socket.socket, where: str) -> None:
    """Serve by several processes, which count together; see ``serve``."""
    for path in settings.models:  # said here, not by each of them
        model_folder.read(Path(path))
    with tempfile.TemporaryDirectory(prefix="paradec-serve-") as folder:
        os.environ |= {TOLD: settings.as_json(), "PROMETHEUS_MULTIPROC_DIR": folder}
        config = config_of(settings, f"{__name__}:worker")
        logger.info("serving at %s by %d processes", where, settings.workers)
        processes = Multiprocess(config, [listening])
        processes.run()
    if any(one.exitcode == STARTUP_FAILURE for one in processes.processes):
        raise UsageError("a process of --workers did not start; its message is above")
