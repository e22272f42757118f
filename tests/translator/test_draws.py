"""Drawn outputs of a folder: a seed repeats them, whatever the batches are and what computes."""

import collections
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.builders import DEMO
from support.chance import assert_drawn

from fairseq_paradec import load
from fairseq_paradec.batch import Batch
from fairseq_paradec.cli.main import main as paradec
from fairseq_paradec.errors import UsageError
from fairseq_paradec.methods import base
from fairseq_paradec.methods.base import Decoder
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


#: Decoders that verify, each with its flags.
VERIFIED: list[dict[str, Any]] = [
    {"decoding": "pj"},
    {"decoding": "pj", "jacobi_length": "oracle"},
    {"decoding": "pgj", "jacobi_stop": "unchanged", "block_size": 4},
    {"decoding": "hgj", "jacobi_window": "sliding", "jacobi_init": "ngram"},
    {"decoding": "gad", "drafter_path": str(DEMO / "drafter.pt")},
    {"decoding": "gad", "drafter_path": str(DEMO / "drafter.pt"), "draft_tree": 12},
    {"decoding": "blockwise", "drafter_path": str(DEMO / "heads.pt"), "adaptive_block": True},
    {"decoding": "self_draft"},
    ASSISTED,
    {**ASSISTED, "draft_tree": 12},
    {**ASSISTED, "drafter_dtype": "fp32", "drafter_shortlist": 500},
]


@pytest.mark.parametrize("how", [{}, {"sampling_topp": 0.8, "temperature": 1.4, "min_len": 6}])
@pytest.mark.parametrize("options", VERIFIED, ids=lambda given: "-".join(map(str, given.values())))
def test_every_decoder_that_verifies_draws_what_greedy_sampling_does(
    model: Translator, options: dict[str, Any], how: dict[str, Any]
) -> None:
    """Token for token, in fewer passes where something drafts."""
    how = {"sampling": True, "seed": 9, "max_len_b": 30, "others": 1, **how}
    greedy = [*model.results(LINES, decoding="greedy", **how)]
    drafted = [*model.results(LINES, **options, **how)]
    for one, other in zip(greedy, drafted, strict=True):
        assert (one.text, one.others) == (other.text, other.others)
        assert one.score == pytest.approx(other.score, abs=1e-6)
    passes = [sum(result.passes for result in results) for results in (greedy, drafted)]
    assert passes[1] < passes[0] * (0.95 if "drafter_path" in options else 1.3)


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
        ("--sampling --decoding multiword_beam", "--sampling: got True, which --decoding multi"),
        ("--sampling --beam 2", "--beam 2 needs --decoding beam"),
        (f"--sampling --drafts {DEMO / 'raw/demo.de'}", "--drafts excludes --sampling"),
    ],
)
def test_mistakes_are_lines(words: str, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert paradec(["translate", "--model", str(DEMO), "--text", "a", *words.split()]) == 2
    assert said in capsys.readouterr().err


def test_a_seed_draws_the_same_in_parts_of_a_corpus(model: Translator, tmp_path: Path) -> None:
    """As in one file; equal lines of two parts are drawn apart."""
    lines = [LINES[0], LINES[1], ""] * 4
    source, out = tmp_path / "lines.en", tmp_path / "out"
    source.write_text("\n".join(lines) + "\n", encoding="utf-8")
    words = ["translate", str(source), "--model", str(DEMO), "--sampling", "--seed", "6"]
    assert paradec([*words, "--out", str(out), "--buffer-size", "3"]) == 0
    parts = sorted((out / "parts").glob("*.jsonl"))
    rows = [json.loads(row) for part in parts for row in part.read_text("utf-8").splitlines()]
    assert len(parts) == 4
    texts = [row["translation"] for row in rows]
    assert texts == model.translate(lines, sampling=True, seed=6)
    assert len({*texts[::3]}) > 1 and len({*texts[1::3]}) > 1


def test_sentences_of_several_texts_are_drawn_apart(model: Translator) -> None:
    """As if all were one list of sentences; a first number is where another list ends."""
    texts = [f"{LINES[0]} {LINES[1]}"] * 3
    options = {"sampling": True, "seed": 2, "temperature": 1.5}
    drawn = [text.text for text in model.texts(texts, **options)]
    pairs = iter(model.translate([LINES[0], LINES[1]] * 3, **options))
    assert drawn == [f"{one} {next(pairs)}" for one in pairs] and len({*drawn}) == 3
    later = model.translate([LINES[0], LINES[1]], first=4, **options)
    (last,) = model.texts(texts[:1], first=4, **options)
    assert " ".join(later) == last.text == drawn[2]
    with pytest.raises(UsageError, match="first: got -1; allowed: a whole number from 0 up"):
        model.results(LINES, first=-1)


@pytest.mark.parametrize("more", [{}, ASSISTED])
def test_many_draws_are_decoded_in_groups(
    model: Translator, monkeypatch: pytest.MonkeyPatch, more: dict[str, Any]
) -> None:
    """A group has no more rows than memory is meant for, and changes no draw."""
    options = {"sampling": True, "seed": 1, "others": 6, **more}
    whole = [*model.results(LINES[:3], **options)]
    assert all(len({one.score, *one.other_scores}) > 1 for one in whole)
    sizes: list[int] = []
    decode = Decoder._decode_alone

    def counting(self: Decoder, batch: Batch, *args: Any) -> Any:
        sizes.append(len(batch))
        return decode(self, batch, *args)

    monkeypatch.setattr(Decoder, "_decode_alone", counting)
    monkeypatch.setattr(base, "DRAWN", 4)
    assert [*model.results(LINES[:3], **options)] == whole
    assert sizes == [4, 4, 4, 4, 4, 1]
    sizes.clear()
    assert [*model.results(LINES[:3], batch_size=1, **options)] == whole
    assert sizes == [4, 3] * 3


def test_passes_of_several_draws_are_refused(model: Translator) -> None:
    with pytest.raises(UsageError, match="on_pass excludes sampling with others=2"):
        model.results(LINES[:1], sampling=True, others=2, on_pass=[print])
    told: list[Any] = []
    [*model.results(LINES[:1], sampling=True, on_pass=[told.append])]
    assert told
