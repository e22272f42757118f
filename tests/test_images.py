"""fairseq_paradec/images.py: images as sequences of tokens, and back."""

from __future__ import annotations

import math

import numpy as np
import pytest
from PIL import Image

from fairseq_paradec import images
from fairseq_paradec.errors import UsageError
from fairseq_paradec.images import Pixels, Size


def noise(*shape: int) -> Pixels:
    """Random bytes."""
    return np.random.default_rng(1).integers(0, 256, shape, dtype=np.uint8)


@pytest.mark.parametrize("shape", [(5, 7, 3), (7, 5), (1, 1)])
def test_tokens_and_back(shape):
    image = noise(*shape)
    sequence = images.tokens(image)
    assert len(sequence) == images.size_of(image).num_tokens == math.prod(shape)
    back = images.image(sequence, images.size_of(image))
    assert back.dtype == np.uint8 and back.shape == shape and (back == image).all()


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
        (images.image, ([-1], Size(1, 1, 1)), r"tokens\[0\]: got -1"),
        (images.image, ([0.5], Size(1, 1, 1)), "dtype float64"),
        (images.tokens, (np.zeros((2, 2), dtype=np.int64),), "dtype int64"),
        (images.tokens, (np.zeros((2, 2, 4), dtype=np.uint8),), r"shape \(2, 2, 4\)"),
        (Size, (2, -1, 3), "width: got"),
        (Size, (2, 2, 4), "channels: got"),
        (images.triple, (noise(8, 8), noise(20, 20), noise(20, 20), 1), "greedy: got"),
        (images.triple, (noise(8, 8, 3), noise(16, 16), noise(16, 16), 1), "greedy: got"),
        (images.triple, (noise(8, 8), noise(16, 16), noise(8, 8), 1), "other: got"),
        (images.psnr, (noise(2, 2, 3), noise(2, 2)), r"shape \(2, 2\)"),
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


def test_a_triple():
    low = np.array([[1, 2]], dtype=np.uint8)
    greedy, other = noise(2, 4), noise(4, 2).T
    joined = images.triple(low, greedy, other, scale=3)
    assert joined.shape == (6, 3 * 12 + 2 * images.LINE)
    assert (joined[:, :6] == 1).all() and (joined[:, 6:12] == 2).all()
    assert (joined[:, 12:14] == 255).all() and (joined[:, 26:28] == 255).all()
    assert (joined[1::3, 15:26:3] == greedy).all() and (joined[::3, 28::3] == other).all()


def test_the_dictionary():
    symbols = images.dictionary()
    assert len(symbols) == symbols.nspecial + 256 == 260
    assert all(symbols.index(str(v)) == v + symbols.nspecial for v in range(256))


def test_files_are_read_as_they_are(tmp_path):
    rgb = noise(4, 6, 3)
    Image.fromarray(rgb).save(tmp_path / "a.png")
    assert (images.load(tmp_path / "a.png", 3) == rgb).all()
    Image.fromarray(rgb[:, :, 0]).save(tmp_path / "grey.png")
    assert (images.load(tmp_path / "grey.png", 1) == rgb[:, :, 0]).all()
    assert (images.load(tmp_path / "grey.png", 3) == rgb[:, :, :1]).all()
    pure = np.array([[[255, 0, 0], [0, 255, 0], [0, 0, 255]]], dtype=np.uint8)
    Image.fromarray(pure).save(tmp_path / "pure.png")
    assert images.load(tmp_path / "pure.png", 1).tolist() == [[76, 150, 29]]  # 0.299, 0.587, 0.114
    for mode, name in (("P", "p.png"), ("RGBA", "a.png"), ("CMYK", "print.jpg")):
        Image.fromarray(rgb).convert(mode).save(tmp_path / name)
        with pytest.raises(UsageError, match=f"got 'mode {mode}'; allowed: mode RGB or L"):
            images.load(tmp_path / name, 3)


@pytest.mark.parametrize("kind", ["PNG", "JPEG"])
def test_truncated_and_unreadable_files_are_named(tmp_path, kind):
    path = tmp_path / "a.img"
    Image.fromarray(noise(64, 64, 3)).save(path, format=kind)
    whole = path.read_bytes()
    assert images.load(path, 3).shape == (64, 64, 3)
    for content in (whole[: len(whole) // 2], b"", whole[1:]):
        path.write_bytes(content)
        with pytest.raises(UsageError, match="a.img: cannot be read as an image"):
            images.load(path, 3)
