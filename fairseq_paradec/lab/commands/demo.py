"""Translate the same sentences by every decoder, and print one table.

Sentences are decoded one by one on the CPU. The table has passes, time, and equality with greedy.
"""

import argparse
from pathlib import Path
from typing import Any

from ...cli import arguments
from ...errors import option_error
from ...registry import METHODS
from ..measure.traits import DRAFTERS, drafting
from ..settings import settings

DEFAULT_DATA = Path(__file__).resolve().parents[3] / "data-bin" / "demo-small.en-de"


def declare(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.set_defaults(fails="an exact decoder is not exact")
    parser.epilog = 'example: paradec demo --sentences 20 --text "A dog runs."'
    add, number = parser.add_argument, arguments.whole_number
    add("--data", type=Path, default=DEFAULT_DATA, help="fairseq data-bin folder, `test` subset")
    add("--path", type=Path, help="checkpoint (default: DATA/model.pt)")
    add("--drafter-path", type=Path, help="for gad and gad_pp (default: DATA/drafter.pt, if there)")
    add("--heads-path", type=Path, help="for blockwise (default: DATA/heads.pt, if there)")
    add("--assistant-path", type=Path, help="for assisted (default: DATA/assistant.pt, if there)")
    add("--sentences", type=number, default=100, help="how many at most (default: 100)")
    add("--rounds", type=number, default=1, help="timed rounds (default: 1)")
    add("--block-size", type=number, default=5, help="positions per pass (default: 5)")
    add(
        "--text",
        type=arguments.utf8,
        help="a sentence of your own, translated by DATA's model after the table",
    )
    add("--threads", type=number, default=1, help="CPU threads (default: 1)")


def run(args: argparse.Namespace) -> int:
    """Print the table; return 1 if an exact decoder diverged beyond ties."""
    from ..measure.demo import Settings, demo

    if args.data == DEFAULT_DATA and not DEFAULT_DATA.is_dir():
        raise option_error(
            "--data",
            None,
            "a data folder; an installed package has none: the demo's is data-bin/demo-small.en-de "
            "in a checkout of the source",
        )
    drafters = {kind: getattr(args, f"{name}_path") for kind, name in DRAFTERS.items()}
    for kind, given in drafters.items():
        if given is not None and not given.is_file():
            allowed = "a checkpoint; there is no such file"
            raise option_error(f"--{DRAFTERS[kind]}-path", str(given), allowed)
    with arguments.quiet():
        status = demo(settings(Settings, args, drafters=drafters))
        if args.text:
            print("\n" + translated(args.data, args.text))
    return status


def translated(data: Path, text: str) -> str:
    """Translate a sentence by the folder's model, with each drafter that lies beside it.

    Raises:
        UsageError: DATA is no model folder.
    """
    from ...translator.translator import Translator

    translator = Translator(data, flag="--data")
    lines = [f"source       {text}"]
    for decoding in ("greedy", *drafting()):
        kind = METHODS[decoding].drafter
        path = None if kind is None else data / f"{DRAFTERS[kind]}.pt"
        if path is None or path.is_file():
            more: dict[str, Any] = {} if path is None else {"drafter_path": str(path)}
            (found,) = translator.results([text], decoding=decoding, **more)
            lines.append(f"{decoding:<13}{found.problem or found.text}")
    return "\n".join(lines)
