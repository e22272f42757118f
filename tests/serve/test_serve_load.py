"""``paradec serve`` under load: many clients, bad ones, faults nobody thought of, and its end."""

import asyncio
import json
import os
import random
import re
import resource
import signal
import socket
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import hypothesis
import pytest
from support.commands import DEMO, wait_until
from support.markup_texts import HTML_TEXT, MARKDOWN_TEXT, kept
from support.server import process, serving

import fairseq_paradec
from fairseq_paradec.errors import UsageError
from fairseq_paradec.lab.profile import clients
from fairseq_paradec.serve.settings import ServerSettings

pytestmark = pytest.mark.slow

LINES = (DEMO / "raw" / "demo.en").read_text("utf-8").splitlines()
SETTINGS = ServerSettings(models=(str(DEMO),), port=0, timeout=300)


@pytest.fixture(scope="module")
def client():
    with serving(SETTINGS) as one:
        yield one


def sentences(count):
    """Different sentences: the demo's, cut and joined."""
    chance = random.Random(3)
    words = [line.rstrip(" .").split() for line in LINES]
    return [
        " ".join(chance.choice(words)[: chance.randint(1, 9)] + chance.choice(words)[-5:]) + "."
        for _ in range(count)
    ]


def test_a_thousand_answers_are_those_of_translate_in_any_order_with_any_prediction(client):
    texts = sentences(1000)
    wanted = fairseq_paradec.load(DEMO).translate(texts, decoding="greedy")
    chance = random.Random(4)
    asked = [(i, chance.choice(["", wanted[i], chance.choice(wanted)])) for i in range(len(texts))]
    chance.shuffle(asked)

    def ask(one):
        number, prediction = one
        more = {"prediction": prediction} if prediction else {}
        return number, client.translate(texts[number], **more)["translatedText"]

    with ThreadPoolExecutor(32) as pool:
        found = dict(pool.map(ask, asked))
    assert [found[i] for i in range(len(texts))] == wanted


def test_what_more_than_it_can_serve_gets_is_an_answer_or_a_time_to_come_again():
    with serving(
        ServerSettings(models=(str(DEMO),), port=0, max_waiting=20, decoding="greedy")
    ) as one:
        wanted = one.translate(LINES)["translatedText"]

        def ask(number):
            line = number % len(LINES)
            found = one.post("/translate", {"q": LINES[line], "target": "de"})
            if found.status == 200:
                assert found.value["translatedText"] == wanted[line]
            else:
                assert found.status == 503 and 1 <= int(found.headers["retry-after"]) <= 60
            return found.status

        with ThreadPoolExecutor(64) as pool:
            found = list(pool.map(ask, range(600)))
    assert {*found} == {200, 503}


def memory(number):
    """KiB of a process, without files."""
    return int(Path(f"/proc/{number}/status").read_text().split("RssAnon:")[1].split()[0])


async def overload(port, able, seconds, resident):
    """Ask twice as often as was answered; return how many have an answer, and the server's memory.

    A request is answered by 200, or by 503; anything else fails. ``able``: answers a second at the
    beginning; what comes later is measured, since others use the machine, too. The server keeps
    some memory for each connection, so their number is fixed: three times as many as may wait.
    """
    wanted, free, counts, sizes = {}, asyncio.Queue(), Counter(), []
    for _ in range(300):
        free.put_nowait(await clients.connect(port))
    last, answered = time.perf_counter(), 0
    begin = due = time.perf_counter()

    async def ask(number):
        one = await free.get()
        line = LINES[number % len(LINES)]
        try:
            found = await one.ask(q=line, source="en", target="de")
            assert wanted.setdefault(line, found) == found
            counts["answered"] += 1
        except UsageError as error:
            assert "too many sentences wait" in str(error)
            counts["refused"] += 1
        free.put_nowait(one)

    async with asyncio.TaskGroup() as group:
        while time.perf_counter() < begin + seconds:
            if time.perf_counter() > last + 5:
                new = counts["answered"] - answered
                able = max(1.0, new / (time.perf_counter() - last))
                last, answered = time.perf_counter(), counts["answered"]
            due = max(due, time.perf_counter() - 1) + 1 / (2 * able)
            await asyncio.sleep(max(0.0, due - time.perf_counter()))
            group.create_task(ask(counts["asked"]))
            counts["asked"] += 1
            if counts["asked"] % 20 == 0:
                sizes.append((time.perf_counter() - begin, resident()))
    return counts, sizes


def test_twice_what_it_can_serve_loses_nothing_accepted_and_takes_no_more_memory():
    """PARADEC_OVERLOAD=600: for ten minutes. Memory is flat after the first one, or the half."""
    seconds = float(os.environ.get("PARADEC_OVERLOAD", "40"))
    first = min(60.0, seconds / 2)
    with process("--decoding", "greedy", "--max-waiting", "100", "--idle", "900") as (server, one):

        def resident():
            return memory(server.pid)

        bodies = [{"q": line, "source": "en", "target": "de"} for line in LINES * 3]
        able = len(bodies) / asyncio.run(clients.in_turn(one.port, bodies, 32)).seconds
        counts, sizes = asyncio.run(overload(one.port, able, seconds, resident))
        assert counts["answered"] + counts["refused"] == counts["asked"]
        assert counts["answered"] > 0 < counts["refused"]
        before = [size for at, size in sizes if at <= first]
        after = [size for at, size in sizes if at > first]
        print(f"{able:.1f} a second; {dict(counts)}; KiB: {max(before)}, then {max(after)}")
        assert max(after) <= 1.05 * max(before)
        assert one.get("/health").value["waiting"] == 0


def test_memory_falls_again_after_a_burst():
    """A hundred bodies of nearly a megabyte at once, all but the last byte; then the rest."""
    with process("--decoding", "greedy") as (server, one):
        one.translate(LINES)
        before, size = memory(server.pid), 950_000
        head = f"POST /translate HTTP/1.1\r\nhost: a\r\ncontent-length: {size}\r\n\r\n"
        body = head.encode() + b'{"target": "de", "q": "' + b"a" * (size - 25) + b'"'
        address = "127.0.0.1", one.port
        connections = [socket.create_connection(address) for _ in range(100)]
        for connection in connections:
            connection.sendall(body)
        wait_until(lambda: memory(server.pid) > before + 80_000, server)
        for connection in connections:
            connection.sendall(b"}")
            assert connection.recv(100).startswith(b"HTTP/1.1 413 ")
            connection.close()
        wait_until(lambda: memory(server.pid) < 1.1 * before, server)


KINDS = {"html": HTML_TEXT, "markdown": MARKDOWN_TEXT}


@pytest.mark.parametrize("kind", KINDS)
def test_of_a_hundred_and_fifty_texts_every_tag_and_placeholder_comes_back(client, kind):
    @hypothesis.given(text=KINDS[kind])
    @hypothesis.settings(
        max_examples=150,
        deadline=None,
        derandomize=True,
        suppress_health_check=list(hypothesis.HealthCheck),
        database=None,
    )
    def ask(text):
        found = client.translate(text, format=kind, decoding="greedy")
        assert kept(found["translatedText"], kind) == kept(text, kind)

    ask()


def test_sigterm_under_load_loses_nothing_that_was_accepted():
    with (
        process("--decoding", "greedy", "--max-waiting", "9999", "--drain", "500") as (server, one),
        ThreadPoolExecutor(48) as pool,
    ):
        wanted = one.translate(LINES[0])["translatedText"]
        body = {"q": [LINES[0]] * 100, "target": "de"}
        answers = [pool.submit(one.post, "/translate", body) for _ in range(48)]
        wait_until(lambda: one.get("/health").value["waiting"] > 1000, server)
        time.sleep(1)  # the others have sent theirs, too
        server.send_signal(signal.SIGTERM)
        for answer in answers:
            found = answer.result()
            assert found.status == 200, found
            assert found.value["translatedText"] == [wanted] * 100
        assert server.wait(60) == 0
        with pytest.raises(OSError):
            one.get("/health")


def test_several_processes_answer_alike_count_together_and_end():
    with process("--workers", "2", "--threads", "2") as (server, one):
        with ThreadPoolExecutor(16) as pool:
            found = list(pool.map(lambda line: one.translate(line)["translatedText"], LINES))
        assert found == fairseq_paradec.load(DEMO).translate(LINES, decoding="greedy")
        told = one.get("/metrics").body.decode()
        counted = re.findall(r"(?m)^paradec_sentences_total\{.*\} (\S+)", told)
        assert sum(map(float, counted)) == len(LINES)
        server.send_signal(signal.SIGTERM)
        assert server.wait(60) == 0


def test_bad_clients_get_their_limits_and_others_go_on():
    most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most[1], most[1]))
    with process("--idle", "5", "--timeout", "20") as (server, one):
        idle = [socket.create_connection(("127.0.0.1", one.port)) for _ in range(2000)]
        slow = socket.create_connection(("127.0.0.1", one.port))
        slow.sendall(b"POST /translate HTTP/1.1\r\nhost: a\r\ncontent-length: 999\r\n\r\n")
        with ThreadPoolExecutor(8) as pool:
            large = pool.submit(one.ask, "POST", "/translate", b"x" * 50_000_000)
            long = pool.submit(one.post, "/translate", {"q": "word " * 10_000, "target": "de"})
            broken = pool.submit(one.ask, "POST", "/translate", b'{"q": "\xff"}')
            for line in LINES[:20]:
                assert one.translate(line)["translatedText"]
                slow.sendall(b"x")
            assert [large.result().status, long.result().status] == [413, 413]
            assert broken.result().status == 400
        assert slow.recv(100).startswith(b"HTTP/1.1 504 ")
        for connection in idle:  # closed
            connection.settimeout(30)
            assert connection.recv(1) == b""
            connection.close()
        assert one.translate(LINES[0])["passes"] > 0


def test_a_client_that_leaves_costs_no_more(client):
    with socket.create_connection(("127.0.0.1", client.port)) as one:
        body = json.dumps({"q": sentences(400), "target": "de", "beam": 5}).encode()
        head = f"POST /translate HTTP/1.1\r\nhost: a\r\ncontent-length: {len(body)}\r\n\r\n"
        one.sendall(head.encode() + body)
        wait_until(lambda: client.get("/health").value["waiting"] > 0)
    begin = time.monotonic()
    client.translate("A dog runs.")  # which takes the cancelled ones out, too
    assert client.get("/health").value["waiting"] == 0
    assert time.monotonic() - begin < 60


TRIED = [
    *(
        (path, "POST", mode)
        for path in ("/translate", "/v1/translations", "/detect")
        for mode in ("positive", "negative")
    ),
    *((path, "GET", "positive") for path in ("/languages", "/health")),
]


@pytest.mark.parametrize(("path", "method", "mode"), TRIED)
def test_nothing_that_the_description_allows_or_forbids_is_a_fault(client, path, method, mode):
    """PARADEC_FUZZ=4500: for ten minutes."""
    import schemathesis  # a second and more, for the slow tests alone

    generated = schemathesis.GenerationMode(mode)
    schema = schemathesis.openapi.from_url(f"{client.url}/openapi.json")
    seen = set()

    @hypothesis.given(case=schema[path][method].as_strategy(generation_mode=generated))
    @hypothesis.settings(
        max_examples=int(os.environ.get("PARADEC_FUZZ", "300")),
        deadline=None,
        suppress_health_check=list(hypothesis.HealthCheck),
        database=None,
    )
    def ask(case):
        found = case.call(timeout=300)
        seen.add(found.status_code)
        assert found.status_code in {200, 400, 404, 405, 413, 501}, found.text
        if found.status_code >= 400:
            assert set(found.json()) == {"error"}

    ask()
    assert mode == "negative" or seen & {200, 501}
