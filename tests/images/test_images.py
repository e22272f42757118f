"""Images as tokens and back; paradec images: files as lines, and outputs as pictures."""

import json
import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from support.image_data import HIGH, LOW, image_folder, random_images
from support.tables import refused, run

from fairseq_paradec import images
from fairseq_paradec.errors import UsageError
from fairseq_paradec.images import Pixels, Size
from fairseq_paradec.records import SCHEMA


def noise(*shape: int) -> Pixels:
    """Random bytes."""
    return np.random.default_rng(1).integers(0, 256, shape, dtype=np.uint8)


def test_tokens_are_in_raster_order():
    """Two rows of two pixels, each with its red, green and blue."""
    image = np.array([[[1, 2, 3], [4, 5, 6]], [[7, 8, 9], [10, 11, 12]]], dtype=np.uint8)
    assert images.tokens(image) == list(range(1, 13))
    assert images.image(range(1, 13), Size(2, 2, 3))[1, 0].tolist() == [7, 8, 9]
    assert images.image(range(1, 7), Size(2, 3, 1)).tolist() == [[1, 2, 3], [4, 5, 6]]
    across = image.transpose(1, 0, 2)  # another order in memory
    assert images.tokens(across) == [1, 2, 3, 7, 8, 9, 4, 5, 6, 10, 11, 12]


@pytest.mark.parametrize(
    ("call", "given", "message"),
    [
        (images.image, ([0] * 11, Size(2, 2, 3)), r"tokens: got '11 of them'; allowed: 12"),
        (images.image, ([0, 9, 9, 256], Size(2, 2, 1)), r"tokens\[3\]: got 256; allowed: 0 to 255"),
        (images.image, ([0.5], Size(1, 1, 1)), "dtype float64"),
        (images.from_words, (["0", "x"], Size(1, 2, 1)), "tokens: got 'x'; allowed: 0 to 255"),
        (images.tokens, (np.zeros((2, 2), dtype=np.int64),), "dtype int64"),
        (Size, (2, -1, 3), "width: got"),
        (images.triple, (noise(8, 8), noise(16, 16), noise(8, 8), 1), "other: got"),
    ],
)
def test_what_is_wrong_is_named(call, given, message):
    with pytest.raises(UsageError, match=message):
        call(*given)


def test_shrinking_averages_areas():
    image = np.array([[0, 1, 10, 10], [0, 1, 10, 11], [9, 9, 200, 201]], dtype=np.uint8)
    halves = images.shrink(image[:2], Size(1, 2, 1))
    assert halves.tolist() == [[1, 10]]  # 0.5 is rounded up, 10.25 down: once, not by direction
    rgb = np.stack([image, 255 - image, image * 0], axis=-1)
    assert images.shrink(rgb[:2], Size(1, 2, 3)).tolist() == [[[1, 255, 0], [10, 245, 0]]]
    # Of five pixels with their centres at 0.5 to 4.5 the first third (up to 1.67) has two.
    row = np.array([[0, 10, 50, 100, 101]], dtype=np.uint8)
    assert images.shrink(row, Size(1, 3, 1)).tolist() == [[5, 50, 101]]


def test_psnr():
    black, white = np.zeros((2, 2), dtype=np.uint8), np.full((2, 2), 255, dtype=np.uint8)
    assert images.psnr(black, white) == images.psnr(white, black) == 0
    assert images.psnr(white, white) == math.inf
    dot = np.array([[0, 0], [0, 2]], dtype=np.uint8)  # mean squared error 1
    assert images.psnr(dot, black) == images.psnr(black, dot) == pytest.approx(48.1308, abs=1e-4)


def test_files_are_read_as_they_are(tmp_path):
    rgb = noise(4, 6, 3)
    Image.fromarray(rgb).save(tmp_path / "a.png")
    assert (images.load(tmp_path / "a.png", 3) == rgb).all()
    Image.fromarray(rgb[:, :, 0]).save(tmp_path / "grey.png")
    assert (images.load(tmp_path / "grey.png", 1) == rgb[:, :, 0]).all()
    pure = np.array([[[255, 0, 0], [0, 255, 0], [0, 0, 255]]], dtype=np.uint8)
    Image.fromarray(pure).save(tmp_path / "pure.png")
    assert images.load(tmp_path / "pure.png", 1).tolist() == [[76, 150, 29]]  # 0.299, 0.587, 0.114
    for mode in ("P", "RGBA"):
        Image.fromarray(rgb).convert(mode).save(tmp_path / "a.png")
        with pytest.raises(UsageError, match=f"got 'mode {mode}'; allowed: mode RGB or L"):
            images.load(tmp_path / "a.png", 3)


@pytest.mark.parametrize("kind", ["PNG", "JPEG"])
def test_truncated_files_are_named(tmp_path, kind):
    path = tmp_path / "a.img"
    Image.fromarray(noise(64, 64, 3)).save(path, format=kind)
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(UsageError, match="a.img: cannot be read as an image"):
        images.load(path, 3)


# ---- the command -------------------------------------------------------------------------------

COUNT = 5


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> Path:
    """A folder of images; its test set has ``truth()``."""
    return image_folder(tmp_path_factory.mktemp("images") / "data", pairs={"test": COUNT})


def truth() -> list[Pixels]:
    """The large images of the test set."""
    return random_images(COUNT, HIGH)


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


def test_tokens_of_files(tmp_path, capsys):
    """Also in another size, and in grey."""

    def line(pixels: Pixels) -> str:
        return " ".join(map(str, images.tokens(pixels))) + "\n"

    large = random_images(1, Size(8, 12, 3))[0]
    one, two = tmp_path / "a.png", tmp_path / "b.bmp"
    Image.fromarray(large).save(one)
    Image.fromarray(large[:2, :3]).save(two)
    second = line(large[:2, :3])
    assert run(capsys, "images", "tokens", one, two) == (0, line(large) + second, "")
    small = images.shrink(large, Size(2, 3, 3))
    sized = run(capsys, "images", "tokens", one, two, "--size", "2x3")
    assert sized == (0, line(small) + second, "")
    assert run(capsys, "images", "tokens", two, "--gray")[1] == line(images.load(two, 1))


def test_a_table_and_pictures(data, tmp_path, capsys):
    greedy = generated(tmp_path / "greedy.txt", shifted(1))
    block = generated(tmp_path / "out.txt", [*truth()[:1], *shifted(2)[1:]], sources=False)
    # Of 65 tokens: greedy in 65 passes; in blocks of 4, and 5 at the end.
    stats = [
        report(tmp_path / "greedy.jsonl", "greedy", [0] * 65),
        f"blockwise={report(tmp_path / 'b.jsonl', 'blockwise', [0] + [3] * 16)}",
    ]
    out, document = tmp_path / "deep" / "pictures", tmp_path / "table.json"
    words = ("images", "compare", data, greedy, f"blockwise={block}", "--stats", *stats)
    more = ("--out", out, "--first", 3, "--scale", 2, "--json", document)
    assert run(capsys, *words, *more)[0] == 0
    rows = json.loads(document.read_text())["rows"]
    # Off by one everywhere: 48.13 dB; by two: 42.11; without error, one intensity off by one.
    assert rows[0] == {
        "system": "greedy",
        "PSNR": dict.fromkeys(("middle", "low", "high"), pytest.approx(48.1308, abs=1e-4)),
        "PSNR_less_first": None,
        "passes_per_image": 65.0,
        "mean_accepted_block": 1.0,
    }
    best = 48.1308 + 10 * np.log10(64)
    mean = (4 * 42.1102 + best) / 5
    found = rows[1]["PSNR"]
    assert (rows[1]["system"], found["middle"]) == ("blockwise", pytest.approx(mean))
    assert rows[1]["PSNR_less_first"]["middle"] == pytest.approx(mean - 48.1308, abs=1e-4)
    assert rows[1]["passes_per_image"] == 17 and rows[1]["mean_accepted_block"] == 3.82
    assert 42.11 <= found["low"] < mean < found["high"] <= best
    bicubic = [
        images.psnr(np.array(Image.fromarray(images.shrink(one, LOW)).resize((8, 8), 3)), one)
        for one in truth()
    ]
    assert rows[2]["PSNR"]["middle"] == pytest.approx(np.mean(bicubic))
    assert sorted(path.name for path in out.iterdir()) == ["0.png", "1.png", "2.png"]
    picture = images.load(out / "1.png", 1)
    want = images.triple(images.shrink(truth()[1], LOW), shifted(1)[1], shifted(2)[1], 2)
    assert (picture == want).all()


def line(kind: str, number: int) -> str:
    """One line of ``generated(shifted(1))``."""
    large = truth()[number]
    pixels = shifted(1)[number] if kind == "H" else images.shrink(large, LOW)
    score = "-0.5\t" if kind == "H" else ""
    return f"{kind}-{number}\t{score}{' '.join(map(str, images.tokens(pixels)))}\n"


@pytest.mark.parametrize(
    ("spoilt", "arguments", "words"),
    [
        (line("H", 2)[:-4] + "\n", "{whole}", "x.txt, line H-2: tokens: got '63 of them'"),
        (
            "H-2\t0\t" + "1 " * 63 + "<unk>\n",
            "{whole}",
            "line H-2: tokens: got '<unk>'; allowed: 0 to 255",
        ),
        (line("H", 1), "{whole}", "got two lines H-1"),
        (line("H", 2).replace("H-2", "H-5"), "{whole}", "got a line H-5; allowed: 0 to 4"),
        (line("S", 1).replace("S-1", "S-2"), "{whole}", "a line S-2 that is not image 2"),
        ("", "{whole} --stats x={more}", "more.jsonl, line 6: got 'image 5'"),
        ("", "{whole} --stats x={less}", "less.jsonl: got no line for image 4"),
        ("", "{whole} --stats x={long}", "line 1: got 65 tokens, 66 of them accepted"),
        ("", "{whole} --json {whole}", "--json: got"),
    ],
)
def test_mistakes_are_named(data, tmp_path, capsys, spoilt, arguments, words):
    whole = generated(tmp_path / "x.txt", shifted(1))
    if spoilt:
        whole.write_text(whole.read_text().replace(line(spoilt[0], 2), spoilt))
    files = {
        "more": report(tmp_path / "more.jsonl", "greedy", [0] * 65, COUNT + 1),
        "less": report(tmp_path / "less.jsonl", "greedy", [0] * 65, COUNT - 1),
        "long": report(tmp_path / "long.jsonl", "blockwise", [66, 0]),
    }
    given = (data, *arguments.format(whole=whole, **files).split(), "--out", tmp_path / "p")
    assert words in refused(capsys, "images", "compare", *given)
    assert not (tmp_path / "p").exists()
