"""Measure one thing: what passes, drafts, modules, threads, workers, clients or starts cost.

Each WHAT is measured in interleaved rounds on an idle machine (--busy: on any), and makes one
table (passes: several): in the terminal, and in the JSON file of --out. Finished rounds are kept
beside that file: the same command goes on from there.
"""

import argparse
import importlib
from typing import Any, NamedTuple

from ...cli import arguments
from ...errors import excludes
from ..data.table import Table
from ..profile import asked
from ..settings import Made, declare_fields, settings
from .pages import check_picture


class What(NamedTuple):
    """Something that is measured, by ``measure`` of the module of its name in ``lab/profile``."""

    help: str  # one line
    title: str | None  # of the table; None: made of what is measured, and --out is not needed
    example: str  # the arguments of an example
    kind: type  # what is asked for
    resumes: bool = True  # whether finished rounds are kept, and ``measure`` takes their journal


MODEL = "data-bin/demo.en-de --path data-bin/demo.en-de/model.pt"
SMALL = "data-bin/demo-small.en-de"

WHATS = {
    "passes": What(
        "a pass, piece by piece",
        None,
        "--arch-size base --engines native,torch --chunks 1,5",
        asked.Passes,
    ),
    "launches": What(
        "what a pass launches on a GPU, and waits for",
        "Launches",
        f"{MODEL} --decoder greedy --out runs/launches.json",
        asked.Launches,
        resumes=False,
    ),
    "breakeven": What(
        "from how many tokens a pass drafting pays",
        None,
        "--arch-size base --decoder assisted --drafter-width 128 --mark tiny=assisted:4:2.9 "
        "--out runs/breakeven.json --plot runs/breakeven.svg",
        asked.BreakEven,
    ),
    "modules": What(
        "what decoders consist of: encoder, decoder, vocabulary",
        "Time per module",
        f"{MODEL} --decoder greedy --out runs/modules.json",
        asked.Modules,
    ),
    "threads": What(
        "what several threads, generators and processes give",
        "Threads and processes",
        f"{MODEL} --decoder greedy --threads 2,4 --out runs/threads.json",
        asked.Threads,
    ),
    "workers": What(
        "what several processes or a cluster give for a corpus",
        "Workers on a corpus",
        f"{SMALL}/raw/demo.en --model {SMALL} --processes 1,2 --out runs/workers.json",
        asked.Workers,
    ),
    "clients": What(
        "what clients of serve get, beside translate and Python",
        "Clients of a server",
        f"{SMALL}/raw/demo.en --model {SMALL} --out runs/clients.json",
        asked.Clients,
        resumes=False,  # a round depends on the one before it
    ),
    "start-up": What(
        "what an import, help and a first sentence cost",
        "Start-up",
        f"--model {SMALL} --out runs/start-up.json",
        asked.Starts,
    ),
    "installation": What(
        "what pip installs, and a first sentence opens of it",
        "Installation",
        f"dist/WHEEL --model {SMALL} --extra serve --out runs/installation.json",
        asked.Installation,
        resumes=False,
    ),
    "training-speed": What(
        "the updates a second of architectures",
        "Training speed",
        "data-bin/multi30k.en-de --arch transformer --arch ibdecoder --out runs/training.json",
        asked.Training,
    ),
}


def declare(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of every WHAT."""
    parser.epilog = f"example: paradec profile modules {WHATS['modules'].example}"
    parser.set_defaults(flags=[])
    parsers = parser.add_subparsers(metavar="WHAT", dest="what", required=True)
    for name, what in WHATS.items():
        own = parsers.add_parser(name, help=what.help, description=what.kind.__doc__)
        own.epilog = f"example: paradec profile {name} {what.example}"
        declare_fields(what.kind, own)
        arguments.declare_table(own, what.title, required=what.title is not None)


def run(args: argparse.Namespace) -> int:
    """Measure; return the exit status.

    Raises:
        UsageError: flags are given that the WHAT does not take.
    """
    if args.flags and args.what != "training-speed":
        raise excludes("--", True, args.what)
    what, name = WHATS[args.what], args.what.replace("-", "_")
    wanted: Any = settings(what.kind, args)
    if getattr(wanted, "plot", None) is not None:
        check_picture("--plot", str(args.plot))
    from ..data import documents
    from ..profile import harness
    from ..show.table import markdown

    if args.out is not None:
        documents.check_out(args.out)
    module = importlib.import_module(f"..profile.{name}", __package__)
    with arguments.quiet(), harness.journal(name, wanted, args.out) as journal:
        made = module.measure(wanted, journal) if what.resumes else module.measure(wanted)
        if args.out is not None and isinstance(made, Table):
            documents.save_made(Made(args.argv, args.out, args.title or made.title), made)
        elif args.out is not None:  # raw samples
            documents.write(args.out, documents.compact(made.content))
    if isinstance(made, Table):
        print(markdown([made]))
    else:
        print("".join(f"- {note}\n" for note in made.content["notes"]))
        print(markdown(made.tables))
    return 0
