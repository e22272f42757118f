"""The analyses of benchmarks and traces, for ``paradec analyse``: speed-ups and acceptance."""

import argparse
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from ...errors import UsageError, option_error
from ...records import Record
from ...records import read as read_lines
from ..analysis import acceptance_by_position, speed_ups
from ..analysis.benchmark_tables import (
    AGAINST,
    BEAM,
    GREEDY,
    BlockPoint,
    block_points,
    labels_of,
)
from ..data import documents
from ..data.table import Cells, Table
from ..show.trace_records import read_sentence
from .text_files import each_once, named

PICTURE = "FILE.{png,svg}"  # --plot, which ``analyse`` checks
MEASURED = "what paradec benchmark wrote"
TRACED = "what --trace-file wrote"


def read_benchmark(path: str) -> Mapping[str, Any]:
    """Read a benchmark, and check it.

    Raises:
        UsageError: the file is no benchmark, or contradicts itself.
    """
    try:
        result = documents.read(Path(path))
    except UsageError as error:
        raise option_error("BENCHMARK", path, f"{MEASURED} ({error})") from error
    if result.kind != "benchmark":
        raise option_error("BENCHMARK", path, MEASURED)
    return result.content


def read_records(path: str) -> Iterator[Record]:
    """Yield the sentences of a trace, each checked.

    Raises:
        UsageError: the file is no trace, or a sentence contradicts itself; the line is named.
    """
    for number, record in read_lines(path):
        try:
            read_sentence(record, "the sentence")
        except UsageError as error:
            raise UsageError(f"{path}, line {number}: {error}") from error
        yield record


def blocks(args: argparse.Namespace) -> Table:
    """Compare speed-up with mean accepted block, and draw both for ``--plot``."""
    points: dict[str, list[BlockPoint]] = {}
    settings = []
    for path in args.benchmark:
        document = read_benchmark(path)
        title, setting = document["title"], document["setting"]
        if title in points:
            raise option_error("BENCHMARK", path, f"one title each; {title!r} is twice")
        if GREEDY not in labels_of(document):
            raise option_error("BENCHMARK", path, f"one in which {GREEDY} was run, by [fairseq]")
        points[title] = block_points(document)
        if len(points[title]) < 2:
            raise option_error("BENCHMARK", path, "one with a --decoder 'blockwise ...'")
        settings.append(
            f"{title}: batch 1, {setting['dtype']}, {setting['device']}, "
            f"{setting['threads'][0]} thread(s), {setting['timed sentences']} sentences."
        )
    rows: list[Cells] = [
        {
            **({"benchmark": title} if len(points) > 1 else {}),
            "decoder": point.name,
            "label": point.label,
            "mean_accepted_block": round(point.block, 2),
            "passes_per_sentence": round(point.passes, 2),
            "length_ratio": round(point.length, 3),
            **{AGAINST[base]: gain for base, gain in point.speed_ups.items()},
        }
        for title, of_title in points.items()
        for point in of_title
    ]
    if args.plot is not None:
        from ..show.benchmark_plots import draw_blocks  # matplotlib takes a second to load

        draw_blocks(points, args.plot)
    notes = [
        *settings,
        "mean accepted block: tokens per block; greedy search has blocks of one. length ratio: "
        "tokens by our greedy search's; above 1, passes per sentence tell more. Speed-ups: ratios "
        "of a round's total times, median of the rounds (lowest-highest), against greedy search "
        "with the benchmark's own model (stern2018, Figure 4). A decoder labelled other model has "
        "other outputs, which may be longer or shorter.",
    ]
    return Table.of(rows, notes=notes)


def speed_up(args: argparse.Namespace) -> Table:
    """Show speed-ups by batch, beam, length or threads, and draw them for ``--plot``."""
    document = read_benchmark(args.benchmark)
    table = speed_ups.table(document, args.by, args.against)
    if not table.rows:
        kinds = speed_ups.KINDS
        there = [by for by in kinds if speed_ups.in_settings(document, by, args.against)]
        allowed = f"what {args.benchmark} has data for: {', '.join(there) or 'none'}"
        raise option_error("--by", args.by, allowed)
    if args.plot is not None:
        from ..show.benchmark_plots import draw_speed_ups  # matplotlib takes a second to load

        draw_speed_ups(document, args.by, args.plot, args.against)
    return _titled(table, document)


def _titled(table: Table, document: Mapping[str, Any]) -> Table:
    """Return a table whose first note says what it is of."""
    return replace(table, notes=[f"{document['title']}: {table.title}.", *table.notes])


def histogram(args: argparse.Namespace) -> Table:
    """Show the speed-ups of single sentences, and draw them for ``--plot``."""
    document = read_benchmark(args.benchmark)
    table = speed_ups.histogram_table(document, args.decoder, args.against)
    if args.plot is not None:
        from ..show.benchmark_plots import draw_histogram

        draw_histogram(document, args.plot, args.decoder, args.against)
    return _titled(table, document)


def acceptance(args: argparse.Namespace) -> Table:
    """Show how often the i-th token of a draft is accepted, and draw it for ``--plot``."""
    by_path = {}
    for path in each_once("TRACE", args.trace):
        by_path[path] = acceptance_by_position.count(read_records(path))
        if not by_path[path]:
            raise option_error("TRACE", path, f"{TRACED}, with drafts: no token was guessed here")
    by_name = named(by_path)
    if args.plot is not None:
        from ..show.benchmark_plots import draw_acceptance

        draw_acceptance(by_name, args.plot)
    rows: list[Cells] = [
        {**({"trace": name} if len(by_name) > 1 else {}), **row}
        for name, positions in by_name.items()
        for row in acceptance_by_position.rows(positions)
    ]
    return Table.of(rows, notes=acceptance_by_position.NOTES)


# ---- the subcommands ----------------------------------------------------------------------------


def declare(command: Callable[..., Any]) -> None:
    """Declare the subcommands; see ``analyse.declare``."""
    add = command("blocks", blocks, "speed-up by the mean accepted block of blockwise decoding")
    add(
        "benchmark",
        nargs="+",
        metavar="BENCHMARK.json",
        help=f"{MEASURED}, with decoders of --decoding blockwise",
    )
    add(
        "--plot",
        metavar=PICTURE,
        help="draw it; labels that differ only in their last number (both 4, both 8) make a line",
    )

    add = command("speed-up", speed_up, "speed-ups by batch, beam, source length or threads")
    add("benchmark", metavar="BENCHMARK.json", help=MEASURED)
    add("--by", choices=speed_ups.KINDS, required=True, help="the setting that varies")
    add(
        "--against",
        default=BEAM,
        metavar="LABEL",
        help=f"the baseline (default: {BEAM}); --by beam uses it only where fairseq's search of "
        "the same beam was not measured",
    )
    add("--plot", metavar=PICTURE, help="draw it")

    add = command("histogram", histogram, "speed-ups of single sentences")
    add("benchmark", metavar="BENCHMARK.json", help=MEASURED)
    add(
        "--decoder",
        action="append",
        metavar="LABEL",
        help="only this one; may be repeated (default: all)",
    )
    add("--against", default=BEAM, metavar="LABEL", help=f"the baseline (default: {BEAM})")
    add("--plot", metavar=PICTURE, help="draw it")

    add = command("acceptance", acceptance, "how often the i-th token of a draft is accepted")
    add("trace", nargs="+", metavar="TRACE", help=f"{TRACED}, of a method that drafts")
    add("--plot", metavar=PICTURE, help="draw it")
