"""Files of ``paradec images compare``: a data folder of images, systems' outputs and reports."""

from collections.abc import Sequence
from typing import NamedTuple

from ... import images, records
from ...errors import UsageError, option_error
from ...files import read
from ...lab.analysis.blocks import METHOD, SINGLE_TOKENS, block_sizes
from ...lab.commands.text_files import printed
from .. import Pixels, Size


class Pair(NamedTuple):
    """An input of the data folder, and the image that it was made from."""

    small: Pixels
    large: Pixels


class Passes(NamedTuple):
    """A decoder's report on all images: decoder passes, and the paper's blocks."""

    passes: int
    blocks: list[int]


def read_pairs(data: str, subset: str) -> tuple[Size, list[Pair]]:
    """Read a subset of a data folder.

    Returns:
        The size of the large images, and all pairs.

    Raises:
        UsageError: there is no such folder or subset, or its images contradict ``sizes.json``.
    """
    from ...lab.measure.judge import side  # takes seconds to load

    sizes = images.read_sizes(data)
    try:
        small, large = (
            [images.from_words(line.split(), size) for line in side(data, subset, language)]
            for language, size in zip(images.LANGUAGES, sizes, strict=True)
        )
    except (OSError, ValueError) as error:  # a UsageError is a ValueError
        raise UsageError(
            f"DATA: got {data!r}, whose subset {subset!r} (--subset) is missing or damaged "
            f"({error}); allowed: one that paradec data images made"
        ) from error
    return sizes[1], [Pair(*both) for both in zip(small, large, strict=True)]


def read_outputs(path: str, size: Size, pairs: Sequence[Pair], subset: str) -> dict[int, Pixels]:
    """Read the images that a system wrote.

    Returns:
        The images by their numbers in the subset, in ascending order.

    Raises:
        UsageError: it is of another kind, or of other data; file and line are named.
    """
    text = read("SYSTEM", path)
    lines = printed(path, text, "H")
    if not lines:
        raise option_error("SYSTEM", path, "what fairseq-generate printed, with lines H-")
    for number, line in printed(path, text, "S").items():
        inside = number < len(pairs)
        if not inside or line.split() != list(map(str, images.tokens(pairs[number].small))):
            raise UsageError(
                f"{path}: got a line S-{number} that is not image {number} of DATA's {subset!r} "
                f"(--subset), which has {len(pairs)}; allowed: outputs for these"
            )
    outputs = {}
    for number, line in lines.items():
        if number >= len(pairs):
            raise UsageError(
                f"{path}: got a line H-{number}; allowed: 0 to {len(pairs) - 1}, the images of "
                f"DATA's {subset!r} (--subset)"
            )
        try:
            outputs[number] = images.from_words(line.split(), size)
        except UsageError as error:
            raise UsageError(f"{path}, line H-{number}: {error}") from error
    return outputs


def read_report(path: str, numbers: Sequence[int], size: Size) -> Passes:
    """Read a decoder's report.

    Raises:
        UsageError: it is of another kind, or of other images; file and line are named.
    """
    seen: set[int] = set()
    passes, blocks = 0, []
    for at, record in records.read(path, records.STATS, "--stats"):
        try:
            number, count = records.count(record, "id"), records.count(record, "num_tokens")
            accepted = records.counts(record, "num_accepted")
            if not accepted:
                raise UsageError("'num_accepted' is empty")
        except UsageError as error:
            raise UsageError(f"{path}, line {at}: {error}") from error
        if count != size.num_tokens + 1 or sum(accepted) > count:
            raise UsageError(
                f"{path}, line {at}: got {count} tokens, {sum(accepted)} of them accepted; "
                f"allowed: {size.num_tokens + 1}, an image of {size} and </s>"
            )
        if number in seen or number not in numbers:
            allowed = "those of the SYSTEM's file, each once"
            raise option_error(f"{path}, line {at}", f"image {number!r}", allowed)
        seen.add(number)
        passes += len(accepted)
        if record.get("decoding") in (METHOD, SINGLE_TOKENS):
            blocks += block_sizes(accepted, count)
    if len(seen) < len(numbers):
        missing = next(number for number in numbers if number not in seen)
        raise UsageError(f"{path}: got no line for image {missing}; allowed: all of SYSTEM's file")
    return Passes(passes, blocks)
