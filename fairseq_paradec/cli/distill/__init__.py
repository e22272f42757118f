"""The steps of scripts/distill.sh."""

from __future__ import annotations

import argparse

from .. import arguments

#: By name; a step is the module of this name here.
STEPS = {
    "parts": "begin a folder of parts, or check an existing one's settings",
    "shard": "translate some shards",
    "merge": "make a data folder of all parts",
}


def declare(parser: argparse.ArgumentParser) -> None:
    """Declare the steps."""
    arguments.declare_steps(parser, __name__, STEPS)


def run(args: argparse.Namespace) -> int:
    """Run one step."""
    return args.step(args)
