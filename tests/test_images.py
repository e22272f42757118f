"""fairseq_paradec/images.py: images as sequences of tokens, and back."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from fairseq_paradec import images
from fairseq_paradec.errors import UsageError
from fairseq_paradec.images import Pixels, Size


def noise(*shape: int) -> Pixels:
    """Random bytes."""
    return np.random.default_rng(1).integers(0, 256, shape, dtype=np.uint8)


def from_tokens(sequence: Any) -> Pixels:
    """An image of 2 by 2 pixels in RGB."""
    return images.image(sequence, Size(2, 2, 3))


def triple(given: Any) -> Pixels:
    """Three images of these shapes side by side."""
    *shapes, scale = given
    return images.triple(*(noise(*shape) for shape in shapes), scale=scale)


@pytest.mark.parametrize("shape", [(5, 7, 3), (7, 5), (1, 1)])
def test_tokens_and_back(shape):
    image = noise(*shape)
    size = images.size_of(image)
    sequence = images.tokens(image)
    assert len(sequence) == size.num_tokens == math.prod(shape)
    assert all(type(token) is int for token in sequence)
    back = images.image(sequence, size)
    assert back.dtype == np.uint8 and back.shape == shape and (back == image).all()


def test_tokens_are_in_raster_order():
    """Two rows of two pixels, each with its red, green and blue."""
    image = np.array([[[1, 2, 3], [4, 5, 6]], [[7, 8, 9], [10, 11, 12]]], dtype=np.uint8)
    assert images.tokens(image) == list(range(1, 13))
    turned = images.image(range(1, 13), Size(2, 2, 3))
    assert turned[1, 0].tolist() == [7, 8, 9]
    grey = images.image([1, 2, 3, 4, 5, 6], Size(2, 3, 1))
    assert grey.tolist() == [[1, 2, 3], [4, 5, 6]]
    across = image.transpose(1, 0, 2)  # another order in memory
    assert images.tokens(across) == [1, 2, 3, 7, 8, 9, 4, 5, 6, 10, 11, 12]


@pytest.mark.parametrize(
    ("call", "given", "message"),
    [
        (from_tokens, [0] * 11, r"tokens: got '11 of them'; allowed: 12"),
        (from_tokens, [0] * 13, r"tokens: got '13 of them'; allowed: 12"),
        (from_tokens, [0] * 7 + [256] + [0] * 4, r"tokens\[7\]: got 256; allowed: 0 to 255"),
        (from_tokens, [-1] + [0] * 11, r"tokens\[0\]: got -1"),
        (from_tokens, [0.5] * 12, "dtype float64"),
        (from_tokens, [[0] * 12], r"shape \(1, 12\)"),
        (images.tokens, np.zeros((2, 2), dtype=np.int64), "dtype int64"),
        (images.tokens, np.zeros(4, dtype=np.uint8), r"shape \(4,\)"),
        (images.tokens, np.zeros((2, 2, 4), dtype=np.uint8), r"shape \(2, 2, 4\)"),
        (images.tokens, np.zeros((0, 2, 3), dtype=np.uint8), r"shape \(0, 2, 3\)"),
        (lambda size: Size(*size), (2, -1, 3), "width: got"),
        (lambda size: Size(*size), (2, 2, 4), "channels: got"),
        (triple, ((8, 8), (20, 20), (20, 20), 1), "greedy: got"),
        (triple, ((8, 8), (16, 24), (16, 24), 1), "greedy: got"),
        (triple, ((8, 8, 3), (16, 16), (16, 16), 1), "greedy: got"),
        (triple, ((8, 8), (16, 16), (8, 8), 1), "other: got"),
        (triple, ((8, 8), (16, 16), (16, 16), 0), "scale: got"),
    ],
)
def test_what_is_wrong_is_named(call, given, message):
    with pytest.raises(UsageError, match=message):
        call(given)


def test_shrinking_averages_areas():
    image = np.array([[0, 1, 10, 10], [0, 1, 10, 11], [9, 9, 200, 201]], dtype=np.uint8)
    halves = images.shrink(image[:2], Size(1, 2, 1))
    assert halves.tolist() == [[1, 10]]  # 0.5 is rounded up, 10.25 down: once, not by direction
    assert images.shrink(image, Size(3, 4, 1)).tolist() == image.tolist()
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
    with pytest.raises(UsageError, match=r"shape \(2, 2\)"):
        images.psnr(noise(2, 2, 3), black)


def test_a_triple():
    low = np.array([[1, 2]], dtype=np.uint8)
    greedy, other = noise(2, 4), noise(4, 2).T
    joined = images.triple(low, greedy, other, scale=3)
    assert joined.shape == (6, 3 * 12 + 2 * images.LINE)
    assert (joined[:, :6] == 1).all() and (joined[:, 6:12] == 2).all()
    assert (joined[:, 12:14] == 255).all() and (joined[:, 26:28] == 255).all()
    assert (joined[1::3, 15:26:3] == greedy).all() and (joined[::3, 28::3] == other).all()
    rgb = images.triple(noise(8, 8, 3), noise(32, 32, 3), noise(32, 32, 3), scale=1)
    assert rgb.shape == (32, 100, 3) and (rgb[::4, :32:4] == noise(8, 8, 3)).all()


def test_the_dictionary():
    symbols = images.dictionary()
    assert len(symbols) == symbols.nspecial + 256 == 260
    assert all(symbols.index(str(v)) == v + symbols.nspecial for v in range(256))


def save(path: Path, mode: str) -> Path:
    """Write an image of 6 by 4 pixels."""
    Image.fromarray(noise(4, 6, 3)).convert(mode).save(path)
    return path


def test_files_are_read_as_they_are(tmp_path):
    rgb = noise(4, 6, 3)
    assert (images.load(save(tmp_path / "a.png", "RGB"), 3) == rgb).all()
    assert images.load(save(tmp_path / "a.jpg", "RGB"), 3).shape == (4, 6, 3)
    grey = images.load(save(tmp_path / "grey.png", "L"), 1)
    assert grey.shape == (4, 6)
    assert (images.load(tmp_path / "grey.png", 3) == grey[:, :, None]).all()
    assert (images.load(tmp_path / "a.png", 1) == grey).all()
    pure = np.array([[[255, 0, 0], [0, 255, 0], [0, 0, 255]]], dtype=np.uint8)
    Image.fromarray(pure).save(tmp_path / "pure.png")
    assert images.load(tmp_path / "pure.png", 1).tolist() == [[76, 150, 29]]  # 0.299, 0.587, 0.114


@pytest.mark.parametrize(
    ("mode", "name"), [("P", "p.png"), ("RGBA", "a.png"), ("CMYK", "print.jpg")]
)
def test_modes_that_would_lose_something_are_refused_by_name(tmp_path, mode, name):
    path = save(tmp_path / name, mode)
    with pytest.raises(UsageError, match=f"got 'mode {mode}'; allowed: mode RGB or L"):
        images.load(path, 3)


@pytest.mark.parametrize("format_", ["PNG", "JPEG"])
def test_truncated_and_unreadable_files_are_named(tmp_path, format_):
    path = tmp_path / "a.img"
    Image.fromarray(noise(64, 64, 3)).save(path, format=format_)
    whole = path.read_bytes()
    assert images.load(path, 3).shape == (64, 64, 3)
    for content in (whole[: len(whole) // 2], whole[:30], b"", b"no image", whole[1:]):
        path.write_bytes(content)
        with pytest.raises(UsageError, match="a.img: cannot be read as an image"):
            images.load(path, 3)
