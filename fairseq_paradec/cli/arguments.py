"""Common parts of the parsers: types of arguments, and the end of a command."""

import argparse
import contextlib
import gc
import importlib
import logging
import os
import textwrap
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from .. import extras
from ..config import LARGEST
from ..errors import UsageError, suggestion
from ..output import complain, flush_errors, printable, whole_lines

#: Threads of a process.
MOST_THREADS = 1024

#: What ``--model`` takes, for its help.
MODEL = (
    "a folder that paradec pack or import made, or a model's name on Hugging Face's hub, such as "
    "Helsinki-NLP/opus-mt-en-de"
)

#: Sizes of random weights; see lab/profile/passes/models.py.
ARCH_SIZES = ("tiny", "small", "base", "big", "nllb-600m", "nllb-3.3b")


class _Help(argparse.HelpFormatter):
    """argparse's, which would part the words of an example at hyphens."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        return textwrap.fill(
            " ".join(text.split()),
            width,
            initial_indent=indent,
            subsequent_indent=indent,
            break_long_words=False,
            break_on_hyphens=False,
        )


class Parser(argparse.ArgumentParser):
    """A parser whose messages and help are as all others, in every version of Python.

    ``set_defaults(fails=...)`` says when the command's exit status is 1, and ``intermixed=True``
    that a list of words may have flags between them.

    Attributes:
        note: what the help says last; empty: nothing.
    """

    note = ""

    def __init__(self, **given: Any) -> None:
        super().__init__(**({"formatter_class": _Help} | given))

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        """As argparse; only the words differ."""
        if action.choices is not None and value not in action.choices:
            names, like = [*map(str, action.choices)], ""
            if isinstance(action, argparse._SubParsersAction):
                like = suggestion(str(value), names)
            allowed = ", ".join(names)
            raise argparse.ArgumentError(action, f"got {value!r}{like}; allowed: {allowed}")

    def parse_args(self, args: Any = None, namespace: Any = None) -> Any:
        """As argparse, with the flag that is like an unknown one."""
        # Words may then stand on both sides of a flag.
        mixed = self.get_default("intermixed")
        read = self.parse_known_intermixed_args if mixed else self.parse_known_args
        known, unknown = read(args, namespace)
        if unknown:
            flag = unknown[0].partition("=")[0]
            like = suggestion(flag, self._flags()) if flag.startswith("-") else ""
            self.error(f"unrecognized arguments: {' '.join(unknown)}{like}")
        return known

    def _flags(self) -> Iterator[str]:
        """Yield the flags, those of subcommands among them."""
        for action in self._actions:
            yield from action.option_strings
            if isinstance(action, argparse._SubParsersAction):
                for parser in action.choices.values():
                    yield from parser._flags()

    def format_help(self) -> str:
        """As argparse, with the exit statuses, and the note."""
        note = f"{textwrap.fill(self.note, 78)}\n" if self.note else ""
        return f"{super().format_help()}\n{exit_statuses(self.get_default('fails'))}\n{note}"

    def print_help(self, file: Any = None) -> None:
        """As argparse, which would not say that a disk is full."""
        print(self.format_help(), end="", file=file)


def exit_statuses(fails: str | None) -> str:
    """Return what a help says of exit statuses; ``fails``: when it is 1."""
    failure = f"1 if {fails}; " if fails else ""
    text = (
        f"exit status: 0; {failure}2 after a mistake, 130 after Ctrl-C, "
        "141 if nobody reads its output"
    )
    return textwrap.fill(text, 78)


def whole_number(text: str) -> int:
    """Read an argument that is a whole number from 1 up.

    Raises:
        ArgumentTypeError: it is none; argparse adds the flag's name.
    """
    if not text.isdecimal() or not text.strip("0"):
        raise argparse.ArgumentTypeError(f"got {text!r}; allowed: a whole number from 1 up")
    if len(text) > 10 or int(text) > LARGEST:
        raise argparse.ArgumentTypeError(f"got {text[:20]!r}; allowed: {LARGEST} at most")
    return int(text)


def utf8(text: str) -> str:
    """Read an argument that is text; Python reads bytes that are no UTF-8 as half characters."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise argparse.ArgumentTypeError(f"got {text!r}; allowed: text in UTF-8") from error
    return text


def number_of_threads(text: str) -> int:
    """Read a number of threads; OpenMP ends a process that asks for too many."""
    count = whole_number(text)
    if count > MOST_THREADS:
        raise argparse.ArgumentTypeError(f"got {text!r}; allowed: {MOST_THREADS} at most")
    return count


def positive(text: str) -> float:
    """Read an argument that is a number above 0."""
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"got {text!r}; allowed: a number above 0")
    return value


def whole_numbers(text: str) -> list[int]:
    """Read an argument that is a list of whole numbers with commas between them, each once."""
    return [*dict.fromkeys(map(whole_number, text.split(",")))]


def declare_table(parser: argparse.ArgumentParser, title: str | None, required: bool) -> None:
    """Declare the flags of the table that a command writes."""
    parser.add_argument("--title", default=title, help="heading of the result, on pages")
    parser.add_argument("--out", type=Path, required=required, help="JSON file to write")


def declare_languages(parser: argparse.ArgumentParser) -> None:
    """Declare ``--source`` and ``--target`` beside a model's name on the hub."""
    for side in ("source", "target"):
        text = f"the {side} language of a model of the hub that has several, such as eng_Latn"
        parser.add_argument(f"--{side}", dest=f"{side}_language", metavar="LANGUAGE", help=text)


def declare_device(parser: argparse.ArgumentParser) -> None:
    """Declare ``--device``."""
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu", help="(default: cpu)")


def declare_steps(parser: argparse.ArgumentParser, package: str, steps: Mapping[str, str]) -> None:
    """Declare the modules of a package as subcommands, each with its ``declare`` and ``run``.

    Args:
        parser: of the command.
        package: its name.
        steps: what each does, by name. A step that needs the package registered with fairseq sets
            ``parser.set_defaults(plugin=True)``.
    """
    commands = parser.add_subparsers(metavar="STEP", required=True)
    for name, text in steps.items():
        module = importlib.import_module(f"{package}.{name.replace('-', '_')}")
        command = commands.add_parser(name, help=text, description=module.__doc__)
        command.set_defaults(step=module.run, plugin=False)
        module.declare(command)


def run(name: str, command: Callable[[], int]) -> int:
    """Run a command; return its exit status: 2 for a user's mistake, 130 for Ctrl-C.

    Raises:
        SystemExit: nobody reads its output on.
    """
    try:
        with whole_lines(), extras.named():
            return command()
    except (UsageError, OSError) as error:
        lines = map(printable, str(error).split("\n"))  # errors may quote texts of files
        complain(f"{name}: error: " + "\n".join(lines))
        return 2
    except KeyboardInterrupt:
        complain(f"{name}: stopped")
        return 130
    finally:
        flush_errors()


@contextlib.contextmanager
def quiet(level: int = logging.WARNING) -> Iterator[None]:
    """Log only what is above a level, so that a command prints its table alone.

    Generators log a closing line, and audits every sentence that differs.
    """
    logging.disable(level)
    try:
        yield
    finally:
        gc.collect()
        logging.disable(logging.NOTSET)


@contextlib.contextmanager
def warnings_alone() -> Iterator[None]:
    """Log warnings and errors, without fairseq's settings and closing lines; or by ``LOGLEVEL``.

    After an error the level stays, as the error keeps generators alive, which log when they end.
    """
    root = logging.getLogger()
    before = root.level
    root.setLevel(os.environ.get("LOGLEVEL", "WARNING").upper())
    yield
    gc.collect()
    root.setLevel(before)
