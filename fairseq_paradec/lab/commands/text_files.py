"""Files of texts and scores: plain text, or what fairseq-generate printed."""

import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ... import records
from ...errors import UsageError, option_error
from ...files import read

# Line types of fairseq-generate by kind of text; the first that is there counts.
TRANSLATION, REFERENCE, SOURCE = ("D", "H"), ("T",), ("S",)
PRINTED = re.compile(r"^([SHDTP])-(\d+)\t", re.MULTILINE)
SCORED = "what fairseq-generate --score-reference printed"


def printed(path: str, text: str, kind: str) -> dict[int, str]:
    """Return what fairseq-generate printed for each sentence.

    Returns:
        The line's last column, by number in ascending order.

    Raises:
        UsageError: a number occurs twice.
    """
    lines: dict[int, str] = {}
    for line in text.split("\n"):
        match = PRINTED.match(line)
        if match is None or match[1] != kind:
            continue
        number = int(match[2])
        if number in lines:
            raise UsageError(
                f"{path}: got two lines {kind}-{number}; allowed: one run, without --nbest"
            )
        lines[number] = line.split("\t")[-1]
    return dict(sorted(lines.items()))


def sentences(flag: str, path: str, kinds: Sequence[str]) -> list[str]:
    """Read texts, one per sentence, in the order of the data set.

    Raises:
        UsageError: they cannot be read, or some are missing.
    """
    text = read(flag, path)
    there = {match[1] for match in PRINTED.finditer(text)}
    if not there:
        return text.removesuffix("\n").split("\n")
    for kind in kinds:
        if kind in there:
            lines = printed(path, text, kind)
            gaps = sorted(set(range(len(lines))) - set(lines))
            if gaps:
                raise UsageError(
                    f"{path}: got no line {kind}-{gaps[0]}; allowed: all sentences of a test set"
                )
            return list(lines.values())
    raise option_error(flag, path, f"fairseq-generate's output with lines {' or '.join(kinds)}-")


def same_number(texts: Mapping[str, Sequence[Any]]) -> None:
    """Refuse files of different lengths."""
    (first, lines), *others = texts.items()
    for path, other in others:
        if len(other) != len(lines):
            raise UsageError(
                f"{path}: got {len(other)} sentences; allowed: {len(lines)}, as in {first}"
            )


def scores(flag: str, path: str) -> dict[int, list[float]]:
    """Read log2-probabilities of targets' tokens, by sentence, as ``--score-reference`` has it.

    Raises:
        UsageError: it is another file.
    """
    lines = printed(path, read(flag, path), "P")
    if not lines:
        raise option_error(flag, path, f"{SCORED}; this has no lines P-")
    values = {}
    for number, text in lines.items():
        try:
            values[number] = [float(word) for word in text.split()]
        except ValueError as error:
            raise UsageError(f"{path}: got a line P-{number} that is not all numbers") from error
        if not values[number] or not all(map(math.isfinite, values[number])):
            raise UsageError(
                f"{path}: got {text!r} in line P-{number}; allowed: one log-probability a token"
            )
    return values


def named(by_path: Mapping[str, Any]) -> dict[str, Any]:
    """Name files without folder and ending, if these names differ."""
    names = [Path(path).stem for path in by_path]
    if len(set(names)) < len(names):
        names = list(by_path)
    return dict(zip(names, by_path.values(), strict=True))


def each_once(name: str, paths: Sequence[str]) -> Sequence[str]:
    """Return the files of an argument; refuse one that is named twice."""
    if len(set(paths)) < len(paths):
        raise option_error(name, " ".join(paths), "each file once")
    return paths


def seconds_of(path: str, count: int) -> list[float]:
    """Read the time of each sentence, as ``--stats-file`` wrote it at ``--batch-size 1``.

    Raises:
        UsageError: it is another file, or a sentence has no time of its own.
    """
    times: dict[int, float] = {}
    for number, record in records.read(path, records.STATS, "--stats"):
        if record.get("batch_size") != 1:
            raise UsageError(
                f"{path}, line {number}: got a batch of {record.get('batch_size')}; allowed: "
                "--batch-size 1, for a time of each sentence"
            )
        sentence, seconds = record.get("id"), record.get("batch_seconds")
        if type(sentence) is not int or type(seconds) is not float or not seconds > 0:
            raise UsageError(
                f"{path}, line {number}: got id {sentence!r} and batch_seconds {seconds!r}; "
                "allowed: a sentence's number, and seconds above 0"
            )
        times[sentence] = seconds
    if set(times) != set(range(count)):
        raise UsageError(f"{path}: got {len(times)} sentences; allowed: 0 to {count - 1}, all")
    return [times[i] for i in range(count)]
