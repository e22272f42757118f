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
from fairseq_paradec.cli import images as command
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


def report(path: Path, decoding: str, accepted: Sequence[Sequence[int]]) -> Path:
    """Write what --stats-file writes."""
    records = [
        {
            "schema": SCHEMA, "version": 1, "id": number, "decoding": decoding,
            "num_tokens": HIGH.num_tokens + 1, "decoder_passes": len(one), "num_accepted": one,
        }
        for number, one in enumerate(accepted)
    ]  # fmt: skip
    path.write_text("".join(json.dumps(r) + "\n" for r in records), encoding="utf-8")
    return path


def run(capsys, *arguments: object) -> tuple[int, str, str]:
    """Run the command in this process: status, what it printed, and its errors."""
    try:
        status = paradec(["images", *map(str, arguments)])
    except SystemExit as end:
        status = int(str(end.code))
    captured = capsys.readouterr()
    return status, captured.out, captured.err


def rows_of(out: str) -> dict[str, list[str]]:
    """The table that was printed: cells by system."""
    body = out.split("\n\n")[0].splitlines()[2:]
    cells = [[c.strip() for c in line.split("  ") if c.strip()] for line in body]
    return {first: rest for first, *rest in cells}


# ---- tokens ------------------------------------------------------------------------------------


def test_tokens_of_files(tmp_path, capsys):
    large = gradients(1, images.Size(8, 12, 3))[0]
    Image.fromarray(large).save(tmp_path / "a.png")
    Image.fromarray(large[:2, :3]).save(tmp_path / "b.bmp")
    status, out, _ = run(capsys, "tokens", tmp_path / "a.png", tmp_path / "b.bmp")
    assert status == 0
    first, second = out.splitlines()
    assert first == " ".join(map(str, images.tokens(large)))
    assert second == " ".join(map(str, large[:2, :3].reshape(-1)))
    status, out, _ = run(capsys, "tokens", tmp_path / "a.png", tmp_path / "b.bmp", "--size", "2x3")
    first, other = out.splitlines()
    small = images.shrink(large, images.Size(2, 3, 3))
    assert first == " ".join(map(str, images.tokens(small))) and other == second
    _, out, _ = run(capsys, "tokens", tmp_path / "b.bmp", "--gray")
    assert out.split() == list(map(str, images.tokens(images.load(tmp_path / "b.bmp", 1))))


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["small.png", "--size", "8"], ["small.png: got '6×6 pixels'", "8×8, or more in"]),
        (["small.png", "--size", "4x4x3"], ["--size", "'4x4x3'", "as in 8 or 8x8"]),
        (["holes.png"], ["holes.png: got 'mode RGBA'", "RGB or L"]),
        (["text.png"], ["text.png: cannot be read"]),
    ],
)
def test_files_that_are_no_such_images_are_named(tmp_path, capsys, monkeypatch, arguments, words):
    monkeypatch.chdir(tmp_path)
    noise = np.random.default_rng(1).integers(0, 256, (8, 12, 4), dtype=np.uint8)
    Image.fromarray(noise[:6, :6, :3]).save("small.png")
    Image.fromarray(noise).save("holes.png")
    Path("text.png").write_text("no image")
    status, out, err = run(capsys, "tokens", *arguments)
    assert status == 2 and out == ""
    assert all(word in err for word in words), err


# ---- compare -----------------------------------------------------------------------------------


def test_a_table_and_pictures(data, tmp_path, capsys):
    greedy = generated(tmp_path / "greedy.txt", shifted(1))
    block = generated(tmp_path / "out.txt", [*truth()[:1], *shifted(2)[1:]], sources=False)
    # Of 65 tokens: greedy in 65 passes; in blocks of 4, and 5 at the end.
    steps = [[0] + [3] * 16] * COUNT
    stats = [
        report(tmp_path / "greedy.jsonl", "greedy", [[0] * 65] * COUNT),
        f"blockwise={report(tmp_path / 'b.jsonl', 'blockwise', steps)}",
    ]
    out = tmp_path / "deep" / "pictures"
    status, printed, err = run(
        capsys, "compare", data, greedy, f"blockwise={block}", "--out", out, "--stats", *stats,
        "--first", 3, "--scale", 2, "--json", tmp_path / "table.json",
    )  # fmt: skip
    assert (status, err) == (0, "")
    table = rows_of(printed)
    assert list(table) == ["greedy", "blockwise", command.BICUBIC]
    # Off by one everywhere: 48.13 dB; by two: 42.11; without error, one intensity off by one.
    best = 48.1308 + 10 * np.log10(64)
    assert table["greedy"] == ["48.13", "48.13 to 48.13", "-", "65.0", "1.00"]
    mean = (4 * 42.1102 + best) / 5
    assert table["blockwise"][0] == f"{mean:.2f}"
    assert table["blockwise"][2].startswith(f"{mean - 48.1308:+.2f} (")
    assert table["blockwise"][3:] == ["17.0", f"{65 / 17:.2f}"]
    low, high = map(float, table["blockwise"][1].split(" to "))
    assert 42.11 <= low < mean < high <= best
    bicubic = [
        images.psnr(np.array(Image.fromarray(images.shrink(one, LOW)).resize((8, 8), 3)), one)
        for one in truth()
    ]
    assert table[command.BICUBIC][0] == f"{np.mean(bicubic):.2f}"
    assert table[command.BICUBIC][3:] == ["-", "-"]
    assert f"3 pictures in {out}, each with input, greedy, blockwise" in printed
    assert sorted(path.name for path in out.iterdir()) == ["0.png", "1.png", "2.png"]
    picture = images.load(out / "1.png", 1)
    want = images.triple(images.shrink(truth()[1], LOW), shifted(1)[1], shifted(2)[1], 2)
    assert (picture == want).all()
    document = json.loads((tmp_path / "table.json").read_text())
    assert document["rows"][0]["mean accepted block"] == 1
    assert document["command"].startswith("paradec images compare")


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
        (line("H", 2), line("H", 2)[:-4] + "\n", "greedy.txt: got 63 intensities in line H-2"),
        (line("H", 2), "H-2\t-0.5\t\n", "got 0 intensities in line H-2; allowed: 64"),
        (line("H", 2), "H-2\t0\t" + "1 " * 63 + "<unk>\n", "got '<unk>' in line H-2"),
        (line("H", 2), "H-2\t0\t" + "1 " * 63 + "256\n", "line H-2: tokens[63]: got 256"),
        (line("H", 2), line("H", 1), "got two lines H-1"),
        (line("H", 2), line("H", 2).replace("H-2", "H-5"), "got a line H-5; allowed: 0 to 4"),
        (line("S", 2), line("S", 1).replace("S-1", "S-2"), "a line S-2 that is not image 2"),
    ],
)
def test_outputs_that_are_none_are_named(data, tmp_path, capsys, old, new, words):
    path = generated(tmp_path / "greedy.txt", shifted(1))
    path.write_text(path.read_text().replace(old, new, 1))
    status, printed, err = run(capsys, "compare", data, path, "--out", tmp_path / "p")
    assert status == 2 and printed == "" and words in err
    assert not (tmp_path / "p").exists()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["{whole}", "{whole}"], ["SYSTEM: got", "a label of its own"]),
        (["x={whole}", "{whole}", "--stats", "y={stats}"], ["--stats: got 'y'", "x, whole"]),
        (["{whole}", "--stats", "whole={more}"], ["more.jsonl, line 6: got 'image 5'"]),
        (["{whole}", "--stats", "whole={less}"], ["less.jsonl: got no line for image 4"]),
        (["{whole}", "--stats", "whole={long}"], ["line 1: got 65 tokens, 66 of them accepted"]),
        (["{whole}", "--stats", "whole={whole}"], ["whole.txt, line 1: allowed: what --stats"]),
        (["{whole}", "--subset", "exam"], ["DATA: got", "subset 'exam' (--subset) is missing"]),
        (["none.txt"], ["SYSTEM: got 'none.txt'", "a file that can be read"]),
        (["{whole}", "--first", "0"], ["--first", "from 1 up"]),
        (["{whole}", "--json", "{whole}"], ["--json: got", "another file than those"]),
        (["{whole}", "--scale", "683"], ["--scale: got 683", "from 1 to 682"]),
        (["(bicubic enlarging)={whole}"], ["SYSTEM: got", "a label of its own"]),
    ],
)
def test_mistakes_are_named(data, tmp_path, capsys, arguments, words):
    given = {
        "folder": data,
        "whole": generated(tmp_path / "whole.txt", shifted(1)),
        "stats": report(tmp_path / "stats.jsonl", "greedy", [[0] * 65] * COUNT),
        "more": report(tmp_path / "more.jsonl", "greedy", [[0] * 65] * (COUNT + 1)),
        "less": report(tmp_path / "less.jsonl", "greedy", [[0] * 65] * (COUNT - 1)),
        "long": report(tmp_path / "long.jsonl", "blockwise", [[66, 0]] * COUNT),
    }
    filled = [argument.format(**given) for argument in arguments]
    status, printed, err = run(capsys, "compare", data, *filled, "--out", tmp_path / "p")
    assert status == 2 and printed == ""
    assert all(word in err for word in words), err
    assert not (tmp_path / "p").exists()
