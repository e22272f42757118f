"""Turn image files into lines for fairseq-interactive, and fairseq's outputs into pictures.

`tokens` prints the intensities of image files, a line each. `compare` reads what fairseq-generate
printed for a data folder of images, and shows each input beside two outputs (Stern et al. 2018,
supplement). It prints each system's PSNR and, given the decoders' reports, their mean accepted
block. Give greedy search first: the other systems are compared with the first.
"""

import argparse
import io
import os
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ... import images
from ...cli import arguments
from ...errors import UsageError, option_error
from ...files import replacing
from ...lab.analysis.quality import RESAMPLES, SEED, ImageQuality
from ...lab.commands import pages
from ...lab.data import documents
from ...lab.data.table import Cells, Table, Value, column
from ...lab.settings import Made
from ...lab.show.table import terminal_table
from .. import Pixels, Size
from .image_files import Pair, Passes, read_outputs, read_pairs, read_report

BICUBIC = "(bicubic enlarging)"
TRUTH = "(the large image)"
# A picture's longer side, in pixels.
LARGEST = 2**14
# Metadata of this command's pictures, which it may replace.
MARK = "made by fairseq_paradec images"


# ---- tokens -------------------------------------------------------------------------------------


def tokens(args: argparse.Namespace) -> int:
    """Print image files as lines of intensities."""
    lines = []
    for path in args.file:
        pixels = images.load(Path(path), 1 if args.gray else 3)
        if args.size is not None:
            pixels = _fitted(path, pixels, args.size)
        lines.append(" ".join(map(str, images.tokens(pixels))))
    print("\n".join(lines))
    return 0


def _fitted(path: str, pixels: Pixels, wanted: tuple[int, int]) -> Pixels:
    """Shrink an image to the wanted size; refuse a smaller one, or one of other proportions."""
    given = images.size_of(pixels)
    height, width = wanted
    if given.height < height or given.height * width != given.width * height:
        raise option_error(
            path,
            f"{given.height}×{given.width} pixels",
            f"{height}×{width}, or more in that proportion (--size)",
        )
    return images.shrink(pixels, Size(height, width, given.channels))


def _size(text: str) -> tuple[int, int]:
    """Read ``N`` or ``HxW``."""
    match = re.fullmatch(r"([1-9]\d{0,4})(?:[x×]([1-9]\d{0,4}))?", text)
    if match is None:
        raise argparse.ArgumentTypeError(f"got {text!r}; allowed: pixels, as in 8 or 8x8")
    return int(match[1]), int(match[2] or match[1])


# ---- compare ------------------------------------------------------------------------------------


def compare(args: argparse.Namespace) -> int:
    """Write pictures of outputs, and print the systems' quality."""
    size, pairs = read_pairs(args.data, args.subset)
    files, stats = _labelled("SYSTEM", args.system), _labelled("--stats", args.stats)
    systems = {label: read_outputs(path, size, pairs, args.subset) for label, path in files.items()}
    numbers = _same_images(systems, files)
    for label in stats.keys() - systems.keys():
        raise option_error("--stats", label, f"a label of a SYSTEM: {', '.join(systems)}")
    reports = {label: read_report(path, numbers, size) for label, path in stats.items()}
    if args.json is not None:
        pages.check_folder("--json", str(args.json))
        inputs = [*files.values(), *stats.values()]
        if any(args.json.exists() and args.json.samefile(path) for path in inputs):
            raise option_error("--json", str(args.json), "another file than those that are read")
    most = LARGEST // (3 * max(size.height, size.width))
    if args.scale > most:
        raise option_error("--scale", args.scale, f"a whole number from 1 to {most}, here")
    paths = _pictures(args.out, numbers[: args.first])
    shown = list(systems)[:2]
    for number, picture in zip(numbers, paths):
        small, large = pairs[number]
        first, *more = (systems[label][number] for label in shown)
        _write(picture, images.triple(small, first, more[0] if more else large, args.scale))
    notes = _notes(len(numbers), len(pairs), args.subset, shown[0], bool(reports))
    beside = ", ".join(["input", *shown, *([TRUTH] if len(shown) == 1 else [])])
    table = Table.of(rows_of(systems, pairs, numbers, size, reports), notes=notes)
    print(f"{terminal_table(table)}\n\n" + "\n".join(notes))
    print(f"{len(paths)} pictures in {args.out}, each with {beside}, from left to right.")
    if args.json is not None:
        made = Made(args.argv, args.json, "Super-resolution: quality of outputs")
        documents.save_made(made, table)
    return 0


def rows_of(
    systems: Mapping[str, Mapping[int, Pixels]],
    pairs: Sequence[Pair],
    numbers: Sequence[int],
    size: Size,
    reports: Mapping[str, Passes],
) -> list[Cells]:
    """Return the quality of all systems, and of bicubic enlarging."""
    seen = [pairs[number] for number in numbers]
    quality = ImageQuality([_text(pair.large) for pair in seen], size)
    outputs = {label: [own[number] for number in numbers] for label, own in systems.items()}
    outputs[BICUBIC] = [enlarged(pair.small, size) for pair in seen]
    rows: list[Cells] = []
    first: list[str] | None = None
    for label, pictures in outputs.items():
        texts = list(map(_text, pictures))
        change = None if first is None else Value(*quality.differences(texts, first)["PSNR"])
        first = first or texts
        row: Cells = {
            "system": label,
            column("PSNR", form=".2f"): Value(*quality.intervals(texts)["PSNR"]),
            column("PSNR_less_first", "against the first", form="+.2f"): change,
        }
        if reports:
            row["passes_per_image"] = row["mean_accepted_block"] = None
        if label in reports:
            passes, blocks = reports[label]
            row["passes_per_image"] = round(passes / len(numbers), 1)
            if blocks:
                row["mean_accepted_block"] = round(sum(blocks) / len(blocks), 2)
        rows.append(row)
    return rows


def enlarged(small: Pixels, size: Size) -> Pixels:
    """Enlarge an image without a model: Pillow's bicubic interpolation."""
    from PIL import Image

    return np.array(
        Image.fromarray(small).resize((size.width, size.height), Image.Resampling.BICUBIC)
    )


def _text(pixels: Pixels) -> str:
    """Write an image as a line of intensities."""
    return " ".join(map(str, images.tokens(pixels)))


def _notes(count: int, whole: int, subset: str, first: str, with_blocks: bool) -> list[str]:
    """Return notes on the columns."""
    notes = [
        f"PSNR in dB, the mean over {count} of {whole} images of {subset!r}, against the large "
        f"ones of the data; 95% intervals of {RESAMPLES} resamples of the images (seed {SEED}), "
        f"those of differences from {first} paired. An image without any error counts as if one "
        f"intensity were off by one. {BICUBIC}: Pillow's interpolation, no model."
    ]
    if with_blocks:
        notes.append(
            "mean accepted block: tokens per block as Stern et al. (2018) count them, over all "
            "blocks of all images."
        )
    return notes


# ---- files --------------------------------------------------------------------------------------


def _labelled(name: str, given: Sequence[str]) -> dict[str, str]:
    """Read ``[LABEL=]FILE`` several times; a file's own label is its name without the ending."""
    files: dict[str, str] = {}
    for text in given:
        label, sign, path = text.partition("=")
        if not sign or os.sep in label:
            label, path = Path(text).stem, text
        if not label or label in (*files, BICUBIC, TRUTH):
            raise option_error(name, text, "a label of its own for each, as in LABEL=FILE")
        files[label] = path
    return files


def _same_images(
    systems: Mapping[str, Mapping[int, Pixels]], files: Mapping[str, str]
) -> list[int]:
    """Return the numbers of the images that all systems wrote.

    Raises:
        UsageError: one lacks an image that another one has.
    """
    numbers = sorted(set().union(*systems.values()))
    for label, own in systems.items():
        missing = [number for number in numbers if number not in own]
        if missing:
            raise UsageError(
                f"{files[label]}: got no line H-{missing[0]}; allowed: the same images in all "
                "systems"
            )
    return numbers


def _pictures(folder: Path, numbers: Sequence[int]) -> list[Path]:
    """Return where the pictures go; the folder is made.

    Raises:
        UsageError: there is another file already.
    """
    if folder.exists() and not folder.is_dir():
        raise option_error("--out", str(folder), "a folder; this is a file")
    folder.mkdir(parents=True, exist_ok=True)
    paths = [folder / f"{number}.png" for number in numbers]
    for path in paths:
        if path.exists() and not _is_own(path):
            raise option_error("--out", str(path), "a new file, or an earlier picture of this kind")
    return paths


def _is_own(path: Path) -> bool:
    """Return whether this command made a picture."""
    if not path.is_file():
        return False
    with path.open("rb") as file:
        return MARK.encode() in file.read(200)


def _write(path: Path, pixels: Pixels) -> None:
    """Write a picture beside its place, and rename it when it is complete."""
    from PIL import Image
    from PIL.PngImagePlugin import PngInfo

    mark, whole = PngInfo(), io.BytesIO()
    mark.add_text("Software", MARK)
    Image.fromarray(pixels).save(whole, format="PNG", pnginfo=mark)
    with replacing(path, shared=True) as part:
        part.write_bytes(whole.getvalue())


# ---- the command --------------------------------------------------------------------------------


def declare(parser: argparse.ArgumentParser) -> None:
    """Declare the subcommands."""
    parser.epilog = "example: paradec images tokens photograph.png --size 16"
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    commands = parser.add_subparsers(metavar="COMMAND", required=True)

    def command(name: str, action: Callable[..., int], text: str) -> Callable[..., Any]:
        own = commands.add_parser(name, help=text, description=f"{text.capitalize()}.")
        own.set_defaults(action=action, plugin=False)
        return own.add_argument

    add = command("tokens", tokens, "print image files as lines of intensities")
    add("file", nargs="+", metavar="FILE", help="PNG, JPEG, BMP or WebP, 8 bits, RGB or grey")
    add(
        "--size",
        type=_size,
        metavar="N|HxW",
        help="shrink larger images of the same proportions to this size, by averaging areas "
        "(default: as they are)",
    )
    add("--gray", action="store_true", help="one channel instead of three")

    add = command("compare", compare, "show outputs side by side, and measure their quality")
    add("data", metavar="DATA", help="the data folder, with sizes.json")
    add(
        "system",
        nargs="+",
        metavar="[LABEL=]SYSTEM",
        help="what fairseq-generate printed, or wrote to its --results-path; greedy search first. "
        "Pictures show the first two, or one and the large image",
    )
    add("--out", type=Path, required=True, metavar="FOLDER", help="for pictures: NUMBER.png")
    add("--subset", default="test", metavar="NAME", help="what was decoded (default: test)")
    add(
        "--stats",
        nargs="+",
        default=[],
        metavar="[LABEL=]FILE",
        help="what --stats-file wrote for the system of this label",
    )
    number = arguments.whole_number
    add("--first", type=number, metavar="N", help="pictures of the first N images (default: all)")
    add(
        "--scale",
        type=number,
        default=8,
        metavar="N",
        help="how large a pixel of an output becomes (default: 8)",
    )
    add("--json", type=Path, metavar="FILE", help="also write the table, for paradec report")


def run(args: argparse.Namespace) -> int:
    """Run the subcommand."""
    with arguments.quiet():
        return args.action(args)
