"""Serve translations over HTTP by model folders, and a page that shows how they are made.

The server has LibreTranslate's API (POST /translate), POST /v1/translations with streams, GET
/languages, /health, /metrics and /docs (docs/serve.md). Sentences that wait are decoded together;
an answer is that of paradec translate, whatever is decoded beside it. After SIGTERM or Ctrl-C the
server finishes what it accepted.
"""

import argparse
import dataclasses
from pathlib import Path
from typing import Any

from .. import extras
from ..config import ALL, TEXT_RULES, flag
from ..errors import option_error
from ..serve.settings import ServerSettings
from . import arguments

_DEFAULTS = {field.name: field.default for field in dataclasses.fields(ServerSettings)}


def declare(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.set_defaults(plugin=False)
    parser.usage = "%(prog)s --model DIR [--model DIR ...] [--port N]"
    parser.epilog = "example: paradec serve --model data-bin/demo.en-de"
    number, seconds = arguments.whole_number, arguments.positive

    def add(name: str, text: str, **more: Any) -> None:
        default = _DEFAULTS.get(name.lstrip("-").replace("-", "_"))
        shown = "" if default in (None, (), False) else f" (default: {default})"
        parser.add_argument(name, help=text + shown, default=default, **more)

    parser.add_argument(
        "--model",
        metavar="DIR",
        action="append",
        required=True,
        help=f"{arguments.MODEL}; may be repeated, for other languages",
    )
    add("--host", "the address to listen at; 0.0.0.0: all of this machine")
    add("--port", "its port; 0: a free one", type=port)
    add("--workers", "processes, each with its own models and batches", type=number)
    add("--threads", "decoding threads of a process, which share its weights", type=number)
    add("--cores", "CPU threads of a decoding thread (default: all cores, shared)", type=number)
    add("--batch-size", "sentences decoded together, at most", type=number)
    add("--max-tokens", "source tokens decoded together, at most", type=number)
    add(
        "--decoding",
        "the decoder of requests that name none (default: as paradec translate)",
        metavar="D",
    )
    add("--speed-profile", "a file in which auto_fast keeps what it measured", metavar="FILE")
    for name in TEXT_RULES:
        text = f"{ALL[name].help} (default: as the model's folder has it)"
        add(flag(name), text, type=ALL[name].kind)
    add("--max-beam", "the largest beam that a request may ask for", type=number)
    limits = "answered by 413, 503 or 504"
    add("--max-characters", f"of the texts of a request; limits are {limits}", type=number)
    add("--max-body", "bytes of a request", type=number)
    add("--max-waiting", "sentences that wait", type=number)
    add("--timeout", "seconds of a request, from its first byte to the answer's last", type=seconds)
    add("--idle", "seconds that a connection is kept open without a request", type=seconds)
    add("--drain", "seconds that requests have to finish after SIGTERM", type=seconds)
    add("--api-key-file", "a key a line; a request needs one of them", type=Path, metavar="FILE")
    parser.add_argument(
        "--allow-origin",
        metavar="ORIGIN",
        action="append",
        default=[],
        help="pages of this origin may ask, such as https://example.org; *: all (default: none "
        "but its own)",
    )
    parser.add_argument("--log-texts", action="store_true", help="log the texts of requests, too")


def port(text: str) -> int:
    """Read the number of a port."""
    if not text.isdecimal() or int(text) > 65535:
        raise argparse.ArgumentTypeError(f"got {text!r}; allowed: 0 to 65535")
    return int(text)


def keys(file: Path | None) -> tuple[str, ...]:
    """Read the API keys of a file.

    Raises:
        UsageError: it cannot be read, or has none.
    """
    if file is None:
        return ()
    try:
        api_keys = tuple(filter(None, map(str.strip, file.read_text("utf-8").splitlines())))
    except (OSError, ValueError) as error:
        raise option_error("--api-key-file", str(file), f"a text file ({error})") from error
    if not api_keys:
        raise option_error("--api-key-file", str(file), "a file with a key a line; it has none")
    return api_keys


def run(args: argparse.Namespace) -> int:
    """Serve until a signal comes."""
    extras.require(extras.SERVE, "serve")
    from ..serve.run import serve
    from ..translator.hub import folder_of

    same = {name: value for name, value in vars(args).items() if name in _DEFAULTS}
    own = {
        "models": tuple(str(folder_of(given)) for given in args.model),
        "api_keys": keys(args.api_key_file),
        "origins": tuple(args.allow_origin),
    }
    with arguments.warnings_alone():
        serve(ServerSettings(**same | own))
    return 0
