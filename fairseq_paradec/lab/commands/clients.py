"""Measure what clients of paradec serve get, beside the same sentences without a server.

The command compares many clients with paradec translate --batch-size 32, and one client with a call
in Python. It compares the slowest requests with their median, where requests come at random at 70%
of what the server can do. And it compares texts typed word by word, each with the last translation
as its prediction, with greedy search. Server and clients are on this machine; the measurements
alternate.
"""

import argparse
from pathlib import Path

from ...cli import arguments
from ..settings import settings


def declare(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.epilog = (
        "example: paradec clients data-bin/demo-small.en-de/raw/demo.en "
        "--model data-bin/demo-small.en-de --out runs/clients.json"
    )
    add, number = parser.add_argument, arguments.whole_number
    add("file", metavar="FILE", type=Path, help="plain text, a sentence a line")
    add("--model", metavar="DIR", type=Path, required=True, help="a folder that paradec pack made")
    add(
        "--decoding",
        metavar="D",
        help="but for greedy search's row (default: as paradec translate)",
    )
    add("--clients", type=number, default=32, help="clients at once (default: 32)")
    add("--limit", type=number, default=1024, help="lines, sent again and again (default: 1024)")
    add("--alone", type=number, default=200, help="lines of one client (default: 200)")
    add("--typed", type=number, default=20, help="lines that are typed (default: 20)")
    add(
        "--threads",
        type=arguments.number_of_threads,
        default=1,
        help="of each process (default: 1)",
    )
    add("--rounds", type=number, default=5, help="(default: 5)")
    add("--busy", action="store_true", help="measure on a busy machine too; the result says so")
    arguments.declare_table(parser, "Clients of a server")


def run(args: argparse.Namespace) -> int:
    """Measure, and write the table."""
    from ..data import documents
    from ..measure.clients import Settings, clients

    documents.check_out(args.out)
    with arguments.quiet():
        return clients(settings(Settings, args))
