"""Tiny data folders of images, and the task on them, without photographs."""

import json
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch
from fairseq.data import indexed_dataset

from fairseq_paradec import images
from fairseq_paradec.images import Pixels, Size
from fairseq_paradec.images.intensities import dictionary
from fairseq_paradec.images.super_resolution import (
    ImageSuperResolutionConfig,
    ImageSuperResolutionTask,
)

LOW, HIGH = Size(4, 4, 1), Size(8, 8, 1)
PAIRS = {"train": 24, "valid": 3, "test": 5}


def random_images(count: int, size: Size, seed: int = 1) -> list[Pixels]:
    return [*np.random.default_rng(seed).integers(0, 256, (count, *size.shape), dtype=np.uint8)]


def image_folder(
    folder: Path,
    low: Size = LOW,
    high: Size = HIGH,
    pairs: Mapping[str, int] = PAIRS,
    seed: int = 1,
) -> Path:
    """Write what paradec data images writes: pairs, dictionaries, sizes.json."""
    folder.mkdir(parents=True, exist_ok=True)
    symbols = dictionary()
    for number, (part, count) in enumerate(pairs.items()):
        large = random_images(count, high, seed + number)
        small = [images.shrink(one, low) for one in large]
        for language, some in zip(images.LANGUAGES, (small, large), strict=True):
            stem = str(folder / f"{part}.{'-'.join(images.LANGUAGES)}.{language}")
            builder = indexed_dataset.make_builder(f"{stem}.bin", "mmap", vocab_size=len(symbols))
            for pixels in some:
                words = [token + symbols.nspecial for token in images.tokens(pixels)]
                builder.add_item(torch.tensor([*words, symbols.eos()]))
            builder.finalize(f"{stem}.idx")
    for language in images.LANGUAGES:
        symbols.save(str(folder / f"dict.{language}.txt"))
    sizes = {"schema": images.SCHEMA, "version": images.VERSION, "lr": vars(low), "hr": vars(high)}
    (folder / images.SIZES).write_text(json.dumps(sizes), encoding="utf-8")
    return folder


def image_task(low: Size = LOW, high: Size = HIGH) -> ImageSuperResolutionTask:
    """The task without a folder."""
    words = dictionary()
    task = ImageSuperResolutionTask(ImageSuperResolutionConfig(), words, words)
    task.image_sizes = (low, high)
    return task
