"""Corpora in parts: rows, refusals, and what is lost or killed on the way, here and on Ray."""

import errno
import gzip
import json
import os
import pickle
import random
import signal
import subprocess
import sys
from collections import deque
from functools import partial
from pathlib import Path

import pytest
from support.commands import DEMO, ROOT, wait_until

import fairseq_paradec
from fairseq_paradec.cli.main import main as paradec
from fairseq_paradec.cli.translate_corpus import worker
from fairseq_paradec.corpus import cluster, crews, parts
from fairseq_paradec.corpus.lines import Corpus
from fairseq_paradec.errors import UsageError

TEXT = [" ".join(line.split()[:4]) for line in (DEMO / "raw/demo.en").read_text().splitlines()]
GREEDY = {"decoding": "greedy", "buffer_size": 20, "batch_size": 8}


def command(out: Path, *files: object, size: int = 20) -> list[str]:
    words = ("translate", "--model", DEMO, "--out", out, "--buffer-size", size, "--batch-size", 8)
    return [*map(str, (*words, *files))]


def made(out: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in (out / "parts").glob("*.jsonl")}


def test_every_line_is_a_row_whatever_stops_the_work(tmp_path, capsys, monkeypatch):
    folder, out = tmp_path / "in", tmp_path / "out"
    folder.mkdir()
    (folder / "a.txt").write_text("\n".join(TEXT[:50]) + "\r\n")
    odd = ["\n", "a " * 1100 + "\n", "M\u00fcll \xff\n", TEXT[50]]
    (folder / "b.gz").write_bytes(gzip.compress(b"".join(one.encode("latin-1") for one in odd)))
    usual, calls = os.fsync, []

    def full(number: int) -> None:
        calls.append(number)
        if len(calls) == 6:  # two for each file: the settings, a part, this part
            raise OSError(errno.ENOSPC, "No space left on device")
        usual(number)

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        assert paradec(command(out, folder)) == 2
    assert "20.jsonl cannot be written (No space left" in capsys.readouterr().err
    left = {path.name for path in (out / "parts").iterdir()} - {"000000000020.jsonl"}
    assert left == {"settings.json", "000000000000.jsonl"}
    with parts.locked(out, "--out"):
        assert paradec(command(out, folder)) == 2
    assert "no other process works" in capsys.readouterr().err
    assert paradec(command(out, folder)) == 0
    rows = [json.loads(row) for _, part in sorted(made(out).items()) for row in part.splitlines()]
    assert [row["line"] for row in rows] == [*range(54)] and rows[52]["source"] == "M\\xfcll \\xff"
    why = [row["problem"] for row in rows[50:]]
    assert why[::2] == ["is empty", "is not UTF-8"] and "takes 1024" in why[1] and why[3] is None
    assert rows[0]["score"] < 0 and rows[50]["score"] is None
    wanted = fairseq_paradec.load(DEMO).translate([row["source"] for row in rows], **GREEDY)
    wanted[52] = ""
    assert [row["translation"] for row in rows] == wanted
    report = json.loads((out / "report.json").read_text())
    assert report["why"] == {"is empty": 1, "is too long": 1, "is not UTF-8": 1}
    for more, said in (
        ([folder, "--beam", "3"], "--beam: got 3, but --out"),
        ([folder, "--decoding", "auto_fast"], "--decoding: got 'auto_fast'"),
        ([tmp_path / "no*"], "INPUT: got "),
        ([], "INPUT: got None"),
    ):
        assert paradec(command(out, *more)) == 2 and said in capsys.readouterr().err
    for address, said in (("localhost:1", "there is none"), ("auto", "with Ray: pip install")):
        if address == "auto":
            monkeypatch.setitem(sys.modules, "ray", None)
        else:
            pytest.importorskip("ray")
        words = command(tmp_path / address[0], folder, "--cluster", address)
        assert paradec(words) == 2 and said in capsys.readouterr().err


class Unreliable:
    """Workers, some of which are lost while they load or work; ``kills`` is a part's name."""

    size, depth = 3, 2

    def __init__(self, kills: str | None) -> None:
        self.draw, self.kills, self.asked, self.hired = random.Random(1), kills, {}, 0

    def hire(self) -> int:
        self.hired += 1
        self.asked[self.hired] = deque([None])
        return self.hired

    def give(self, one: int, name: str, work: bytes) -> None:
        self.asked[one].append((name, work))
        assert len(self.asked[one]) <= 2

    def wait(self):
        one = self.draw.choice([one for one, asked in self.asked.items() if asked])
        outcome = self.asked[one].popleft()
        if (outcome and outcome[0] == self.kills) or self.draw.random() < 0.03:
            del self.asked[one]
            outcome = crews.Lost("gone")
        yield one, outcome

    def close(self) -> None:
        self.asked = {}


def test_parts_of_lost_workers_are_done_again():
    some = [parts.Part(f"{i}", 1, b"%d" % i) for i in range(300)]
    found = [*crews.distribute(Unreliable(None))(iter(some))]
    assert sorted(found) == sorted((part, part.work) for part in some)
    with pytest.raises(UsageError, match="part 7: 3 workers were lost"):
        deque(crews.distribute(Unreliable("7"))(iter(some)))


@pytest.fixture(scope="module")
def two_nodes():
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    nodes = pytest.importorskip("ray.cluster_utils").Cluster(
        True,
        head_node_args={"num_cpus": 1, "include_dashboard": False, "object_store_memory": 10**8},
    )
    nodes.second = nodes.add_node(num_cpus=1, object_store_memory=10**8)
    yield nodes
    nodes.shutdown()


@pytest.mark.slow
def test_a_cluster_reads_as_it_works_and_names_what_fails(two_nodes, tmp_path, monkeypatch):
    """A driver's memory does not grow with 45 MB of text; echoes instead of translations."""
    text, sizes = tmp_path / "text", []
    echo = partial(partial, pickle.dumps)
    for count in (5000, 50000):
        text.write_text(("a" * 1000 + "\n") * count)
        actors = cluster.Actors(two_nodes.address, echo, None, 1, 0)
        resident, seen = 0, 0
        for part, _ in crews.distribute(actors)(Corpus([str(text)]).parts(500)):
            status = Path("/proc/self/status").read_text().split("RssAnon:")[1]
            resident = max(resident, int(status.split()[0]))
            seen += part.lines
        assert actors.size == 2 and seen == count
        sizes.append(resident)
    assert sizes[1] - sizes[0] < 15000, sizes  # KiB
    load = partial(worker, tmp_path / "model", "cpu", "", {}, {})
    actors = cluster.Actors(two_nodes.address, load, 1, 1, 0)
    with pytest.raises(UsageError, match=r"--model: got .*model'; .* \(on the machine "):
        deque(crews.distribute(actors)(Corpus([str(text)]).parts(500)))
    monkeypatch.setattr("ray.__version__", "1.0")
    with pytest.raises(UsageError, match=r"a cluster with the same Ray \(1.0\)"):
        cluster.connect(two_nodes.address)


@pytest.mark.slow
def test_a_killed_worker_node_and_driver_change_nothing(two_nodes, tmp_path):
    text, out, single = tmp_path / "text", tmp_path / "out", tmp_path / "single"
    text.write_text("\n".join(TEXT * 50))
    words = command(out, text, "--cluster", two_nodes.address, size=200)
    run = [sys.executable, "-m", "fairseq_paradec", *words]
    driver = subprocess.Popen(run, cwd=ROOT)
    for count in (2, 5, 9):
        wait_until(lambda: len([*out.glob("parts/0*.jsonl")]) >= count, driver)  # noqa: B023
        if count == 2:
            actors = [path.parent for path in Path("/proc").glob("[0-9]*/cmdline")
                      if path.read_bytes().startswith(b"ray::Actor")]  # fmt: skip
            assert len(actors) == 2
            os.kill(int(actors[0].name), signal.SIGKILL)
        elif count == 5:
            assert paradec(words) == 2  # the folder is the driver's
            two_nodes.remove_node(two_nodes.second, allow_graceful=False)
    driver.kill()
    driver.wait()
    before = made(out)
    assert 9 <= len(before) < 25
    subprocess.run(run, cwd=ROOT, check=True)
    assert paradec(command(single, text, size=200)) == 0
    assert made(out) == made(single) and before.items() <= made(out).items()
    assert len(made(out)) == 25
