"""``paradec score``: what a model says of translations that are there, beside fairseq's scorer."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from fairseq.sequence_scorer import SequenceScorer
from support.builders import DEMO
from support.commands import alone

import fairseq_paradec
from fairseq_paradec.cli.main import main as paradec
from fairseq_paradec.errors import UsageError
from fairseq_paradec.plugin.tasks import loading

SMALL = DEMO.with_name("demo-small.en-de")


def lines(folder: Path, language: str) -> list[str]:
    """The demo's sentences."""
    return (folder / "raw" / f"demo.{language}").read_text("utf-8").splitlines()


def by_fairseq(folder: Path, source: str, target: str, model: Any) -> list[float]:
    """The log-probabilities of a translation's tokens by fairseq's SequenceScorer."""
    models, task = loading.load(str(folder), str(folder / "model.pt"))
    encoded = model.sources.encode_line(model.encode(source))
    tokens = torch.tensor([model.targets.encode_line(model.encode_output(target))])
    sample = {
        "net_input": {
            "src_tokens": torch.tensor([encoded]),
            "src_lengths": torch.tensor([len(encoded)]),
            "prev_output_tokens": torch.cat((tokens[:, -1:], tokens[:, :-1]), dim=1),
        },
        "target": tokens,
    }
    ((hypo,),) = SequenceScorer(task.target_dictionary).generate(models, sample)
    scores: list[float] = hypo["positional_scores"].tolist()
    return scores


@pytest.mark.parametrize("folder", [DEMO, SMALL], ids=lambda path: path.name)
def test_scores_are_those_of_fairseq(folder: Path) -> None:
    """Of references and of wrong translations, in batches and alone."""
    model = fairseq_paradec.load(folder)
    sources, references = (lines(folder, language)[:30] for language in ("en", "de"))
    targets = references[:20] + references[:10]  # the last ten are of other sentences
    together = list(model.score(sources, targets, batch_size=7))
    for source, target, found in zip(sources, targets, together, strict=True):
        wanted = by_fairseq(folder, source, target, model)
        assert found.scores == pytest.approx(wanted, abs=1e-4) and found.problem is None
        assert found.score == pytest.approx(sum(wanted) / len(wanted), abs=1e-4)
        assert found.tokens == (*model.encode_output(target).split(), "</s>")
        (single,) = model.score([source], [target])
        assert single == found
    means = [found.score for found in together]
    assert min(means[:20]) > max(means[20:]), "the wrong ones are worse"


def test_a_pass_scores_all_of_a_translation(monkeypatch: pytest.MonkeyPatch) -> None:
    """The last token does not wait for the others."""
    model = fairseq_paradec.load(DEMO)
    passes: list[int] = []
    decode = type(model).decode

    def counted(self: Any, generator: Any, batch: Any) -> Any:
        hypos = decode(self, generator, batch)
        passes.extend(hypo["steps"] for (hypo,) in hypos)
        return hypos

    monkeypatch.setattr(type(model), "decode", counted)
    list(model.score(lines(DEMO, "en")[:20], lines(DEMO, "de")[:20]))
    assert passes == [1] * 20


def test_dtypes_and_normalisation_are_options() -> None:
    model = fairseq_paradec.load(DEMO)
    pair = ["A dog runs."], ["Ein Hund rennt."]
    (plain,), (whole,), (low,) = (
        list(model.score(*pair, **options))
        for options in ({}, {"unnormalized": True}, {"engine_dtype": "int8"})
    )
    assert whole.score == pytest.approx(sum(plain.scores), abs=1e-5)
    assert low.score != plain.score and low.score == pytest.approx(plain.score, abs=0.05)


def test_what_has_no_score_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source, target = tmp_path / "a.en", tmp_path / "a.de"
    source.write_text("A dog runs.\n\nA dog runs.\nA dog runs.\n", "utf-8")
    target.write_text("Ein Hund rennt.\nHund\n\n" + "Hund " * 1100 + "\n", "utf-8")
    words = ["score", "--model", str(DEMO), str(source), str(target)]
    assert paradec(words) == 0
    out, err = capsys.readouterr()
    assert out.splitlines()[0].startswith("-0.") and out.splitlines()[1:] == ["", "", ""]
    assert [line for line in err.splitlines() if line.startswith("line ")] == [
        "line 2: its source is empty; it has no score",
        "line 3: is empty; it has no score",
        "line 4: has 1101 tokens, and the model writes 1024; it has no score",
    ]
    assert paradec([*words, "--tokens"]) == 0
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert rows[0]["tokens"] == ["Ein", "Hund", "rennt", ".", "</s>"]
    assert len(rows[0]["scores"]) == 5 and rows[1] == {"score": None, "tokens": [], "scores": []}


@pytest.mark.parametrize(("longer", "named"), [("en", "TARGET"), ("de", "SOURCE")])
def test_lines_without_a_partner_are_refused(
    longer: str, named: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = [tmp_path / f"a.{language}" for language in ("en", "de")]
    for file in files:
        file.write_text("a\n" * (3 if file.suffix == f".{longer}" else 2), "utf-8")
    assert paradec(["score", "--model", str(DEMO), *map(str, files)]) == 2
    assert f"{named}: got '2 lines'; allowed: as many lines" in capsys.readouterr().err


def test_other_orders_are_refused(tmp_path: Path) -> None:
    """Of scores by the model, of --sampling --decoding beam by the name that was given."""
    folder = str(tmp_path / "pairs")
    assert paradec(["pack", str(DEMO), folder, "--path", str(DEMO / "ibdecoder.pt")]) == 0
    model = fairseq_paradec.load(folder)
    with pytest.raises(UsageError, match="^--model: got .*a word a step, from left to right"):
        list(model.score(["a"], ["a"]))
    with pytest.raises(UsageError, match="^--decoding: got 'beam'; allowed: multiword_beam"):
        model.translate("a", sampling=True, decoding="beam")


@pytest.mark.parametrize(
    ("sources", "targets", "options", "said"),
    [
        ("A dog.", ["Ein Hund."], {}, "score(): got 'A dog.'; allowed: lists of sentences"),
        (["A dog."], "Ein Hund.", {}, "score(): got 'Ein Hund.'; allowed: lists of sentences"),
        (["A dog."], [None], {}, "score(): got None; allowed: lists of sentences"),
        (["a"], ["b"], {"batch_size": 0}, "batch_size: got 0; allowed: a whole number from 1 to"),
    ],
)
def test_a_mistake_in_python_is_named(
    sources: Any, targets: Any, options: dict[str, Any], said: str
) -> None:
    with pytest.raises(UsageError, match=f"^{re.escape(said)}"):
        list(fairseq_paradec.load(DEMO).score(sources, targets, **options))


def test_neither_torch_nor_fairseq_is_needed(tmp_path: Path) -> None:
    for language in ("en", "de"):
        text = "\n".join(lines(DEMO, language)[:3]) + "\n"
        (tmp_path / f"a.{language}").write_text(text, "utf-8")
    done = alone("score", "--model", DEMO, tmp_path / "a.en", tmp_path / "a.de")
    assert done.returncode == 0 and len(done.stdout.splitlines()) == 3, done.stderr
