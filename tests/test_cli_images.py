"""paradec images: image files as lines, and what fairseq-generate printed as pictures."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from support.image_data import HIGH, LOW, gradients, image_folder

from fairseq_paradec import images
from fairseq_paradec.cli.main import main as paradec
from fairseq_paradec.decoding.trace import SCHEMA
from fairseq_paradec.images import Pixels

COUNT = 5


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> Path:
    """A folder of images; its test set has ``truth()``."""
    return image_folder(tmp_path_factory.mktemp("images") / "data", pairs={"test": COUNT})


def truth() -> list[Pixels]:
    """The large images of the test set."""
    return gradients(COUNT, HIGH)


def shifted(by: int) -> list[Pixels]:
    """The truth, but brighter, or darker where that is not possible."""
    return [np.where(one > 200, one - by, one + by).astype(np.uint8) for one in truth()]


def generated(path: Path, outputs: Sequence[Pixels], sources: bool = True) -> Path:
    """Write what fairseq-generate prints, in another order."""
    lines = ["2026-01-01 00:00:00 | INFO | fairseq_cli.generate | x"]
    for number, (output, large) in reversed(list(enumerate(zip(outputs, truth())))):
        small = " ".join(map(str, images.tokens(images.shrink(large, LOW))))
        text = " ".join(map(str, images.tokens(output)))
        lines += [f"S-{number}\t{small}"] * sources
        lines += [f"T-{number}\t{' '.join(map(str, images.tokens(large)))}"]
        lines += [f"H-{number}\t-0.5\t{text}", f"D-{number}\t-0.5\t{text}", f"P-{number}\t-0.5"]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def report(path: Path, decoding: str, accepted: Sequence[int], count: int = COUNT) -> Path:
    """Write what --stats-file writes of images that are all decoded in the same way."""
    same = {"schema": SCHEMA, "version": 1, "decoding": decoding, "num_accepted": accepted}
    same |= {"num_tokens": HIGH.num_tokens + 1, "decoder_passes": len(accepted)}
    lines = [json.dumps(same | {"id": number}) + "\n" for number in range(count)]
    path.write_text("".join(lines), encoding="utf-8")
    return path


def run(capsys, *arguments: object) -> tuple[int, str, str]:
    """Run the command in this process: status, what it printed, and its errors."""
    status = paradec(["images", *map(str, arguments)])
    return status, *capsys.readouterr()


# ---- tokens ------------------------------------------------------------------------------------


def test_tokens_of_files(tmp_path, capsys):
    """Also in another size, in grey, and of what is no such image."""

    def line(pixels: Pixels) -> str:
        return " ".join(map(str, images.tokens(pixels))) + "\n"

    large = gradients(1, images.Size(8, 12, 3))[0]
    one, two = tmp_path / "a.png", tmp_path / "b.bmp"
    Image.fromarray(large).save(one)
    Image.fromarray(large[:2, :3]).save(two)
    second = line(large[:2, :3])
    assert run(capsys, "tokens", one, two) == (0, line(large) + second, "")
    small = images.shrink(large, images.Size(2, 3, 3))
    assert run(capsys, "tokens", one, two, "--size", "2x3") == (0, line(small) + second, "")
    assert run(capsys, "tokens", two, "--gray")[1] == line(images.load(two, 1))
    for given, words in (
        ((two, "--size", "8"), "b.bmp: got '2×3 pixels'"),
        ((__file__,), "test_cli_images.py: cannot be read"),
    ):
        status, out, err = run(capsys, "tokens", *given)
        assert status == 2 and out == "" and words in err


# ---- compare -----------------------------------------------------------------------------------


def test_a_table_and_pictures(data, tmp_path, capsys):
    greedy = generated(tmp_path / "greedy.txt", shifted(1))
    block = generated(tmp_path / "out.txt", [*truth()[:1], *shifted(2)[1:]], sources=False)
    # Of 65 tokens: greedy in 65 passes; in blocks of 4, and 5 at the end.
    stats = [
        report(tmp_path / "greedy.jsonl", "greedy", [0] * 65),
        f"blockwise={report(tmp_path / 'b.jsonl', 'blockwise', [0] + [3] * 16)}",
    ]
    out, document = tmp_path / "deep" / "pictures", tmp_path / "table.json"
    status, _, _ = run(
        capsys, "compare", data, greedy, f"blockwise={block}", "--out", out, "--stats", *stats,
        "--first", 3, "--scale", 2, "--json", document,
    )  # fmt: skip
    assert status == 0
    rows = json.loads(document.read_text())["rows"]
    # Off by one everywhere: 48.13 dB; by two: 42.11; without error, one intensity off by one.
    assert rows[0] == {
        "system": "greedy", "PSNR": 48.13, "95% interval": "48.13 to 48.13",
        "against the first": "-", "passes per image": 65.0, "mean accepted block": 1.0,
    }  # fmt: skip
    best = 48.1308 + 10 * np.log10(64)
    mean = (4 * 42.1102 + best) / 5
    assert (rows[1]["system"], rows[1]["PSNR"]) == ("blockwise", round(mean, 2))
    assert rows[1]["against the first"].startswith(f"{mean - 48.1308:+.2f} (")
    assert rows[1]["passes per image"] == 17 and rows[1]["mean accepted block"] == 3.82
    low, high = map(float, rows[1]["95% interval"].split(" to "))
    assert 42.11 <= low < mean < high <= best
    bicubic = [
        images.psnr(np.array(Image.fromarray(images.shrink(one, LOW)).resize((8, 8), 3)), one)
        for one in truth()
    ]
    assert rows[2]["PSNR"] == round(np.mean(bicubic), 2)
    assert sorted(path.name for path in out.iterdir()) == ["0.png", "1.png", "2.png"]
    picture = images.load(out / "1.png", 1)
    want = images.triple(images.shrink(truth()[1], LOW), shifted(1)[1], shifted(2)[1], 2)
    assert (picture == want).all()


def test_own_pictures_are_replaced_and_others_are_not(data, tmp_path, capsys):
    greedy = generated(tmp_path / "greedy.txt", shifted(1))
    out = tmp_path / "p"
    for scale in (1, 2):
        assert run(capsys, "compare", data, greedy, "--out", out, "--scale", scale)[0] == 0
    assert images.load(out / "0.png", 1).shape[0] == 16
    Image.fromarray(truth()[0]).save(out / "3.png")
    before = {path.name: path.read_bytes() for path in out.iterdir()}
    status, printed, err = run(capsys, "compare", data, greedy, "--out", out)
    assert status == 2 and printed == ""
    assert f"--out: got '{out / '3.png'}'" in err and "earlier picture" in err
    assert {path.name: path.read_bytes() for path in out.iterdir()} == before


def line(kind: str, number: int) -> str:
    """One line of ``generated(shifted(1))``."""
    large = truth()[number]
    pixels = shifted(1)[number] if kind == "H" else images.shrink(large, LOW)
    score = "-0.5\t" if kind == "H" else ""
    return f"{kind}-{number}\t{score}{' '.join(map(str, images.tokens(pixels)))}\n"


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        (line("H", 2), line("H", 2)[:-4] + "\n", "x.txt: got 63 intensities in line H-2"),
        (line("H", 2), "H-2\t0\t" + "1 " * 63 + "<unk>\n", "got '<unk>' in line H-2"),
        (line("H", 2), "H-2\t0\t" + "1 " * 63 + "256\n", "line H-2: tokens[63]: got 256"),
        (line("H", 2), line("H", 1), "got two lines H-1"),
        (line("H", 2), line("H", 2).replace("H-2", "H-5"), "got a line H-5; allowed: 0 to 4"),
        (line("S", 2), line("S", 1).replace("S-1", "S-2"), "a line S-2 that is not image 2"),
    ],
)
def test_outputs_that_are_none_are_named(data, tmp_path, capsys, old, new, words):
    path = generated(tmp_path / "x.txt", shifted(1))
    path.write_text(path.read_text().replace(old, new, 1))
    status, printed, err = run(capsys, "compare", data, path, "--out", tmp_path / "p")
    assert status == 2 and printed == "" and words in err
    assert not (tmp_path / "p").exists()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("{whole} {whole}", "a label of its own"),
        ("x={whole} {whole} --stats y={more}", "--stats: got 'y'"),
        ("{whole} --stats whole={more}", "more.jsonl, line 6: got 'image 5'"),
        ("{whole} --stats whole={less}", "less.jsonl: got no line for image 4"),
        ("{whole} --stats whole={long}", "line 1: got 65 tokens, 66 of them accepted"),
        ("{whole} --stats whole={whole}", "whole.txt, line 1: allowed: what --stats"),
        ("{whole} --subset exam", "subset 'exam' (--subset) is missing"),
        ("{whole} --json {whole}", "--json: got"),
    ],
)
def test_mistakes_are_named(data, tmp_path, capsys, arguments, words):
    filled = arguments.format(
        whole=generated(tmp_path / "whole.txt", shifted(1)),
        more=report(tmp_path / "more.jsonl", "greedy", [0] * 65, COUNT + 1),
        less=report(tmp_path / "less.jsonl", "greedy", [0] * 65, COUNT - 1),
        long=report(tmp_path / "long.jsonl", "blockwise", [66, 0]),
    )
    given = (data, *filled.split(), "--out", tmp_path / "p")
    status, printed, err = run(capsys, "compare", *given)
    assert status == 2 and printed == "" and words in err, err
    assert not (tmp_path / "p").exists()
