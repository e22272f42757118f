"""Quality of translations, summaries and images: by hand, by a slow bootstrap, by kind of data."""

import functools
import json
import math
import re

import numpy as np
import pytest
import sacrebleu
from support.tables import table, write

from fairseq_paradec.cli.main import main as paradec
from fairseq_paradec.errors import UsageError
from fairseq_paradec.images import Size
from fairseq_paradec.lab.analysis import quality
from fairseq_paradec.lab.analysis.quality import ImageQuality, SummaryQuality, TranslationQuality
from fairseq_paradec.lab.measure.text import plain_text, quality_of, text_language

PAIR = Size(1, 2, 1)
RNG = np.random.default_rng(3)


def drawn(size, resamples):
    return np.random.default_rng(quality.SEED).choice(size, size=(resamples, size), replace=True)


def test_resamples_are_those_of_one_draw():
    counts = [[list(draw).count(i) for i in range(7)] for draw in drawn(7, 20)]
    assert quality.resampled(7, 20).tolist() == counts


@pytest.mark.parametrize("kind", [TranslationQuality, SummaryQuality, ImageQuality])
def test_systems_are_compared_by_paired_bootstrap(kind):
    """Against a loop over the resamples, each of which is scored as a corpus of its own."""
    words = range(256) if kind is ImageQuality else "a dog. sat the mat. ran".split()
    size = 2 if kind is ImageQuality else 9
    own = {"size": PAIR} if kind is ImageQuality else {}
    texts = [[" ".join(map(str, RNG.choice(words, size))) for _ in range(9)] for _ in range(3)]
    references, ours, theirs = np.array(texts)
    judge = kind(references.tolist(), resamples=40, **own)
    differences = judge.differences(ours.tolist(), theirs.tolist())
    for name, (difference, low, high) in differences.items():
        sampled = []
        for draw in [range(9), *drawn(9, 40)]:
            resampled = kind(references[draw].tolist(), resamples=2, **own)
            a, b = (resampled.scores(system[draw].tolist())[name] for system in (ours, theirs))
            sampled.append(a - b)
        assert difference == pytest.approx(sampled[0], abs=1e-9)
        wanted = np.percentile(sampled[1:], [2.5, 97.5])
        assert [low, high] == pytest.approx([*wanted], abs=1e-9) and low < high
    assert set(judge.differences(ours.tolist(), ours.tolist()).values()) == {(0, 0, 0)}
    if kind is TranslationQuality:
        score = sacrebleu.CHRF().corpus_score(ours.tolist(), [references.tolist()]).score
        assert judge.scores(ours.tolist())["chrF"] == pytest.approx(score)


def test_psnr_by_hand():
    judge = ImageQuality(["0 0", "10 20", "7 7"], PAIR, resamples=2)
    # Errors of 3 and 4: 12.5 on average. Of 255 and 255: 0 dB. None at all: as if it were 1/2.
    wanted = [10 * math.log10(255**2 / 12.5), 0.0, 10 * math.log10(255**2 / 0.5)]
    each = judge.each(["3 4", "10 20", "7 7"])
    assert each.tolist() == pytest.approx([wanted[0], wanted[2], wanted[2]])
    black = ImageQuality(["0 0"], PAIR, resamples=2)
    assert black.scores(["255 255"]) == {"PSNR": pytest.approx(wanted[1])}
    assert black.scores(["0 1"])["PSNR"] == pytest.approx(black.best)  # nothing else is as good


@pytest.mark.parametrize(
    ("texts", "said"),
    [
        (["1 2", "1 2 3"], "output 2: tokens: got '3 of them'; allowed: 2, for 1×2×1"),
        (["1 <unk>", "1 2"], "output 1: intensity: got '<unk>'; allowed: 0 to 255"),
        (["1 2", "1 256"], "output 2: tokens[1]: got 256; allowed: 0 to 255"),
    ],
)
def test_what_is_no_image_is_named(texts, said):
    judge = ImageQuality(["1 2", "3 4"], PAIR, resamples=2)
    with pytest.raises(UsageError, match=re.escape(said)):
        judge.scores(texts)
    with pytest.raises(UsageError, match=re.escape(said.replace("output", "reference"))):
        ImageQuality(texts, PAIR, resamples=2)


CAT = "the cat the cat on mat", "the cat sat on the mat"
POLICE = "the gunman kill police today", "police kill the gunman"
#: Lin 2004, section 3.2, with the two candidate sentences in the other order.
LIN = "w1 w3 w8 w9 w5 . w1 w2 w6 w7 w8 .", "w1 w2 w3 w4 w5 ."
MARKED = "a b sep c", "a sep b d"


@pytest.mark.parametrize(
    ("pair", "mark", "kind", "precision", "recall"),
    [
        # the (2 and 2), cat (2, but 1 in the reference), on, mat: 5 of 6 and 6
        (CAT, None, "1", 5 / 6, 5 / 6),
        (POLICE, None, "1", 4 / 5, 4 / 4),  # all four of the reference, of five
        # the-cat, twice there and once in the reference; cat-the, cat-on, on-mat are not in it
        (CAT, None, "2", 1 / 5, 1 / 5),
        # the-gunman of four, and of police-kill, kill-the, the-gunman
        (POLICE, None, "2", 1 / 4, 1 / 3),
        (CAT, None, "L", 4 / 6, 4 / 6),  # the cat on mat
        # the gunman: what comes before "the" in one stands behind it in the other
        (POLICE, None, "L", 2 / 5, 2 / 4),
        # Each sentence of the reference against all of the summary's (Lin 2004: 4 of 5 words):
        (LIN, ".", "Lsum", 4 / 10, 4 / 5),  # w1 w3 w5 and w1 w2: w1 w2 w3 w5
        (LIN, ".", "L", 3 / 10, 3 / 5),  # w1 w3 w5
        (MARKED, "sep", "1", 2 / 3, 2 / 3),
        (MARKED, "sep", "2", 1 / 2, 1 / 2),  # a-b, across its sentences
    ],
)
def test_rouge_by_hand(pair, mark, kind, precision, recall):
    lines = None if mark is None else functools.partial(quality.in_lines, mark=mark)
    judge = SummaryQuality([pair[1]], resamples=2, lines=lines)
    each = judge.each([pair[0]])
    assert ("ROUGE-Lsum" in each) == ("ROUGE-Lsum" in judge.metrics) == (mark is not None)
    f1 = 2 * precision * recall / (precision + recall)
    wanted = pytest.approx([100 * precision, 100 * recall, 100 * f1])
    assert each[f"ROUGE-{kind}"][:, 0].tolist() == wanted


def test_the_commands(tmp_path, capsys):
    """Of what fairseq-generate printed, and of plain text."""
    lines = [f"T-0\t{CAT[1]}", f"D-0\t-1\t{CAT[0]}", f"T-1\t{POLICE[1]}", f"D-1\t-1\t{POLICE[0]}"]
    ours = write(tmp_path / "ours", *lines)
    same = write(tmp_path / "same", CAT[1], POLICE[1])
    rows = table(capsys, "rouge", ours, same, "--ref", ours)
    names = [[name, f"ROUGE-{n}"] for name in ("ours", "same") for n in "12L"]
    assert [row[:2] for row in rows] == names
    # Means of 5/6 and 8/9, 4/5 and 5/6, 5/6 and 1; resampled, one of the two, or both.
    assert rows[0][2:] == ["86.11 (83.33-88.89)", "81.67", "91.67"]
    assert rows[3][2:] == ["100.00 (100.00-100.00)", "100.00", "100.00"]
    ours = write(tmp_path / "ours", "the cat the cat on mat", "x", "a b c d", "a b")
    theirs = write(tmp_path / "theirs", "the cat sat on the mat", "y", "a b c d", "a c")
    sources = write(tmp_path / "src", "1 2 3 4", "1", "1 2 3", "1 2")
    rows = table(capsys, "length-bins", ours, theirs, sources, "--bins", 2, "--rouge")
    assert [row[2] for row in rows] == ["25.00", "83.33", "54.17"]  # 0 and 50; 100 and 66.67
    assert paradec(["analyse", "rouge", ours, "--ref", same]) == 2
    assert "ours: got 4 sentences; allowed: 2, as in" in capsys.readouterr().err


def test_summaries_are_scored_sentence_by_sentence():
    from rouge_score.rouge_scorer import RougeScorer  # brings nltk, scikit-learn and scipy

    ours = ["The dog sleeps. A cat sat on mats!", "It rains <q> nobody came", "", "x y z"]
    wanted = ["A cat sat. The dog sleeps now.", "Nobody came. It rains", "one two", "x z y"]
    judge = SummaryQuality(wanted, resamples=2)
    scores = judge.scores(ours)
    package = RougeScorer(["rouge1", "rouge2", "rougeL", "rougeLsum"])
    lines = [text.replace(". ", ".\n").replace(" <q> ", "\n") for text in (*ours, *wanted)]
    each = [package.score(theirs, text) for text, theirs in zip(lines[:4], lines[4:])]
    for name, key in zip(judge.metrics, ("rouge1", "rouge2", "rougeL", "rougeLsum")):
        assert scores[name] == pytest.approx(25 * sum(score[key].fmeasure for score in each))
    # "it rains" and "nobody came", whatever their order; as a whole, one of the two is shared.
    two = SummaryQuality(wanted[1:2], resamples=2).scores(ours[1:2])
    assert two["ROUGE-Lsum"] == pytest.approx(100) and two["ROUGE-L"] == pytest.approx(50)
    texts, truth = ["a cat <q> a dog"], ["a bird <q> a fish"]  # the mark is no word
    whole = SummaryQuality(truth).scores(texts)["ROUGE-L"]
    assert whole == 50  # "a a" of four words


def test_the_data_decide_what_is_measured(tmp_path):
    folder, kind = str(tmp_path), tmp_path / "sizes.json"
    sizes = {s: {"height": h, "width": 2 * h, "channels": 1} for s, h in (("lr", 1), ("hr", 2))}
    kind.write_text(json.dumps({"schema": "fairseq_paradec.images", "version": 1} | sizes))
    judge = quality_of(folder, "hr", ["1 2 3 4 5 6 7 8"])
    assert isinstance(judge, ImageQuality) and judge.size == Size(2, 4, 1)
    assert text_language(folder, "hr") is None
    kind.write_text("{")
    with pytest.raises(UsageError, match=r"sizes\.json is no JSON"):
        quality_of(folder, "hr", ["1 2"])
    kind.unlink()
    assert isinstance(quality_of(folder, "hr", ["a"]), TranslationQuality)  # Croatian
    assert isinstance(quality_of(folder, "summary", ["a"]), SummaryQuality)
    assert isinstance(quality_of(folder, "document", ["a"]), TranslationQuality)
    assert text_language(folder, "hr") == "hr"
    assert plain_text(["12", "@@", "."], None) == "12 @@ ."
    for side in ("document", "summary"):
        language = text_language(folder, side)
        assert plain_text("it 's the sum@@ mary .".split(), language) == "it's the summary."
