"""The analysis of trainings' logs, for ``paradec analyse``: loss curves side by side."""

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ...errors import option_error
from ...training import log
from ..analysis import losses
from ..data.table import Table
from .text_files import each_once, read

LOGGED = "train.log of paradec train, with ten times ten updates at least"


def compare(args: argparse.Namespace) -> Table:
    """Compare the losses of trainings, and draw them for ``--plot``."""
    runs = {}
    for path in each_once("LOG", args.log):
        curves = log.read_curves(read("LOG", path).splitlines())
        if max(curves.get(losses.TRAIN, {0: 0.0})) < 10 * losses.PARTS:
            raise option_error("LOG", path, LOGGED)
        runs[path] = curves
    folders = [Path(path).resolve().parent.name for path in runs]
    if len(set(folders)) == len(folders):
        runs = dict(zip(folders, runs.values(), strict=True))
    if args.plot is not None:
        losses.draw(runs, args.plot)
    notes = [
        "As fairseq logs it, in bits a token: training's, with dropout, as the mean of what was "
        "logged in a tenth of the updates; validation's after the last updates that all have."
    ]
    return losses.table(runs, notes)


def declare(command: Callable[..., Any]) -> None:
    """Declare the subcommand; see ``analyse.declare``."""
    add = command("losses", compare, "loss curves of trainings side by side")
    add("log", nargs="+", metavar="LOG", help=f"{LOGGED}; named by its folder")
    add("--plot", metavar="FILE.{png,svg}", help="draw it")
