"""Quality of translations, summaries and images: by hand, by a slow bootstrap, by kind of data."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest
from rouge_score.rouge_scorer import RougeScorer

from fairseq_paradec.analysis import by_length
from fairseq_paradec.analysis.quality import (
    SEED,
    ImageQuality,
    SummaryQuality,
    TranslationQuality,
    resampled,
)
from fairseq_paradec.analysis.rouge import rouge
from fairseq_paradec.errors import UsageError
from fairseq_paradec.images import Size
from fairseq_paradec.measure.text import plain_text, quality_of, text_language

PAIR = Size(1, 2, 1)
RNG = np.random.default_rng(3)


def slow_interval(
    score: Callable[[Sequence[int]], float], size: int, resamples: int
) -> list[float]:
    """The ends of a 95% interval, resample by resample."""
    draws = np.random.default_rng(SEED).choice(size, size=(resamples, size), replace=True)
    return list(np.percentile([score(draw.tolist()) for draw in draws], [2.5, 97.5]))


def test_resamples_are_those_of_one_draw():
    draws = np.random.default_rng(SEED).choice(7, size=(20, 7), replace=True)
    counts = resampled(7, 20)
    assert counts.shape == (20, 7)
    assert [[list(draw).count(i) for i in range(7)] for draw in draws] == counts.tolist()


# ---- images ------------------------------------------------------------------------------------


def test_psnr_by_hand():
    judge = ImageQuality(["0 0", "10 20", "7 7"], PAIR, resamples=2)
    # Errors of 3 and 4: 12.5 on average. Of 255 and 255: 0 dB. None at all: as if it were 1/2.
    wanted = [10 * math.log10(255**2 / 12.5), 0.0, 10 * math.log10(255**2 / 0.5)]
    each = judge.each(["3 4", "10 20", "7 7"])
    assert each.tolist() == pytest.approx([wanted[0], wanted[2], wanted[2]])
    black = ImageQuality(["0 0"], PAIR, resamples=2)
    assert black.scores(["255 255"]) == {"PSNR": pytest.approx(wanted[1])}
    assert black.scores(["0 1"])["PSNR"] == pytest.approx(black.best)  # nothing else is as good


def test_images_are_compared_by_paired_bootstrap():
    references, ours, theirs = (
        [" ".join(map(str, RNG.integers(0, 256, 2))) for _ in range(9)] for _ in range(3)
    )
    judge = ImageQuality(references, PAIR, resamples=40)
    a, b = judge.each(ours), judge.each(theirs)
    difference, *interval = judge.differences(ours, theirs)["PSNR"]
    assert difference == pytest.approx(a.mean() - b.mean())
    slow = slow_interval(lambda draw: a[draw].mean() - b[draw].mean(), 9, 40)
    assert interval == pytest.approx(slow) and interval[0] < interval[1]
    assert judge.differences(ours, ours)["PSNR"] == (0, 0, 0)


@pytest.mark.parametrize(
    ("texts", "said"),
    [
        (["1 2", "1 2 3"], "output 2: tokens: got '3 of them'; allowed: 2, for 1×2×1"),
        (["1 <unk>", "1 2"], "output 1: intensity: got '<unk>'; allowed: 0 to 255"),
        (["1 2", "1 256"], "output 2: tokens[1]: got 256; allowed: 0 to 255"),
        (["1 2", "-1 2"], "output 2: intensity: got '-1'"),
        (["1 2", "\u0663 2"], "output 2: intensity: got"),
    ],
)
def test_what_is_no_image_is_named(texts: list[str], said: str):
    judge = ImageQuality(["1 2", "3 4"], PAIR, resamples=2)
    with pytest.raises(UsageError, match=re.escape(said)):
        judge.scores(texts)
    with pytest.raises(UsageError, match=re.escape(said.replace("output", "reference"))):
        ImageQuality(texts, PAIR, resamples=2)


# ---- summaries ---------------------------------------------------------------------------------

SUMMARIES = ["The dog sleeps. A cat sat on mats!", "It rains <q> nobody came", "", "x y z"]
WANTED = ["A cat sat. The dog sleeps now.", "Nobody came. It rains", "one two", "x z y"]


def test_rouge_is_the_packages_own():
    judge = SummaryQuality(WANTED, resamples=2)
    scores = judge.scores(SUMMARIES)
    package = RougeScorer(["rouge1", "rouge2", "rougeL", "rougeLsum"])
    lines = [text.replace(". ", ".\n").replace(" <q> ", "\n") for text in (*SUMMARIES, *WANTED)]
    each = [package.score(theirs, ours) for ours, theirs in zip(lines[:4], lines[4:])]
    for name, key in zip(judge.metrics, ("rouge1", "rouge2", "rougeL", "rougeLsum")):
        assert scores[name] == pytest.approx(25 * sum(one[key].fmeasure for one in each))
    # "it rains" and "nobody came", whatever their order; as a whole, one of the two is shared.
    two = SummaryQuality(WANTED[1:2], resamples=2).scores(SUMMARIES[1:2])
    assert two["ROUGE-Lsum"] == pytest.approx(100) and two["ROUGE-L"] == pytest.approx(50)


def test_summaries_are_compared_by_paired_bootstrap():
    words = "a dog. sat the mat. ran".split()
    references, ours, theirs = (
        [" ".join(RNG.choice(words, size=6)) for _ in range(9)] for _ in range(3)
    )
    found = SummaryQuality(references, resamples=40).differences(ours, theirs)

    def gap(name: str, n: int) -> float:
        """The difference of a single summary, scored by itself."""
        a, b = (rouge([texts[n]], [references[n]])[name].f1 for texts in (ours, theirs))
        return a - b

    for name in ("ROUGE-1", "ROUGE-L"):
        difference, *interval = found[name]
        gaps = [gap(name, n) for n in range(9)]
        assert difference == pytest.approx(np.mean(gaps))
        slow = slow_interval(lambda draw, gaps=gaps: np.mean([gaps[i] for i in draw]), 9, 40)
        assert interval == pytest.approx(slow)


# ---- by the kind of data -----------------------------------------------------------------------


@pytest.fixture
def pictures(tmp_path: Path) -> Path:
    """A folder that says it holds images, with nothing else in it."""
    sizes = {s: {"height": h, "width": 2 * h, "channels": 1} for s, h in (("lr", 1), ("hr", 2))}
    kind = {"schema": "fairseq_paradec.images", "version": 1}
    (tmp_path / "sizes.json").write_text(json.dumps(kind | sizes))
    return tmp_path


def test_the_data_decide_what_is_measured(tmp_path: Path, pictures: Path):
    judge = quality_of(str(pictures), "hr", ["1 2 3 4 5 6 7 8"])
    assert isinstance(judge, ImageQuality) and judge.size == Size(2, 4, 1)
    assert text_language(str(pictures), "hr") is None
    with pytest.raises(UsageError, match="reference 1: "):
        quality_of(str(pictures), "hr", ["1 2"])
    (pictures / "sizes.json").write_text("{")
    with pytest.raises(UsageError, match=r"sizes\.json is no JSON"):
        quality_of(str(pictures), "hr", ["1 2"])
    (pictures / "sizes.json").unlink()
    folder = str(tmp_path)
    assert isinstance(quality_of(folder, "hr", ["a"]), TranslationQuality)  # Croatian
    assert isinstance(quality_of(folder, "summary", ["a"]), SummaryQuality)
    assert isinstance(quality_of(folder, "document", ["a"]), TranslationQuality)
    assert text_language(folder, "hr") == "hr"
    assert plain_text(["12", "@@", "."], None) == "12 @@ ."
    for side in ("document", "summary"):
        language = text_language(folder, side)
        assert plain_text("it 's the sum@@ mary .".split(), language) == "it's the summary."


def test_marks_between_sentences_are_no_words():
    texts, truth = ["a cat <q> a dog"], ["a bird <q> a fish"]
    whole = SummaryQuality(truth).scores(texts)["ROUGE-L"]
    assert by_length.rouge_l(texts, truth, [[0]]) == [whole] == [50]  # "a a" of four words
