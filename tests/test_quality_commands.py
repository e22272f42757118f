"""Summaries and images through the commands that translations go through.

Summaries are the demo's sentences under other names; images are noise, and their model untrained.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from fairseq import checkpoint_utils
from support.builders import tiny_model
from support.commands import DEMO
from support.image_data import image_folder, image_task
from support.image_models import HEADS, save, tiny_image_model

from fairseq_paradec import images
from fairseq_paradec.analysis.rouge import rouge
from fairseq_paradec.cli import results
from fairseq_paradec.cli.main import main as paradec
from fairseq_paradec.errors import UsageError
from fairseq_paradec.measure import acceptance, documents, judge, loading
from fairseq_paradec.measure.text import plain_text, quality_of

#: Intensities of an image.
COUNT = 64


@pytest.fixture(scope="module")
def summaries(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The demo as if its sentences were documents and summaries: data and ``model.pt``."""
    folder = tmp_path_factory.mktemp("summaries")
    for old, new in (("en", "document"), ("de", "summary")):
        shutil.copy(DEMO / f"dict.{old}.txt", folder / f"dict.{new}.txt")
        for end in ("bin", "idx"):
            name = f"test.document-summary.{new}.{end}"
            shutil.copy(DEMO / f"test.en-de.{old}.{end}", folder / name)
    shutil.copy(DEMO / "model.pt", folder / "model.pt")
    return folder


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Five test images of 4×4 and 8×8, grey; and an image Transformer with heads, ``model.pt``."""
    folder = image_folder(tmp_path_factory.mktemp("pictures"))
    task = image_task()
    with torch.no_grad():
        model = tiny_image_model(task, dtype=torch.float32, arch=HEADS)
    save(task, model, folder / "model.pt", HEADS)
    return folder


def benchmarked(data: Path, out: Path, *decoders: str) -> dict[str, Any]:
    """Run a small benchmark."""
    arguments = [
        data, "--path", data / "model.pt", "--sentences", 4, "--timed", 2, "--rounds", 1,
        "--batch-sizes", 2, "--busy", "--title", "small", "--out", out,
    ]  # fmt: skip
    arguments += [word for one in decoders for word in ("--decoder", one)]
    assert paradec(["benchmark", *map(str, arguments)]) == 0
    found: dict[str, Any] = json.loads(out.read_text(encoding="utf-8"))
    return found


def output_rows(document: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {row["decoder"]: row for row in document["tables"][0]["rows"]}


# ---- the benchmark -----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def of_summaries(summaries: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("s") / "summaries.json"
    benchmarked(summaries, out, "pgj --block-size 3")
    return out


@pytest.fixture(scope="module")
def of_images(pictures: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("i") / "images.json"
    decoders = ("blockwise", "near=blockwise --accept-distance 60", "pgj --block-size 8")
    benchmarked(pictures, out, *decoders)
    return out


def test_summaries_have_rouge(of_summaries: Path, summaries: Path) -> None:
    document = json.loads(of_summaries.read_text(encoding="utf-8"))
    row = output_rows(document)["greedy"]
    named = [f"ROUGE-{kind}" for kind in ("1", "2", "L", "Lsum")]
    assert [name for name in row if name in named] == named
    assert all(f"{name} - beam 5" in row for name in named) and "BLEU" not in str(document)
    # The same, by the decoder itself and the analysis of texts.
    models, task = loading.load(str(summaries), str(summaries / "model.pt"))
    task.load_dataset("test")
    dataset = task.dataset("test")
    numbers = loading.evenly(loading.by_length(dataset), 4)
    search = loading.generator(task, models, decoding="greedy")
    tokens = {}
    for i in numbers:
        (hypo,) = task.inference_step(search, models, dataset.collater([dataset[i]]))
        tokens[i] = hypo[0]["tokens"]
    words = task.target_dictionary
    texts, targets = (
        [plain_text(words.string(some[i]).split(), "en") for i in numbers]
        for some in (tokens, dataset.tgt)
    )
    wanted = rouge(texts, targets)
    for name in named[:3]:
        assert row[name] == pytest.approx(wanted[name].f1, abs=0.006)


def test_images_have_psnr(of_images: Path, pictures: Path) -> None:
    document = json.loads(of_images.read_text(encoding="utf-8"))
    rows = output_rows(document)
    assert {name: row["label"] for name, row in rows.items()} == {
        "fairseq beam 5": "beam search",
        "fairseq greedy": "exact",
        "greedy": "exact",
        "blockwise": "exact",
        "near": "relaxed",
        "pgj --block-size 8": "exact",
    }
    assert 1 <= rows["blockwise"]["mean accepted block"] < rows["near"]["mean accepted block"] <= 4
    assert rows["near"]["PSNR"] != rows["greedy"]["PSNR"] == rows["blockwise"]["PSNR"]
    assert rows["blockwise"]["PSNR - greedy"] == "+0.00 [+0.00, +0.00]"
    said = str(document)
    assert "BLEU" not in said and "detokenised" not in said
    assert "References: the targets of DATA." in document["notes"]
    assert {system["tokens"] for system in document["systems"]} == {4 * (COUNT + 1)}
    # By the decoder itself.
    models, task = loading.load(str(pictures), str(pictures / "model.pt"))
    task.load_dataset("test")
    dataset = task.dataset("test")
    search = loading.generator(task, models, decoding="greedy")
    found = []
    for i in loading.evenly(loading.by_length(dataset), 4):
        (hypo,) = task.inference_step(search, models, dataset.collater([dataset[i]]))
        pair = (hypo[0]["tokens"], dataset[i]["target"])
        ours, truth = (
            images.image([token - 4 for token in tokens.tolist()[:-1]], images.Size(8, 8, 1))
            for tokens in pair
        )
        found.append(images.psnr(ours, truth))
    assert rows["greedy"]["PSNR"] == pytest.approx(sum(found) / 4, abs=0.006)


@pytest.mark.parametrize("which", ["of_summaries", "of_images"])
def test_other_metrics_are_rendered(
    which: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    """By paradec results, beside the other kinds by paradec report, and each kind is checked."""
    for name in ("of_summaries", "of_images"):
        shutil.copy(request.getfixturevalue(name), tmp_path)
    assert paradec(["report", str(tmp_path)]) == 0
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert ">PSNR<" in page and ">ROUGE-Lsum<" in page and "BLEU" not in page
    assert "must not be compared" not in page  # other metrics are none of one kind
    document = json.loads(request.getfixturevalue(which).read_text(encoding="utf-8"))
    metric = next(iter(document["signatures"]))
    portable = document | {"notes": [], "command": "", "setting": document["setting"]}
    for key in ("data", "path", "reference"):
        portable["setting"][key] = ""
    folder = tmp_path / "results"
    folder.mkdir()
    (folder / "a.json").write_text(json.dumps(portable))
    assert f"| {metric} |" in results.render(folder, tmp_path / "RESULTS.md")[folder / "a.md"]
    for system in (portable["systems"][0], portable["systems"][-1]):
        kept = system["scores"].pop(metric)
        with pytest.raises(UsageError):
            documents.check_benchmark(portable, "a.json")
        system["scores"][metric] = kept
    portable["systems"][0]["scores"]["BLEU"] = 3.0
    with pytest.raises(UsageError, match="not of the metrics whose signatures"):
        documents.check_benchmark(portable, "a.json")


def test_what_has_no_use_for_images_is_refused(
    pictures: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    common = [str(pictures), "--busy", "--out", str(tmp_path / "a.json"), "--path"]
    assert paradec(["benchmark", *common, str(pictures / "model.pt"), "--peers"]) == 2
    assert "--peers: got 'given'; allowed: it with texts" in capsys.readouterr().err
    task = image_task()
    save(task, tiny_model(task, dtype=torch.float32), tmp_path / "other.pt", "transformer")
    state = torch.load(tmp_path / "other.pt", weights_only=False)
    state["cfg"]["task"]["_name"] = "translation"
    torch.save(state, tmp_path / "other.pt")
    assert paradec(["benchmark", *common, str(tmp_path / "other.pt")]) == 2
    said = capsys.readouterr().err
    assert "--path: got" in said and "a model of --task image_super_resolution" in said
    lines = tmp_path / "references"
    lines.write_text("1 2 3\n" * 5)
    arguments = [*common, str(pictures / "model.pt"), "--reference", str(lines)]
    assert paradec(["benchmark", *arguments]) == 2
    assert "reference 1: tokens: got '3 of them'; allowed: 64" in capsys.readouterr().err
    assert not (tmp_path / "a.json").exists()
    words = paradec(["benchmark",
        str(DEMO), "--busy", "--out", str(tmp_path / "a.json"), "--path", str(DEMO / "model.pt"),
        "--decoder", f"blockwise --accept-distance 2 --drafter-path {DEMO / 'heads.pt'}",
    ])  # fmt: skip
    assert words == 2 and "--accept-distance" in capsys.readouterr().err


# ---- the other commands ------------------------------------------------------------------------


def test_acceptance_of_images(pictures: Path, tmp_path: Path) -> None:
    out = tmp_path / "a.json"
    arguments = [pictures, "--path", pictures / "model.pt", "--decoding", "blockwise",
                 "--accept-distance", 0, "--accept-distance", 60, "--subset", "test",
                 "--sentences", 4, "--batch-size", 2, "--out", out]  # fmt: skip
    assert paradec(["acceptance", *map(str, arguments)]) == 0
    document = json.loads(out.read_text())
    greedy, exact, near = document["rows"]
    assert [row["label"] for row in document["rows"]] == ["exact", "exact", "relaxed"]
    assert [row["epsilon"] for row in document["rows"]] == ["-", 0, 60]
    assert greedy["tokens"] == 4 * (COUNT + 1)  # also the judge's outputs are images
    assert greedy["PSNR"] == exact["PSNR"] != near["PSNR"] and "BLEU" not in greedy
    assert exact["PSNR - greedy"] == "+0.00 [+0.00, +0.00]" and greedy["PSNR - greedy"] == "-"
    assert exact[acceptance.BLOCK] < near[acceptance.BLOCK]
    assert any(note.startswith("Images against") for note in document["notes"])
    assert any(note.startswith("PSNR: dB|mean") for note in document["notes"])


def test_acceptance_of_summaries(summaries: Path, tmp_path: Path) -> None:
    raw, out = tmp_path / "raw", tmp_path / "a.json"
    models, task = loading.load(str(summaries), str(summaries / "model.pt"))
    task.load_dataset("test")
    raw.write_text("\n".join(judge.targets(str(summaries), "test")) + "\n")
    arguments = [summaries, "--path", summaries / "model.pt", "--decoding", "pgj", "--subset",
                 "test", "--sentences", 3, "--raw", raw, "--out", out]  # fmt: skip
    assert paradec(["acceptance", *map(str, arguments)]) == 0
    document = json.loads(out.read_text())
    greedy, other = document["rows"]
    assert 0 < greedy["ROUGE-L"] == other["ROUGE-L"] and "BLEU" not in str(document)
    assert "--max-len" not in document["notes"][0] and greedy["tokens"] > 3 * 3
    assert paradec(["acceptance", *map(str, arguments), "--max-len-b", "2"]) == 0
    document = json.loads(out.read_text())
    assert document["notes"][0].endswith("; --max-len-b 2.")
    assert [row["tokens"] for row in document["rows"]] == [3 * 3] * 2  # each with </s>
    assert [row["label"] for row in document["rows"]] == ["exact"] * 2


def test_evaluate_images(
    pictures: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "e.json"
    arguments = [pictures, "--path", pictures / "model.pt", "--subset", "test", "--out", out]
    words = [*map(str, arguments), "--", "--cpu", "--decoding", "greedy", "--batch-size", "5"]
    assert paradec(["evaluate", *words]) == 0
    (row,) = json.loads(out.read_text())["rows"]
    assert row["sentences"] == 5 and set(row) == {"model", "subset", "beam", "sentences", "PSNR"}
    (texts,) = tmp_path.glob("e.0.test.txt")
    truth = judge.targets(str(pictures), "test")
    scores = quality_of(str(pictures), "hr", truth).scores(texts.read_text().splitlines())
    assert row["PSNR"] == round(scores["PSNR"], 2)
    assert paradec(["evaluate", *map(str, arguments), "--raw", str(texts)]) == 2
    assert "--raw: got" in capsys.readouterr().err
    assert paradec(["evaluate", *words, "--gen-subset", "train"]) == 2
    assert "there are 5 references; allowed: a --raw" in capsys.readouterr().err


def test_the_demo_and_the_gates_decode_images(
    pictures: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert paradec(["demo", "--data", str(pictures), "--sentences", "2"]) == 0
    table = capsys.readouterr().out
    assert "identical, token for token" in table and "source  " not in table
    out = tmp_path / "l.json"
    arguments = [pictures, "--path", pictures / "model.pt", "--decoding", "blockwise", "--limit", 2,
                 "--batch-sizes", "1,2", "--out", out]  # fmt: skip
    assert paradec(["lossless", *map(str, arguments)]) == 0
    rows = json.loads(out.read_text())["rows"]
    assert len(rows) == 8 and all(row["beyond ties"] == 0 for row in rows)
    assert rows[0]["passes"] == COUNT + 1  # block size 1: greedy search of a whole image


def test_the_checkpoint_brings_its_task(pictures: Path) -> None:
    cfg = checkpoint_utils.load_checkpoint_to_cpu(str(pictures / "model.pt"))["cfg"]
    assert cfg["task"]["_name"] == loading.IMAGE_TASK
    _, task = loading.load(str(pictures), str(pictures / "model.pt"))
    assert task.image_sizes == (images.Size(4, 4, 1), images.Size(8, 8, 1))
