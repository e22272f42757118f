"""Average the weights of a training run's last checkpoints, and drop the training state."""

import argparse
from pathlib import Path

from ...cli.arguments import whole_number
from ...errors import option_error


def declare(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.epilog = "example: paradec average checkpoints/tiny --last 5 --out model.pt"
    parser.add_argument("folder", type=Path, metavar="DIR", help="of a training run (--save-dir)")
    parser.add_argument("--last", type=whole_number, required=True, help="how many checkpoints")
    parser.add_argument("--out", type=Path, required=True, metavar="FILE", help="file to write")


def run(args: argparse.Namespace) -> int:
    """Average one run's checkpoints."""
    from ..checkpoints import write_average

    if not args.folder.is_dir():
        raise option_error("DIR", str(args.folder), "the folder of a training run")
    if not args.out.absolute().parent.is_dir() or args.out.is_dir():
        raise option_error("--out", str(args.out), "a file in a folder that exists")
    write_average(args.folder, args.last, args.out, "--out")
    return 0
