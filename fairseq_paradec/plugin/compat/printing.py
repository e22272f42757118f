"""Fixes of the output of fairseq's commands: warnings, log, translated sentences, errors."""

import logging
import os
import re
import sys
import traceback
import warnings
from types import FrameType
from typing import Any

from ...errors import UsageError
from .patching import Function, around

#: fairseq's own log format, which its commands pass to ``logging.basicConfig``.
LOG_FORMAT = "%(asctime)s | %(levelname)s | %(name)s | %(message)s"
LOG_DATE_FORMAT = "%Y-%m-%d %H:%M:%S"

#: (category, start of message, module) of warnings that a user of fairseq cannot act on.
_REPEATED: tuple[tuple[type[Warning], str, str], ...] = (
    # hydra-core 1.3: fairseq calls its API of 1.0. The last warning's module is fairseq's caller.
    (UserWarning, r"hydra\.experimental\.\w+\(\) is no longer experimental", r"hydra\."),
    (UserWarning, r"\s*The version_base parameter is not specified", r"hydra\."),
    (UserWarning, r"In '.*': Usage of deprecated keyword in package header", r"hydra\."),
    (UserWarning, r"\s*The strict flag in the compose API is deprecated", r"hydra\."),
    (UserWarning, r"\s*'config' is validated against ConfigStore schema", r""),
    # torch 2: fairseq uses pinned memory and CUDA's autocast on the CPU, and mixes mask types.
    (UserWarning, r"'pin_memory' argument is set as true but no accelerator", r"torch\.utils"),
    (FutureWarning, r"`torch\.cuda\.amp\.\w+\(args\.\.\.\)` is deprecated", r"fairseq\."),
    (UserWarning, r"Support for mismatched key_padding_mask and attn_mask", r"torch\.nn"),
)

#: What fairseq's errors say if they are meant for its user.
_TOLD = r"--[a-z]|[Pp]lease |Unknown "


def silence_warnings() -> None:
    """Filter warnings that repeat at every start and that a user cannot act on.

    Fault: fairseq 0.12 with hydra-core 1.3 and torch 2.13 prints about twenty lines of them at the
    start of a command. Filters match category, message and module; other warnings still show.
    """
    for category, message, module in _REPEATED:
        warnings.filterwarnings("ignore", category=category, message=message, module=module)


def set_log_level() -> None:
    """Set the root logger to the level and format of fairseq's commands.

    Fault: fairseq 0.12 configures logging while it is imported (``logging.basicConfig(DEBUG)`` in
    models/wav2vec/wav2vec2_classification.py), so that the set-up of generate, interactive and
    validate comes too late and is ignored. A root logger with another set-up is not changed.
    """
    root = logging.getLogger()
    if root.level != logging.DEBUG:
        return
    for handler in root.handlers:
        if getattr(handler.formatter, "_fmt", None) == logging.BASIC_FORMAT:
            handler.setFormatter(logging.Formatter(LOG_FORMAT, LOG_DATE_FORMAT))
            root.setLevel(os.environ.get("LOGLEVEL", "INFO").upper())


def report_translated_sentences() -> None:
    """Also write generate's line "Translated N sentences" to the file of ``--results-path``.

    Fault: with the root logger configured too early (see ``set_log_level``) the line goes to stderr
    only, while fairseq 0.12 intends it for the results.
    """
    target = logging.getLogger("fairseq_cli.generate")
    if not any(type(f).__name__ == _TranslatedToResults.__name__ for f in target.filters):
        target.addFilter(_TranslatedToResults())


class _TranslatedToResults(logging.Filter):
    """Copies the record to the open results file; lets every record pass."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Copy the record of that line; return True for every record."""
        if str(record.msg).startswith("Translated "):
            results = self._results_file()
            if results is not None:
                line = logging.Formatter(LOG_FORMAT, LOG_DATE_FORMAT).format(record)
                print(line, file=results)
        return True

    @staticmethod
    def _results_file() -> Any:
        """Return the file that generate's ``_main`` writes to; None if that is stdout.

        Only a local variable of the running function holds it.
        """
        frame: FrameType | None = sys._getframe()
        while frame is not None:
            # Under "python -m fairseq_cli.generate" the module is __main__, so match the function.
            if frame.f_code.co_name == "_main" and "output_file" in frame.f_locals:
                output = frame.f_locals["output_file"]
                return None if output is sys.stdout else output
            frame = frame.f_back
        return None


def print_usage_errors() -> None:
    """Print a UsageError as one line, and end with status 2.

    Fault: fairseq's commands have no handler for wrong input, so about ten frames of fairseq
    precede the message, and the status is 1. ``LOGLEVEL=DEBUG`` shows the frames; other errors are
    not changed, and a Python prompt goes on.
    """

    @around(sys, "excepthook")
    def excepthook(
        original: Function, kind: type[BaseException], error: BaseException, trace: Any
    ) -> None:
        # Compare by name: a second copy of the package has its own class.
        usage = kind.__name__ == UsageError.__name__
        if usage and os.environ.get("LOGLEVEL", "").upper() != "DEBUG":
            # With several ranks torch keeps sys.stderr until this hook returns, which it does
            # not, and fairseq silences print.
            (sys.__stderr__ or sys.stderr).write(f"error: {error}\n")
        else:
            original(kind, error, trace)
        if usage and not hasattr(sys, "ps1"):
            raise SystemExit(2)


def quote_fairseq() -> None:
    """Make a UsageError of what fairseq itself tells its user.

    Fault: fairseq 0.12 asserts and raises general errors about flags and files, such as "Must
    specify batch size either with --max-tokens or --batch-size". Taken for such: an assertion in
    words, an error of fairseq's own code that names a flag or asks for something, and the system's
    about a file. Errors of other programs that import this package are not changed.
    """

    @around(sys, "excepthook", fix="quote_fairseq")
    def excepthook(
        original: Function, kind: type[BaseException], error: BaseException, trace: Any
    ) -> None:
        places = [frame.filename for frame in traceback.extract_tb(trace)]
        command = any("/fairseq_cli/" in place for place in places)
        own = command and re.search(r"/fairseq(_cli)?/", places[-1])
        words = "[a-z]{3}" if issubclass(kind, AssertionError) else _TOLD
        told = own and kind.__name__ != UsageError.__name__ and re.search(words, str(error))
        if told or (command and isinstance(error, OSError) and error.filename):
            kind, error = UsageError, UsageError(" ".join(str(error).split()))
        original(kind, error, trace)
