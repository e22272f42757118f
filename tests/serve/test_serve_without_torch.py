"""``paradec serve`` where neither torch nor fairseq can be imported: the answers of both."""

import functools
import re
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from support.commands import DEMO, WITHOUT_TORCH
from support.server import Client, process

import fairseq_paradec
from fairseq_paradec.translator.translation import Translation

LINES = (DEMO / "raw" / "demo.en").read_text("utf-8").splitlines()[:24]


@pytest.fixture(scope="module")
def client() -> Iterator[Client]:
    with process("--threads", "2", env=WITHOUT_TORCH) as (_, one):
        yield one


@functools.cache
def wanted(beam: int = 1) -> list[Translation]:
    """What torch's passes write, of fairseq's modules."""
    options = {"decoding": "multiword_beam", "beam": beam, "others": beam - 1}
    translator = fairseq_paradec.load(DEMO)
    found = list(translator.results(LINES, engine="torch", **options))
    assert translator._modules._loaded is not None
    return found


def texts() -> list[str]:
    return [one.text for one in wanted()]


@pytest.mark.parametrize("decoding", ["greedy", "hgj", "pj", "gad", "self_draft", None])
def test_many_clients_get_the_answers_of_torch(client: Client, decoding: str | None) -> None:
    known = client.get("/health").value["decoders"]["en-de"]
    assert known == ["greedy", "pj", "pgj", "hgj", "gad", "self_draft"]
    more = {} if decoding is None else {"decoding": decoding}
    with ThreadPoolExecutor(12) as pool:
        found = list(pool.map(lambda line: client.translate(line, **more), LINES))
    assert [one["translatedText"] for one in found] == texts()
    assert [one["tokens"] for one in found] == [one.tokens for one in wanted()]


def test_the_next_best_are_those_of_torch(client: Client) -> None:
    found = client.translate(LINES[:8], alternatives=2)
    assert found["translatedText"] == [one.text for one in wanted(3)[:8]]
    assert found["alternatives"] == [[*one.others] for one in wanted(3)[:8]]


def test_a_translation_is_typed_on_by_its_draft(client: Client) -> None:
    for line, text in zip(LINES[:4], texts()):
        assert client.translate(line, prediction=text, decoding="self_draft")["passes"] == 1


def test_a_stream_has_its_passes(client: Client) -> None:
    asked = {"text": LINES[0], "target_language": "de", "stream": True, "passes": True}
    events = client.post("/v1/translations", asked | {"decoding": "greedy"}).events
    parts = [one for one in events if one["object"] == "translation.chunk"]
    assert "".join(one["choices"][0]["delta"]["content"] for one in parts) == texts()[0]
    passes = [one["pass"] for one in events if one["object"] == "translation.pass"]
    assert len(passes) == events[-1]["usage"]["passes"] == wanted()[0].tokens


def test_the_page_and_what_was_counted_are_there(client: Client) -> None:
    assert b"<html" in client.get("/").body and client.get("/docs").status == 200
    assert client.translate(LINES[0])["translatedText"]
    told = client.get("/metrics").body.decode()
    assert re.search(r"paradec_sentences_total\{.*\} [1-9]", told)


def test_beam_search_is_fairseqs_by_native_passes(client: Client) -> None:
    found = client.translate(LINES[:8], decoding="beam", beam=3)
    assert found["translatedText"] == [one.text for one in wanted(3)[:8]]


def test_several_processes_answer_alike() -> None:
    with process("--workers", "2", env=WITHOUT_TORCH) as (server, one):
        with ThreadPoolExecutor(8) as pool:
            found = list(pool.map(lambda line: one.translate(line)["translatedText"], LINES))
        assert found == texts()
        server.send_signal(signal.SIGTERM)
        assert server.wait(60) == 0
