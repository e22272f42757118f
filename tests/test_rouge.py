"""ROUGE: by hand, as the package has it, its intervals, and paradec analyse rouge."""

from __future__ import annotations

import math
import random
from typing import Any

import pytest
from rouge_score.rouge_scorer import RougeScorer
from support.tables import table, write

from fairseq_paradec.analysis.rouge import Score, rouge
from fairseq_paradec.cli.main import main as paradec

CAT = "the cat the cat on mat", "the cat sat on the mat"
POLICE = "the gunman kill police today", "police kill the gunman"
#: Lin 2004, section 3.2, with the two candidate sentences in the other order.
LIN = "w1 w3 w8 w9 w5 . w1 w2 w6 w7 w8 .", "w1 w2 w3 w4 w5 ."


def f1(precision: float, recall: float) -> float:
    return 2 * precision * recall / (precision + recall)


def score(pair: tuple[str, str], **options: Any) -> dict[str, Score]:
    return rouge([pair[0]], [pair[1]], **options)


def assert_is(found: Score, precision: float, recall: float) -> None:
    assert found.precision == pytest.approx(100 * precision)
    assert found.recall == pytest.approx(100 * recall)
    assert found.f1 == pytest.approx(100 * f1(precision, recall))


def test_by_hand():
    # the (2 and 2), cat (2, but 1 in the reference), on, mat: 5 of 6 and 6
    assert_is(score(CAT)["ROUGE-1"], 5 / 6, 5 / 6)
    # all four of the reference, of five
    assert_is(score(POLICE)["ROUGE-1"], 4 / 5, 4 / 4)
    # the-cat, twice there and once in the reference; cat-the, cat-on, on-mat are not in it
    assert_is(score(CAT)["ROUGE-2"], 1 / 5, 1 / 5)
    # the-gunman of four, and of police-kill, kill-the, the-gunman
    assert_is(score(POLICE)["ROUGE-2"], 1 / 4, 1 / 3)
    # the cat on mat
    assert_is(score(CAT)["ROUGE-L"], 4 / 6, 4 / 6)
    # the gunman: what comes before "the" in one stands behind it in the other
    assert_is(score(POLICE)["ROUGE-L"], 2 / 5, 2 / 4)
    # Means are of summaries.
    found = rouge(*zip(CAT, POLICE, strict=True))["ROUGE-1"]
    assert found.f1 == pytest.approx(100 * (5 / 6 + 8 / 9) / 2)
    pair = ("Running dogs!", "run dog")
    assert score(pair)["ROUGE-2"].f1 == 0 and score(pair, stemming=True)["ROUGE-2"].f1 == 100


def test_sentences_by_hand():
    """Each sentence of the reference against all of the summary's (Lin 2004: 4 of 5 words)."""
    found = score(LIN, sentence_mark=".")
    assert_is(found["ROUGE-Lsum"], 4 / 10, 4 / 5)  # w1 w3 w5 and w1 w2: w1 w2 w3 w5
    assert_is(found["ROUGE-L"], 3 / 10, 3 / 5)  # w1 w3 w5
    assert "ROUGE-Lsum" not in score(LIN)
    marked = score(("a b sep c", "a sep b d"), sentence_mark="sep")
    assert_is(marked["ROUGE-1"], 2 / 3, 2 / 3)
    assert_is(marked["ROUGE-2"], 1 / 2, 1 / 2)  # a-b, across its sentences


@pytest.mark.parametrize("stemming", [False, True])
def test_the_package_says_the_same(stemming):
    lots = random.Random(2)
    words = "Dogs dog running runs, the mat. was wasn't 12 x".split()
    texts = [" ".join(lots.choices(words, k=lots.randint(1, 12))) for _ in range(60)]
    texts[0] = ""  # a decoder may write nothing
    ours, wanted = texts[:30], texts[30:]
    found = rouge(ours, wanted, stemming=stemming)
    package = RougeScorer(["rouge1", "rouge2", "rougeL"], use_stemmer=stemming)
    for name, key in (("ROUGE-1", "rouge1"), ("ROUGE-2", "rouge2"), ("ROUGE-L", "rougeL")):
        each = [package.score(target, text)[key] for target, text in zip(wanted, ours)]
        for field, value in zip(("precision", "recall", "f1"), zip(*each)):
            assert getattr(found[name], field) == pytest.approx(100 * sum(value) / 30)


def test_the_interval_is_that_of_a_mean():
    """Of 400 summaries 30% are right and the others wrong: a binomial share."""
    ours = ["right"] * 120 + ["wrong"] * 280
    found = rouge(ours, ["right"] * 400)["ROUGE-1"]
    half = 1.96 * 100 * math.sqrt(0.3 * 0.7 / 400)  # 4.49
    assert found.f1 == pytest.approx(30)
    assert found.low == pytest.approx(30 - half, abs=0.5)
    assert found.high == pytest.approx(30 + half, abs=0.5)


def test_the_commands(tmp_path, capsys):
    """Of what fairseq-generate printed, and of plain text."""
    lines = [f"T-0\t{CAT[1]}", f"D-0\t-1\t{CAT[0]}", f"T-1\t{POLICE[1]}", f"D-1\t-1\t{POLICE[0]}"]
    ours = write(tmp_path / "ours", *lines)
    same = write(tmp_path / "same", CAT[1], POLICE[1])
    rows = table(capsys, "rouge", ours, same, "--ref", ours)
    assert [row[:2] for row in rows] == [
        [name, f"ROUGE-{n}"] for name in ("ours", "same") for n in "12L"
    ]
    # Means of 5/6 and 8/9, 4/5 and 5/6, 5/6 and 1; resampled, one of the two, or both.
    assert rows[0][2:] == ["86.11", "83.33-88.89", "81.67", "91.67"]
    assert rows[3][2:] == ["100.00", "100.00-100.00", "100.00", "100.00"]
    ours = write(tmp_path / "ours", "the cat the cat on mat", "x", "a b c d", "a b")
    theirs = write(tmp_path / "theirs", "the cat sat on the mat", "y", "a b c d", "a c")
    sources = write(tmp_path / "src", "1 2 3 4", "1", "1 2 3", "1 2")
    rows = table(capsys, "length-bins", ours, theirs, sources, "--bins", 2, "--rouge")
    assert [row[2] for row in rows] == ["25.00", "83.33", "54.17"]  # 0 and 50; 100 and 66.67


# ---- the command -------------------------------------------------------------------------------


def test_mistakes_are_named(tmp_path, capsys):
    two, one = write(tmp_path / "two", "a", "b"), write(tmp_path / "one", "a b")
    other = write(tmp_path / "other", "一 二")
    for arguments, words in (
        ([two, "--ref", one], "two: got 2 sentences; allowed: 1, as in"),
        ([two, two, "--ref", one], "HYP: got"),
        ([one, "--ref", one, "--sentence-mark", "x"], "--sentence-mark: got 'x'; allowed: a token"),
        ([one, "--ref", other], "--ref: got"),
    ):
        assert paradec(["analyse", "rouge", *arguments]) == 2
        said = capsys.readouterr().err
        assert words in said and said.count("\n") == 1
