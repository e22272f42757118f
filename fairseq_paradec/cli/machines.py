"""Who does the parts of a corpus: this process, several of this machine, or a Ray cluster."""

import argparse
import gc
import logging
import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

from ..errors import needs
from ..translator.corpus.cluster import GIVEN_UP, Actors
from ..translator.corpus.crews import Load, Processes, Work, alone, distribute
from ..translator.corpus.parts import Crew
from . import arguments


def declare(parser: argparse._ActionsContainer) -> None:
    """Declare the flags of the workers."""
    parser.add_argument(
        "--cluster",
        metavar="ADDRESS",
        help="local: this machine, without Ray; HOST:PORT, or auto: that Ray cluster, with the "
        "package and the same paths on its machines (default: local)",
    )
    parser.add_argument(
        "--give-up",
        type=arguments.positive,
        metavar="SECONDS",
        help="end when a cluster has had no machine for a worker for so long; finished parts are "
        f"kept (default: {GIVEN_UP})",
    )
    parser.add_argument(
        "--processes",
        type=arguments.whole_number,
        help="workers (default: 1; on a cluster: all its cores, by --threads, or its GPUs)",
    )


def check_device(args: argparse.Namespace) -> None:
    """Refuse a ``--device`` that this machine does not have, unless a cluster works."""
    from ..arrival import log_level_kept
    from ..decoding.stock_search import check_installed
    from ..engine.settings import usable_device

    if args.cluster in (None, "local"):
        if args.device != "cpu":
            with log_level_kept():
                check_installed(f"--device {args.device}")
        usable_device(args.device)


def crew(args: argparse.Namespace, load: Load) -> Crew:
    """Return who works, by ``--cluster``, ``--processes``, ``--threads`` and ``--device``.

    Raises:
        UsageError: there is no such cluster.
    """
    threads, cuda = args.threads or 1, args.device == "cuda"
    load = partial(_load, load, threads)
    if args.cluster not in (None, "local"):
        give_up = args.give_up or GIVEN_UP
        return distribute(Actors(args.cluster, load, args.processes, threads, int(cuda), give_up))
    if args.give_up is not None:
        raise needs("--give-up", args.give_up, "--cluster with a Ray cluster")
    if args.processes in (None, 1):
        return alone(load)
    # Of processes of their own; threads that spin while they wait slow each other down.
    os.environ.setdefault("OMP_NUM_THREADS", str(threads))
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    return distribute(Processes(load, args.processes, _count_devices() if cuda else 0))


def _count_devices() -> int:
    """Return how many devices torch finds."""
    import torch

    return torch.cuda.device_count()


def _load(load: Callable[[], Work], threads: int) -> Work:
    """Make a worker."""
    from ..threads import set_threads

    set_threads(threads)
    logging.getLogger().setLevel(logging.ERROR)  # what a line lacks is in the output
    return load()


@contextmanager
def stopped_softly(name: str) -> Iterator[None]:
    """End workers on SIGTERM too, and say that the work can go on; ``name``: the command's."""

    def end(number: int, frame: object) -> None:
        raise SystemExit(128 + number)

    before = signal.signal(signal.SIGTERM, end)
    level = logging.getLogger().level  # which a worker of this process changes
    try:
        yield
    except (KeyboardInterrupt, SystemExit):
        print(f"{name}: finished parts are kept, and the same command goes on", file=sys.stderr)
        raise
    finally:
        signal.signal(signal.SIGTERM, before)
        gc.collect()  # generators log when they end
        logging.getLogger().setLevel(level)
