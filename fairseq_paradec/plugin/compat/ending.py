"""Input and end of fairseq-generate and fairseq-interactive: text, lines, an exit status."""

import sys
from typing import Any

from fairseq import options

from ...output import FAILED, open_streams, whole_lines
from .data import explain_input
from .patching import Function, around, wrap_once

_COMMANDS = ("fairseq_cli.generate", "fairseq_cli.interactive")


def end_commands() -> None:
    """Let both commands print whole lines, and say by their exit status what went wrong.

    Fault: fairseq 0.12 loses finished lines at a signal, ends with a traceback if nobody reads its
    output on or a standard stream is closed, and has no exit status but that of an error, though a
    report may have been dropped or an audit failed. Text that cannot be read is a traceback, too.
    The commands' modules may be imported after this one, before they parse.
    """

    @around(options, "parse_args_and_arch", fix="end_commands")
    def parse(original: Function, *args: Any, **kwargs: Any) -> Any:
        open_streams()
        _wrap_commands()
        return original(*args, **kwargs)

    _wrap_commands()


def _wrap_commands() -> None:
    """Wrap ``main`` of the commands that are imported; with ``python -m`` one is __main__."""
    for module in map(sys.modules.get, ("__main__", *_COMMANDS)):
        name = getattr(getattr(module, "__spec__", None), "name", None)
        if name in _COMMANDS and hasattr(module, "main"):
            wrap_once(module, "main", _with_status)
        if name in _COMMANDS and hasattr(module, "buffered_read"):
            wrap_once(module, "buffered_read", explain_input)


def _with_status(original: Function) -> Function:
    """Wrap ``main``."""

    def main(*args: Any, **kwargs: Any) -> Any:
        with whole_lines():
            result = original(*args, **kwargs)
        if FAILED:
            sys.exit(1)
        return result

    return main
