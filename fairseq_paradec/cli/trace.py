"""paradec-trace: show what every pass of a decoder drafted, accepted and threw away, or each step.

Reads what ``--trace-file`` of fairseq-generate wrote, sentence by sentence, whatever the method.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import os
import shutil
import sys
from collections.abc import Iterator, Sequence
from typing import Any, TextIO

from ..analysis import trace_view
from ..decoding.trace import SCHEMA, SCHEMA_VERSION
from ..errors import UsageError, option_error
from . import measure

WRITTEN_BY = "a file that --trace-file wrote"


def parse(line: bytes, where: str) -> dict[str, Any]:
    """Read one line of a trace.

    Args:
        line: as in the file.
        where: file and number of the line, for errors.

    Raises:
        UsageError: it is no sentence of a trace.
    """
    try:
        record = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise UsageError(
            f"{where}: got no JSON, or a part of it ({error}); allowed: {WRITTEN_BY}"
        ) from error
    if not isinstance(record, dict) or record.get("schema") != SCHEMA:
        raise UsageError(f"{where}: got no record of a decoder; allowed: {WRITTEN_BY}")
    if record.get("version") != SCHEMA_VERSION:
        raise UsageError(
            f"{where}: got version {record.get('version')!r}; allowed: version {SCHEMA_VERSION}"
        )
    if "trace" not in record:
        raise UsageError(f"{where}: got statistics without passes; allowed: {WRITTEN_BY}")
    return record


def records(path: str) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield the sentences of a trace with their lines' numbers, one line in memory at a time.

    Args:
        path: the file.

    Raises:
        UsageError: it cannot be read, is empty, or has a line that is no sentence of a trace.
    """
    try:
        file = open(path, "rb")
    except OSError as error:
        raise option_error("FILE", path, f"{WRITTEN_BY} ({error.strerror})") from error
    number = 0
    with file:
        for number, line in enumerate(file, start=1):
            yield number, parse(line, f"{path}, line {number}")
    if number == 0:
        raise option_error("FILE", path, f"{WRITTEN_BY}; this one is empty")


def sentences(
    path: str, wanted: Sequence[str] | None, limit: int | None
) -> Iterator[trace_view.Sentence]:
    """Yield the sentences to be shown.

    Args:
        path: the file.
        wanted: their numbers (``id``); None for all.
        limit: how many at most; None for all.

    Raises:
        UsageError: the file is not right, or lacks a wanted number.
    """
    missing = dict.fromkeys(wanted or ())
    shown = 0
    for number, record in records(path):
        known = record.get("id")
        if wanted is not None and str(known) not in wanted:
            continue
        missing.pop(str(known), None)
        # fairseq-interactive does not tell a sentence's number.
        name = f"sentence of line {number}" if known is None else f"sentence {known}"
        try:
            yield trace_view.read_sentence(record, name)
        except UsageError as error:
            raise UsageError(f"{path}, line {number}: {error}") from error
        shown += 1
        if shown == limit:
            return
    if missing:
        allowed = f"numbers (id) of sentences in {path}"
        raise option_error("--sentence", " ".join(missing), allowed)


def is_page(path: str) -> bool:
    """Say whether a page may be written here: the file is new, empty, or an earlier page."""
    if not os.path.lexists(path):
        return True
    if not os.path.isfile(path):
        return False
    mark = trace_view.PAGE_MARK.encode()
    with open(path, "rb") as file:
        return file.read(len(mark)) in (mark, b"")


def check_page(path: str) -> None:
    """Find out before reading, not after, that the page cannot be written.

    Args:
        path: the page.

    Raises:
        UsageError: it would lie in no folder, may not be written, or is a file of another kind.
    """
    folder = os.path.dirname(os.path.realpath(path))
    if path == "" or os.path.isdir(path):
        raise option_error("--html", path, "a file, not a folder or nothing")
    if not os.path.isdir(folder):
        raise option_error("--html", path, f"a file in a folder that exists; {folder} does not")
    if not os.access(folder, os.W_OK):
        raise option_error("--html", path, "a file in a folder that may be written")
    if not is_page(path):
        raise option_error("--html", path, "a new file, or an earlier page; this is something else")


@contextlib.contextmanager
def whole_file(path: str) -> Iterator[TextIO]:
    """Open a text file that appears under its name only once it is complete.

    Args:
        path: the file; a link is followed.
    """
    target = os.path.realpath(path)
    part = f"{target}.{os.getpid()}.part"
    try:
        with open(part, "w", encoding="utf-8") as file:
            yield file
        os.replace(part, target)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(part)
        raise


def wants_color(choice: str) -> bool:
    """Say whether to print in colour.

    Args:
        choice: ``always``, ``never``, or ``auto``: on a terminal that can, unless NO_COLOR is set
            (https://no-color.org).
    """
    if choice != "auto":
        return choice == "always"
    able = sys.stdout.isatty() and os.environ.get("TERM") != "dumb"
    return able and not os.environ.get("NO_COLOR")


def show(text: str) -> bool:
    """Print at once; return False if nobody reads on (``| head``), and be silent from then on."""
    try:
        print(text, flush=True)
        return True
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return False


def main(argv: Sequence[str] | None = None) -> int:
    """Console entry point; returns the exit status."""
    parser = argparse.ArgumentParser(prog="paradec-trace", description=__doc__)
    add = parser.add_argument
    add("file", metavar="FILE", help=WRITTEN_BY)
    add("--html", metavar="PAGE", help="write a page that needs no other file, too")
    add(
        "--steps",
        action="store_true",
        help="list the tokens of each step, as Stern et al. 2018 do, instead of drafts and "
        "verdicts. A step of blockwise is a block: the model's own token, found in one pass, and "
        "the drafted tokens that the next pass accepts. A step of any other method is a pass with "
        "the tokens that it committed",
    )
    add("--sentence", metavar="ID", nargs="+", action="extend", help="only these numbers (id)")
    add("--limit", type=measure.whole_number, help="at most so many sentences (default: all)")
    add(
        "--color",
        choices=("auto", "always", "never"),
        default="auto",
        help="colours; else marks around tokens (default: auto, on a terminal without NO_COLOR)",
    )
    args = parser.parse_args(argv)
    return measure.run("paradec-trace", lambda: _run(args))


def _run(args: argparse.Namespace) -> int:
    """Show the sentences; a page is written to its end even if nobody reads the terminal."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")
    color = wants_color(args.color)
    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
    with contextlib.ExitStack() as stack:
        page = None
        if args.html is not None:
            check_page(args.html)
            page = stack.enter_context(whole_file(args.html))
            page.write(trace_view.page_head(f"Trace {os.path.basename(args.file)}", args.steps))
        opening = "" if args.steps else trace_view.legend(color) + "\n\n"
        for sentence in sentences(args.file, args.sentence, args.limit):
            if args.steps:
                text = trace_view.steps_text(sentence)
            else:
                text = trace_view.sentence_text(sentence, color, width)
            if not show(opening + text) and page is None:
                break
            opening = "\n"
            if page is not None:
                as_html = trace_view.steps_html if args.steps else trace_view.sentence_html
                page.write(as_html(sentence))
        if page is not None:
            page.write(trace_view.PAGE_TAIL)
    return 0


if __name__ == "__main__":
    sys.exit(main())
