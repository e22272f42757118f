"""Make one page of all benchmarks, tables and traces of a folder.

The command reads every *.json and *.jsonl in the folder (not below it) that a measuring command,
--trace-file or --stats-file wrote. The page needs no other file and no network, and the same files
give the same bytes.
"""

import argparse
import collections
import dataclasses
import functools
import heapq
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO

from ...cli import arguments
from ...errors import UsageError, option_error
from ...output import printable
from ...records import Record, parse_any
from ..analysis import acceptance_by_position, speed_ups
from ..analysis.benchmark_tables import compared_with, labels_of
from ..data import documents
from ..data.table import Result
from ..show import report, trace_records, viewer
from ..show.report import Contents
from ..show.tally import Tally
from . import pages
from .trace_files import Index, Key

ALLOWED = (
    "a folder with what the measuring commands wrote (*.json), or --trace-file or --stats-file "
    "(*.jsonl)"
)


def read_folder(path: Path, contents: Contents) -> list[Index]:
    """Read all files of a folder, traces line by line; return where their sentences stand.

    Raises:
        UsageError: it holds nothing for a report, or a file is malformed.
    """
    traces = []
    for file in sorted(path.iterdir()):
        if file.suffix not in (".json", ".jsonl"):
            continue
        if not file.is_file():
            contents.skipped[file.name] = "no file"
        elif file.suffix == ".json":
            read_json(file, contents)
        else:
            traces += read_lines(file, contents)
    if not contents.files:
        left_out = "".join(f"; {name} is {reason}" for name, reason in contents.skipped.items())
        raise option_error("DIR", str(path), f"{ALLOWED}; nothing of that is there{left_out}")
    return traces


def read_json(path: Path, contents: Contents) -> None:
    """Read a JSON file into the contents, and check it if its kind is known.

    Raises:
        UsageError: it is no JSON, or contradicts itself.
    """
    content = documents.load(path)
    if not documents.is_known(content):
        schema = content.get("schema") if isinstance(content, dict) else None
        contents.skipped[path.name] = f"JSON of another kind (schema: {schema})"
        return
    result = documents.checked(content, path)
    if result.kind == "benchmark":
        more = speed_ups.tables(result.content)
        result = dataclasses.replace(result, tables=[*result.tables, *more])
    contents.documents.append(result)


def read_lines(path: Path, contents: Contents) -> list[Index]:
    """Read a file of JSON lines into the contents; return where a trace's sentences stand.

    Raises:
        UsageError: it is empty, or a line is cut, of another version or kind, or contradicts
            itself.
    """
    with open(path, "rb") as file:
        first = parse_any(file.readline(), f"{path}, line 1")
    if first is None:
        contents.skipped[path.name] = "JSON lines of another kind"
        return []
    tally, lines = Tally(path.name, "trace" in first), Index(str(path))
    counted = records(tally, lines)
    try:
        if tally.has_passes:
            tally.positions = acceptance_by_position.count(counted)
    except (KeyError, TypeError) as error:  # models of another order draft nothing
        raise UsageError(f"{path}: a pass lacks a field, or it is wrong: {error}") from error
    collections.deque(counted, maxlen=0)  # what nobody has asked for is counted, too
    contents.tallies.append(tally)
    return [lines] if tally.has_passes else []


def records(tally: Tally, lines: Index) -> Iterator[Record]:
    """Yield a file's records, checked and counted, one line in memory at a time.

    Raises:
        UsageError: as in ``read_lines``.
    """
    offset = 0
    with open(lines.path, "rb") as file:
        for number, line in enumerate(file, start=1):
            where = f"{lines.path}, line {number}"
            record = parse_any(line, where)
            if record is None or ("trace" in record) != tally.has_passes:
                raise UsageError(f"{where}: got a line of another kind than the first one")
            try:
                name = "the sentence"
                sentence = trace_records.read_sentence(record, name) if tally.has_passes else None
                tally.add(record, sentence)
            except UsageError as error:
                raise UsageError(f"{where}: {error}") from error
            lines.add(record, number, offset)
            offset += len(line)
            yield record


def blocks(traces: Sequence[Index], limit: int) -> Iterator[str]:
    """Yield the viewer's blocks: sentences of all traces, then those of fewer, by their numbers.

    Sentences of the same number but of another source are others.
    """
    owners: dict[tuple[Key, int], list[Index]] = {}
    for trace in traces:
        for key, (_, _, source) in trace.places.items():
            owners.setdefault((key, source), []).append(trace)

    def rank(sentence: tuple[Key, int]) -> tuple[int, int, int]:
        (name, nth), _ = sentence
        number = name.rsplit(" ", 1)[-1]
        return -len(owners[sentence]), int(number) if number.isdecimal() else 0, nth

    names = {trace.path: Path(trace.path).name for trace in traces}
    for sentence in heapq.nsmallest(limit, owners, key=rank):
        key, _ = sentence
        read = [trace.read(key)[1] for trace in owners[sentence]]
        yield viewer.block(
            [trace_records.read_sentence(record, key[0]) for record in read],
            read,
            [names[trace.path] for trace in owners[sentence]],
            [names[trace.path] for trace in traces if trace not in owners[sentence]],
        )


# ---- pictures ----------------------------------------------------------------------------------


def pictures(document: Result) -> list[report.Picture]:
    """Draw a document's pictures; return SVG files and their descriptions."""
    if document.kind != "benchmark":
        return []
    from ..show import benchmark_plots  # matplotlib takes a second to load

    title = printable(document.content["title"])
    content = {**document.content, "title": title}
    base, _ = compared_with(labels_of(content))
    histogram = functools.partial(benchmark_plots.draw_histogram, against=base)
    drawn: dict[str, Callable[[Any, BinaryIO], object]] = {
        "time per sentence, throughput, threads, as in the tables": benchmark_plots.draw,
        "speed-ups of single sentences, as in the last table": histogram,
    }
    return [(report.svg(draw, content), f"{title}: {words}") for words, draw in drawn.items()]


def acceptance(tallies: Sequence[Tally]) -> list[report.Picture]:
    """Draw acceptance by position in the draft, if there are drafts."""
    by_name = {tally.name: tally.positions for tally in tallies if tally.positions}
    if not by_name:
        return []
    from ..show import benchmark_plots

    words = "acceptance by position in the draft, as in the tables of the traces"
    return [(report.svg(benchmark_plots.draw_acceptance, by_name), words)]


# ---- the command -------------------------------------------------------------------------------


def declare(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.epilog = "example: paradec report runs --sentences 10"
    parser.set_defaults(plugin=False)
    add = parser.add_argument
    add("folder", metavar="DIR", type=Path, help=ALLOWED)
    add("--out", metavar="FILE", help="the page (default: DIR/report.html)")
    add("--title", help="its heading (default: of the folder's name)")
    add(
        "--sentences",
        type=arguments.whole_number,
        default=20,
        metavar="N",
        help="show the passes of at most N sentences, first of those in all traces (default: 20)",
    )


def run(args: argparse.Namespace) -> int:
    """Read the folder, then write the page."""
    if not args.folder.is_dir():
        raise option_error("DIR", str(args.folder), ALLOWED)
    out = str(args.folder / "report.html") if args.out is None else args.out
    if Path(out).suffix in (".json", ".jsonl"):
        raise option_error("--out", out, "a page's name, such as report.html")
    pages.check_page("--out", out)
    contents = Contents(args.title or f"Report of {args.folder.resolve().name}")
    traces = read_folder(args.folder, contents)
    if traces:
        contents.sentences = blocks(traces, args.sentences)
    with pages.whole_file(out) as file:
        file.writelines(report.page(contents, pictures, acceptance(contents.tallies)))
    for name, reason in contents.skipped.items():
        print(printable(f"left out: {name}, {reason}"))
    print(f"{out}: {len(contents.documents)} results, {len(contents.tallies)} traces or statistics")
    return 0
