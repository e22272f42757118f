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

import uvicorn
from starlette.types import ASGIApp
from uvicorn.config import STARTUP_FAILURE
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.supervisors import Multiprocess

from ..errors import UsageError, option_error
from ..translator import model_folder
from .guard import logger
from .settings import ServerSettings

#: The environment's variable by which workers are told the settings.
TOLD = "PARADEC_SERVE"


class Connection(H11Protocol):
    """uvicorn's, which is closed if for ``config.timeout_keep_alive`` seconds no request begins.

    uvicorn's own waits without end for the first one, and for one whose head comes byte by byte.
    """

    _end: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin to wait for a request."""
        super().connection_made(transport)  # type: ignore[arg-type]
        self._wait()

    def on_response_complete(self) -> None:
        """Begin to wait for the next one."""
        super().on_response_complete()
        self._wait()

    def connection_lost(self, exc: Exception | None) -> None:
        """Wait no more."""
        super().connection_lost(exc)
        if self._end is not None:
            self._end.cancel()

    def _wait(self) -> None:
        if self._end is not None:
            self._end.cancel()
        self._end = self.loop.call_later(self.timeout_keep_alive, self._close_if_idle)

    def _close_if_idle(self) -> None:
        if self.cycle is None or self.cycle.response_complete:
            self.transport.close()


def config_of(settings: ServerSettings, app: ASGIApp | str) -> uvicorn.Config:
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


def set_up_log(settings: ServerSettings) -> None:
    """Log to standard error; texts of users only if that is asked for."""
    if not logger.handlers:
        handler = logging.StreamHandler(sys.stderr)
        handler.setFormatter(logging.Formatter("%(asctime)s %(message)s"))
        logger.addHandler(handler)
        logger.setLevel(logging.INFO)
        logger.propagate = False
    if not settings.log_texts:  # it quotes the beginning of sentences that it leaves out
        logging.getLogger("fairseq_paradec.methods.each_sentence").setLevel(logging.ERROR)


def worker() -> ASGIApp:
    """Return the application of a process that uvicorn has started."""
    from .app import make_app

    settings = ServerSettings.from_json(os.environ[TOLD])
    set_up_log(settings)
    app = make_app(settings)
    gc.freeze()  # see ``serve``
    return app


def bound(settings: ServerSettings) -> socket.socket:
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


def serve(settings: ServerSettings) -> None:
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


def _serve_by_many(settings: ServerSettings, listening: socket.socket, where: str) -> None:
    """Serve by several processes, which count together; see ``serve``."""
    for path in settings.models:  # said here, not by each of them
        model_folder.read(Path(path))
    with tempfile.TemporaryDirectory(prefix="paradec-serve-") as folder:
        os.environ |= {TOLD: settings.as_json(), "PROMETHEUS_MULTIPROC_DIR": folder}
        config = config_of(settings, f"{__name__}:worker")
        logger.info("serving at %s by %d processes", where, settings.workers)
        processes = Multiprocess(config, [listening])
        processes.run()
    if any(process.exitcode == STARTUP_FAILURE for process in processes.processes):
        raise UsageError("a process of --workers did not start; its message is above")
