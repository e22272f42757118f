"""Drawn outputs of a folder: a seed repeats them, whatever the batches are and what computes."""

import collections
from typing import Any

import numpy as np
import pytest
from support.builders import DEMO
from support.chance import assert_drawn

from fairseq_paradec import load
from fairseq_paradec.batch import Batch
from fairseq_paradec.cli.main import main as paradec
from fairseq_paradec.translator.translator import Translator

LINES = (DEMO / "raw" / "demo.en").read_text("utf-8").splitlines()[:24]
ASSISTED = {"decoding": "assisted", "drafter_path": str(DEMO / "assistant.pt")}


@pytest.fixture(scope="module")
def model() -> Translator:
    """The tiny pair."""
    return load(DEMO)


@pytest.mark.parametrize(
    "options",
    [
        {"sampling_topk": 20},
        {"temperature": 0.8, "min_len": 4},
        {"sampling_topp": 0.95, "engine_dtype": "int8"},
        ASSISTED,
        {**ASSISTED, "sampling_topk": 9, "adaptive_block": True},
    ],
)
def test_a_seed_repeats_outputs_in_any_batches(model: Translator, options: dict[str, Any]) -> None:
    """To the last bit of the score; another seed, or none, draws others."""
    options = {"sampling": True, **options}
    drawn = [*model.results(LINES, seed=7, others=2, batch_size=24, **options)]
    for sizes in ({"batch_size": 1}, {"batch_size": 5, "buffer_size": 11}):
        again = model.results(LINES, seed=7, others=2, **sizes, **options)
        for one, other in zip(drawn, again, strict=True):
            assert (one.text, one.score) == (other.text, other.score)
            assert (one.others, one.other_scores) == (other.others, other.other_scores)
    for one in drawn:
        assert one.score is not None
        scores = [one.score, *one.other_scores]
        assert len(scores) == 3 and scores == sorted(scores, reverse=True)
    texts = [one.text for one in drawn]
    for others in ({"seed": 8}, {}):
        assert [one.text for one in model.results(LINES, others=2, **others, **options)] != texts
    np.random.seed(1)
    first = model.translate(LINES, **options)
    second = model.translate(LINES, **options)
    np.random.seed(1)
    assert first != second and model.translate(LINES, **options) == first


@pytest.mark.parametrize("options", [{"sampling_topp": 0.9}, ASSISTED | {"drafter_dtype": "fp32"}])
def test_torchs_passes_draw_the_same(model: Translator, options: dict[str, Any]) -> None:
    """Sums that differ by rounding could draw another token; of these 24 lines none does."""
    options = {"sampling": True, "seed": 3, **options}
    native = model.translate(LINES, engine="native", **options)
    assert model.translate(LINES, engine="torch", **options) == native


def test_first_words_are_as_frequent_as_the_model_says(model: Translator) -> None:
    """By the log-probabilities that come with them."""
    count = 4000
    decoder = model.generator(
        {"sampling": True, "seed": 5, "max_len_b": 1, "temperature": 1.2}, others=count - 1
    )
    source = model.sources.encode_line(model.encode("How are you?"))
    (draws,) = model.decode(decoder, Batch(np.array([source])))
    counts = collections.Counter(int(draw["tokens"][0]) for draw in draws)
    shares = {int(draw["tokens"][0]): float(np.exp(draw["positional_scores"][0])) for draw in draws}
    often = [word for word, share in shares.items() if share > 0.005]
    assert len(draws) == count and len(often) > 5
    seen, likely = [counts[word] for word in often], [shares[word] for word in often]
    assert_drawn([*seen, count - sum(seen)], [*likely, 1 - sum(likely)], sigmas=5)


def test_the_command_draws(model: Translator, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["translate", "--model", str(DEMO), *(f"--text={line}" for line in LINES[:3])]
    words += ["--sampling", "--sampling-topk", "30", "--temperature", "1.2", "--seed", "4"]
    options = {"sampling": True, "sampling_topk": 30, "temperature": 1.2, "seed": 4}
    assert paradec(words) == 0
    assert capsys.readouterr().out.splitlines() == model.translate(LINES[:3], **options)
    assert paradec([*words, "--nbest", "2", "--scores", "--decoding", "beam", "--beam", "2"]) == 0
    wanted = []
    for result in model.results(LINES[:3], others=1, **options):
        assert result.score is not None
        wanted.append(f"{result.score:.4f}\t{result.text}")
        wanted.append(f"{result.other_scores[0]:.4f}\t{result.others[0]}")
    assert capsys.readouterr().out.splitlines() == wanted


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("--seed 3", "--seed 3 needs --sampling"),
        ("--sampling --seed -1", "--seed: got -1; allowed: a whole number from 0 up"),
        ("--sampling --decoding hgj", "--sampling: got True, which --decoding hgj cannot honour"),
        ("--sampling --beam 2", "--beam 2 needs --decoding beam"),
    ],
)
def test_mistakes_are_lines(words: str, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert paradec(["translate", "--model", str(DEMO), "--text", "a", *words.split()]) == 2
    assert said in capsys.readouterr().err
