"""Summaries and images through the commands that translations go through.

Summaries are the demo's sentences under other names; images are noise, and their model untrained.
"""

import json
import shutil

import pytest
import torch
from support.commands import DEMO
from support.image_data import image_folder, image_task
from support.image_models import HEADS, save, tiny_image_model

from fairseq_paradec import images
from fairseq_paradec.cli.main import main as paradec
from fairseq_paradec.errors import UsageError
from fairseq_paradec.lab.analysis.benchmark_tables import tables
from fairseq_paradec.lab.analysis.quality import SummaryQuality
from fairseq_paradec.lab.data import documents
from fairseq_paradec.lab.data.table import Value
from fairseq_paradec.lab.measure.loading import evenly
from fairseq_paradec.lab.measure.text import plain_text
from fairseq_paradec.plugin.tasks import loading
from fairseq_paradec.translator.batches import from_short_to_long

LOW, HIGH = images.Size(2, 2, 1), images.Size(4, 4, 1)
#: Intensities of an image.
COUNT = 16


@pytest.fixture(scope="module")
def summaries(tmp_path_factory):
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
def pictures(tmp_path_factory):
    """Five test images of 2×2 and 4×4, grey; and an image Transformer with heads, ``model.pt``."""
    folder = image_folder(tmp_path_factory.mktemp("pictures"), LOW, HIGH)
    task = image_task(LOW, HIGH)
    with torch.no_grad():
        model = tiny_image_model(task, dtype=torch.float32, arch=HEADS)
    save(task, model, folder / "model.pt", HEADS)
    return folder


def run(preset, data, out, *arguments):
    """Run a preset on data and their model; return the document that it wrote."""
    given = [data, "--preset", preset, "--path", data / "model.pt", *arguments, "--out", out]
    assert paradec(["benchmark", *map(str, given)]) == 0
    return json.loads(out.read_text(encoding="utf-8"))


def benchmarked(data, out, *decoders):
    flags = "--sentences 4 --timed 2 --rounds 1 --batch-sizes 2 --busy --title small".split()
    return run("times", data, out, *flags, *(f"--decoder={one}" for one in decoders))


def greedy_outputs(data):
    """Outputs and targets of the benchmark's sentences, by the decoder itself."""
    models, task = loading.load(str(data), str(data / "model.pt"))
    task.load_dataset("test")
    dataset = task.dataset("test")
    search = loading.decoder(task, models, decoding="greedy")
    found = []
    for i in evenly(from_short_to_long(dataset), 4):
        (hypo,) = task.inference_step(search, models, dataset.collater([dataset[i]]))
        found.append((hypo[0]["tokens"], dataset[i]["target"]))
    return found


def test_summaries_have_rouge_and_images_psnr(summaries, pictures, tmp_path):
    texts = benchmarked(summaries, tmp_path / "summaries.json", "pgj --block-size 3")
    row = tables(texts)[0].rows[1]
    named = [f"ROUGE-{kind}" for kind in ("1", "2", "L", "Lsum")]
    assert [name for name in row if name in named] == named
    assert all(f"{name}_less_beam_5" in row for name in named) and "BLEU" not in str(texts)
    words = loading.load(str(summaries), str(summaries / "model.pt"))[1].target_dictionary
    outputs, targets = (
        [plain_text(words.string(tokens).split(), "en") for tokens in column]
        for column in zip(*greedy_outputs(summaries), strict=True)
    )
    for name, wanted in SummaryQuality(targets, lines=None).scores(outputs).items():
        assert row[name] == pytest.approx(wanted, abs=0.006)

    decoders = ("blockwise", "near=blockwise --accept-distance 60", "pgj --block-size 8")
    grey = benchmarked(pictures, tmp_path / "images.json", *decoders)
    rows = {row["decoder"]: row for row in tables(grey)[0].rows}
    labels = ["beam search", "exact", "exact", "exact", "relaxed", "exact"]
    assert [row["label"] for row in rows.values()] == labels
    assert 1 <= rows["blockwise"]["mean_accepted_block"] < rows["near"]["mean_accepted_block"] <= 4
    assert rows["near"]["PSNR"] != rows["greedy"]["PSNR"] == rows["blockwise"]["PSNR"]
    assert rows["blockwise"]["PSNR_less_greedy"] == Value(0.0, 0.0, 0.0)
    assert "BLEU" not in str(grey) and {s["tokens"] for s in grey["systems"]} == {4 * (COUNT + 1)}
    found = []
    for both in greedy_outputs(pictures):
        ours, truth = (
            images.image([token - 4 for token in tokens.tolist()[:-1]], HIGH) for tokens in both
        )
        found.append(images.psnr(ours, truth))
    assert rows["greedy"]["PSNR"] == pytest.approx(sum(found) / 4, abs=0.006)
    assert paradec(["report", str(tmp_path)]) == 0
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert ">PSNR<" in page and ">ROUGE-Lsum<" in page and "BLEU" not in page
    for document in (texts, grey):
        document["systems"][0]["scores"]["BLEU"] = 3.0
        with pytest.raises(UsageError, match="not of the metrics whose signatures"):
            documents.check(document, "a.json")


def test_acceptance_and_lossless_of_images(pictures, tmp_path):
    flags = "--decoder blockwise --sweep accept-distance=0,60 --subset test"
    flags = [*flags.split(), "--sentences", 4, "--batch-sizes", 2]
    greedy, exact, near = rows = run("acceptance", pictures, tmp_path / "a.json", *flags)["rows"]
    assert [row["label"] for row in rows] == ["exact", "exact", "relaxed"]
    assert [row["epsilon"] for row in rows] == [None, 0, 60]
    assert greedy["tokens"] == 4 * (COUNT + 1)  # also the judge's outputs are images
    assert greedy["PSNR"] == exact["PSNR"] != near["PSNR"] and "BLEU" not in greedy
    same = {"middle": 0.0, "low": 0.0, "high": 0.0}
    assert (exact["PSNR_less_greedy"], greedy["PSNR_less_greedy"]) == (same, None)
    assert exact["mean_accepted_block"] < near["mean_accepted_block"]
    flags = ["--decoder", "blockwise", "--sentences", 2, "--batch-sizes", 2]
    rows = run("lossless", pictures, tmp_path / "l.json", *flags)["rows"]
    assert len(rows) == 4 and all(row["beyond_ties"] == 0 for row in rows)
    assert rows[0]["passes"] == COUNT + 1  # block size 1: greedy search of a whole image


def test_all_sentences_unless_fewer_are_asked_for(pictures, tmp_path):
    flags = ["--timed", 1, "--rounds", 1, "--batch-sizes", 2, "--busy", "--decoder", "own=greedy"]
    setting = run("times", pictures, tmp_path / "b.json", *flags)["setting"]
    assert (setting["sentences"], setting["timed sentences"]) == (5, 1)
