"""Outputs of ``paradec`` where neither torch nor fairseq is, beside those of fairseq-generate.

fairseq's commands run without the plugin. The demo pairs' 100 sentences are what is committed of
the test sets; with ``--data`` and ``--raw`` of another folder the whole sets are compared:
``python tests/translator/test_beside_generate.py MODEL DATA``.
"""

import json
import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from support.builders import DEMO
from support.commands import alone, environment, succeed

from fairseq_paradec import load

SMALL = DEMO.with_name("demo-small.en-de")


def generate(folder: Path, data: Path, *flags: str) -> list[str]:
    """What fairseq-generate prints of a test set, by a folder's model."""
    words = [sys.executable, "-m", "fairseq_cli.generate", str(data), *"-s en -t de --path".split()]
    words += [
        str(folder / "model.pt"),
        *"--batch-size 50 --required-batch-size-multiple 1".split(),
        "--cpu",
        "--tokenizer",
        "moses",
    ]
    words += ["--bpe", "subword_nmt", "--bpe-codes", str(folder / "codes.bpe"), *flags]
    done = subprocess.run(words, capture_output=True, text=True, env=environment(), check=False)
    return succeed(done).stdout.splitlines()


def by_sentence(lines: list[str], kind: str) -> dict[int, list[list[str]]]:
    """The columns behind the number of lines of a kind, as they come, by sentences."""
    rows: dict[int, list[list[str]]] = {}
    for line in lines:
        if line.startswith(f"{kind}-"):
            number, *columns = line[len(kind) + 1 :].split("\t")
            rows.setdefault(int(number), []).append(columns)
    return rows


def natural(score: str) -> float:
    """A score that fairseq prints, to base 2, as a natural logarithm."""
    return float(score) * math.log(2)


def alike(folder: Path, source: Path, lines: list[str]) -> list[int]:
    """The sentences that fairseq prints of the data as they come back from the folder's symbols.

    What prepared a corpus may have put its punctuation otherwise than the folder's tokenizer does.
    """
    model, printed = load(folder), by_sentence(lines, "S")
    symbols = map(model.encode, source.read_text("utf-8").splitlines())
    texts = map(model.processing.decode, symbols)
    return [number for number, text in enumerate(texts) if printed[number] == [[text]]]


def compare_scores(folder: Path, data: Path, source: Path, target: Path) -> int:
    """Compare the log-probabilities of references; return of how many sentences."""
    lines = generate(folder, data, "--score-reference")
    wanted, same = by_sentence(lines, "P"), alike(folder, source, lines)
    words = ("score", source, target, "--model", folder, "--tokens", "--threads", "1")
    found = [json.loads(line) for line in succeed(alone(*words)).stdout.splitlines()]
    assert len(found) == len(wanted)
    for number in same:
        ((scores,),), line = wanted[number], found[number]
        theirs = [natural(score) for score in scores.split()]
        assert line["scores"] == pytest.approx(theirs, abs=1e-4), number
        assert line["score"] == pytest.approx(sum(theirs) / len(theirs), abs=1e-4), number
    return len(same)


def compare_lists(folder: Path, data: Path, source: Path) -> int:
    """Compare the five best outputs and their scores; return of how many sentences."""
    lines = generate(folder, data, "--beam", "5", "--nbest", "5")
    wanted, same = by_sentence(lines, "D"), alike(folder, source, lines)
    words = ("translate", source, "--model", folder, "--decoding", "beam", "--beam", "5")
    done = succeed(alone(*words, "--nbest", "5", "--scores", "--threads", "1"))
    printed = [line.split("\t") for line in done.stdout.splitlines()]
    assert len(printed) == 5 * len(wanted)
    for number in same:
        theirs, ours = wanted[number], printed[5 * number : 5 * number + 5]
        assert [text for _, text in ours] == [text for _, text in theirs], number
        scores = [natural(score) for score, _ in theirs]
        assert [float(score) for score, _ in ours] == pytest.approx(scores, abs=1e-4), number
    return len(same)


@pytest.mark.slow
@pytest.mark.parametrize("folder", [DEMO, SMALL], ids=lambda path: path.name)
def test_scores_and_lists_are_those_of_fairseqs_commands(folder: Path) -> None:
    source, target = folder / "raw" / "demo.en", folder / "raw" / "demo.de"
    assert compare_scores(folder, folder, source, target) == 100
    assert compare_lists(folder, folder, source) == 100


def main(*words: Any) -> None:
    """Compare whole test sets; see the module."""
    folder, data = map(Path, words)
    raw = data / "raw"
    count = compare_scores(folder, data, raw / "test.en", raw / "test.de")
    print(f"{folder.name}: scores of {count} references, within 1e-4")
    print(f"{folder.name}: five best of {compare_lists(folder, data, raw / 'test.en')} sentences")


if __name__ == "__main__":
    main(*sys.argv[1:])
