"""``paradec serve``: answers, limits, and what the server says of itself."""

import asyncio
import contextlib
import functools
import http.client
import logging
import random
import re
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pytest
from libretranslatepy import LibreTranslateAPI
from support.commands import DEMO, wait_until
from support.server import Client, serving

from fairseq_paradec import extras
from fairseq_paradec.cli.main import main as paradec
from fairseq_paradec.errors import UsageError
from fairseq_paradec.serve import pages
from fairseq_paradec.serve.fleet import Fleet
from fairseq_paradec.serve.guard import Guard, logger
from fairseq_paradec.serve.run import Connection, bound, url_of
from fairseq_paradec.serve.settings import ServerSettings
from fairseq_paradec.serve.work import Stream

LINES = (DEMO / "raw" / "demo.en").read_text("utf-8").splitlines()[:40]
SETTINGS = ServerSettings(models=(str(DEMO),), port=0, decoding="self_draft", max_characters=2000)


@functools.cache
def fleet() -> Fleet:
    return Fleet([str(DEMO)])


def twins() -> Fleet:
    """The same models for another server."""
    other = Fleet([])
    other.models = {pair: one.twin() for pair, one in fleet().models.items()}
    return other


@functools.cache
def wanted() -> list[str]:
    """What ``paradec translate`` makes of the lines."""
    (translator,) = fleet().models.values()
    return translator.translate(LINES, decoding="greedy")


@pytest.fixture(scope="module")
def client():
    with serving(SETTINGS, twins()) as one:
        yield one


# ---- answers -------------------------------------------------------------------------------------


def test_answers_are_those_of_translate_whatever_is_decoded_beside_them(client):
    chance = random.Random(1)
    asked = chance.sample(range(40), 40)

    def ask(line: int) -> str:
        more: dict[str, Any] = {"decoding": chance.choice(["greedy", "self_draft", "hgj"])}
        if chance.random() < 0.5:
            more["prediction"] = wanted()[chance.choice([line, chance.randrange(40)])]
        return client.translate(LINES[line], **more)["translatedText"]

    with ThreadPoolExecutor(16) as pool:
        found = list(pool.map(ask, asked))
    assert found == [wanted()[line] for line in asked]
    batches = re.findall(r"paradec_batch_sentences_bucket\{.*le=\"1.0\".*\} (\S+)", told(client))
    sentences = re.findall(r"^paradec_sentences_total\{.*\} (\S+)", told(client), re.MULTILINE)
    assert sum(map(float, sentences)) > sum(map(float, batches))  # some were decoded together


def told(client: Client) -> str:
    return client.get("/metrics").body.decode()


def test_connections_send_at_once():
    """A head and a body that wait for acknowledgements take 40 ms on a kept connection."""
    with bound(SETTINGS) as listening:
        with socket.create_connection(listening.getsockname()):
            accepted, _ = listening.accept()
            with accepted:
                assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


def test_a_client_of_libretranslate_translates(client):
    theirs = LibreTranslateAPI(client.url)
    assert theirs.translate(LINES[0], "en", "de") == wanted()[0]
    assert theirs.translate("A dog & a cat+1 = 100% \u00fc.", "en", "de").startswith("Ein Hund")
    assert theirs.languages() == [{"code": "en", "name": "English", "targets": ["de"]}]


def test_a_server_has_rules_of_its_searches():
    rules: dict[str, Any] = {"no_repeat_ngram_size": 1, "repetition_penalty": 3.0}
    rules["suppress_sequences"] = "Ein\nEine"
    (translator,) = fleet().models.values()
    translations = translator.translate(LINES[:9], decoding="greedy", **rules)
    assert translations != wanted()[:9]
    with serving(replace(SETTINGS, decoding=None, **rules), twins()) as other:
        assert other.translate(LINES[:9])["translatedText"] == translations
        beam = translator.translate(LINES[:9], decoding="beam", beam=2, **rules)
        assert other.translate(LINES[:9], beam=2)["translatedText"] == beam


def test_several_texts_have_several_answers(client):
    found = client.translate(LINES[:3], source="en", alternatives=1)
    one = client.translate(LINES[0], alternatives=1)
    assert found["translatedText"][0] == one["translatedText"]
    assert [len(found["translatedText"]), *map(len, found["alternatives"])] == [3, 1, 1, 1]
    assert found["alternatives"][0] == one["alternatives"] != [one["translatedText"]]
    assert client.translate([])["translatedText"] == []


def test_alternatives_are_the_beams_next_best(client):
    (translator,) = fleet().models.values()
    (best,) = translator.results(LINES[:1], others=2, decoding="self_draft", beam=3)
    found = client.translate(LINES[0], alternatives=2)
    assert [found["translatedText"], *found["alternatives"]] == [best.text, *best.others]


def test_a_text_is_put_together_as_it_was(client):
    text = "<p>A <b>dog</b> runs.</p>\n\n<ul><li>Two men sit.</li></ul>"
    (translator,) = fleet().models.values()
    (whole,) = translator.texts([text], "html", decoding="greedy")
    found = client.translate(text, format="html")
    assert (found["translatedText"], found["notes"]) == (whole.text, whole.notes)
    stream = client.post(
        "/v1/translations",
        {"text": text, "target_language": "de", "format": "html", "stream": True},
    )
    assert spoken(stream.events) == whole.text


def spoken(events: list[Any]) -> str:
    """The text of the parts of a stream."""
    parts = [one for one in events if one["object"] == "translation.chunk"]
    return "".join(one["choices"][0]["delta"]["content"] for one in parts)


def test_a_prediction_that_holds_costs_one_pass(client):
    found = client.translate(LINES[0], prediction=wanted()[0])
    assert (found["passes"], found["rejected_prediction_tokens"]) == (1, 0)
    assert found["accepted_prediction_tokens"] == found["tokens"]


def test_a_stream_tells_every_pass(client):
    body = {"text": f"{LINES[0]} {LINES[1]}", "target_language": "de", "stream": True}
    found = client.post("/v1/translations", body | {"passes": True, "decoding": "greedy"})
    assert found.headers["content-type"].startswith("text/event-stream")
    assert spoken(found.events) == f"{wanted()[0]} {wanted()[1]}"
    passes = [one for one in found.events if one["object"] == "translation.pass"]
    usage = found.events[-1]["usage"]
    assert len(passes) == usage["passes"] == usage["completion_tokens"]  # greedy's
    first = [one["pass"] for one in passes if one["sentence"] == 0]
    assert [one["start"] for one in first] == list(range(len(first)))
    assert [one["verifier"] for one in first][-1] == ["</s>"]
    whole = client.post("/v1/translations", {k: v for k, v in body.items() if k != "stream"})
    assert whole.value["text"] == spoken(found.events)


def test_a_sentence_that_cannot_be_translated_is_said_and_left_as_it_is(client):
    with serving(replace(SETTINGS, max_characters=10**6), twins()) as one:
        text = "a" * 5000  # one word, of more tokens than the model has positions
        found = one.translate(f"A dog runs. {text}")
    assert found["translatedText"] == f"Ein Hund rennt. {text}"
    assert found["notes"][0].startswith("not translated: aaa")


# ---- what is refused -----------------------------------------------------------------------------

WRONG = {
    '{"target": "de"}': "q: Field required",
    '{"q": 1, "target": "de"}': "q: Input should be a valid string",
    '{"q": "a"}': "target: Field required",
    '{"q": "a", "target": "fr"}': "target: 'fr' is not supported; allowed: de",
    '{"q": "a", "source": "fr", "target": "de"}': "fr to de is not supported; allowed: en-de",
    '{"q": "a", "target": "de", "format": "pdf"}': "format: Input should be 'text', 'html'",
    '{"q": "a", "target": "de", "decoding": "none"}': "--decoding: got 'none'; allowed: ",
    '{"q": "a", "target": "de", "decoding": "blockwise"}': "--drafter-path: got ",
    '{"q": "a", "target": "de", "beam": 9}': "got 9; allowed: at most 8 (paradec serve --max-beam)",
    '{"q": "a", "target": "de", "prediction": ["b", "c"]}': "prediction: got 2, and 1 texts",
    '{"q": "a", "target": "de", "decoding": "gad_pp", "prediction": "b"}': "--drafts needs",
    '{"q": "a", "target": "de", "beam": 3, "prediction": "b"}': "--drafts excludes --beam 3",
    '{"q": "\\ud800", "target": "de"}': "Invalid JSON",
    "{": "Invalid JSON",
    "[]": "Input should be an object",
}


@pytest.mark.parametrize("body", WRONG)
def test_a_wrong_request_is_named(client, body):
    found = client.ask("POST", "/translate", body.encode(), content_type="application/json")
    assert found.status == 400
    assert set(found.value) == {"error"} and WRONG[body] in found.value["error"]
    assert b"\n" not in found.body


def test_what_is_wrong_with_a_stream_is_said_by_its_status(client):
    body = {"text": "a", "target_language": "de", "stream": True, "decoding": "none"}
    assert client.post("/v1/translations", body).status == 400
    body = {"text": "a", "target_language": "de", "model": "de-en"}
    assert client.post("/v1/translations", body).value == {
        "error": "model: got 'de-en'; allowed: en-de, or none"
    }


def test_what_is_asked_for_is_done_or_refused(client):
    body = {"text": "a", "target_language": "de", "passes": True}
    assert client.post("/v1/translations", body).value == {"error": "passes needs stream"}
    for decoding in ("beam", "auto"):
        found = client.post("/v1/translations", body | {"stream": True, "decoding": decoding})
        assert found.status == 200 and b'"start": 0' in found.body


def test_the_type_of_a_body_is_named_where_it_is_wrong(client):
    body, form = b'{"q": "a", "target": "de"}', "application/x-www-form-urlencoded"
    found = client.ask("POST", "/translate", body, content_type=form)
    assert found.value == {"error": f"q: Field required (content-type is {form})"}
    other = f"{form.title()}; charset=utf-8"
    assert client.ask("POST", "/translate", b"q=a&target=de", content_type=other).status == 200
    found = client.ask("POST", "/translate", body, content_type="multipart/form-data; boundary=x")
    assert found.value["error"].startswith("content-type: got multipart/form-data; allowed: app")


@pytest.mark.parametrize("kind", ["application/json", "application/x-www-form-urlencoded"])
@pytest.mark.parametrize("raw", [b'{"q": "\xff", "target": "de"}', b"q=%ff&target=de"])
def test_broken_utf8_is_refused(client, kind, raw):
    assert client.ask("POST", "/translate", raw, content_type=kind).status == 400


def test_other_ways_are_answered_by_json_too(client):
    assert client.get("/../../etc/passwd").status == 404
    assert client.get("/translate").value == {"error": "Method Not Allowed"}
    assert client.post("/detect", {"q": "A dog runs."}).status == 501
    assert "fairseq_paradec[detect]" in client.post("/detect", {"q": "a"}).value["error"]


def test_long_texts_and_large_bodies_are_refused(client):
    found = client.post("/translate", {"q": "a" * 2001, "target": "de"})
    assert found.status == 413 and "2001 characters; allowed: 2000" in found.value["error"]
    assert client.post("/translate", {"q": [""] * 2001, "target": "de"}).status == 413
    many = b" " * (SETTINGS.max_body + 1)
    for body in (many, (many[i : i + 10**5] for i in range(0, len(many), 10**5))):  # chunks
        found = client.ask("POST", "/translate", body, content_type="application/json")
        assert found.status == 413 and "more than 1000000 bytes" in found.value["error"]
    assert client.translate("A dog runs.")["translatedText"] == "Ein Hund rennt."


def test_a_request_that_takes_too_long_is_ended_wherever_it_is():
    with serving(replace(SETTINGS, timeout=0.3, idle=0.3), twins()) as one:
        begin = time.monotonic()
        head = b"POST /translate HTTP/1.1\r\nhost: a\r\ncontent-length: 9\r\n\r\n{"
        with socket.create_connection(("127.0.0.1", one.port)) as slow:  # its body never ends
            slow.sendall(head)
            assert slow.recv(100).startswith(b"HTTP/1.1 504 ")
        with socket.create_connection(("127.0.0.1", one.port)) as silent:
            assert silent.recv(1) == b""
        with socket.create_connection(("127.0.0.1", one.port)) as trickle:  # of its head
            for byte in head[:4]:
                trickle.sendall(bytes([byte]))
                time.sleep(0.05)
            assert trickle.recv(1) == b""
        assert time.monotonic() - begin < 20


def read_all(one: socket.socket) -> bytes:
    """Read until the other side closes."""
    found = b""
    while part := one.recv(1 << 16):
        found += part
    return found


def test_a_head_without_end_is_refused():
    """In one line, in many lines, behind the body, and in sizes of chunks."""
    with serving(SETTINGS, twins()) as one:
        head = b"POST /translate HTTP/1.1\r\nhost: a\r\n"
        chunked = head + b"transfer-encoding: chunked\r\n\r\n"
        wrong = [
            (head + b"x-long: ", b"a" * 1000),
            (head, b"x-name: " + b"a" * 1000 + b"\r\n"),
            (chunked + b"0\r\n", b"x-name: " + b"a" * 1000 + b"\r\n"),
            (chunked + b"1;a=", b"a" * 1000),
        ]
        for begin, more in wrong:
            with socket.create_connection(("127.0.0.1", one.port), timeout=20) as client:
                client.sendall(begin)
                with contextlib.suppress(ConnectionError):  # closed meanwhile
                    for _ in range(100):
                        client.sendall(more)
                        time.sleep(0.001)
                with contextlib.suppress(ConnectionResetError):
                    found = read_all(client)
                    assert found.startswith(b"HTTP/1.1 400 "), (begin, found)


def test_heads_are_counted_one_by_one(client):
    """Two requests a little shorter than allowed, on a connection; and a body of small chunks."""
    long = b"GET /languages HTTP/1.1\r\nhost: a\r\nx-long: " + b"a" * 60000 + b"\r\n\r\n"
    body = b'{"target": "de", ' + b" " * 20000 + b'"q": "A dog."}'
    chunks = b"".join(b"1\r\n%c\r\n" % byte for byte in body) + b"0\r\n\r\n"
    head = b"POST /translate HTTP/1.1\r\nhost: a\r\ncontent-type: application/json\r\n"
    end = b"connection: close\r\ntransfer-encoding: chunked\r\n\r\n"
    with socket.create_connection(("127.0.0.1", client.port), timeout=20) as one:
        one.sendall(long * 2 + head + end + chunks)
        found = read_all(one)
    assert found.count(b"HTTP/1.1 200 ") == 3
    assert b'"translatedText":' in found


HEAD = b"HTTP/1.1\r\nhost: a\r\n"
BODY = b'{"q": "A dog runs.", "target": "de"}'
ASKED = b"POST /translate " + HEAD + b"content-type: application/json\r\n"
LENGTH = b"content-length: %d\r\n" % len(BODY)
END = b"GET /health " + HEAD + b"connection: close\r\n\r\n"


def statuses(client: Client, raw: bytes) -> list[int]:
    """The statuses of all that is answered on a connection before the server closes it."""
    with socket.create_connection(("127.0.0.1", client.port), timeout=20) as one:
        one.sendall(raw)
        return [int(status) for status in re.findall(rb"HTTP/1\.1 (\d+) ", read_all(one))]


def test_another_protocol_may_be_asked_for_and_is_not_spoken(client):
    """Java's clients ask for HTTP/2 with each first request."""
    other = b"connection: Upgrade, HTTP2-Settings\r\nupgrade: h2c\r\nhttp2-settings: A\r\n\r\n"
    chunked = b"transfer-encoding: chunked\r\n" + other + b"%x\r\n%b\r\n0\r\n\r\n"
    posts = ASKED + LENGTH + other + BODY, ASKED + chunked % (len(BODY), BODY)
    for asked in (b"GET /health " + HEAD + other, *posts):
        assert statuses(client, asked * 2 + END) == [200] * 3
    assert statuses(client, posts[1][:-7] + b"wrong\r\n") == [400]


def test_what_is_wrong_is_said_behind_the_answers_to_what_was_right(client):
    wrong = {
        b"\0\r\n\r\n",
        b"GET /health HTTP/1.1\r\n\r\n",  # without a host
        b"GET /health " + HEAD + b"host: b\r\n\r\n",
        ASKED + b"x-long: " + b"a" * 70_000,
        ASKED + b"transfer-encoding: chunked\r\n\r\nwrong\r\n",
        ASKED + LENGTH + b"transfer-encoding: chunked\r\n\r\n" + BODY + b"\r\n",
    }
    for one in wrong:
        assert statuses(client, ASKED + LENGTH + b"\r\n" + BODY + one) == [200, 400], one[:200]
    assert statuses(client, b"GET /health HTTP/1.0\r\n\r\n") == [200]


def test_a_client_that_does_not_read_is_left(monkeypatch):
    lost = threading.Event()
    end = Connection.connection_lost

    def lose(self, exc):
        end(self, exc)
        lost.set()

    monkeypatch.setattr(Connection, "connection_lost", lose)
    with serving(replace(SETTINGS, timeout=1), twins()) as one:
        with socket.socket() as client:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            client.connect(("127.0.0.1", one.port))
            client.sendall((b"GET /openapi.json " + HEAD + b"\r\n") * 600)
            assert lost.wait(15)


def test_an_answer_that_waits_too_long_for_its_client_is_no_fault():
    """Earlier answers on the connection have not been read; this one has not begun."""
    sent: list[Any] = []

    async def send(message):
        sent.append(message)
        await asyncio.sleep(60 if len(sent) == 1 else 0)

    async def app(scope, receive, send):
        await send({"type": "http.response.start", "status": 200, "headers": []})

    guard = Guard(app, replace(SETTINGS, timeout=0.05), lambda *told: None)
    scope = {"type": "http", "method": "GET", "headers": []}
    asyncio.run(guard(scope, asyncio.Event().wait, send))
    assert [one.get("status") for one in sent] == [200, 504, None]


def test_a_stream_that_takes_too_long_or_fails_ends_without_done(monkeypatch):
    async def slow(self):
        yield "A"
        await asyncio.sleep(60)

    async def wrong(self):
        yield "A"
        raise RuntimeError("a secret text")

    body = {"text": "A dog.", "target_language": "de", "stream": True}
    with serving(replace(SETTINGS, timeout=1), twins()) as one:
        monkeypatch.setattr(Stream, "parts", slow)
        with pytest.raises(http.client.IncompleteRead) as cut:
            one.post("/v1/translations", body)
        monkeypatch.setattr(Stream, "parts", wrong)
        events = one.post("/v1/translations", body).body
    assert b'"content": "A"' in cut.value.partial and b"[DONE]" not in cut.value.partial + events
    assert events.endswith(b'data: {"error": "internal error"}\n\n') and b"secret" not in events


def test_what_is_not_done_when_the_server_ends_is_told_to_come_again():
    with ThreadPoolExecutor(1) as pool:
        with serving(replace(SETTINGS, drain=0.2, max_characters=10**6), twins()) as one:
            asked = {"q": LINES * 100, "target": "de", "decoding": "greedy"}
            answer = pool.submit(one.post, "/translate", asked)
            wait_until(lambda: one.get("/health").value["waiting"] > 100)
        found = answer.result()
    assert (found.status, found.value) == (503, {"error": "the server ends"})
    assert found.headers["retry-after"] == "1"


def test_keys_are_asked_for_and_not_told(tmp_path):
    with serving(replace(SETTINGS, api_keys=("one", "zwei\u00e4")), twins()) as one:
        refused = {"error": "the API key is missing or wrong"}
        assert one.post("/translate", {"q": "a", "target": "de"}).value == refused
        assert one.post("/detect", {"q": "a", "api_key": "on"}).status == 403
        assert one.get("/health").value["needs_key"] is True
        assert one.translate("A dog runs.", api_key="zwei\u00e4")
        body = {"text": "A dog runs.", "target_language": "de"}
        assert one.post("/v1/translations", body).status == 403
        for scheme, status in {"Bearer": 200, "bearer": 200, "Basic": 403}.items():
            found = one.post("/v1/translations", body, authorization=f"{scheme} one")
            assert found.status == status
        theirs = LibreTranslateAPI(one.url, "one")
        assert theirs.translate("A dog runs.", "en", "de") == "Ein Hund rennt."


def test_pages_of_other_origins_may_ask_only_if_that_is_allowed(client):
    asked = {"q": "A dog runs.", "target": "de"}
    assert client.post("/translate", asked, origin=client.url).status == 200
    assert client.post("/translate", asked, origin="http://example.org").status == 403
    assert client.post("/translate", asked, origin="http://[").status == 403
    local = f"localhost:{client.port}"
    assert client.post("/translate", asked, origin=f"http://{local}", host=local).status == 200
    stranger = f"example.org:{client.port}"  # a name that leads to 127.0.0.1
    found = client.post("/translate", asked, origin=f"http://{stranger}", host=stranger)
    assert found.status == 403
    with serving(replace(SETTINGS, origins=("http://example.org",)), twins()) as one:
        found = one.post("/translate", asked, origin="http://example.org")
        assert found.headers["access-control-allow-origin"] == "http://example.org"
        assert one.post("/translate", asked, origin="http://example.com").status == 403


# ---- what it says of itself ----------------------------------------------------------------------


def test_it_counts_by_decoder(client):
    before = told(client)
    client.translate("A dog runs.", decoding="pgj", prediction="Ein Hund l\u00e4uft.")
    new = set(told(client).splitlines()) - set(before.splitlines())
    by = r'\{decoding="pgj",model="en-de"'
    for name in ("sentences_total", "tokens_total", "passes_total", "batch_seconds_count"):
        assert any(re.match(rf"paradec_{name}{by}", line) for line in new), name
    assert any(re.match(rf'paradec_prediction_tokens_total{by},verdict="rejected"', x) for x in new)
    assert 'paradec_requests_total{path="/translate",status="200"}' in told(client)


def test_it_says_what_it_has(client):
    found = client.get("/health").value
    assert found["status"] == "ok" and found["models"] == ["en-de"]
    assert {"greedy", "self_draft", "gad"} <= set(found["decoders"]["en-de"])


def test_head_is_answered_as_get_without_its_body(client):
    """Balancers and proxies ask so whether a server is there."""
    for path in ("/health", "/", "/languages", "/nowhere", "/translate"):
        got, found = client.get(path), client.ask("HEAD", path)
        assert (found.status, found.body) == (got.status, b"")
        same = ("content-type", "content-length", "allow")
        assert [found.headers.get(name) for name in same] == [
            got.headers.get(name) for name in same
        ]


def test_pages_load_nothing_from_elsewhere_and_no_path_reaches_the_disk(client):
    for path in ("/", "/docs", *pages.FILES):
        found = client.get(path)
        assert found.status == 200
        assert "default-src 'none'" in found.headers["content-security-policy"]
        assert re.findall(rb"https?://|url\(", found.body) == []
    assert sum(len(client.get(path).body) for path in pages.FILES) <= 60_000


def test_the_description_of_the_api_has_every_field(client):
    schema = client.get("/openapi.json").value
    page = client.get("/docs").body.decode()
    for path, methods in schema["paths"].items():
        assert path in page
        for route in methods.values():
            for kind in route.get("requestBody", {}).get("content", {}).values():
                assert all(f"<code>{name}</code>" in page for name in kind["schema"]["properties"])


def test_the_log_has_no_texts_unless_that_is_asked_for(client, caplog, monkeypatch):
    monkeypatch.setattr(logger, "propagate", True)
    caplog.set_level(logging.INFO, logger.name)
    client.translate("A secret dog.")
    client.get("/nowhere?q=secret")
    assert "POST /translate 200" in caplog.text and "secret" not in caplog.text
    with serving(replace(SETTINGS, log_texts=True), twins()) as one:
        one.translate("A secret dog.")
    assert "A secret dog." in caplog.text


def test_a_fault_is_said_in_json_and_logged_without_its_text(client, caplog, monkeypatch):
    text = "a secret text"

    def fail(self):
        raise RuntimeError(text)

    monkeypatch.setattr(logger, "propagate", True)
    monkeypatch.setattr(Fleet, "languages", fail)
    found = client.get("/languages")
    assert (found.status, found.value) == (500, {"error": "internal error"})
    wait_until(lambda: "GET /languages 500" in caplog.text)  # behind the answer
    assert "internal error: RuntimeError" in caplog.text and "secret" not in caplog.text


def test_a_client_that_leaves_before_its_body_ends_is_no_fault(client, caplog, monkeypatch):
    monkeypatch.setattr(logger, "propagate", True)
    caplog.set_level(logging.INFO, logger.name)
    with socket.create_connection(("127.0.0.1", client.port)) as one:
        one.sendall(b"POST /translate HTTP/1.1\r\nhost: a\r\ncontent-length: 9\r\n\r\n{")
    wait_until(lambda: "POST /translate 499" in caplog.text)
    assert "internal error" not in caplog.text


# ---- the command ---------------------------------------------------------------------------------


def test_what_is_missing_is_named_by_its_extra(monkeypatch, capsys):
    monkeypatch.setattr(extras, "is_installed", lambda package: package != "uvicorn")
    assert paradec(["serve", "--model", str(DEMO)]) == 2
    assert capsys.readouterr().err == (
        "paradec serve: error: needs uvicorn; install fairseq_paradec[serve]\n"
    )


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (["--port", "70000"], "--port: got '70000'; allowed: 0 to 65535"),
        (["--timeout", "0"], "--timeout: got '0'; allowed: a number above 0"),
        (["--api-key-file", "/dev/null"], "a file with a key a line; it has none"),
        (["--host", "192.0.2.1", "--port", "1"], "got '192.0.2.1:1'; allowed: a free address"),
        (["--model", "no-such-folder", "--port", "0"], "a model folder, with paradec.json"),
        (["--decoding", "gready", "--port", "0"], "--decoding: got 'gready'; allowed: "),
        (["--speed-profile", "no/f", "--port", "0"], "/no does not"),
        (["--decoding", "nat", "--port", "0"], "one model of --arch block_nat, with nat"),
    ],
)
def test_mistakes_of_the_command_are_named(more, said, capsys):
    try:
        status = paradec(["serve", "--model", str(DEMO), *more])
    except SystemExit as ended:  # argparse's
        status = ended.code
    assert status == 2 and said in capsys.readouterr().err


def test_an_address_is_one_for_a_browser():
    assert url_of("127.0.0.1", 80) == "http://127.0.0.1:80/"
    assert url_of("::1", 80) == "http://[::1]:80/"


def test_two_models_of_the_same_languages_are_refused():
    with pytest.raises(UsageError, match="one model for each pair of languages"):
        Fleet([str(DEMO), str(DEMO)])
