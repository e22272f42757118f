#!/usr/bin/env python3
"""Make checkpoint_last.pt of a training run whole, and print after how many updates it is.

fairseq writes one checkpoint under a temporary name and then copies it, in place, to
checkpoint_best.pt and checkpoint_last.pt, so that a kill can leave a torn or an old copy. The
newest whole checkpoint takes its place. 0 is printed if there is no checkpoint yet.
"""

from __future__ import annotations

import argparse
import shutil
import sys
from pathlib import Path

from average_checkpoints import count_updates, read


def mend(folder: Path) -> int:
    """Make ``checkpoint_last.pt`` the newest whole checkpoint; return its number of updates.

    Raises:
        ValueError: there are checkpoints, but none is whole.
    """
    last = folder / "checkpoint_last.pt"
    found, error = {}, None
    for path in sorted(folder.glob("checkpoint*.pt")):
        try:
            found[path] = count_updates(read(path))
        except ValueError as broken:
            error = broken
            print(f"resume_checkpoint: not used: {path}", file=sys.stderr)
    if not found:
        if error is not None:
            raise error
        return 0
    newest = max(found, key=lambda path: found[path])
    if found.get(last, -1) < found[newest]:
        partial = folder / "checkpoint_last.partial"
        shutil.copyfile(newest, partial)
        partial.replace(last)
        print(f"resume_checkpoint: going on from {newest}", file=sys.stderr)
    return found[newest]


def main(argv: list[str] | None = None) -> int:
    """Mend one run's folder; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, metavar="DIR", help="of a training run (--save-dir)")
    try:
        print(mend(parser.parse_args(argv).folder))
    except ValueError as error:
        print(f"resume_checkpoint: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
