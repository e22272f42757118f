"""Show what every pass of a decoder drafted, accepted and rejected, or the tokens of each step.

The command reads what --trace-file of fairseq-generate wrote, for any method, sentence by sentence.
Several files of the same sentences, such as one per method, are shown side by side.
"""

import argparse
import contextlib
import io
import os
import re
import shutil
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

from ...cli import arguments
from ...errors import UsageError, needs, option_error
from ...images import Size
from ...output import discard, printable
from ...records import TRACE, Record, lines_of, open_records, parse, read, written_by
from ..show import beam_tree, page, trace_records, trace_text, trace_view, viewer
from . import pages


@dataclass(frozen=True)
class Entry:
    """A sentence of one file."""

    file: int  # which of the files, from 0
    number: int  # of its line, from 1
    record: Record  # the line
    sentence: trace_view.Sentence  # read from it


#: Identifies a sentence in every file: its ``id`` (or its line, without one), and the number of
#: earlier lines with the same.
Key = tuple[str, int]


class Keys:
    """Gives the lines of one file their keys, in order."""

    def __init__(self) -> None:
        self._seen: Counter[str] = Counter()

    def of(self, record: Record, number: int) -> Key:
        """Return the key of the next line."""
        known = record.get("id")
        # fairseq-interactive gives no number.
        name = f"sentence of line {number}" if known is None else f"sentence {known}"
        self._seen[name] += 1
        return name, self._seen[name]


class Indexed:
    """A trace in which sentences are looked up; only their offsets are kept in memory.

    Raises:
        UsageError: as ``records.read``, for any line; or the file is a pipe.
    """

    def __init__(self, path: str) -> None:
        self.places: dict[Key, tuple[int, int]] = {}  # offset, number of the line
        self._path, self._file = path, open_records(path)
        if not self._file.seekable():
            raise option_error("FILE", path, "no pipe, but as the first of several files")
        keys, offset = Keys(), 0
        for number, record in lines_of(path, self._file):
            self.places[keys.of(record, number)] = offset, number
            offset = self._file.tell()

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def find(self, key: Key) -> tuple[int, Record] | None:
        """Return the number and the record of a sentence's line; None if it is not there."""
        if key not in self.places:
            return None
        offset, number = self.places[key]
        self._file.seek(offset)
        return number, parse(self._file.readline(), f"{self._path}, line {number}")


def groups(
    paths: Sequence[str], wanted: Sequence[str] | None = None, limit: int | None = None
) -> Iterator[list[Entry]]:
    """Yield the sentences to show, each with its entries from all files that have it.

    The order is that of the first file, which is read line by line; sentences that only later files
    have follow.

    Raises:
        UsageError: a file is malformed, none has a wanted number, or the sources differ.
    """
    missing = dict.fromkeys(f"sentence {number}" for number in wanted or ())
    names = None if wanted is None else set(missing)
    shown = 0
    with contextlib.ExitStack() as stack:
        others = [stack.enter_context(contextlib.closing(Indexed(path))) for path in paths[1:]]
        for name, lines in _found(paths[0], others):
            if names is not None and name not in names:
                continue
            missing.pop(name, None)
            yield _entries(paths, name, lines)
            shown += 1
            if shown == limit:
                return
    if missing:
        given = " ".join(name.removeprefix("sentence ") for name in missing)
        raise option_error("--sentence", given, f"numbers (id) of sentences in {', '.join(paths)}")


#: A line of one file: which file, the line's number, the record.
Line = tuple[int, int, Record]


def _found(first: str, others: Sequence[Indexed]) -> Iterator[tuple[str, list[Line]]]:
    """Yield every sentence's name and lines."""
    keys, seen = Keys(), set()
    for number, record in read(first):
        key = keys.of(record, number)
        if others:
            seen.add(key)
        yield key[0], [(0, number, record), *_in_others(key, others)]
    for other in others:
        for key in other.places:
            if key not in seen:
                seen.add(key)
                yield key[0], _in_others(key, others)


def _in_others(key: Key, others: Sequence[Indexed]) -> list[Line]:
    """Return a sentence's lines in all files but the first."""
    found = [(file, other.find(key)) for file, other in enumerate(others, start=1)]
    return [(file, *line) for file, line in found if line is not None]


def _entries(paths: Sequence[str], name: str, lines: Sequence[Line]) -> list[Entry]:
    """Read one sentence's lines, which must have the same source."""
    entries: list[Entry] = []
    for file, number, record in lines:
        where = f"{paths[file]}, line {number}"
        try:
            sentence = trace_records.read_sentence(record, name)
        except UsageError as error:
            raise UsageError(f"{where}: {error}") from error
        entries.append(Entry(file, number, record, sentence))
        known = (one for one in entries if one.sentence.source is not None)
        first = next(known, entries[-1])  # not every trace has sources
        if sentence.source not in (None, first.sentence.source):
            raise UsageError(
                f"{where}: {name} has another source than in {paths[first.file]}, line "
                f"{first.number}; allowed: traces of the same data"
            )
    return entries


def image_size(text: str) -> Size:
    """Read the argument of ``--image-size``."""
    parts = text.split("x")
    if len(parts) in (2, 3) and all(re.fullmatch("[0-9]{1,5}", part) for part in parts):
        height, width, *channels = map(int, parts)
        with contextlib.suppress(UsageError):
            return Size(height, width, channels[0] if channels else 1)
    raise argparse.ArgumentTypeError(
        f"got {text!r}; allowed: pixels and channels (1 or 3), as in 8x8 or 32x32x3"
    )


def wants_color(choice: str) -> bool:
    """Return whether to print in colour.

    Args:
        choice: ``always``, ``never``, or ``auto``: on a terminal with colours, unless NO_COLOR is
            set (https://no-color.org).
    """
    if choice != "auto":
        return choice == "always"
    able = sys.stdout.isatty() and os.environ.get("TERM") != "dumb"
    return able and not os.environ.get("NO_COLOR")


def show(text: str) -> bool:
    """Print at once; return False, and print nothing more, after the pipe closes (``| head``)."""
    try:
        print(text, flush=True)
        return True
    except BrokenPipeError:
        discard(sys.stdout)
        return False


def declare(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.epilog = "example: paradec trace hgj.jsonl gad.jsonl --sentence 25 --html viewer.html"
    parser.set_defaults(plugin=False)
    add = parser.add_argument
    add("file", metavar="FILE", nargs="+", help=f"{written_by(TRACE)}; or several, side by side")
    add("--html", metavar="PAGE", help="also write a page that needs no other file")
    add("--picture", metavar="OUT", help="also draw the first sentence, .png or .svg")
    add("--tree", metavar="OUT", help="draw the first sentence's tree, of a drafted beam's trace")
    add(
        "--image-size",
        type=image_size,
        metavar="HxW[xC]",
        help="size of outputs that are images, and their channels (default: 1): draw the step that "
        "wrote each pixel",
    )
    add(
        "--steps",
        action="store_true",
        help="list the tokens of each step (Stern et al. 2018) instead of drafts and verdicts. A "
        "step of blockwise is a block: the model's own token from one pass, and the drafted tokens "
        "that the next pass accepts. A step of any other method is the tokens that a pass commits",
    )
    add("--sentence", metavar="ID", nargs="+", action="extend", help="only these numbers (id)")
    add("--limit", type=arguments.whole_number, help="how many sentences at most (default: all)")
    add(
        "--color",
        choices=("auto", "always", "never"),
        default="auto",
        help="colours instead of marks around tokens (default: auto, on a terminal unless NO_COLOR "
        "is set)",
    )


def run(args: argparse.Namespace) -> int:
    """Show the sentences; the page is completed even if stdout closes."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")
    color = wants_color(args.color)
    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
    files = short_names(args.file)
    picture = None if args.picture is None else pages.check_picture("--picture", args.picture)
    tree = None if args.tree is None else pages.check_picture("--tree", args.tree)
    if args.image_size is not None and picture is None:
        given = str(args.image_size).replace("×", "x")
        raise needs("--image-size", given, "--picture")
    with contextlib.ExitStack() as stack:
        html = None
        if args.html is not None:
            pages.check_page("--html", args.html)
            html = stack.enter_context(pages.whole_file(args.html))
            title = f"Trace{'s' if len(files) > 1 else ''} {', '.join(files)}"
            html.write(viewer.head(title, "steps" if args.steps else "output"))
        opening = "" if args.steps else trace_text.legend(color) + "\n\n"
        for number, group in enumerate(groups(args.file, args.sentence, args.limit)):
            if number == 0 and picture is not None:
                _draw(group, picture, files, args.image_size)
            if number == 0 and tree is not None:
                _draw_tree(group[0], tree)
            text = group_text(group, files, lambda one: _text(one, args.steps, color, width))
            if not show(opening + text) and html is None:
                break
            opening = "\n"
            if html is not None:
                _write(html, group, files)
        if html is not None:
            html.write(page.TAIL)
    return 0


def short_names(paths: Sequence[str]) -> list[str]:
    """Return the files' names, with their folders where two have the same name."""
    names = [os.path.basename(path) for path in paths]
    return [path if names.count(name) > 1 else name for path, name in zip(paths, names)]


def group_text(
    group: Sequence[Entry], files: Sequence[str], text: Callable[[trace_view.Sentence], str]
) -> str:
    """Return a sentence for a terminal, file by file if there are several."""
    if len(files) == 1:
        return text(group[0].sentence)
    found = {entry.file: text(entry.sentence) for entry in group}
    lacking = f"does not have {printable(group[0].sentence.name)}"
    return "\n\n".join(
        f"{name}:\n{found[i]}" if i in found else f"{name}: {lacking}"
        for i, name in enumerate(map(printable, files))
    )


def _text(sentence: trace_view.Sentence, steps: bool, color: bool, width: int | None) -> str:
    if steps:
        return trace_text.steps_text(sentence)
    return trace_text.sentence_text(sentence, color, width)


def _write(html: TextIO, group: Sequence[Entry], files: Sequence[str]) -> None:
    """Write a sentence's part of the page."""
    found = [entry.file for entry in group]
    html.write(
        viewer.sentence(
            [entry.sentence for entry in group],
            [entry.record for entry in group],
            [files[i] for i in found],
            [name for i, name in enumerate(files) if i not in found],
        )
    )


def _draw(group: Sequence[Entry], path: Path, files: Sequence[str], size: Size | None) -> None:
    """Draw a sentence from all files, or an image of this size."""
    from ..show import raster_plot, trace_plot  # matplotlib takes a second to load

    found, names = [entry.sentence for entry in group], [files[entry.file] for entry in group]
    texts = trace_plot.texts(found) if size is None else raster_plot.texts(found, names)
    pages.warn_of_fonts("trace", texts)
    if size is None:
        trace_plot.draw(found, path, names)
    else:
        raster_plot.draw(found, size, path, names)


def _draw_tree(entry: Entry, path: Path) -> None:
    """Draw the tree of a sentence that a drafted beam decoded."""
    from ..show import beam_plot  # matplotlib takes a second to load

    nodes = beam_tree.read_tree(entry.record, entry.sentence.name)
    pages.warn_of_fonts("trace", beam_plot.texts(entry.record, nodes))
    beam_plot.draw(entry.record, nodes, path)
