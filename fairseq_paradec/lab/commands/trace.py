"""Show what every pass of a decoder drafted, accepted and rejected; or another kind of view.

The command reads what --trace-file wrote, for any method, sentence by sentence. Several files of
the same sentences, such as one per method, are shown side by side. Kinds: passes (drafts and
verdicts), steps (the tokens of each step), dependencies (which tokens of Jacobi decoding or greedy
search depend on which), tree (what a beam drafted). The kind order needs no file: it draws the
order in which a reordered model writes a target, and its attention mask.
"""

import argparse
import collections
import contextlib
import io
import os
import re
import shutil
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from ...cli import arguments
from ...config import flag
from ...errors import UsageError, excludes, needs
from ...images import Size
from ...output import discard, printable
from ...records import TRACE, written_by
from ..show import beam_tree, ddg, trace_text, viewer
from . import pages, target_orders
from .trace_files import Entry, groups

EXAMPLES = """\
examples:
  paradec trace hgj.jsonl gad.jsonl --sentence 25 --html viewer.html
  paradec trace pj.jsonl --sentence 33 --kind dependencies --picture graph.svg
  paradec trace --kind order --arch ibdecoder --length 8

A step of blockwise (Stern et al. 2018) is a block: the model's own token of one pass, and the
drafted tokens that the next pass accepts. A step of any other method is the tokens that a pass
commits. With --kind dependencies a line per pass has the tokens that became final in it: position,
token, probability.
"""

#: The kinds whose pictures are of passes, of all files.
PASSES = ("passes", "steps")
#: The kinds of views of a file, and the view that a page opens with.
VIEWS = {"passes": "output", "steps": "steps", "dependencies": "dependencies", "tree": "tree"}
ORDER = "order"


def declare(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.epilog = EXAMPLES
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.set_defaults(plugin=False)
    add = parser.add_argument
    add("file", metavar="FILE", nargs="*", help=f"{written_by(TRACE)}; or several, side by side")
    add("--kind", choices=(*VIEWS, ORDER), default="passes", help="what to show (default: passes)")
    add("--html", metavar="PAGE", help="also write a page with all kinds, without other files")
    add(
        "--picture",
        metavar="OUT",
        help="also draw it, .png or .svg: each of --sentence, with -ID in the names of several; "
        "or the first sentence",
    )
    add(
        "--image-size",
        type=image_size,
        metavar="HxW[xC]",
        help="size of outputs that are images, and their channels (default: 1): draw the step that "
        "wrote each pixel",
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
    target_orders.declare(parser.add_argument_group("with --kind order"))


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


def run(args: argparse.Namespace) -> int:
    """Show the sentences; the page is completed even if stdout closes."""
    if args.picture is not None:
        args.picture = pages.check_picture("--picture", args.picture)
    if args.kind == ORDER:
        for name in ("file", "html", "sentence", "limit", "image_size"):
            if given := getattr(args, name):
                if name == "file":
                    raise excludes("FILE", given[0], f"--kind {ORDER}")
                raise excludes(flag(name), given, f"--kind {ORDER}")
        return target_orders.run(args)
    _check(args)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")
    sentences = _show(args)
    if args.html is None:
        collections.deque(sentences, maxlen=0)
        return 0
    pages.check_page("--html", args.html)
    names = short_names(args.file)
    title = f"Trace{'s' if len(names) > 1 else ''} {', '.join(names)}"
    with pages.whole_file(args.html) as html:
        blocks = (_block(group, names) for group in sentences)
        html.writelines(viewer.page(title, VIEWS[args.kind], blocks))
    return 0


def _check(args: argparse.Namespace) -> None:
    """Refuse what the kinds of a file do not take."""
    target_orders.refuse(args)
    if not args.file:
        raise UsageError(f"FILE: got none; allowed: {written_by(TRACE)}")
    if args.image_size is not None and (args.picture is None or args.kind not in PASSES):
        given = str(args.image_size).replace("×", "x")
        raise needs("--image-size", given, f"--picture, and --kind {' or '.join(PASSES)}")
    if args.picture is not None and args.kind not in PASSES and len(args.file) > 1:
        raise needs("--picture", str(args.picture), f"one FILE, with --kind {args.kind}")


def _show(args: argparse.Namespace) -> Iterator[list[Entry]]:
    """Print and draw the sentences; yield each, as far as anything is to be done with it."""
    names = short_names(args.file)
    color = wants_color(args.color)
    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
    legend = args.kind in ("passes", "tree")
    opening = trace_text.legend(color) + "\n\n" if legend else ""
    drawn: set[Path] = set()
    missing: set[str] = set()
    for group in groups(args.file, args.sentence, args.limit):
        text = group_text(group, names, lambda entry: _text(args, entry, color, width))
        if args.picture is not None and (args.sentence is not None or not drawn):
            path = _picture_of(args.picture, group[0], len(set(args.sentence or ())) > 1, drawn)
            missing.update(_draw(args, group, path))
        if not show(opening + text) and args.html is None and args.picture is None:
            break
        opening = "\n"
        yield group
    pages.warn_of_fonts("trace", sorted(missing))


# ---- text --------------------------------------------------------------------------------------


def _text(args: argparse.Namespace, entry: Entry, color: bool, width: int | None) -> str:
    """Return a sentence of one file for a terminal."""
    if args.kind == "steps":
        return trace_text.steps_text(entry.sentence)
    if args.kind == "dependencies":
        return ddg.as_text(_graph(args, entry), entry.sentence.source)
    return trace_text.sentence_text(entry.sentence, color, width)


def _graph(args: argparse.Namespace, entry: Entry) -> ddg.DependencyGraph:
    """Make the graph of a sentence.

    Raises:
        UsageError: it has none, or contradicts itself.
    """
    try:
        return ddg.from_record(entry.record, entry.sentence.name)
    except UsageError as error:
        raise UsageError(f"{args.file[entry.file]}, line {entry.number}: {error}") from error


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


def short_names(paths: Sequence[str]) -> list[str]:
    """Return the files' names, with their folders where two have the same name."""
    names = [os.path.basename(path) for path in paths]
    return [path if names.count(name) > 1 else name for path, name in zip(paths, names)]


def group_text(group: Sequence[Entry], names: Sequence[str], text: Callable[[Entry], str]) -> str:
    """Return a sentence for a terminal, file by file if there are several."""
    if len(names) == 1:
        return text(group[0])
    texts = {entry.file: text(entry) for entry in group}
    lacking = f"does not have {printable(group[0].sentence.name)}"
    return "\n\n".join(
        f"{name}:\n{texts[i]}" if i in texts else f"{name}: {lacking}"
        for i, name in enumerate(map(printable, names))
    )


# ---- pages and pictures ------------------------------------------------------------------------


def _block(group: Sequence[Entry], names: Sequence[str]) -> str:
    """Return a sentence's part of the page."""
    there = [entry.file for entry in group]
    return viewer.block(
        [entry.sentence for entry in group],
        [entry.record for entry in group],
        [names[i] for i in there],
        [name for i, name in enumerate(names) if i not in there],
    )


def _picture_of(given: Path, entry: Entry, several: bool, drawn: set[Path]) -> Path:
    """Return the name of a sentence's picture; ``drawn`` has those of earlier ones.

    It is as given, or has the sentence's number before the ending; where an earlier sentence has
    the same number, also its line's.
    """
    known, line = entry.record.get("id"), f"line{entry.number}"
    number = re.sub(r"[^\w.-]", "_", line if known is None else str(known))[:100]
    paths = [given] * (not several)
    paths += [
        given.with_name(f"{given.stem}-{end}{given.suffix}") for end in (number, f"{number}-{line}")
    ]
    path = next(path for path in paths if path not in drawn)
    drawn.add(path)
    return path


def _draw(args: argparse.Namespace, group: Sequence[Entry], path: Path) -> list[str]:
    """Draw a sentence; return the characters that no font has."""
    first = group[0]
    # matplotlib takes a second to load
    if args.kind == "dependencies":
        from ..show import ddg_plot

        return ddg_plot.draw(_graph(args, first), path, first.sentence.source)
    if args.kind == "tree":
        from ..show import beam_plot

        nodes = beam_tree.read_tree(first.record, first.sentence.name)
        return beam_plot.draw(first.record, nodes, path)
    from ..show import raster_plot, trace_plot

    names = short_names(args.file)
    sentences, files = [entry.sentence for entry in group], [names[entry.file] for entry in group]
    if args.image_size is not None:
        return raster_plot.draw(sentences, path, files, args.image_size)
    return trace_plot.draw(sentences, path, files)
