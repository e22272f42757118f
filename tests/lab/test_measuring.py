"""``paradec profile``: parts add up."""

import asyncio
import json
import sys
from types import SimpleNamespace

import pytest
from support.commands import DEMO

from fairseq_paradec.cli.main import main
from fairseq_paradec.errors import UsageError
from fairseq_paradec.lab.measure.clock import Clock
from fairseq_paradec.lab.profile import clients, harness, modules, start_up


def profile(words):
    """Run ``paradec profile``; return the exit status."""
    return main(["profile", *words])


class StandingClock(Clock):
    """A clock that stands still unless it is moved."""

    time = 0.0

    def now(self):
        return self.time


def test_calls_inside_calls_are_counted_once():
    def scorer():
        """One whose methods take a known time."""
        timed = SimpleNamespace(log_probs=lambda: None, encode=lambda: (take(10), timed.start()))
        timed.start, timed.fill, timed.step, timed.choose = (
            lambda s=s: take(s) for s in (5, 20, 30, 2)
        )
        return timed

    def take(seconds):
        clock.time += seconds

    def translate(sentences):
        generator.scorer.encode()
        generator.draft_scorer.start()
        for _ in range(2):
            generator.draft_scorer.fill()
            generator.projection.choose()
            generator.scorer.step()
        generator.scorer.choose()
        take(15)

    generator = SimpleNamespace(scorer=scorer(), draft_scorer=scorer(), projection=scorer())
    clock = StandingClock(generator, modules.PARTS)
    assert modules.profile(SimpleNamespace(translate=translate), clock, 0) == {
        "encoder and keys": 15,
        "drafter's encoder and keys": 5,
        "drafter's decoder": 40,
        "drafter's vocabulary": 4,
        "decoder": 60,
        "vocabulary": 2,
        "rest": 15,
        "all": 141,
    }


def test_the_table(tmp_path, capsys):
    out = tmp_path / "modules.json"
    model = str(DEMO / "model.pt")
    command = [
        str(DEMO),
        "--path",
        model,
        *"--sentences 3 --rounds 2 --busy --out".split(),
        str(out),
    ]
    for decoder in ("greedy", "quick=pgj --block-size 3", f"both=assisted --drafter-path {model}"):
        command += ["--decoder", decoder]
    assert profile(["modules", *command]) == 0
    greedy, quick, both = rows = json.loads(out.read_text())["rows"]
    assert [row["decoder"] for row in rows] == ["greedy", "quick", "both"]
    for row in rows:
        parts = [row[modules.part_column(part).key] for part in (*modules.PARTS, "rest")]
        assert row["all_ms"] == pytest.approx(sum(parts), abs=0.05)
        assert row["decoder_ms"] > 0 and (row["drafter_decoder_ms"] > 0) == (row is both)
    assert greedy["parameters"] < both["parameters"] < 2 * greedy["parameters"]  # one encoder
    assert profile(["modules", *command, "--decoder", "beam"]) == 2
    assert "--decoder: got 'beam'" in capsys.readouterr().err


def test_finished_rounds_are_kept(tmp_path, capsys, monkeypatch):
    """The same command runs the others; another one is refused."""
    out, rounds = tmp_path / "modules.json", []
    given = [str(DEMO), "--path", str(DEMO / "model.pt"), "--sentences", "2", "--rounds", "3"]
    given += ["--busy", "--out", str(out), "--decoder", "greedy"]
    real = harness.rounds.undisturbed

    def undisturbed(work, busy):
        rounds.append(work)
        if len(rounds) == 2:
            raise KeyboardInterrupt
        return real(work, busy)

    monkeypatch.setattr(harness.rounds, "undisturbed", undisturbed)
    assert profile(["modules", *given]) == 130 and not out.exists()
    assert profile(["modules", *given, "--decoder", "pgj"]) == 2
    assert "holds an unfinished run with other argument decoder" in capsys.readouterr().err
    assert profile(["modules", *given]) == 0
    assert len(rounds) == 2 + 2 and [*tmp_path.iterdir()] == [out]


ONE_LAYER = ("layers=1", "embed-dim=8", "ffn-embed-dim=8", "attention-heads=2")
SIZES = [f"--{side}-{size}" for side in ("encoder", "decoder") for size in ONE_LAYER]


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """A data folder whose training part is the demo's test part."""
    folder = tmp_path_factory.mktemp("data")
    for file in (*DEMO.glob("dict.*.txt"), *DEMO.glob("test.en-de.*")):
        (folder / file.name.replace("test", "train")).write_bytes(file.read_bytes())
    return str(folder)


def test_a_table_of_all_architectures(data, tmp_path, capsys):
    out = tmp_path / "speed.json"
    argv = ["training-speed", data, "--arch", "ibdecoder_tiny", "--busy", "--out", str(out)]
    few = ["--batches", "2", "--rounds", "2", "--max-tokens", "200"]
    assert profile([*argv, *few, "--arch", "transformer", "--", *SIZES]) == 0
    second, first = json.loads(out.read_text())["rows"]
    assert (first["architecture"], second["architecture"]) == ("transformer", "ibdecoder_tiny")
    assert second["speed_of_first"]["middle"] == 1.0
    assert first["tokens_per_second"] > 0
    # The sizes are the same for both; ibdecoder has two start rows of 8 more.
    assert first["parameters"] + 2 * 8 == second["parameters"]
    assert profile([*argv, "--", *SIZES, "--directions", "3"]) == 2
    assert "--directions: got 3" in capsys.readouterr().err


@pytest.mark.slow
def test_workers(tmp_path, capsys):
    (tmp_path / "text").write_text("A man.\n" * 3)
    out, command = tmp_path / "workers.json", ["workers", str(tmp_path / "text"), "--processes"]
    command += ["1,2", "--rounds", "1", "--busy", "--out", str(out), "--model"]
    assert profile([*command, str(DEMO)]) == 0
    rows = json.loads(out.read_text())["rows"]
    assert [row["by"][:9] for row in rows] == ["1 process", "1 workers", "2 workers"]
    assert all(0 < row["of_them_start"] < 2 * row["seconds"]["middle"] for row in rows)
    assert profile([*command, str(tmp_path)]) == 2  # what the command itself says
    assert "paradec translate: error: --model" in capsys.readouterr().err


@pytest.mark.slow
def test_clients_of_a_server_are_measured(tmp_path, capsys):
    out, text = tmp_path / "clients.json", str(DEMO / "raw" / "demo.en")
    command = ["clients", text, "--model", str(DEMO), "--rounds", "1", "--busy", "--out", str(out)]
    command += ["--decoding", "greedy", "--clients", "4", "--limit", "24", "--alone", "3"]
    assert profile([*command, "--typed", "2"]) == 0
    rows = json.loads(out.read_text())["rows"]
    assert [row["clients"] for row in rows] == [
        "4 clients",
        "1 client",
        "70% load",
        "typed, prediction",
    ]
    assert all(0 < r["low"] == r["middle"] == r["high"] for r in (row["ratio"] for row in rows))
    assert rows[2]["served"] >= rows[2]["that"]
    assert profile([*command, "--decoding", "gad", "--model", str(tmp_path)]) == 2
    assert f"--model: got '{tmp_path}'" in capsys.readouterr().err


def test_clients_ask_all_and_notice_other_answers():
    """With a server that answers by the number of a request, in the order in which they come."""
    together = asyncio.run(answered(lambda port, asked: clients.in_turn(port, asked, 3), 20))
    assert [answer[0] for answer in together.answers] == ["a"] * 20
    assert 0 < max(together.each) <= together.seconds
    late = asyncio.run(answered(lambda port, asked: clients.at_random(port, asked, 1000, 1), 20))
    assert sorted(late.answers) == sorted(together.answers) and min(late.each) > 0
    typed = asyncio.run(answered(lambda port, asked: clients.typing(port, asked, True), 3))
    assert typed.answers == ["a 1", "a 2 after a 1", "a 3 after a 2 after a 1"]
    with pytest.raises(UsageError, match="paradec serve: too many"):
        asyncio.run(answered(lambda port, asked: clients.in_turn(port, asked, 1), 1, 503))


async def answered(how, count, status=200):
    """What clients get of a server that knows one answer."""
    number = 0

    async def answer(reader, writer):
        nonlocal number
        while head := await reader.readline():
            while (line := await reader.readline()) != b"\r\n":
                if line.startswith(b"content-length"):
                    size = int(line.split()[1])
            asked = json.loads(await reader.readexactly(size))
            assert head == b"POST /translate HTTP/1.1\r\n" and asked["q"] == "a b"
            number += 1
            after = f" after {asked['prediction']}" if asked.get("prediction") else ""
            body = json.dumps({"translatedText": f"a {number}{after}", "error": "too many"})
            said = f"HTTP/1.1 {status} -\r\nContent-Length: {len(body)}\r\n\r\n{body}"
            writer.write(said.encode())
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        return await how(port, [{"q": "a b"}] * count)


def test_lines_fill_the_buffers_of_translate():
    assert [*map(clients.full, (3, 511, 512, 1000, 1024))] == [3, 511, 512, 512, 1024]


def test_a_start_takes_the_processors_time_and_not_that_of_its_sleep():
    works = "import time; time.sleep(0.3); sum(range(3_000_000))"
    user, system, whole, memory = start_up.cost([sys.executable, "-S", "-c", works])
    assert 0 < user and user + system < whole - 0.25
    larger = start_up.cost([sys.executable, "-S", "-c", f"{works}; bytearray(100 << 20)"])
    assert 90 < larger.memory - memory < 101


def test_a_start_that_fails_is_named():
    with pytest.raises(UsageError, match="no-such-module.*: exit status 1"):
        start_up.cost([sys.executable, "-S", "-m", "no-such-module"])


@pytest.mark.slow
def test_starts_are_measured(tmp_path):
    out = tmp_path / "starts.json"
    assert (
        profile(["start-up", "--model", str(DEMO), "--rounds", "1", "--busy", "--out", str(out)])
        == 0
    )
    times = {row["start"]: row["processor_s"] for row in json.loads(out.read_text())["rows"]}
    assert list(times)[:3] == ["import torch", "import fairseq_paradec", "paradec --help"]
    light = times["paradec --help"], times["import fairseq_paradec"]
    assert max(light) < times["fairseq_paradec.load"] < times["import torch"]
    assert list(times)[-1] == "the same by CTranslate2, greedy, float32"


@pytest.mark.slow
def test_a_start_of_random_weights_is_measured(tmp_path):
    argv = ["start-up", "--arch-size", "tiny", "--rounds", "1", "--busy", "--text", "w1 w2"]
    assert profile([*argv, "--out", str(tmp_path / "starts.json")]) == 0
    rows = json.loads((tmp_path / "starts.json").read_text())["rows"]
    last = "paradec translate --text 'w1 w2' --max-len-a 1 --max-len-b 0 --model tiny"
    assert [row["start"] for row in rows[3:]] == ["fairseq_paradec.load", last]
