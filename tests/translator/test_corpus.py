"""Corpora in parts: rows, refusals, and what is lost or killed on the way, here and on Ray."""

import contextlib
import errno
import gzip
import itertools
import json
import os
import pickle
import signal
import subprocess
import sys
import time
from collections import deque
from functools import partial
from multiprocessing import Pipe
from pathlib import Path
from unittest.mock import Mock

import pyarrow
import pytest
from pyarrow import parquet
from support.commands import DEMO, ROOT, wait_until

import fairseq_paradec
from fairseq_paradec.cli.main import main as paradec
from fairseq_paradec.cli.translate_corpus import worker
from fairseq_paradec.errors import UsageError
from fairseq_paradec.translator.corpus import cluster, crews, parts
from fairseq_paradec.translator.corpus.lines import Corpus

TEXT = [" ".join(line.split()[:4]) for line in (DEMO / "raw/demo.en").read_text().splitlines()]


def command(out: Path, *files: object, size: int = 20) -> list[str]:
    words = ("translate", "--model", DEMO, "--out", out, "--buffer-size", size, "--batch-size", 8)
    return [*map(str, (*words, *files))]


def made(out: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in (out / "parts").glob("*.jsonl")}


def test_every_line_is_a_row_whatever_stops_the_work(tmp_path, capsys, monkeypatch):
    folder, out = tmp_path / "in", tmp_path / "out"
    words, text = command(out, folder), folder / "a.txt"
    folder.mkdir()
    (folder / ".hidden").write_text("not of the corpus\n")
    text.write_text("\ufeff" + "\n\ufeff".join(TEXT[:50]) + "\r\n", encoding="utf-8")
    odd = ["\n", "a " * 1100 + "\n", "M\u00fcll \xff\n"]
    (folder / "b.gz").write_bytes(gzip.compress(b"".join(one.encode("latin-1") for one in odd)))
    parquet.write_table(pyarrow.table({"text": [TEXT[50]]}), folder / "c.parquet")
    # Two for each file: the settings, a part, this part.
    full = Mock(side_effect=[None] * 5 + [OSError(errno.ENOSPC, "No space left on device")])
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        assert paradec(words) == 2
    assert "20.jsonl cannot be written (No space left" in capsys.readouterr().err
    left = {path.name for path in (out / "parts").iterdir()} - {"000000000020.jsonl"}
    assert left == {"settings.json", "000000000000.jsonl"}
    assert paradec(words) == 0
    rows = [json.loads(row) for _, part in sorted(made(out).items()) for row in part.splitlines()]
    assert [row["line"] for row in rows] == [*range(54)] and rows[52]["source"] == "M\\xfcll \\xff"
    why = [row["problem"] for row in rows[50:]]
    assert why[::2] == ["is empty", "is not UTF-8"] and "takes 1024" in why[1] and why[3] is None
    sources = [row["source"] for row in rows]
    assert sources[:50] == TEXT[:50]
    wanted = fairseq_paradec.load(DEMO).translate(sources, decoding="greedy")
    assert [row["translation"] for row in rows] == [*wanted[:52], "", *wanted[53:]]
    assert '"is too long": 1' in (out / "report.json").read_text()
    for given, said in (
        ([*words, "--beam", "3"], "--beam: got 3, but --out"),
        ([*words[:-3], str(folder)], "--batch-size: got None, but --out"),
        ([*words, "--decoding", "auto_fast"], "--decoding auto_fast excludes --out"),
        ([*words, "--cluster", "localhost:1"], "there is none"),
        ([*words, "--cluster", "auto"], "needs ray; install fairseq_paradec[cluster]"),
        (words, "got 'other lines than those that are finished in "),
    ):
        if given[-1] == "auto":
            monkeypatch.setitem(sys.modules, "ray", None)
        elif given == words:
            text.write_bytes(text.read_bytes().swapcase())  # as many bytes
        (out / "report.json").unlink(missing_ok=True)
        assert paradec(given) == 2 and said in capsys.readouterr().err


def test_a_clock_that_jumps_an_hour_changes_nothing(tmp_path, monkeypatch):
    """Back and forth with each look at it, here and between two runs."""
    text = tmp_path / "a.txt"
    text.write_text("\n".join(TEXT[:12]) + "\n")
    assert paradec(command(tmp_path / "usual", text, size=4)) == 0
    now, looks = time.time, itertools.count()
    monkeypatch.setattr(time, "time", lambda: now() + 3600 * (-1) ** next(looks))
    assert paradec(command(tmp_path / "jumps", text, size=4)) == 0
    (tmp_path / "jumps/parts/000000000004.jsonl").unlink()
    os.utime(tmp_path / "jumps/parts/000000000000.jsonl", (now() + 3600, now() + 3600))
    (tmp_path / "jumps/report.json").unlink()
    assert paradec(command(tmp_path / "jumps", text, size=4)) == 0
    assert made(tmp_path / "jumps") == made(tmp_path / "usual") and len(made(tmp_path / "usual"))


@pytest.fixture
def small_disk(tmp_path):
    """A file system of two pages, which ``mount`` makes larger."""
    place = tmp_path / "disk"
    place.mkdir()

    def mount(options: str) -> None:
        words = ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(place)]
        if subprocess.run(words, capture_output=True).returncode:
            pytest.skip("only root can mount a file system")

    mount("size=8k")
    yield place, lambda size: mount(f"remount,size={size}")
    subprocess.run(["umount", "-l", str(place)], check=True)


def test_a_full_disk_loses_no_line_and_doubles_none(small_disk, tmp_path, capsys):
    (place, enlarge), text = small_disk, tmp_path / "a.txt"
    text.write_text("\n".join(TEXT[:40]) + "\n")
    assert paradec(command(tmp_path / "usual", text, size=8)) == 0
    assert paradec(command(place / "out", text, size=8)) == 2
    said = capsys.readouterr().err.splitlines()[-1]
    assert "No space left on device" in said and "the same command goes on" in said
    before, wanted = made(place / "out"), made(tmp_path / "usual")
    assert before.items() < wanted.items()
    enlarge("1m")
    assert paradec(command(place / "out", text, size=8)) == 0
    assert made(place / "out") == wanted


def test_what_cannot_be_read_is_named_and_other_flags_can_follow(tmp_path, capsys):
    (tmp_path / "torn.gz").write_bytes(gzip.compress(b"a\n")[:-9])
    parquet.write_table(pyarrow.table({"text": [1]}), tmp_path / "n.parquet")
    (tmp_path / "in").mkdir()
    (tmp_path / "in/link").symlink_to(tmp_path)
    for name, said in (
        ("torn.gz", "torn.gz'; allowed: a file that can be read (Compressed file ended"),
        ("n.parquet", "--column: got 'text'; allowed: a column of text; "),
        (".", "/out'; allowed: a folder that is not in INPUT"),
        ("none", "/none'; allowed: a file, pattern or folder that exists; there is none"),
        ("*.no", "/*.no'; allowed: a file, pattern or folder that exists; there is none"),
        ("in", "in/link'; allowed: a file, a pattern, or a folder with files (no pipe"),
    ):
        assert paradec(command(tmp_path / "out", tmp_path / name)) == 2
        assert said in capsys.readouterr().err


def test_a_worker_that_dies_while_it_speaks_is_lost():
    workers = crews.Processes(Mock(), 1)
    ours, theirs = Pipe()
    workers._processes[ours] = Mock(exitcode=-9)
    os.write(theirs.fileno(), b"\0\0\0\x09half")
    theirs.close()
    ((worker, lost),) = workers.wait()
    assert worker is ours and str(lost) == "a process ended with -9"


@pytest.mark.slow
def test_workers_are_deaf_to_ctrl_c_and_a_part_that_costs_three_is_named():
    workers = crews.Processes(partial(partial, os._exit), 1)
    workers.hire()
    (process,) = workers._processes.values()
    assert f"SigBlk:\t{2:016x}\n" in Path(f"/proc/{process.pid}/status").read_text()
    workers.close()
    workers = crews.Processes(workers.load, 1)
    with pytest.raises(UsageError, match=r"part x: 3 workers .* \(a process ended with 7\)"):
        deque(crews.distribute(workers)(iter([parts.Part("x", 1, 7)])))


@pytest.fixture(scope="module")
def two_nodes():
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    small = {"num_cpus": 1, "include_dashboard": False, "object_store_memory": 10**8}
    nodes = pytest.importorskip("ray.cluster_utils").Cluster(True, head_node_args=small)
    nodes.second = nodes.add_node(**small)
    yield nodes
    nodes.shutdown()


def process(name: bytes, parent: int | None) -> int:
    """A running process, by its command line and its parent."""
    for path in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it has just ended
            status = (path / "status").read_text()
            if name in (path / "cmdline").read_bytes() and f"PPid:\t{parent or ''}" in status:
                return int(path.name)
    raise ProcessLookupError(name)


def children(parent: int) -> set[int]:
    """The processes that a process has started."""
    found = Path(f"/proc/{parent}/task/{parent}/children").read_text()
    return {*map(int, found.split())}


def runs(number: int) -> bool:
    """Whether a process has not ended."""
    try:
        return "State:\tZ" not in Path(f"/proc/{number}/status").read_text()
    except OSError:
        return False


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
def test_a_cluster_without_machines_is_given_up_and_finished_parts_are_kept(tmp_path):
    """Its head lives, and has no cores."""
    small = {"include_dashboard": False, "object_store_memory": 10**8}
    head = {"num_cpus": 0, **small}
    nodes = pytest.importorskip("ray.cluster_utils").Cluster(True, head_node_args=head)
    try:
        last = nodes.add_node(num_cpus=1, **small)
        text, out = tmp_path / "text", tmp_path / "out"
        text.write_text("\n".join(TEXT * 50))
        more = ("--cluster", nodes.address, "--give-up", 5)
        run = [sys.executable, "-m", "fairseq_paradec", *command(out, text, *more, size=200)]
        driver = subprocess.Popen(run, cwd=ROOT, stderr=subprocess.PIPE, text=True)
        wait_until(lambda: len([*out.glob("parts/0*.jsonl")]) >= 2, driver)
        nodes.remove_node(last, allow_graceful=False)
        _, said = driver.communicate(timeout=120)
    finally:
        nodes.shutdown()
    assert driver.returncode == 2 and "no machine with 1 CPU was there for 5 s" in said, said
    assert 2 <= len(made(out)) < 25 and not (out / "report.json").exists()
    assert "Traceback" not in said and "leaked" not in said


@pytest.mark.slow
def test_a_head_that_is_restarted_costs_no_line(tmp_path):
    """It and its workers are killed, and come again at the same address; so does the command."""
    small = {"num_cpus": 1, "include_dashboard": False, "object_store_memory": 10**8}
    nodes = pytest.importorskip("ray.cluster_utils").Cluster(True, head_node_args=small)
    text, out, single = tmp_path / "text", tmp_path / "out", tmp_path / "single"
    text.write_text("\n".join(TEXT * 50))
    address = nodes.address
    words = command(out, text, "--cluster", address, "--give-up", 20, size=200)
    run = [sys.executable, "-m", "fairseq_paradec", *words]
    try:
        second = nodes.add_node(**small)
        driver = subprocess.Popen(run, cwd=ROOT, stderr=subprocess.PIPE, text=True)
        wait_until(lambda: len([*out.glob("parts/0*.jsonl")]) >= 2, driver)
        for node in (nodes.head_node, second):
            nodes.remove_node(node, allow_graceful=False)
        port = int(address.rpartition(":")[2])
        nodes.add_node(**small, gcs_server_port=port)  # without a head the next one is it
        nodes.add_node(**small)
        assert nodes.address == address
        _, said = driver.communicate(timeout=300)
        assert driver.returncode != 0 and 2 <= len(before := made(out)) < 25, said
        assert paradec(words) == 0
    finally:
        nodes.shutdown()
    assert paradec(command(single, text, size=200)) == 0
    assert made(out) == made(single) and before.items() <= made(out).items()


@pytest.mark.slow
@pytest.mark.parametrize("on", ["ray", "processes"])
def test_killed_workers_a_node_and_the_driver_change_nothing(on, tmp_path, request):
    text, out, single = tmp_path / "text", tmp_path / "out", tmp_path / "single"
    text.write_text("\n".join(TEXT * 50))
    nodes = request.getfixturevalue("two_nodes") if on == "ray" else None
    more = ("--cluster", nodes.address) if nodes else ("--processes", 2)
    run = [sys.executable, "-m", "fairseq_paradec", *(words := command(out, text, *more, size=200))]
    driver = subprocess.Popen(run, cwd=ROOT, stderr=subprocess.PIPE, text=True)
    for count in (2, 5, 9):
        wait_until(lambda: len([*out.glob("parts/0*.jsonl")]) >= count, driver)  # noqa: B023
        if count == 2:
            name = b"ray::Actor" if nodes else b"spawn_main"
            os.kill(process(name, None if nodes else driver.pid), signal.SIGKILL)
        elif count == 5:
            assert paradec(words) == 2  # the folder is the driver's
            if nodes:
                nodes.remove_node(nodes.second, allow_graceful=False)
    workers = children(driver.pid)
    assert nodes or workers
    driver.send_signal(signal.SIGTERM if nodes else signal.SIGKILL)
    _, said = driver.communicate()
    wait_until(lambda: not any(map(runs, workers)))
    assert "leaked" not in said and "Traceback" not in said
    assert driver.returncode == (143 if nodes else -signal.SIGKILL), said
    assert ("finished parts are kept" in said) == bool(nodes)
    assert 9 <= len(before := made(out)) < 25
    done = subprocess.run(run, cwd=ROOT, check=True, stderr=subprocess.PIPE, text=True)
    assert "leaked" not in done.stderr and "Traceback" not in done.stderr
    assert paradec(command(single, text, size=200)) == 0
    assert made(out) == made(single) and before.items() <= made(out).items()
