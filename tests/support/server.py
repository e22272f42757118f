"""A server of ``paradec serve`` in a thread of the tests, and requests to it."""

import http.client
import json
import re
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, NamedTuple

import uvicorn

from fairseq_paradec.serve.app import make_app
from fairseq_paradec.serve.fleet import Fleet
from fairseq_paradec.serve.run import bound, config_of
from fairseq_paradec.serve.settings import ServerSettings
from support.commands import DEMO, ROOT, environment


class Reply(NamedTuple):
    """An answer: status, headers, body."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def value(self) -> Any:
        """The body, which is JSON."""
        return json.loads(self.body)

    @property
    def events(self) -> list[Any]:
        """The server-sent events; the last one must be ``[DONE]``."""
        *events, last, end = self.body.decode().split("\n\n")
        assert (last, end) == ("data: [DONE]", "")
        return [json.loads(one.removeprefix("data: ")) for one in events]


class Client:
    """Asks one server."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.url = f"http://127.0.0.1:{port}"

    def ask(self, method: str, path: str, body: bytes | None = None, **headers: str) -> Reply:
        """Send a request on a connection of its own."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=120)
        try:
            named = {name.replace("_", "-"): value for name, value in headers.items()}
            connection.request(method, path, body, named)
            found = connection.getresponse()
            return Reply(found.status, dict(found.getheaders()), found.read())
        finally:
            connection.close()

    def get(self, path: str, **headers: str) -> Reply:
        """Send a request without a body."""
        return self.ask("GET", path, **headers)

    def post(self, path: str, value: Any, **headers: str) -> Reply:
        """Send JSON."""
        return self.ask(
            "POST", path, json.dumps(value).encode(), content_type="application/json", **headers
        )

    def translate(self, q: Any, **more: Any) -> Any:
        """Return the answer of ``/translate``, which must go well."""
        found = self.post("/translate", {"q": q, "target": "de", **more})
        assert found.status == 200, found.body
        return found.value


@contextmanager
def serving(settings: ServerSettings, fleet: Fleet | None = None) -> Iterator[Client]:
    """Serve in a thread; at the end what was accepted is finished."""
    app = make_app(settings, fleet)
    with bound(settings) as listening:
        server = uvicorn.Server(config_of(settings, app))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
        thread.start()
        try:
            while not server.started and thread.is_alive():
                time.sleep(0.005)
            yield Client(listening.getsockname()[1])
        finally:
            server.should_exit = True
            thread.join()


@contextmanager
def process(
    *flags: str, env: Mapping[str, str] | None = None, python: Sequence[str] = (sys.executable,)
) -> Iterator[tuple["subprocess.Popen[str]", Client]]:
    """A server of the demo in a process of its own, and a client of it.

    Args:
        flags: more of the command's.
        env: more of its environment.
        python: what runs it.
    """
    words = [*python, "-m", "fairseq_paradec", "serve", "--model", str(DEMO), "--port", "0"]
    all_of = environment(env or {"PYTHONPATH": str(ROOT)})
    with subprocess.Popen(
        [*words, *flags], stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True, env=all_of
    ) as one:
        try:
            assert one.stderr is not None
            port = next(
                int(found[1])
                for line in one.stderr
                if (found := re.search(r"serving at http://127.0.0.1:(\d+)/", line))
            )
            with ThreadPoolExecutor(1) as reads:
                said = reads.submit(one.stderr.read)  # so that it never waits for us
                try:
                    yield one, Client(port)
                finally:
                    one.kill()
                    print(said.result()[-5000:])  # pytest shows it where a test fails
        finally:
            one.kill()
