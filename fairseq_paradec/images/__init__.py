"""Images as sequences of tokens: the super-resolution task of Stern et al. (2018), section 7.2.

An image is a numpy array of bytes (uint8): height × width if it is grey, height × width × 3 in RGB.
Its tokens are its intensities, 0 to 255, from the top row to the bottom one, in each row from left
to right, and in each pixel red, green, blue. This module does not depend on models.
"""

import json
import os
import re
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from .. import extras
from ..errors import UsageError, option_error

if TYPE_CHECKING:
    from PIL import Image

#: Bytes: height × width, or height × width × 3.
Pixels = npt.NDArray[np.uint8]

#: The largest intensity, and so the peak of the signal in ``psnr``.
PEAK = 255

#: Pixels between the images of a triple.
LINE = 2

# The file of a data folder with the images' sizes; the version changes when the meaning of a key
# changes.
SIZES, SCHEMA, VERSION = "sizes.json", "fairseq_paradec.images", 1
#: The task of such data.
TASK = "image_super_resolution"

# The languages of a data folder: low and high resolution.
LANGUAGES = ("lr", "hr")

# The allowed formats; some of Pillow's other formats start programs.
FORMATS = ("PNG", "JPEG", "BMP", "WEBP")

# Pillow's exceptions for a file that is no image or ends too early; one of its own comes to them.
BROKEN = (OSError, SyntaxError, ValueError, EOFError, struct.error)


@dataclass(frozen=True)
class Size:
    """The size of an image, which its tokens do not contain.

    Raises:
        UsageError: one of them is out of range.
    """

    height: int  # in pixels, from 1 up
    width: int  # in pixels, from 1 up
    channels: int  # 1 (grey) or 3 (RGB)

    def __post_init__(self) -> None:
        for name, pixels in (("height", self.height), ("width", self.width)):
            if pixels < 1:
                raise option_error(name, pixels, "a whole number of pixels from 1 up")
        _check_channels(self.channels)

    def __str__(self) -> str:
        return f"{self.height}×{self.width}×{self.channels}"

    @property
    def num_tokens(self) -> int:
        """The number of tokens of an image of this size, without ``</s>``."""
        return self.height * self.width * self.channels

    @property
    def shape(self) -> tuple[int, ...]:
        """The array's shape: a grey image has no axis for its one channel."""
        pixels = (self.height, self.width)
        return pixels if self.channels == 1 else (*pixels, self.channels)


def size_of(image: Pixels) -> Size:
    """Return an image's size.

    Raises:
        UsageError: the array is no image, by its dtype or its shape.
    """
    if image.dtype != np.uint8:
        raise option_error("image", f"dtype {image.dtype}", "bytes (uint8), 0 to 255")
    if not (image.ndim == 2 or image.ndim == 3 and image.shape[2] in (1, 3)) or not image.size:
        raise option_error(
            "image", f"shape {image.shape}", "(height, width) or (height, width, 1 or 3), not empty"
        )
    return Size(image.shape[0], image.shape[1], image.shape[2] if image.ndim == 3 else 1)


def tokens(image: Pixels) -> list[int]:
    """Return an image's intensities in raster order; ``image`` is the inverse.

    Args:
        image: (height, width), (height, width, 1) or (height, width, 3).

    Raises:
        UsageError: it is no image.
    """
    size_of(image)
    return image.reshape(-1).tolist()


def image(tokens: Sequence[int], size: Size) -> Pixels:
    """Arrange intensities in raster order as an image.

    Args:
        tokens: whole numbers from 0 to 255, ``size.num_tokens`` of them.
        size: of the image.

    Returns:
        An array of shape ``size.shape``.

    Raises:
        UsageError: there are more or fewer, or one is not from 0 to 255.
    """
    values = np.asarray(tokens)
    if values.shape != (size.num_tokens,):
        given = f"{len(values)} of them" if values.ndim == 1 else f"shape {values.shape}"
        raise option_error("tokens", given, f"{size.num_tokens}, for {size}")
    if values.dtype.kind not in "iu":
        raise option_error("tokens", f"dtype {values.dtype}", "whole numbers")
    wrong = np.flatnonzero((values < 0) | (values > PEAK))
    if wrong.size:
        at = int(wrong[0])
        raise option_error(f"tokens[{at}]", int(values[at]), f"0 to {PEAK}")
    return values.astype(np.uint8).reshape(size.shape)


def from_words(words: Sequence[str], size: Size) -> Pixels:
    """Arrange intensities that are words of a text as an image; see ``image``.

    Raises:
        UsageError: as ``image``; or a word is no number of up to three digits.
    """
    strange = next((word for word in words if not re.fullmatch("[0-9]{1,3}", word)), None)
    if strange is not None:
        raise option_error("tokens", strange[:20], f"0 to {PEAK}")
    return image([int(word) for word in words], size)


def shrink(image: Pixels, size: Size) -> Pixels:
    """Make an image smaller by averaging areas.

    Stern et al. do not describe how they made their inputs. Here a pixel is the mean of the pixels
    that it covers, per channel, rounded half up; if the ratio is no whole number, of those whose
    centres it covers (Pillow's box filter, in floats, so that it rounds once).

    Args:
        image: the large image.
        size: the size of the small image; at most as large, with as many channels.

    Raises:
        UsageError: the new size is larger, or has other channels; Pillow is not installed.
    """
    with extras.named():
        from PIL import Image
    large = size_of(image)
    if size.height > large.height or size.width > large.width or size.channels != large.channels:
        raise option_error("size", size, f"no more pixels than {large} and as many channels")
    planes = image.reshape(large.height, large.width, large.channels).astype(np.float32)
    small = [
        Image.fromarray(planes[:, :, channel]).resize(
            (size.width, size.height), Image.Resampling.BOX
        )
        for channel in range(large.channels)
    ]
    means = np.stack([np.asarray(plane) for plane in small], axis=-1)
    return np.floor(means + 0.5).astype(np.uint8).reshape(size.shape)


def psnr(a: Pixels, b: Pixels) -> float:
    """Return the peak signal-to-noise ratio of two images in dB.

    It is 10 log10(255² / mean squared error) over all intensities; infinite for equal images.

    Raises:
        UsageError: their shapes differ.
    """
    size_of(a)
    size_of(b)
    if a.shape != b.shape:
        raise option_error("image", f"shape {b.shape}", f"that of the other one, {a.shape}")
    error = float(np.mean((a.astype(np.float64) - b) ** 2))
    return float(10 * np.log10(PEAK**2 / error)) if error else float("inf")


def triple(low: Pixels, greedy: Pixels, other: Pixels, scale: int) -> Pixels:
    """Put an input and two outputs side by side, as Stern et al. do in their supplement.

    Each pixel becomes a square, without smoothing, and white lines of ``LINE`` pixels separate the
    images.

    Args:
        low: the input.
        greedy: greedy search's output; its height is a whole multiple of the input's, and its
            width the same multiple.
        other: another decoder's output, of the same size.
        scale: width and height of an output's pixel in the picture, from 1 up.

    Returns:
        An image of 3 · scale · width + 2 · ``LINE`` by scale · height pixels, in RGB, or in grey if
        all three are.

    Raises:
        UsageError: sizes or channels do not fit, or the scale is below 1.
    """
    small, large = size_of(low), size_of(greedy)
    times = large.height // small.height
    if scale < 1:
        raise option_error("scale", scale, "a whole number from 1 up")
    fitting = (times * small.height, times * small.width, small.channels)
    if fitting != (large.height, large.width, large.channels):
        raise option_error("greedy", large, f"a whole multiple of the input, {small}")
    if size_of(other) != large:
        raise option_error("other", size_of(other), f"greedy's size, {large}")
    line = np.full((scale * large.height, LINE, *large.shape[2:]), PEAK, dtype=np.uint8)
    images = ((low, small, times * scale), (greedy, large, scale), (other, large, scale))
    parts = []
    for pixels, size, factor in images:
        enlarged = pixels.reshape(size.shape).repeat(factor, axis=0).repeat(factor, axis=1)
        parts += [line, enlarged]
    return np.concatenate(parts[1:], axis=1)


def holds_images(folder: str) -> bool:
    """Return whether a data folder holds images, from ``paradec data images``."""
    return os.path.isfile(os.path.join(folder, SIZES))


def read_sizes(folder: str) -> tuple[Size, Size]:
    """Read the sizes of a data folder's images: sources and targets.

    Args:
        folder: a folder from paradec data images.

    Returns:
        The small and the large size: as many channels, and the same whole multiple in both
        directions.

    Raises:
        UsageError: the file is missing or of another kind, or its sizes do not fit each other.
    """
    path = os.path.join(folder, SIZES)
    allowed = "a folder that paradec data images made"

    def error(wrong: str) -> UsageError:
        return UsageError(f"DATA: got {folder!r}, whose {path} {wrong}; allowed: {allowed}")

    try:
        with open(path, encoding="utf-8") as file:
            document = json.load(file)
    except OSError as problem:
        raise error(f"cannot be read ({problem.strerror})") from problem
    except (ValueError, RecursionError) as problem:
        raise error(f"is no JSON ({problem})") from problem
    kind = (document.get("schema"), document.get("version")) if isinstance(document, dict) else None
    if kind != (SCHEMA, VERSION):
        raise error(f"is no file of schema {SCHEMA}, version {VERSION}")
    small, large = (_size_in(document.get(language)) for language in LANGUAGES)
    if small is None or large is None:
        raise error(f"lacks the height, width and channels of {' or '.join(LANGUAGES)}")
    times = large.height // small.height
    if Size(max(times, 1) * small.height, max(times, 1) * small.width, small.channels) != large:
        raise error(f"has sizes that do not fit, {small} and {large}")
    return small, large


def _size_in(entry: object) -> Size | None:
    """Read one size of a JSON document; None if it is no size."""
    names = ("height", "width", "channels")
    if not isinstance(entry, dict) or any(type(entry.get(name)) is not int for name in names):
        return None
    try:
        return Size(*(entry[name] for name in names))
    except UsageError:
        return None


def load(path: Path, channels: int) -> Pixels:
    """Read an image file, upright, as bytes.

    A file must have 8 bits per channel, grey or RGB, one frame and no transparency, so that reading
    loses nothing. Grey becomes RGB by repetition, and RGB becomes grey by its luma (ITU-R 601:
    0.299 red, 0.587 green, 0.114 blue), as ``channels`` requires.

    Args:
        path: a PNG, JPEG, BMP or WebP file of any name.
        channels: 1 for grey, 3 for RGB.

    Raises:
        UsageError: the file cannot be read, ends too early, or holds more than such an image; the
            message names the file. Pillow is not installed.
    """
    with extras.named(str(path)):
        from PIL import Image, ImageOps
    _check_channels(channels)
    try:
        with Image.open(path, formats=FORMATS) as file:
            more = _more_than_an_image(file)
            if more is None:
                picture = ImageOps.exif_transpose(file).convert("L" if channels == 1 else "RGB")
    except (*BROKEN, Image.DecompressionBombError) as error:
        formats = ", ".join(FORMATS)
        raise UsageError(
            f"{path}: cannot be read as an image ({error}); allowed: a whole file, {formats}"
        ) from None
    if more is not None:
        raise option_error(
            str(path), more, "mode RGB or L (grey), 8 bits per channel, one frame, no alpha"
        )
    return np.array(picture)


def _check_channels(channels: int) -> None:
    if channels not in (1, 3):
        raise option_error("channels", channels, "1 (grey) or 3 (RGB)")


def _more_than_an_image(file: "Image.Image") -> str | None:
    """Return the property of a file that 8-bit grey or RGB cannot hold; None if there is none."""
    if file.mode not in ("RGB", "L"):
        return f"mode {file.mode}"
    if "transparency" in file.info:
        return f"mode {file.mode} with a transparent colour"
    if getattr(file, "n_frames", 1) > 1:
        return "several frames"
    # Pillow reads a 16-bit RGB PNG as "RGB" and drops 8 bits; only its raw mode shows 16 bits.
    if any("16" in str(tile[3]) for tile in getattr(file, "tile", ())):
        return f"mode {file.mode} of 16 bits"
    return None
