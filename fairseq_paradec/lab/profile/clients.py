"""``profile clients``: what clients of ``paradec serve`` get, beside what needs no server."""

import asyncio
import contextlib
import itertools
import json
import os
import random
import re
import subprocess
import tempfile
import threading
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Sequence
from functools import partial
from pathlib import Path
from statistics import median, quantiles
from typing import Any, NamedTuple

import torch

from ... import files
from ...config import flag
from ...errors import UsageError, option_error
from ...translator import model_folder
from ...translator.documents import Document
from ...translator.translator import BATCH_SIZE, BUFFER_SIZE, Translator
from ..data.table import Table, Value, column
from ..measure import machine, rounds
from ..measure.drafts import typed
from .asked import Clients
from .harness import PARADEC

#: The share of what many clients get at which requests come at random.
LOAD = 0.7
#: At most so often all is measured before the rounds, until auto_fast has found nothing new.
WARM_UP = 8


class Answered(NamedTuple):
    """What some requests have given."""

    seconds: float  # from the first one to the last answer
    answers: list[str]  # in the order of the texts
    each: list[float]  # seconds of each request; empty: they were not timed one by one


class Measured(NamedTuple):
    """A measurement of one round."""

    served: float  # by the server
    beside: float  # what stands beside it
    ratio: float  # of the two, as its target has it


# ---- clients -------------------------------------------------------------------------------------


class Connection:
    """A connection to the server, for one request after another."""

    def __init__(self, *streams: Any) -> None:
        self.reader, self.writer = streams

    async def ask(self, **asked: Any) -> str:
        """Return the translation of ``q``, a text.

        Raises:
            UsageError: the server refuses.
        """
        body = json.dumps(asked).encode()
        head = "POST /translate HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
        self.writer.write(f"{head}content-length: {len(body)}\r\n\r\n".encode() + body)
        answer = (await self.reader.readuntil(b"\r\n\r\n")).lower()
        length = answer.partition(b"content-length: ")[2].partition(b"\r")[0]
        reply = json.loads(await self.reader.readexactly(int(length)))
        if not answer.startswith(b"http/1.1 200 "):
            raise UsageError(f"paradec serve: {reply['error']}")
        text: str = reply["translatedText"]
        return text


async def connect(port: int) -> Connection:
    """Open a connection."""
    return Connection(*await asyncio.open_connection("127.0.0.1", port))


@contextlib.asynccontextmanager
async def connections(port: int, count: int) -> AsyncIterator[list[Connection]]:
    """Open connections; all in the list are closed at the end, after an error, too."""
    opened = [await connect(port) for _ in range(count)]
    try:
        yield opened
    finally:
        for connection in opened:
            connection.writer.close()


async def in_turn(port: int, asked: Sequence[dict[str, str]], clients: int) -> Answered:
    """Ask by so many clients at once; each asks again when it has its answer."""
    answers, each, numbers = [""] * len(asked), [0.0] * len(asked), iter(range(len(asked)))

    async def client(connection: Connection) -> None:
        for number in numbers:
            begin = time.perf_counter()
            answers[number] = await connection.ask(**asked[number])
            each[number] = time.perf_counter() - begin

    async with connections(port, clients) as opened:
        begin = time.perf_counter()
        await asyncio.gather(*map(client, opened))
        return Answered(time.perf_counter() - begin, answers, each)


async def at_random(port: int, asked: Sequence[dict[str, str]], rate: float, seed: int) -> Answered:
    """Ask so many times a second, at random, whether those before have their answers or not.

    A request's seconds count from the time at which it was to be sent.
    """
    answers, each, draws = [""] * len(asked), [0.0] * len(asked), random.Random(seed)

    async with connections(port, 8) as opened:
        free = list(opened)

        async def client(number: int, due: float) -> None:
            await asyncio.sleep(due - time.perf_counter())
            if not free:
                opened.append(await connect(port))
                free.append(opened[-1])
            connection = free.pop()
            answers[number] = await connection.ask(**asked[number])
            each[number] = time.perf_counter() - due
            free.append(connection)

        begin = due = time.perf_counter()
        tasks = []
        for number in range(len(asked)):
            due += draws.expovariate(rate)
            tasks.append(client(number, due))
        await asyncio.gather(*tasks)
        return Answered(time.perf_counter() - begin, answers, each)


async def typing(port: int, asked: Sequence[dict[str, str]], drafted: bool) -> Answered:
    """Ask for texts one after another; the prediction of each is the last answer, if wanted."""
    answers = [""]
    async with connections(port, 1) as (connection,):
        begin = time.perf_counter()
        for body in asked:
            more = {"prediction": answers[-1]} if drafted and " " in body["q"] else {}
            answers.append(await connection.ask(**body, **more))
        return Answered(time.perf_counter() - begin, answers[1:], [])


# ---- what stands beside them ---------------------------------------------------------------------


def called(translator: Translator, lines: Sequence[str], options: dict[str, str]) -> Answered:
    """Translate lines one after another in this process."""
    answers, each = [], []
    for line in lines:
        begin = time.perf_counter()
        answers += translator.translate([line], **options)
        each.append(time.perf_counter() - begin)
    return Answered(sum(each), answers, each)


def piped(process: subprocess.Popen[str], lines: Sequence[str]) -> Answered:
    """Send lines to ``paradec translate``, and wait for their translations.

    Raises:
        UsageError: it ends.
    """
    assert process.stdin is not None and process.stdout is not None
    begin = time.perf_counter()
    with contextlib.suppress(BrokenPipeError):  # it says why
        process.stdin.write("".join(f"{line}\n" for line in lines))
        process.stdin.flush()
    answers = [answer.rstrip("\n") for answer in itertools.islice(process.stdout, len(lines))]
    if len(answers) < len(lines):
        raise UsageError("paradec translate ends, for the reason above")
    return Answered(time.perf_counter() - begin, answers, [])


@contextlib.contextmanager
def started(words: Sequence[str], **pipes: int) -> Iterator[subprocess.Popen[str]]:
    """Run a command of this package, which prints each line at once; end it at the end."""
    env = os.environ | {"PYTHONUNBUFFERED": "1"}
    with subprocess.Popen([*PARADEC, *words], env=env, encoding="utf-8", **pipes) as process:  # type: ignore[call-overload]
        try:
            yield process
        finally:
            process.terminate()


def port_of(server: subprocess.Popen[str]) -> int:
    """Wait until a server serves, and return its port; what it says later is read and not kept.

    Raises:
        UsageError: it ends.
    """
    assert server.stderr is not None
    said = ""
    for said in server.stderr:
        if serving := re.search(r"serving at http://127.0.0.1:(\d+)/", said):
            threading.Thread(target=server.stderr.read, daemon=True).start()
            return int(serving[1])
    raise UsageError(said.strip() or "paradec serve ends")


# ---- the measurements ----------------------------------------------------------------------------


class Bench:
    """A server, a ``paradec translate`` and a model in this process; all answers must be alike."""

    def __init__(
        self,
        asked: Clients,
        lines: Sequence[str],
        options: dict[str, str],
        server: subprocess.Popen[str],
        translate: subprocess.Popen[str],
    ) -> None:
        self.asked, self.options, self.server, self.translate = asked, options, server, translate
        self.lines = [*itertools.islice(itertools.cycle(lines), full(asked.limit))]
        self.alone, self.typed = self.lines[: asked.alone], typed(lines[: asked.typed]).texts
        self.translator = Translator(asked.model)
        folder = self.translator.folder
        self.pair = {"source": folder.source, "target": folder.target}
        self.computed: dict[str, list[float]] = {"translate": [], "serve": []}
        self.wanted: dict[str, str] = {}
        self.others: list[float | None] = []
        self.turn = 0
        # What auto_fast measures here and by batches the server reads, and does not measure anew.
        self.same(self.alone, called(self.translator, self.alone, options))
        self.beside_many()
        self.port, self.rate = port_of(server), 1.0
        profile, known = Path(options.get("speed_profile", os.devnull)), b"nothing"
        for _ in range(WARM_UP):
            for measure in (self.many, self.one, self.typing, self.load):
                measure()
            before, known = known, profile.read_bytes()
            if known == before:
                break
        for times in self.computed.values():
            times.clear()
        self.turn = 0  # so that requests come at the same times in each run

    def undisturbed(self, measure: Callable[[], Measured]) -> Measured:
        """Measure on an idle machine, and note how many cores others use meanwhile."""
        measured, used = rounds.undisturbed(measure, self.asked.busy)
        self.others.append(used)
        return measured

    def same(self, texts: Sequence[str], answered: Answered) -> Answered:
        """Return the answers.

        Raises:
            UsageError: an answer is another than before.
        """
        for text, answer in zip(texts, answered.answers, strict=True):
            if self.wanted.setdefault(text, answer) != answer:
                raise UsageError(f"{text!r}: got {answer!r}, and {self.wanted[text]!r} before")
        return answered

    def ask(
        self,
        how: Callable[..., Coroutine[Any, Any, Answered]],
        texts: Sequence[str],
        *more: Any,
        **asked: str,
    ) -> Answered:
        """Ask the server for texts, each by itself."""
        bodies = [{"q": text, **self.pair, **asked} for text in texts]
        return self.same(texts, asyncio.run(how(self.port, bodies, *more)))

    def counting(self, name: str, work: Callable[[], Answered]) -> Answered:
        """Note how many milliseconds a process computes for each of all lines."""
        process = self.server if name == "serve" else self.translate
        before = machine.processor_seconds(process.pid)
        answered = work()
        each = (machine.processor_seconds(process.pid) - before) / len(self.lines)
        self.computed[name].append(1000 * each)
        return answered

    def beside_many(self) -> float:
        """Sentences a second of ``paradec translate``."""
        work = partial(piped, self.translate, self.lines)
        answered = self.same(self.lines, self.counting("translate", work))
        return len(self.lines) / answered.seconds

    def many(self) -> Measured:
        """Sentences a second of many clients."""
        work = partial(self.ask, in_turn, self.lines, self.asked.clients)
        self.rate = len(self.lines) / self.counting("serve", work).seconds
        beside = self.beside_many()
        return Measured(self.rate, beside, self.rate / beside)

    def one(self) -> Measured:
        """Milliseconds a sentence of one client, the median."""
        served = 1000 * median(self.ask(in_turn, self.alone, 1).each)
        answered = self.same(self.alone, called(self.translator, self.alone, self.options))
        beside = 1000 * median(answered.each)
        return Measured(served, beside, served / beside)

    def load(self) -> Measured:
        """Milliseconds of requests that come at random: the 99th percentile beside the median."""
        self.turn += 1
        answered = self.ask(at_random, self.lines, LOAD * self.rate, self.turn)
        percentiles = quantiles(answered.each, n=100)
        late, middle = 1000 * percentiles[98], 1000 * percentiles[49]
        return Measured(late, middle, late / middle)

    def typing(self) -> Measured:
        """Milliseconds a text where it is typed, beside greedy search, which drafts nothing."""
        count = len(self.typed)
        served = 1000 * self.ask(typing, self.typed, True).seconds / count
        beside = 1000 * self.ask(typing, self.typed, False, decoding="greedy").seconds / count
        return Measured(served, beside, beside / served)


def is_one(line: str, language: str) -> bool:
    """Return whether a line is one sentence: of several, a server translates each by itself."""
    return Document(line, "text", language).sentences == [line]


def full(limit: int) -> int:
    """Return the number of lines that fill the buffers of ``paradec translate``, at most so many.

    It answers when one is full.
    """
    return limit if limit < BUFFER_SIZE else limit // BUFFER_SIZE * BUFFER_SIZE


def measure(asked: Clients) -> Table:
    """Measure; return the table.

    Raises:
        UsageError: FILE is no text, a process ends, or answers are not alike.
    """
    torch.set_num_threads(asked.threads)
    text = files.read("FILE", str(asked.file))
    language = model_folder.read(asked.model).source
    lines = [line for line in map(str.strip, text.splitlines()) if is_one(line, language)]
    if not lines:
        raise option_error("FILE", str(asked.file), "a file with a sentence a line")
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        profile = str(Path(folder) / "speeds.json")
        options = {"decoding": asked.decoding} if asked.decoding else {"speed_profile": profile}
        same = ["--model", str(asked.model)]
        for name, value in options.items():
            same += [flag(name), value]
        buffer = str(min(full(asked.limit), BUFFER_SIZE))
        pipe, threads = subprocess.PIPE, str(asked.threads)
        serve = ["serve", *same, "--port", "0", "--cores", threads, "--idle", "3600"]
        translate = ["translate", *same, "--threads", threads, "--buffer-size", buffer]
        bench = Bench(
            asked,
            lines,
            options,
            stack.enter_context(started(serve, stderr=pipe)),
            stack.enter_context(started(translate, stdin=pipe, stdout=pipe)),
        )
        measures = [bench.many, bench.one, bench.load, bench.typing]
        by_round = [[*map(bench.undisturbed, measures)] for _ in range(asked.rounds)]
    computed = {name: median(times) for name, times in bench.computed.items()}
    about = (
        (f"{asked.clients} clients", "sentences/s", f"translate, batch {BATCH_SIZE}", "≥ 0.85"),
        ("1 client", "ms, median", "a call in Python", "≤ 1.15"),
        (f"{LOAD:.0%} load", "ms, p99", "p50", "≤ 4"),
        ("typed, prediction", "ms a text", "greedy, without", "≥ 2.2"),
    )
    rows = []
    for labels, own in zip(about, zip(*by_round, strict=True), strict=True):
        rows.append(
            {
                "clients": labels[0],
                "unit": labels[1],
                "served": round(median(each.served for each in own), 2),
                "beside_it": labels[2],
                "that": round(median(each.beside for each in own), 2),
                column("ratio", form=".2f"): Value.of([each.ratio for each in own]),
                "target": labels[3],
            }
        )
    notes = [
        f"{asked.model.name}, fp32; {len(bench.lines)} lines of {asked.file.name} that are one "
        f"sentence, a request each; {len(bench.alone)} of one client, {len(bench.typed)} texts "
        f"typed of {asked.typed} lines. "
        "Every answer was that of `paradec translate`.",
        f"Server and clients on this machine, {asked.threads} thread(s) each; medians of "
        f"{asked.rounds} rounds (lowest-highest); {rounds.others_used(bench.others, asked.busy)}.",
        f"Processor, a sentence: {computed['serve']:.2f} ms of the server with {asked.clients} "
        f"clients, {computed['translate']:.2f} ms of `paradec translate`.",
        f"Load: requests come at random at {LOAD:g} of the round's rate of {asked.clients} "
        "clients; their milliseconds count from the time at which they were to be sent.",
    ]
    return Table.of(rows, notes=notes)
