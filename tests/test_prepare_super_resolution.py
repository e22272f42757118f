"""paradec data images: from photographs to a folder that fairseq reads."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
from fairseq.data import Dictionary, data_utils
from fairseq.tasks.translation import load_langpair_dataset
from PIL import Image

from fairseq_paradec import images
from fairseq_paradec.cli.data.images import PHOTOGRAPHS
from fairseq_paradec.cli.main import main as paradec
from fairseq_paradec.images import Pixels, Size

PARTS = ("train", "valid", "test")


def noise(seed: int, *shape: int) -> Pixels:
    """Random bytes."""
    return np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8)


def photographs(folder: Path, count: int = 6, shape: tuple[int, ...] = (40, 50, 3)) -> Path:
    """A folder with images, and a file that is none."""
    folder.mkdir()
    for i in range(count):
        Image.fromarray(noise(i, *shape)).save(folder / f"{i}.{'PNG' if i else 'bmp'}")
    (folder / "notes.txt").write_text("no image")
    return folder


def pairs(data: Path, part: str) -> list[tuple[Pixels, Pixels, dict[str, Any]]]:
    """The pairs of a part as fairseq's translation task reads them, and their origins."""
    sizes = json.loads((data / "sizes.json").read_text())
    symbols = {side: Dictionary.load(str(data / f"dict.{side}.txt")) for side in ("lr", "hr")}
    assert symbols["lr"] == symbols["hr"] == images.dictionary()
    dataset = load_langpair_dataset(
        str(data), part, "lr", symbols["lr"], "hr", symbols["hr"], False, None, 1, True, False,
        5000, 5000,
    )  # fmt: skip
    origins = [json.loads(line) for line in (data / f"{part}.origins.jsonl").open()]
    assert len(dataset) == len(origins) == sizes["parts"][part]["pairs"]
    found = []
    for i, origin in enumerate(origins):
        both = []
        for side, key in (("lr", "source"), ("hr", "target")):
            *indices, last = dataset[i][key].tolist()
            assert last == symbols[side].eos()
            words = [int(symbols[side][index]) for index in indices]
            both.append(images.image(words, Size(**sizes[side])))
        found.append((both[0], both[1], origin))
    return found


def test_a_folder_of_photographs(tmp_path, capsys):
    source, out = photographs(tmp_path / "faces"), tmp_path / "new" / "data"
    assert paradec(["data", "images", str(source), str(out)]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "train      4 pairs of 4 photographs",
        "valid      1 pairs of 1 photographs",
        "test       1 pairs of 1 photographs",
    ]
    assert data_utils.infer_language_pair(str(out)) == ["lr", "hr"]
    seen = []
    for part in PARTS:
        for low, high, origin in pairs(out, part):
            number = int(origin["image"].split(".")[0])
            assert origin | {"image": ""} == {"image": "", "top": 0, "left": 5, "side": 40}
            square = noise(number, 40, 50, 3)[:, 5:45]
            assert (high == images.shrink(square, Size(32, 32, 3))).all()
            assert (low == images.shrink(high, Size(8, 8, 3))).all()
            seen.append(number)
    assert sorted(seen) == [0, 1, 2, 3, 4, 5]
    sizes = json.loads((out / "sizes.json").read_text())
    assert sizes["lr"] == {"height": 8, "width": 8, "channels": 3}
    assert sizes["made_by"]["photographs"] == "faces" and sizes["made_by"]["seed"] == 1
    assert str(tmp_path) not in (out / "sizes.json").read_text()
    assert sorted(file.name for file in out.parent.iterdir()) == ["data"]  # nothing half done


def test_patches(tmp_path):
    """Squares of 16 pixels as they are, and of 32, each averaged to 16; the margins fall away."""
    source, out = photographs(tmp_path / "source"), tmp_path / "out"
    arguments = [str(source), str(out), "--size", "16", "--input-size", "4", "--patches", "16,32"]
    assert paradec(["data", "images", *arguments, "--test", "2", "--valid", "1"]) == 0
    parts = {part: pairs(out, part) for part in PARTS}
    names = {part: {origin["image"] for *_, origin in found} for part, found in parts.items()}
    assert [len(names[part]) for part in PARTS] == [3, 1, 2]
    assert len(set.union(*names.values())) == 6  # none in two parts
    corners = [(4, 1, 16), (4, 17, 16), (4, 33, 16), (20, 1, 16), (20, 17, 16), (20, 33, 16)]
    for found in parts.values():
        for i, (low, high, origin) in enumerate(found):
            top, left, side = origin["top"], origin["left"], origin["side"]
            assert (top, left, side) == [*corners, (4, 9, 32)][i % 7]
            photograph = noise(int(origin["image"].split(".")[0]), 40, 50, 3)
            square = photograph[top : top + side, left : left + side]
            assert (high == images.shrink(square, Size(16, 16, 3))).all()
            assert side == 32 or (high == square).all()
            assert low.shape == (4, 4, 3)


def test_the_same_files_each_time_and_others_by_another_seed(tmp_path):
    source = photographs(tmp_path / "source", 12)
    moved = shutil.copytree(source, tmp_path / "elsewhere" / "source")
    contents = []
    for name, folder, seed in (("one", source, "1"), ("two", moved, "1"), ("three", source, "2")):
        out = tmp_path / name
        assert paradec(["data", "images", str(folder), str(out), "--gray", "--seed", seed]) == 0
        contents.append({p.name: p.read_bytes() for p in out.iterdir()})
    assert contents[0] == contents[1] and set(contents[0]) == set(contents[2])
    assert contents[0]["test.lr-hr.hr.bin"] != contents[2]["test.lr-hr.hr.bin"]
    low, high, _ = pairs(tmp_path / "one", "test")[0]
    assert low.shape == (8, 8) and high.shape == (32, 32)


def test_copies_are_left_out(tmp_path, capsys):
    source = photographs(tmp_path / "source", 5)
    for file in [*source.glob("?.*")]:
        (source / f"copy-{file.stem}.png").write_bytes(file.read_bytes())
    flat = np.zeros((64, 32, 3), dtype=np.uint8)  # two squares, one of them left
    Image.fromarray(flat).save(source / "flat.png")
    out = tmp_path / "out"
    assert paradec(["data", "images", str(source), str(out), "--patches", "32", "--test", "3"]) == 0
    assert "left out: 6 pairs that were there already" in capsys.readouterr().out
    parts = json.loads((out / "sizes.json").read_text())["parts"]
    # A photograph of which nothing is new counts for no part.
    assert [parts[part]["photographs"] for part in PARTS] == [2, 1, 3]
    targets = [high.tobytes() for part in PARTS for _, high, _ in pairs(out, part)]
    assert len(targets) == len(set(targets)) == 6


def test_bad_files_are_named_or_counted(tmp_path, capsys):
    source = photographs(tmp_path / "source", 4)
    Image.fromarray(noise(9, 40, 31, 3)).save(source / "small.png")
    assert paradec(["data", "images", str(source), str(tmp_path / "out")]) == 2
    assert "small.png: got '40×31 pixels'; allowed: 32×32 or more" in capsys.readouterr().err
    Image.fromarray(noise(9, 40, 40, 4)).save(source / "small.png")
    assert paradec(["data", "images", str(source), str(tmp_path / "out")]) == 2
    assert "small.png: got 'mode RGBA'" in capsys.readouterr().err
    assert sorted(file.name for file in tmp_path.iterdir()) == ["source"]
    (source / "broken.jpg").write_bytes(b"\xff\xd8\xff")
    assert paradec(["data", "images", str(source), str(tmp_path / "out"), "--skip-bad"]) == 0
    assert "left out: 2 photographs that cannot be used; the first: " in capsys.readouterr().out
    sizes = json.loads((tmp_path / "out" / "sizes.json").read_text())
    assert sizes["left_out"] == 2
    assert [sizes["parts"][part]["photographs"] for part in PARTS] == [2, 1, 1]


def test_nothing_left_for_training_is_said(tmp_path, capsys):
    source = photographs(tmp_path / "source", 3)
    (source / "1.PNG").write_bytes(b"")
    assert paradec(["data", "images", str(source), str(tmp_path / "out"), "--skip-bad"]) == 2
    error = capsys.readouterr().err
    assert "no photographs left for training: of 3, 1 could not be used" in error
    assert not (tmp_path / "out").exists()


def test_the_photographs_that_are_installed(tmp_path, monkeypatch, capsys):
    arguments = ["data", "images", "--photographs", str(tmp_path / "out"), "--patches", "128"]
    assert paradec(arguments) == 0
    sizes = json.loads((tmp_path / "out" / "sizes.json").read_text())
    assert sizes["made_by"]["photographs"] == ["skimage", "sklearn"]
    names = [{origin["image"] for *_, origin in pairs(tmp_path / "out", part)} for part in PARTS]
    assert [len(found) for found in names] == [5, 1, 1]
    monkeypatch.setitem(PHOTOGRAPHS, "no_such_package", ["a.png"])
    arguments[3] = str(tmp_path / "no")
    assert paradec(arguments) == 2
    assert "--photographs: got 'no no_such_package'" in capsys.readouterr().err


def test_mistakes_are_named(tmp_path, capsys):
    source, out = str(photographs(tmp_path / "source", 4)), str(tmp_path / "out")
    (tmp_path / "empty").mkdir()
    for arguments, words in (
        ([out], "DIR: got None; allowed: a folder with photographs, or --photographs; and"),
        ([source, out + ":3"], "allowed: a path without ':'"),
        ([str(tmp_path / "empty"), out], "allowed: a folder with files .png, .jpg"),
        ([source, source], "OUT: got"),
        ([source, out, "--input-size", "7"], "--input-size: got 7; allowed: a part of --size, 32"),
        ([source, out, "--patches", "64,16"], "--patches: got 16; allowed: --size, 32, or more"),
        ([source, out, "--test", "2", "--valid", "2"], "--test, --valid: got [2, 2]"),
    ):
        assert paradec(["data", "images", *arguments]) == 2
        assert words in capsys.readouterr().err
        assert not (tmp_path / "out").exists()
