"""Repair checkpoint_last.pt of a training run, and print its number of updates.

fairseq writes one checkpoint under a temporary name and then copies it, in place, to
checkpoint_best.pt and checkpoint_last.pt, so a killed run can leave a damaged or an old copy. The
newest undamaged checkpoint replaces it. Without a checkpoint, 0 is printed.
"""

from __future__ import annotations

import argparse
import shutil
import sys
from pathlib import Path

from ..errors import UsageError
from .average import count_updates, read


def repair(folder: Path) -> int:
    """Make ``checkpoint_last.pt`` the newest undamaged checkpoint; return its number of updates.

    Raises:
        UsageError: all checkpoints are damaged.
    """
    last = folder / "checkpoint_last.pt"
    found, error = {}, None
    for path in sorted(folder.glob("checkpoint*.pt")):
        try:
            found[path] = count_updates(read(path))
        except UsageError as broken:
            error = broken
            print(f"paradec resume: not used: {path}", file=sys.stderr)
    if not found:
        if error is not None:
            raise error
        return 0
    newest = max(found, key=lambda path: found[path])
    if found.get(last, -1) < found[newest]:
        partial = folder / "checkpoint_last.partial"
        shutil.copyfile(newest, partial)
        partial.replace(last)
        print(f"paradec resume: going on from {newest}", file=sys.stderr)
    return found[newest]


def declare(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("folder", type=Path, metavar="DIR", help="of a training run (--save-dir)")


def run(args: argparse.Namespace) -> int:
    """Repair one run's folder."""
    print(repair(args.folder))
    return 0
