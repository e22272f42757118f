"""The rows of ``paradec acceptance``: what a setting's outputs and passes come to."""

import collections
import itertools
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from ...registry import METHODS
from ..analysis.blocks import METHOD, SINGLE_TOKENS, block_sizes
from ..data.table import Cells, Table, column
from ..show.table import terminal_table
from .systems import EXACT, OTHER_MODEL, RELAXED

BLOCK = column("mean_accepted_block", "mean accepted block (tokens / blocks)")
HISTOGRAM = column("accepted_histogram", "% of passes that accept 0, 1, 2, ... tokens", "%", ".0f")

Options = dict[str, Any]


def row(
    options: Options,
    entry: dict[str, Any],
    wanted: Sequence[list[str]],
    base: Sequence[list[str]],
    model: str | None = None,
) -> Cells:
    """Sum up one setting.

    Args:
        options: the setting.
        entry: the result of ``counted``.
        wanted: the judge's tokens.
        base: the judge's tokens with the first model.
        model: its name, if there are several.
    """
    flags, outputs = entry["flags"], entry["tokens"]
    tokens, passes = sum(map(len, outputs)), sum(entry["passes"])
    drafted = sum(map(sum, entry["drafted"]))
    accepted = sum(map(sum, entry["accepted"]))
    return {
        "model": model,
        "decoder": options["decoding"],
        "label": label(options, entry, wanted),
        "drafter": options.get("drafter_path"),
        "k": flags.get("block_size"),
        "confidence": options.get("draft_confidence"),
        "nodes": options.get("draft_tree"),
        "beta": flags.get("accept_topk"),
        "tau": flags.get("accept_margin"),
        "epsilon": options.get("accept_distance"),
        "l": options.get("min_block"),
        "sentences": len(outputs),
        "tokens": tokens,
        "length_ratio": round(tokens / sum(map(len, base)), 3),
        "passes_per_sentence": round(passes / len(outputs), 3),
        "tokens_per_pass": round(tokens / passes, 3),
        BLOCK: mean_block(entry) if options["decoding"] in (SINGLE_TOKENS, METHOD) else None,
        "accepted_per_pass": round(accepted / passes, 3) if drafted else None,
        column("identical", "identical, %", "%"): round(
            100 * _same(outputs, wanted) / len(outputs), 2
        ),
        "ties": entry["ties"],
    }


def label(options: Options, entry: dict[str, Any], wanted: Sequence[list[str]]) -> str:
    """Return the label of a setting's outputs against its model's greedy search.

    A lossless setting with an output that differs by more than a tie is not labelled exact.
    """
    if drafts_alone(options["decoding"]):
        return OTHER_MODEL
    if entry["ties"] is None:
        return RELAXED
    beyond = len(wanted) - _same(entry["tokens"], wanted) - entry["ties"]
    if beyond:
        return f"NOT EXACT ({beyond} of {len(wanted)})"
    return f"{EXACT} but for {entry['ties']} ties of {len(wanted)}" if entry["ties"] else EXACT


def mean_block(entry: dict[str, Any]) -> float:
    """Return the mean accepted block size, over all blocks of all sentences."""
    sizes = [
        size
        for accepted, tokens in zip(entry["accepted"], entry["tokens"], strict=True)
        for size in block_sizes(accepted, len(tokens))
    ]
    return round(sum(sizes) / len(sizes), 3)


def histogram(entry: dict[str, Any]) -> Cells:
    """Return the column with the share of passes for each number of accepted tokens."""
    counts = collections.Counter(itertools.chain(*entry["accepted"]))
    shares = tuple(100 * counts[i] / counts.total() for i in range(max(counts) + 1))
    return {HISTOGRAM: shares if any(map(any, entry["drafted"])) else None}


def _same(ours: Sequence[list[str]], theirs: Sequence[list[str]]) -> int:
    return sum(a == b for a, b in zip(ours, theirs, strict=True))


def shown(found: Table) -> str:
    """Format for a terminal: columns with a value, and the drafter's if there are several."""
    drafters = {row.get("drafter") for row in found.rows} - {None}
    columns = [
        one
        for one in found.columns
        if any(row[one.key] is not None for row in found.rows)
        and (one.key != "drafter" or len(drafters) > 1)
    ]
    return terminal_table(replace(found, columns=columns))


def drafts_alone(decoding: str) -> bool:
    """Return whether a method decodes a drafter without a verifier."""
    return METHODS[decoding].drafts_alone if decoding in METHODS else False
