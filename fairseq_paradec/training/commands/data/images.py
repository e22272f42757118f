"""Make fairseq data for image super-resolution: pairs of a small image and the large one.

The task of Stern et al. (2018), section 7.2: from 8×8 pixels to 32×32. The source language is lr
(low resolution), the target hr; a sentence is an image, its words are the intensities 0 to 255 in
raster order (red, green, blue of each pixel). OUT is a folder as fairseq-preprocess makes it, with
sizes.json, the sizes of the images, and *.origins.jsonl, a line for the origin of each pair.

The central square of each photograph in DIR (PNG, JPEG, BMP or WebP; no subfolders) becomes one
pair, averaged down to --size, which suits faces, as in the paper's CelebA. --patches cuts each
photograph into many squares. --photographs uses those of scikit-learn and scikit-image in place of
DIR; nothing is downloaded.

Training, validation and test sets have different photographs, chosen by the seed and the files'
names. Pairs with the same large image as an earlier one are dropped.
"""

import argparse
import hashlib
import importlib.metadata
import importlib.util
import json
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from .... import extras, images
from ....cli import arguments
from ....errors import UsageError, option_error
from ....images import LANGUAGES, SCHEMA, SIZES, VERSION, Pixels, Size
from ....output import printable
from ....translator.model_folder import new_folder

SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp", ".webp")
# Colour photographs in the two packages. motorcycle_right is left out: it shows the same scene as
# motorcycle_left.
PHOTOGRAPHS = {
    "sklearn": ["datasets/images/china.jpg", "datasets/images/flower.jpg"],
    "skimage": [
        *("data/astronaut.png", "data/chelsea.png", "data/coffee.png"),
        *("data/motorcycle_left.png", "data/rocket.jpg"),
    ],
}
PARTS = ("test", "valid", "train")  # in the order in which they are filled
SMOKE_PHOTOGRAPHS, SMOKE_SQUARES = 16, 4


def squares(image: Pixels, side: int | None) -> Iterator[tuple[int, int, Pixels]]:
    """Cut squares out of an image.

    Args:
        image: (height, width) or (height, width, 3).
        side: in pixels; as many squares as fit, with even margins. None: the largest one, in the
            centre.

    Yields:
        Top, left, and the square.
    """
    height, width = image.shape[:2]
    if side is None:
        side = min(height, width)
        corners = [((height - side) // 2, (width - side) // 2)]
    else:
        tops = range(height % side // 2, height - side + 1, side)
        lefts = range(width % side // 2, width - side + 1, side)
        corners = [(top, left) for top in tops for left in lefts]
    for top, left in corners:
        yield top, left, image[top : top + side, left : left + side]


def in_lots(paths: Sequence[Path], seed: int) -> list[Path]:
    """Shuffle files by their names and the seed alone."""

    def lot(path: Path) -> bytes:
        return hashlib.sha256(str(seed).encode() + b"/" + os.fsencode(path.name)).digest()

    return sorted(paths, key=lot)


class Part:
    """A part of the data (train, valid or test) while it is written.

    Attributes:
        photographs: number of photographs with a pair in it.
        pairs: number of pairs.
    """

    def __init__(self, folder: Path, name: str) -> None:
        from fairseq.data import indexed_dataset

        from ....images.intensities import dictionary

        self.photographs = self.pairs = 0
        self._symbols = dictionary()
        self._stems = [str(folder / f"{name}.{'-'.join(LANGUAGES)}.{side}") for side in LANGUAGES]
        self._builders = [
            indexed_dataset.make_builder(f"{stem}.bin", "mmap", vocab_size=len(self._symbols))
            for stem in self._stems
        ]
        self._origins = (folder / f"{name}.origins.jsonl").open("w", encoding="utf-8")

    def add(self, origin: dict[str, Any], pair: Sequence[Pixels]) -> None:
        """Append a pair, small and large, and its origin."""
        import torch

        for pixels, builder in zip(pair, self._builders):
            indices = np.append(pixels.reshape(-1).astype(np.int64), 0) + self._symbols.nspecial
            indices[-1] = self._symbols.eos()
            builder.add_item(torch.from_numpy(indices))
        self._origins.write(json.dumps(origin) + "\n")
        self.pairs += 1

    def close(self) -> None:
        """Finish the files."""
        self._origins.close()
        for stem, builder in zip(self._stems, self._builders):
            builder.finalize(f"{stem}.idx")


class Maker:
    """Cuts photographs into pairs, and leaves out duplicates.

    Args:
        large: size of the targets.
        small: size of the sources.
        sides: of the squares to cut, in pixels of the photograph; None: one in the centre.
        limit: largest number of pairs per photograph; None for all.

    Attributes:
        duplicates: number of pairs left out.
    """

    def __init__(self, large: Size, small: Size, sides: list[int] | None, limit: int | None):
        self.large, self.small, self.sides, self.limit = large, small, sides, limit
        self.duplicates = 0
        self._seen: set[bytes] = set()

    def pairs(self, path: Path) -> list[tuple[dict[str, Any], list[Pixels]]]:
        """Return a photograph's new pairs, each with its origin.

        Raises:
            UsageError: it cannot be read, or is too small for a single square.
        """
        photograph = images.load(path, self.large.channels)
        least = min(self.sides) if self.sides else self.large.height
        if min(photograph.shape[:2]) < least:
            height, width = photograph.shape[:2]
            raise option_error(str(path), f"{height}×{width} pixels", f"{least}×{least} or more")
        candidates = []
        sides: list[int] | list[None] = self.sides or [None]
        for side in sides:
            for top, left, square in squares(photograph, side):
                origin = {"image": path.name, "top": top, "left": left, "side": len(square)}
                candidates.append((origin, images.shrink(square, self.large)))
        new = []
        for origin, target in candidates[: self.limit]:
            digest = hashlib.sha256(target.tobytes()).digest()
            if digest in self._seen:
                self.duplicates += 1
                continue
            self._seen.add(digest)
            new.append((origin, [images.shrink(target, self.small), target]))
        return new


def declare(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.set_defaults(plugin=True)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.usage = f"{parser.prog} (DIR | --photographs) OUT [options]"
    add = parser.add_argument
    number = arguments.whole_number
    add("folder", metavar="DIR", type=Path, nargs="?", help="a folder with photographs")
    add("out", metavar="OUT", type=Path, help="the data folder to make, new or empty")
    add("--photographs", action="store_true", help="instead of DIR: scikit-learn's, scikit-image's")
    add("--size", type=number, default=32, metavar="N", help="pixels of a target's side (32)")
    add("--input-size", type=number, default=8, metavar="N", help="pixels of a source's side (8)")
    add("--gray", action="store_true", help="one channel instead of three")
    add(
        "--patches",
        type=arguments.whole_numbers,
        metavar="N[,N...]",
        help="cut each photograph into squares of N×N pixels that do not overlap, those of several "
        "sizes one size after the other, and average each down to --size (with --photographs: "
        "--size)",
    )
    for part in ("valid", "test"):
        add(f"--{part}", type=number, metavar="N", help="photographs for it (1 in 20, at least 1)")
    add("--seed", type=int, default=1, metavar="N", help="of the choice of sets (1)")
    add("--skip-bad", action="store_true", help="skip unusable photographs, and print how many")
    add(
        "--smoke",
        action="store_true",
        help=f"a quick try: {SMOKE_PHOTOGRAPHS} photographs, {SMOKE_SQUARES} pairs of each",
    )


def run(args: argparse.Namespace) -> int:
    """Write the folder, whole or not at all."""
    _check(args)
    paths = in_lots(_installed() if args.photographs else _listed(args.folder), args.seed)
    paths = paths[:SMOKE_PHOTOGRAPHS] if args.smoke else paths
    wanted = {part: getattr(args, part) or max(1, len(paths) // 20) for part in ("test", "valid")}
    if sum(wanted.values()) >= len(paths):
        allowed = f"together fewer than the photographs, {len(paths)}"
        raise option_error("--test, --valid", list(wanted.values()), allowed)
    with new_folder(args.out) as folder:
        made = _write(args, paths, wanted, folder)
    print(*made, sep="\n")
    return 0


def _check(args: argparse.Namespace) -> None:
    """Refuse arguments that contradict each other."""
    if args.photographs == (args.folder is not None):
        given = None if args.folder is None else str(args.folder)
        raise option_error("DIR", given, "a folder with photographs, or --photographs; and OUT")
    if ":" in str(args.out):
        raise option_error("OUT", str(args.out), "a path without ':' (fairseq splits it there)")
    if args.size % args.input_size or args.size == args.input_size:
        raise option_error("--input-size", args.input_size, f"a part of --size, {args.size}")
    if args.photographs and args.patches is None:
        args.patches = [args.size]
    if args.patches and min(args.patches) < args.size:
        raise option_error("--patches", min(args.patches), f"--size, {args.size}, or more")


def _listed(folder: Path) -> list[Path]:
    """Return a folder's image files."""
    if not folder.is_dir():
        raise option_error("DIR", str(folder), "a folder with photographs")
    paths = [path for path in folder.iterdir() if path.suffix.lower() in SUFFIXES]
    if not paths:
        raise option_error("DIR", str(folder), "a folder with files " + ", ".join(SUFFIXES))
    return paths


def _installed() -> list[Path]:
    """Return the packages' photographs. The packages are not imported, so they load nothing."""
    paths = []
    extras.require(tuple(PHOTOGRAPHS), "images")
    for package, names in PHOTOGRAPHS.items():
        spec = importlib.util.find_spec(package)
        assert spec is not None and spec.submodule_search_locations
        paths += [Path(spec.submodule_search_locations[0]) / name for name in names]
    for path in paths:
        if not path.is_file():
            raise option_error("--photographs", f"no {path}", "a version that has it")
    return paths


def _write(
    args: argparse.Namespace, paths: Sequence[Path], wanted: dict[str, int], folder: Path
) -> list[str]:
    """Write all files: the photographs in this order, first to test, then to valid, then train.

    Returns:
        What was made, in words.
    """
    from tqdm import tqdm

    channels = 1 if args.gray else 3
    small, large = (Size(side, side, channels) for side in (args.input_size, args.size))
    maker = Maker(large, small, args.patches, SMOKE_SQUARES if args.smoke else None)
    parts = {name: Part(folder, name) for name in PARTS}
    bad: list[str] = []
    for path in tqdm(paths, unit=" photographs", disable=None):
        try:
            pairs = maker.pairs(path)
        except UsageError as error:
            if not args.skip_bad:
                raise
            bad.append(str(error))
            continue
        open_parts = (p for p in ("test", "valid") if parts[p].photographs < wanted[p])
        part = parts[next(open_parts, "train")]
        for origin, pair in pairs:
            part.add(origin, pair)
        part.photographs += bool(pairs)
    for part in parts.values():
        part.close()
    if not parts["train"].pairs:
        reason = f"; left out: {bad[0]}" if bad else ""
        raise UsageError(
            f"no photographs left for training: of {len(paths)}, {len(bad)} could not be used, "
            f"--test takes {wanted['test']}, --valid {wanted['valid']}{reason}"
        )
    from ....images.intensities import dictionary

    for language in LANGUAGES:
        dictionary().save(str(folder / f"dict.{language}.txt"))
    return _describe(args, folder, {"lr": small, "hr": large}, parts, maker.duplicates, bad)


def _describe(
    args: argparse.Namespace,
    folder: Path,
    sizes: dict[str, Size],
    parts: dict[str, Part],
    duplicates: int,
    bad: Sequence[str],
) -> list[str]:
    """Write sizes.json; return what was made, in words."""
    counts = {
        name: {"photographs": parts[name].photographs, "pairs": parts[name].pairs}
        for name in reversed(PARTS)
    }
    document = {
        "schema": SCHEMA,
        "version": VERSION,
        **{language: vars(size) for language, size in sizes.items()},
        "parts": counts,
        "duplicates": duplicates,
        "left_out": len(bad),
        "made_by": {
            "script": "paradec data images",
            "photographs": sorted(PHOTOGRAPHS) if args.photographs else args.folder.resolve().name,
            "patches": args.patches,
            "seed": args.seed,
            "smoke": args.smoke,
            "pillow": importlib.metadata.version("pillow"),
        },
    }
    text = json.dumps(document, indent=1) + "\n"
    (folder / SIZES).write_text(text, encoding="utf-8")
    made = [
        f"{name:5} {count['pairs']:6} pairs of {count['photographs']} photographs"
        for name, count in counts.items()
    ]
    if duplicates:
        made.append(f"left out: {duplicates} pairs that were there already")
    if bad:
        first = printable(bad[0])  # it quotes a file's name
        made.append(f"left out: {len(bad)} photographs that cannot be used; the first: {first}")
    return made
