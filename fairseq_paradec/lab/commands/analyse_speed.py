"""The analyses of benchmarks and traces, for ``paradec analyse``: speed-ups and acceptance."""

import argparse
import json
from collections.abc import Callable, Iterator
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
    OWN_GREEDY,
    BlockPoint,
    block_points,
)
from ..data.documents import BENCHMARK, checked
from ..data.table import Cells, Table
from ..show.trace_records import read_sentence
from .pages import check_picture
from .text_files import each_once, named, read

MEASURED = "what paradec benchmark wrote"
TRACED = "what --trace-file wrote"


def read_benchmark(path: str) -> dict[str, Any]:
    """Read a benchmark, and check it.

    Raises:
        UsageError: the file is no benchmark, or contradicts itself.
    """
    text = read("BENCHMARK", path)
    try:
        document = json.loads(text)
    except ValueError as error:
        raise option_error("BENCHMARK", path, f"{MEASURED} ({error})") from error
    if not isinstance(document, dict) or document.get("schema") != BENCHMARK:
        raise option_error("BENCHMARK", path, MEASURED)
    checked(document, Path(path))
    return document


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
    if args.plot is not None:
        args.plot.parent.mkdir(parents=True, exist_ok=True)
        check_picture("--plot", str(args.plot))
    points: dict[str, list[BlockPoint]] = {}
    settings = []
    for path in args.benchmark:
        document = read_benchmark(path)
        found, setting = block_points(document), document["setting"]
        if len(found) < 2:
            raise option_error("BENCHMARK", path, "one with a --decoder 'blockwise ...'")
        if document["title"] in points:
            raise option_error("BENCHMARK", path, f"one title each; {document['title']!r} is twice")
        points[document["title"]] = found
        settings.append(
            f"{document['title']}: batch 1, {setting['dtype']}, {setting['device']}, "
            f"{setting['threads'][0]} thread(s), {setting['timed sentences']} sentences."
        )
    rows: list[Cells] = []
    for title, ones in points.items():
        for point in ones:
            row: Cells = {"benchmark": title} if len(points) > 1 else {}
            row |= {
                "decoder": point.name,
                "label": point.label,
                "mean_accepted_block": round(point.block, 2),
                "passes_per_sentence": round(point.passes, 2),
                "length_ratio": round(point.length, 3),
                AGAINST[OWN_GREEDY]: point.speed_ups[OWN_GREEDY],
                AGAINST[GREEDY]: point.speed_ups[GREEDY],
            }
            rows.append(row)
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
    plot = None if args.plot is None else check_picture("--plot", args.plot)
    document = read_benchmark(args.benchmark)
    found = speed_ups.table(document, args.by, args.against)
    if not found.rows:
        kinds = speed_ups.KINDS
        there = [one for one in kinds if speed_ups.in_settings(document, one, args.against)]
        allowed = f"what {args.benchmark} has data for: {', '.join(there) or 'none'}"
        raise option_error("--by", args.by, allowed)
    if plot is not None:
        from ..show.benchmark_plots import draw_speed_ups  # matplotlib takes a second to load

        draw_speed_ups(document, args.by, plot, args.against)
    return _titled(found, document)


def _titled(found: Table, document: dict[str, Any]) -> Table:
    """Return a table whose first note says what it is of."""
    return replace(found, notes=[f"{document['title']}: {found.title}.", *found.notes])


def histogram(args: argparse.Namespace) -> tuple[Table, str]:
    """Show the speed-ups of single sentences, and draw them for ``--plot``."""
    plot = None if args.plot is None else check_picture("--plot", args.plot)
    document = read_benchmark(args.benchmark)
    found = speed_ups.histogram_table(document, args.decoder, args.against)
    bars = speed_ups.bars(speed_ups.histograms(document, args.decoder, args.against))
    if plot is not None:
        from ..show.benchmark_plots import draw_histogram

        draw_histogram(document, plot, args.decoder, args.against)
    return _titled(found, document), bars


def acceptance(args: argparse.Namespace) -> Table:
    """Show how often the i-th token of a draft is accepted, and draw it for ``--plot``."""
    plot = None if args.plot is None else check_picture("--plot", args.plot)
    by_path = {}
    for path in each_once("TRACE", args.trace):
        by_path[path] = acceptance_by_position.count(read_records(path))
        if not by_path[path]:
            raise option_error("TRACE", path, f"{TRACED}, with drafts: no token was guessed here")
    by_name = named(by_path)
    if plot is not None:
        from ..show.benchmark_plots import draw_acceptance

        draw_acceptance(by_name, plot)
    rows: list[Cells] = []
    for name, found in by_name.items():
        trace: Cells = {"trace": name} if len(by_name) > 1 else {}
        rows += [trace | row for row in acceptance_by_position.rows(found)]
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
        type=Path,
        metavar="FILE.{png,svg}",
        help="draw it; labels that differ only in their last number (both 4, both 8) make a line",
    )

    picture = {"metavar": "FILE.{png,svg}", "help": "draw it"}
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
    add("--plot", **picture)

    add = command("histogram", histogram, "speed-ups of single sentences")
    add("benchmark", metavar="BENCHMARK.json", help=MEASURED)
    add(
        "--decoder",
        action="append",
        metavar="LABEL",
        help="only this one; may be repeated (default: all)",
    )
    add("--against", default=BEAM, metavar="LABEL", help=f"the baseline (default: {BEAM})")
    add("--plot", **picture)

    add = command("acceptance", acceptance, "how often the i-th token of a draft is accepted")
    add("trace", nargs="+", metavar="TRACE", help=f"{TRACED}, of a method that drafts")
    add("--plot", **picture)
