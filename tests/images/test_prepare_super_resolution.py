"""paradec data images: from photographs to a folder that fairseq reads."""

import json
import shutil

import numpy as np
from fairseq.data import Dictionary, data_utils
from fairseq.tasks.translation import load_langpair_dataset
from PIL import Image

from fairseq_paradec import images
from fairseq_paradec.cli.main import main as paradec
from fairseq_paradec.images import Size
from fairseq_paradec.images.intensities import dictionary

PARTS = ("train", "valid", "test")


def noise(seed, *shape):
    return np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8)


def photographs(folder, count=6):
    """A folder with images, and a file that is none."""
    folder.mkdir()
    for i in range(count):
        Image.fromarray(noise(i, 40, 50, 3)).save(folder / f"{i}.{'PNG' if i else 'bmp'}")
    (folder / "notes.txt").write_text("no image")
    return folder


def make(*arguments, status=0):
    assert paradec(["data", "images", *map(str, arguments)]) == status


def sizes_of(data):
    return json.loads((data / "sizes.json").read_text())


def pairs(data, part):
    """The pairs of a part as fairseq's translation task reads them, and their origins."""
    sizes = sizes_of(data)
    words, other = (Dictionary.load(str(data / f"dict.{side}.txt")) for side in ("lr", "hr"))
    assert words == other == dictionary()
    dataset = load_langpair_dataset(
        str(data), part, "lr", words, "hr", words, False, None, 1, True, False, 5000, 5000
    )
    origins = [json.loads(line) for line in (data / f"{part}.origins.jsonl").open()]
    assert len(dataset) == len(origins) == sizes["parts"][part]["pairs"]

    def image(tokens, side):
        *indices, last = tokens.tolist()
        assert last == words.eos()
        return images.image([int(words[index]) for index in indices], Size(**sizes[side]))

    return [
        (image(dataset[i]["source"], "lr"), image(dataset[i]["target"], "hr"), origin)
        for i, origin in enumerate(origins)
    ]


def test_a_folder_of_photographs(tmp_path, capsys):
    source, out = photographs(tmp_path / "faces"), tmp_path / "new" / "data"
    make(source, out)
    assert "train      4 pairs of 4 photographs\n" in capsys.readouterr().out
    assert data_utils.infer_language_pair(str(out)) == ["lr", "hr"]
    seen = []
    for low, high, origin in (pair for part in PARTS for pair in pairs(out, part)):
        seen.append(int(origin["image"].split(".")[0]))
        assert origin | {"image": ""} == {"image": "", "top": 0, "left": 5, "side": 40}
        square = noise(seen[-1], 40, 50, 3)[:, 5:45]
        assert (high == images.shrink(square, Size(32, 32, 3))).all()
        assert (low == images.shrink(high, Size(8, 8, 3))).all()
    assert sorted(seen) == [0, 1, 2, 3, 4, 5]
    sizes = sizes_of(out)
    assert sizes["lr"] == {"height": 8, "width": 8, "channels": 3}
    assert sizes["made_by"]["photographs"] == "faces" and sizes["made_by"]["seed"] == 1
    assert str(tmp_path) not in (out / "sizes.json").read_text()
    assert [file.name for file in out.parent.iterdir()] == ["data"]  # nothing half done
    moved, contents = shutil.copytree(source, tmp_path / "elsewhere" / "faces"), []
    for name, folder, seed in (("one", source, 1), ("two", moved, 1), ("three", source, 2)):
        make(folder, tmp_path / name, "--gray", "--seed", seed)
        contents.append({p.name: p.read_bytes() for p in (tmp_path / name).iterdir()})
    assert contents[0] == contents[1] != contents[2]
    assert pairs(tmp_path / "one", "test")[0][0].shape == (8, 8)


def test_patches(tmp_path):
    """Squares of 16 pixels as they are, and of 32, each averaged to 16; the margins fall away."""
    source, out = photographs(tmp_path / "source"), tmp_path / "out"
    flags = "--size 16 --input-size 4 --patches 16,32 --test 2 --valid 1"
    make(source, out, *flags.split())
    parts = [pairs(out, part) for part in PARTS]
    names = [{origin["image"] for *_, origin in found} for found in parts]
    assert [len(some) for some in names] == [3, 1, 2]
    assert len(set.union(*names)) == 6  # none in two parts
    corners = [(4, 1, 16), (4, 17, 16), (4, 33, 16), (20, 1, 16), (20, 17, 16), (20, 33, 16)]
    for found in parts:
        for i, (low, high, origin) in enumerate(found):
            top, left, side = (origin[name] for name in ("top", "left", "side"))
            assert (top, left, side) == [*corners, (4, 9, 32)][i % 7]
            photograph = noise(int(origin["image"].split(".")[0]), 40, 50, 3)
            square = photograph[top : top + side, left : left + side]
            assert (high == images.shrink(square, Size(16, 16, 3))).all()
            assert side == 32 or (high == square).all()
            assert low.shape == (4, 4, 3)


def test_copies_are_left_out_and_bad_files_named_or_counted(tmp_path, capsys):
    source, out = photographs(tmp_path / "source", 5), tmp_path / "out"
    for file in [*source.glob("?.*")]:
        (source / f"copy-{file.stem}.png").write_bytes(file.read_bytes())
    make(source, out, "--patches", 32, "--test", 2)
    assert "left out: 5 pairs that were there already" in capsys.readouterr().out
    # A photograph of which nothing is new counts for no part.
    assert [sizes_of(out)["parts"][part]["photographs"] for part in PARTS] == [2, 1, 2]
    targets = [high.tobytes() for part in PARTS for _, high, _ in pairs(out, part)]
    assert len(targets) == len(set(targets)) == 5
    Image.fromarray(noise(9, 40, 31, 3)).save(source / "small.png")
    make(source, tmp_path / "no", status=2)
    assert "small.png: got '40×31 pixels'; allowed: 32×32" in capsys.readouterr().err
    (source / "broken.jpg").write_bytes(b"\xff\xd8\xff")
    make(source, tmp_path / "whole", "--skip-bad")
    assert "left out: 2 photographs that cannot be used; the first: " in capsys.readouterr().out
    assert sizes_of(tmp_path / "whole")["left_out"] == 2
    assert not (tmp_path / "no").exists()
