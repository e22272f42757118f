"""Settings of the lab's commands: frozen dataclasses, made once of a command's arguments."""

import argparse
import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeVar

S = TypeVar("S")


@dataclasses.dataclass(frozen=True)
class Made:
    """What a command makes."""

    argv: Sequence[str]  # the words after ``paradec``, the subcommand's name first
    out: Path  # the JSON file to write
    title: str  # of the table


@dataclasses.dataclass(frozen=True)
class Timing:
    """How a command times."""

    rounds: int  # so many, interleaved
    threads: int  # of the CPU
    busy: bool  # also while others use the machine


def settings(kind: type[S], args: argparse.Namespace, **made: Any) -> S:
    """Return a command's settings: each field is ``made``, or the argument of its name."""
    names = {field.name for field in dataclasses.fields(kind)}  # type: ignore[arg-type]
    return kind(**{name: getattr(args, name) for name in names - made.keys()}, **made)
