"""Parts of a corpus without a model: who does them, which are left, and which lines they have."""

import gzip
import json
import os
from collections import deque
from collections.abc import Iterator
from typing import Any
from unittest.mock import Mock

import pyarrow
import pytest
from pyarrow import parquet

from fairseq_paradec.errors import UsageError
from fairseq_paradec.translator.corpus import crews, parts
from fairseq_paradec.translator.corpus.crews import MOST_LOST, Lost, Outcome, distribute
from fairseq_paradec.translator.corpus.lines import Corpus
from fairseq_paradec.translator.corpus.parts import Part, begin, make


class Workers:
    """Workers, numbered from 0; those of some numbers die while they load, some parts kill theirs.

    Args:
        depth: parts that each has at a time.
        dies: numbers of workers that never load.
        kills: by a part's name, how many workers it costs.
    """

    size = 2

    def __init__(self, depth: int, dies: tuple[int, ...] = (), **kills: int) -> None:
        self.depth, self.dies, self.kills = depth, dies, kills
        self.hired = 0
        self.held: dict[int, list[str]] = {}
        self.given: list[str] = []
        self.most = 0  # parts that some worker held at a time
        self.coming: deque[tuple[int, Outcome]] = deque()
        self.closed = False

    def hire(self) -> int:
        worker = self.hired
        self.hired += 1
        self.held[worker] = []
        self.coming.append((worker, Lost("it dies") if worker in self.dies else None))
        return worker

    def give(self, worker: int, name: str, work: Any) -> None:
        self.held[worker].append(name)
        self.given.append(name)
        self.most = max(self.most, len(self.held[worker]))
        if self.kills.get(name, 0) > 0:
            self.kills[name] -= 1
            self.coming.append((worker, Lost(f"{name} kills it")))
        else:
            self.coming.append((worker, (name, work)))

    def wait(self) -> Iterator[tuple[int, Outcome]]:
        worker, outcome = self.coming.popleft()
        if isinstance(outcome, tuple):
            self.held[worker].remove(outcome[0])
        if isinstance(outcome, Lost):  # and nothing more comes of it
            self.coming = deque(pair for pair in self.coming if pair[0] != worker)
            del self.held[worker]
        yield worker, outcome

    def close(self) -> None:
        self.closed = True


def named(letters: str) -> Iterator[Part]:
    return (Part(letter, 1, letter.encode()) for letter in letters)


def done_by(workers: Workers, letters: str) -> str:
    """The parts that are done, in their order."""
    pairs = [*distribute(workers)(named(letters))]
    assert all(content == part.name.encode() for part, content in pairs)
    return "".join(part.name for part, _ in pairs)


@pytest.mark.parametrize("depth", [1, 2])
def test_each_part_is_done_once_and_taken_when_there_is_room(depth):
    workers, taken = Workers(depth), []

    def letters() -> Iterator[Part]:
        for part in named("abcdefgh"):
            taken.append(part.name)
            yield part

    done = []
    for part, _ in distribute(workers)(letters()):
        done.append(part.name)
        held = sum(map(len, workers.held.values()))
        assert len(taken) <= len(done) + held + 1 and held <= 2 * depth
    assert done == [*"abcdefgh"] == workers.given and workers.closed
    assert (workers.hired, workers.most) == (2, depth)


def test_without_parts_nobody_is_hired():
    workers = Workers(1)
    assert done_by(workers, "") == "" and (workers.hired, workers.closed) == (0, True)


@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("killer", "abdf")
@pytest.mark.parametrize("letters", ["abcdef", "f", "ab"])
def test_what_a_lost_worker_held_is_done_by_another(letters, killer, depth):
    workers = Workers(depth, **{killer: MOST_LOST - 1})
    assert sorted(done_by(workers, letters)) == [*letters]
    assert workers.hired == 2 + (MOST_LOST - 1) * (killer in letters)


@pytest.mark.parametrize("depth", [1, 2])
def test_a_part_that_costs_too_many_workers_is_named(depth):
    workers = Workers(depth, b=MOST_LOST)
    with pytest.raises(UsageError, match=r"part b: 3 workers were lost at it \(b kills it\)"):
        done_by(workers, "abcdef")
    assert workers.closed and workers.hired == 2 + MOST_LOST - 1


def test_workers_that_never_load_end_the_work_unless_one_does():
    with pytest.raises(UsageError, match="loading the model: 3 workers were lost at it"):
        done_by(Workers(1, dies=(0, 1, 2)), "abc")
    # The third loads; what it does not survive is not of the model.
    workers = Workers(1, dies=(0, 1, 4), a=1, b=1)
    assert sorted(done_by(workers, "abc")) == [*"abc"]


def test_a_worker_on_a_gpu_sees_that_one_alone(monkeypatch):
    seen = []
    speaking = Mock(**{"recv.side_effect": EOFError})
    for visible, gpu in (("4,7", 1), ("", 1), ("4,7", None)):
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
        crews._serve(speaking, lambda: seen.append(os.environ["CUDA_VISIBLE_DEVICES"]), gpu)
    assert seen == ["7", "1", "4,7"]


# ---- folders -------------------------------------------------------------------------------------


def test_parts_that_are_there_are_not_done_again(tmp_path, capsys):
    (tmp_path / "parts").mkdir()
    (tmp_path / "parts/b").write_text("as it was")
    asked = []

    def crew(left: Iterator[Part]) -> Iterator[tuple[Part, bytes]]:
        for part in left:
            asked.append(part.name)
            yield part, part.work

    make(tmp_path, named("abc"), crew, lambda: 3)
    files = {path.name: path.read_text() for path in (tmp_path / "parts").iterdir()}
    assert asked == ["a", "c"] and files == {"a": "a", "b": "as it was", "c": "c"}


def test_settings_hold_from_the_first_finished_part_on(tmp_path):
    file = tmp_path / "parts" / parts.SETTINGS

    def started(**settings: object) -> dict[str, Any]:
        begin(tmp_path, settings, "--out", {"input": "INPUT"})
        return json.loads(file.read_text())

    (tmp_path / parts.LOCK).touch()
    assert started(beam=1) == {"beam": 1}
    assert started(beam=2, input="x") == {"beam": 2, "input": "x"}  # nothing is finished
    (tmp_path / "parts/0.jsonl").touch()
    assert started(beam=2, input="x") == {"beam": 2, "input": "x"}
    for settings, said in (
        ({"beam": 3, "input": "x"}, "--beam: got 3, but --out .* was begun with 2"),
        ({"input": "x"}, "--beam: got None, but --out .* was begun with 2"),
        ({"beam": 2, "input": "y"}, "INPUT: got files, but --out .* was begun with others"),
    ):
        with pytest.raises(UsageError, match=said):
            started(**settings)
    assert started(beam=2, input="x")
    file.unlink()
    with pytest.raises(UsageError, match="this one holds other files"):
        started(beam=2, input="x")


# ---- lines ---------------------------------------------------------------------------------------


def test_files_are_read_in_the_order_of_their_names_and_hidden_ones_not(tmp_path):
    for name in ("b/2", "b/.hidden", ".git/x", "a", "c"):
        path = tmp_path / "in" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{name}\r\n\r\nend\r")
    corpus = Corpus([str(tmp_path / "in"), str(tmp_path / "in/c")])
    names = ["a", "b/2", "c", "c"]
    assert [path for path, _ in corpus.files] == [str(tmp_path / "in" / name) for name in names]
    lines = [line.decode() for line in corpus.lines()]
    assert lines == [line for name in names for line in (name, "", "end")]


def test_parts_have_their_lines_and_the_number_of_the_first(tmp_path):
    text = tmp_path / "text"
    text.write_text("a\nb\nc\nd\ne")
    rows = [(part.name, part.lines, part.work) for part in Corpus([str(text)]).parts(2)]
    assert rows == [
        ("000000000000.jsonl", 2, (0, [b"a", b"b"])),
        ("000000000002.jsonl", 2, (2, [b"c", b"d"])),
        ("000000000004.jsonl", 1, (4, [b"e"])),
    ]


def test_lines_are_estimated_by_the_bytes_of_those_that_were_read(tmp_path):
    text, packed = tmp_path / "text", tmp_path / "text.gz"
    text.write_text("a\n" * 10 + "abc\n" * 10)
    packed.write_bytes(gzip.compress(b"a\n" * 10))
    corpus = Corpus([str(text), str(text)])
    assert corpus.estimate() is None
    lines = corpus.lines()
    for _ in range(5):
        next(lines)
    assert corpus.estimate() == 60
    for _ in lines:
        pass
    assert corpus.estimate() == 40
    corpus = Corpus([str(text), str(packed)])
    next(corpus.lines())
    assert corpus.estimate() is None


def test_a_text_that_is_missing_in_a_column_is_an_empty_line(tmp_path):
    file = tmp_path / "a.parquet"
    parquet.write_table(pyarrow.table({"b": ["x", None, ""], "text": ["1", "2", "3"]}), file)
    assert [*Corpus([str(file)], "b").lines()] == [b"x", b"", b""]
    with pytest.raises(UsageError, match="--column: got 'c'; allowed: a column of .*: b, text"):
        list(Corpus([str(file)], "c").lines())
