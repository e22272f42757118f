"""Settings of the lab's commands: frozen dataclasses, made once of a command's arguments."""

import argparse
import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeVar

from ..config import flag as flag_of

S = TypeVar("S")


@dataclasses.dataclass(frozen=True)
class Made:
    """What a command makes."""

    argv: Sequence[str]  # the words after ``paradec``, the subcommand's name first
    out: Path  # the JSON file to write
    title: str  # of the table


def settings(kind: type[S], args: argparse.Namespace, **made: Any) -> S:
    """Return a command's settings: each field is ``made``, or the argument of its name."""
    names = {field.name for field in dataclasses.fields(kind)}  # type: ignore[arg-type]
    return kind(**{name: getattr(args, name) for name in names - made.keys()}, **made)


# ---- settings whose fields are arguments --------------------------------------------------------


def position(metavar: str, text: str, **more: Any) -> Any:
    """Return a field that is an argument by its position."""
    return dataclasses.field(metadata={"metavar": metavar, "help": text, **more})


def flag(text: str, default: Any = None, **more: Any) -> Any:
    """Return a field that is a flag, with its help and default."""
    if default is not None and default is not False:
        shown = ",".join(map(str, default)) if isinstance(default, list) else default
        text += f" (default: {shown})"
    return dataclasses.field(metadata={"help": text, "default": default, **more})


def declare_fields(kind: type, parser: argparse.ArgumentParser) -> None:
    """Declare the arguments that the fields of a class are."""
    for field in dataclasses.fields(kind):
        if field.metadata:
            name = flag_of(field.name) if "default" in field.metadata else field.name
            parser.add_argument(name, **field.metadata)
        elif field.default is not dataclasses.MISSING:  # it is always the same
            parser.set_defaults(**{field.name: field.default})
