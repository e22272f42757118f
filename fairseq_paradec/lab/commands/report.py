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
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO, TextIO

from ...cli import arguments
from ...errors import UsageError, option_error
from ...output import printable
from ...records import Record, parse, parse_any
from ..analysis import acceptance_by_position, speed_ups
from ..data import documents
from ..data.table import Result
from ..show import page, report, trace_records, trace_view, viewer
from ..show.tally import Tally
from . import pages, trace

ALLOWED = (
    "a folder with what the measuring commands wrote (*.json), or --trace-file or --stats-file "
    "(*.jsonl)"
)


class Lines:
    """Where the sentences of a trace stand in its file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        # number and offset of each sentence's line, and a hash of its source
        self.places: dict[trace.Key, tuple[int, int, int]] = {}
        self._keys = trace.Keys()

    def add(self, record: Record, number: int, offset: int) -> None:
        """Note where a sentence stands."""
        source = hash(tuple(record.get("source") or ()))
        self.places[self._keys.of(record, number)] = number, offset, source

    def read(self, key: trace.Key) -> tuple[trace_view.Sentence, Record]:
        """Read a sentence again; return it with its record."""
        number, offset, _ = self.places[key]
        with open(self.path, "rb") as file:
            file.seek(offset)
            record = parse(file.readline(), f"{self.path}, line {number}")
        return trace_records.read_sentence(record, key[0]), record


@dataclass
class Folder:
    """What a folder holds."""

    documents: list[Result] = field(default_factory=list)  # files of JSON, by name
    tallies: list[Tally] = field(default_factory=list)  # traces and statistics, by name
    lines: list[Lines] = field(default_factory=list)  # of the traces
    # the reason for each file left out, by name
    skipped: dict[str, str] = field(default_factory=dict)

    @property
    def files(self) -> list[Result | Tally]:
        """Return all that is on the page."""
        return [*self.documents, *self.tallies]


def read_folder(folder: Path) -> Folder:
    """Read all files of a folder, traces line by line.

    Raises:
        UsageError: it is no folder, holds nothing for a report, or a file is malformed.
    """
    if not folder.is_dir():
        raise option_error("DIR", str(folder), ALLOWED)
    found = Folder()
    for path in sorted(folder.iterdir()):
        if path.suffix not in (".json", ".jsonl"):
            continue
        if not path.is_file():
            found.skipped[path.name] = "no file"
        elif path.suffix == ".json":
            read_json(path, found)
        else:
            read_lines(path, found)
    if not found.files:
        left_out = "".join(f"; {name} is {reason}" for name, reason in found.skipped.items())
        raise option_error("DIR", str(folder), f"{ALLOWED}; nothing of that is there{left_out}")
    return found


def read_json(path: Path, found: Folder) -> None:
    """Read a JSON file into ``found``, and check it if its kind is known.

    Raises:
        UsageError: it is no JSON, or contradicts itself.
    """
    content = documents.load(path)
    if not documents.is_known(content):
        schema = content.get("schema") if isinstance(content, dict) else None
        found.skipped[path.name] = f"JSON of another kind (schema: {schema})"
        return
    result = documents.checked(content, path)
    if result.kind == "benchmark":
        more = speed_ups.tables(result.content)
        result = dataclasses.replace(result, tables=[*result.tables, *more])
    found.documents.append(result)


def read_lines(path: Path, found: Folder) -> None:
    """Read a file of JSON lines into ``found``, and count the sentences of a decoder.

    Raises:
        UsageError: it is empty, or a line is cut, of another version or kind, or contradicts
            itself.
    """
    with open(path, "rb") as file:
        first = parse_any(file.readline(), f"{path}, line 1")
        if first is None:
            found.skipped[path.name] = "JSON lines of another kind"
            return
        file.seek(0)
        tally, lines = Tally(path.name, "trace" in first), Lines(path)
        read = records(file, tally, lines)
        if tally.has_passes:
            try:
                tally.positions = acceptance_by_position.count(read)
            except (KeyError, TypeError) as error:  # models of another order draft nothing
                raise UsageError(
                    f"{path}: a pass lacks a field, or it is wrong: {error}"
                ) from error
            found.lines.append(lines)
        else:
            collections.deque(read, maxlen=0)
    found.tallies.append(tally)


def records(file: BinaryIO, tally: Tally, lines: Lines) -> Iterator[Record]:
    """Yield a file's records, checked and counted, one line in memory at a time.

    Raises:
        UsageError: as in ``read_lines``.
    """
    offset = 0
    for number, line in enumerate(file, start=1):
        where = f"{lines.path}, line {number}"
        record = parse_any(line, where)
        if record is None or ("trace" in record) != tally.has_passes:
            raise UsageError(f"{where}: got a line of another kind than the first one")
        try:
            whole = (
                trace_records.read_sentence(record, "the sentence") if tally.has_passes else None
            )
            tally.add(record, whole)
        except UsageError as error:
            raise UsageError(f"{where}: {error}") from error
        lines.add(record, number, offset)
        offset += len(line)
        yield record


def shared(lines: Sequence[Lines], limit: int) -> list[trace.Key]:
    """Return the first sentences, by number, that all traces have with the same source."""
    first, *others = (one.places for one in lines)
    same = [
        key
        for key, (_, _, source) in first.items()
        if all(key in other and other[key][2] == source for other in others)
    ]
    return heapq.nsmallest(limit, same, key=_number)


def _number(key: trace.Key) -> tuple[int, int]:
    """Return a sentence's number, or its line's, to sort by."""
    number = key[0].rsplit(" ", 1)[-1]
    return int(number) if number.isdecimal() else 0, key[1]


def side_by_side(lines: Sequence[Lines], limit: int) -> Iterator[str]:
    """Yield the view of the first sentences of all traces, piece by piece.

    If the traces share no sentence, each is shown by itself.
    """
    keys = shared(lines, limit)
    yield report.viewer_opening(bool(keys))
    groups = [(key, lines) for key in keys] or [
        (key, [one]) for one in lines for key in heapq.nsmallest(limit, one.places, key=_number)
    ]
    for key, ones in groups:
        read = [one.read(key) for one in ones]
        sentences = [sentence for sentence, _ in read]
        if not keys:
            name = f"{ones[0].path.name}, {key[0]}"
            sentences = [dataclasses.replace(sentences[0], name=name)]
        files = [one.path.name for one in ones]
        yield viewer.sentence(sentences, [record for _, record in read], files)
    yield report.VIEWER_END


def write(file: TextIO, folder: Folder, title: str, limit: int) -> None:
    """Write the page."""
    ids = report.anchors(one.name for one in folder.files)
    file.write(report.head(title, bool(folder.lines)))
    file.write(report.overview(folder.documents, folder.tallies, folder.skipped, ids))
    for document in folder.documents:
        file.write(report.document_section(document, ids[document.name], pictures(document)))
    if folder.tallies:
        file.write(report.totals_section(folder.tallies, acceptance(folder.tallies)))
        if folder.lines:
            file.writelines(side_by_side(folder.lines, limit))
        for tally in folder.tallies:
            file.write(report.tally_section(tally, ids[tally.name]))
    file.write(page.TAIL)


def pictures(document: Result) -> list[tuple[bytes, str]]:
    """Draw a document's pictures; return SVG files and their descriptions."""
    if document.kind != "benchmark":
        return []
    from ..show import benchmark_plot, speed_plot  # matplotlib takes a second to load

    names = texts(document)
    content = {**document.content, "title": names[0]}
    return [
        (
            report.svg(functools.partial(benchmark_plot.draw, content), names),
            f"{content['title']}: time per sentence, throughput, threads, as in the tables",
        ),
        (
            report.svg(functools.partial(speed_plot.draw_histogram, content), names),
            f"{content['title']}: speed-ups of single sentences, as in the last table",
        ),
    ]


def texts(one: Result | Tally) -> list[str]:
    """Return the names that a file's pictures show; a benchmark's title comes first."""
    if isinstance(one, Tally):
        return [one.name] if one.positions else []
    if one.kind != "benchmark":
        return []
    labels = [system["label"] for system in one.content["systems"]]
    return [printable(one.content["title"]), *labels]


def acceptance(tallies: Sequence[Tally]) -> list[tuple[bytes, str]]:
    """Draw acceptance by position in the draft, if there are drafts."""
    by_name = {one.name: one.positions for one in tallies if one.positions}
    if not by_name:
        return []
    from ..show import speed_plot

    picture = report.svg(functools.partial(speed_plot.draw_acceptance, by_name), by_name)
    return [(picture, "acceptance by position in the draft, as in the tables of the traces")]


def warn(folder: Folder) -> None:
    """Warn of characters that no font can draw."""
    found = [text for one in folder.files for text in texts(one)]
    if found:
        pages.warn_of_fonts("report", found)


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
        help="show the passes of at most N sentences that all traces have (default: 20)",
    )


def run(args: argparse.Namespace) -> int:
    """Read the folder, then write the page."""
    if not args.folder.is_dir():
        raise option_error("DIR", str(args.folder), ALLOWED)
    out = str(args.folder / "report.html") if args.out is None else args.out
    if Path(out).suffix in (".json", ".jsonl"):
        raise option_error("--out", out, "a page's name, such as report.html")
    pages.check_page("--out", out)
    folder = read_folder(args.folder)
    title = args.title or f"Report of {args.folder.resolve().name}"
    with pages.whole_file(out) as file:
        write(file, folder, title, args.sentences)
    warn(folder)
    for name, reason in folder.skipped.items():
        print(printable(f"left out: {name}, {reason}"))
    print(f"{out}: {len(folder.documents)} results, {len(folder.tallies)} traces or statistics")
    return 0
