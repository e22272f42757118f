"""Measure one thing: what passes, drafts, modules, threads, workers, clients or starts cost.

Each WHAT is measured in interleaved rounds on an idle machine (--busy: on any), and makes one
table: in the terminal, and in the JSON file of --out.
"""

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from ...cli import arguments
from ...config import DRAFTER_DTYPES
from ...errors import excludes, option_error
from ..analysis.break_even import Mark
from ..measure.traits import drafting
from ..settings import Made, settings
from . import passes
from .pages import check_picture

if TYPE_CHECKING:
    from ..data.table import Table


class What(NamedTuple):
    """Something that is measured."""

    help: str  # one line
    description: str
    example: str  # the arguments of an example
    declare: Callable[[argparse.ArgumentParser], None]
    measure: Callable[[argparse.Namespace], "Table"]
    title: str | None  # of the table; None: made of what is measured, and --out is not needed


def declare(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of every WHAT."""
    parser.epilog = f"example: paradec profile modules {WHATS['modules'].example}"
    parser.set_defaults(flags=[])
    parsers = parser.add_subparsers(metavar="WHAT", dest="what", required=True)
    own = parsers.add_parser("passes", help="a pass, piece by piece", description=passes.__doc__)
    own.set_defaults(measured=passes.run)
    passes.declare(own)
    for name, what in WHATS.items():
        epilog = f"example: paradec profile {name} {what.example}"
        own = parsers.add_parser(name, help=what.help, description=what.description, epilog=epilog)
        own.set_defaults(measured=_harness(what))
        what.declare(own)
        arguments.declare_table(own, what.title, required=what.title is not None)


def run(args: argparse.Namespace) -> int:
    """Measure; return the exit status.

    Raises:
        UsageError: flags are given that the WHAT does not take.
    """
    if args.flags and args.what != "training-speed":
        raise excludes("--", True, args.what)
    status: int = args.measured(args)
    return status


def _harness(what: What) -> Callable[[argparse.Namespace], int]:
    """Return what measures a WHAT, writes its table and prints it."""

    def measured(args: argparse.Namespace) -> int:
        from ..analysis.markdown import markdown
        from ..data import documents

        if args.out is not None:
            documents.check_out(args.out)
        with arguments.quiet():
            table = what.measure(args)
        if args.out is not None:
            documents.save_made(Made(args.argv, args.out, args.title or table.title), table)
        print(markdown([table]))
        return 0

    return measured


# ---- arguments that several have ----------------------------------------------------------------


def _decoders(
    parser: argparse.ArgumentParser, sentences: int, more: str = "", required: bool = True
) -> None:
    """Declare DATA, a model, decoders and sentences; ``more`` is said of decoders."""
    add = parser.add_argument
    add("data", metavar="DATA", help="fairseq data folder")
    add("--path", required=True, help="checkpoint of the model")
    spec = f"[LABEL=]DECODING [flags of fairseq-generate]{more}; may be repeated"
    add("--decoder", action="append", required=required, metavar="SPEC", help=spec)
    add("--subset", default="test", help="of DATA (default: test)")
    many = f"how many at most (default: {sentences})"
    add("--sentences", type=arguments.whole_number, default=sentences, help=many)


def _model_folder(parser: argparse.ArgumentParser, required: bool = True) -> None:
    """Declare a model folder."""
    text = "a folder that paradec pack made"
    parser.add_argument("--model", metavar="DIR", type=Path, required=required, help=text)


def _text(parser: argparse.ArgumentParser) -> None:
    """Declare a text, and a model folder that translates it."""
    text = "plain text, a sentence a line"
    parser.add_argument("file", metavar="FILE", type=Path, help=text)
    _model_folder(parser)


def _rounds(parser: argparse.ArgumentParser, rounds: int) -> None:
    """Declare rounds, of what has threads of its own."""
    add = parser.add_argument
    add("--rounds", type=arguments.whole_number, default=rounds, help=f"(default: {rounds})")
    add("--busy", action="store_true", help="measure on a busy machine too; the result says so")


# ---- breakeven ----------------------------------------------------------------------------------


def rates(text: str) -> list[float]:
    """Read a list of numbers from 0 to 1 with commas between them."""
    try:
        found = [float(part) for part in text.split(",")]
    except ValueError:
        found = [-1.0]
    if not all(0 <= rate <= 1 for rate in found):
        raise argparse.ArgumentTypeError(f"got {text!r}; allowed: numbers from 0 to 1")
    return found


def mark(text: str) -> Mark:
    """Read ``NAME=DECODER:K:TOKENS``."""
    name, _, rest = text.rpartition("=")
    try:
        decoder, block_size, tokens = rest.split(":")
        if not name:
            raise ValueError
        return Mark(name, decoder, arguments.whole_number(block_size), arguments.positive(tokens))
    except (ValueError, argparse.ArgumentTypeError):
        allowed = "NAME=DECODER:BLOCK_SIZE:TOKENS_A_PASS, for example tiny=gad:8:2.6"
        raise argparse.ArgumentTypeError(f"got {text!r}; allowed: {allowed}") from None


def _declare_breakeven(parser: argparse.ArgumentParser) -> None:
    add, number = parser.add_argument, arguments.whole_number
    arguments.declare_sized_model(parser, "native,native-bf16,native-int8")
    add(
        "--decoder",
        action="append",
        choices=drafting(),
        help="may be repeated (default: those for which there is a drafter)",
    )
    add(
        "--block-sizes",
        type=arguments.whole_numbers,
        default=[4, 8],
        help="as --block-size of the decoders (default: 4,8)",
    )
    add(
        "--rates",
        type=rates,
        default=[0.3, 0.6, 0.8, 0.9, 1.0],
        help="how often a drafted token is right (default: 0.3,0.6,0.8,0.9,1)",
    )
    add(
        "--drafter-width",
        type=number,
        help="with --arch-size: of assisted's drafter (default: the model's width); a multiple of "
        "32",
    )
    add("--drafter-layers", type=number, default=1, help="the same: its decoder's (default: 1)")
    add(
        "--drafter-size",
        choices=arguments.ARCH_SIZES,
        help="with --arch-size: assisted's drafter is a Transformer of this size, encoder and all",
    )
    add("--drafter-shortlist", type=number, help="draft from so many first tokens (default: all)")
    add(
        "--drafter-dtype",
        choices=DRAFTER_DTYPES,
        help="of the drafts' weights (default: the decoders' own)",
    )
    add(
        "--mark",
        action="append",
        type=mark,
        default=[],
        metavar="NAME=DECODER:K:TOKENS",
        help="where a trained pair stands: its block size and tokens a pass; may be repeated",
    )
    add(
        "--beam",
        type=number,
        help="of drafted beams, from 2: by what passes cost, from how many steps a pass self_draft "
        "and assisted with --beam pay; --block-sizes are then steps of a draft, and the TOKENS of "
        "--mark steps",
    )
    add("--subset", default="test", help="of DATA (default: test)")
    add("--sentences", type=number, default=24, help="from short to long (default: 24)")
    arguments.declare_timing(parser, "")
    add("--plot", metavar="FILE", help="picture to write, .png or .svg")


def _breakeven(args: argparse.Namespace) -> "Table":
    plot = None if args.plot is None else check_picture("--plot", args.plot)
    if args.beam == 1:
        raise option_error("--beam", 1, "2 or more; without it drafts are of greedy search")
    from ..profile.breakeven import BreakEvenProfile, measure_breakeven

    made = {"decoders": args.decoder or [], "marks": args.mark, "plot": plot}
    engines = args.engines.split(",")
    return measure_breakeven(settings(BreakEvenProfile, args, engines=engines, **made))


# ---- modules, launches, threads -----------------------------------------------------------------


def _declare_modules(parser: argparse.ArgumentParser) -> None:
    _decoders(parser, 200, ", of this package")
    arguments.declare_timing(parser, "")
    arguments.declare_device(parser)


def _modules(args: argparse.Namespace) -> "Table":
    from ..measure.specs import read
    from ..profile.modules import ModuleProfile, measure_modules

    return measure_modules(settings(ModuleProfile, args, decoders=[*map(read, args.decoder)]))


def _declare_launches(parser: argparse.ArgumentParser) -> None:
    add, numbers = parser.add_argument, arguments.whole_numbers
    _decoders(parser, 8)
    add("--batch-sizes", type=numbers, default=[1, 8], help="(default: 1,8)")
    add("--chunks", type=numbers, default=[1, 8], help="tokens of a pass (default: 1,8)")
    arguments.declare_device(parser)


def _launches(args: argparse.Namespace) -> "Table":
    from ..measure.specs import read
    from ..profile.launches import LaunchProfile, measure_launches

    return measure_launches(settings(LaunchProfile, args, decoders=[*map(read, args.decoder)]))


def _declare_threads(parser: argparse.ArgumentParser) -> None:
    add, numbers = parser.add_argument, arguments.whole_numbers
    usual = " (default: greedy, and gad with --drafter-path, on the native engine in fp32 and int8)"
    _decoders(parser, 200, usual, required=False)
    add("--drafter-path", metavar="FILE", help="a block_nat drafter of it: gad is measured, too")
    add("--threads", type=numbers, default=[2], help="numbers besides 1, with commas (default: 2)")
    _rounds(parser, 5)


def _threads(args: argparse.Namespace) -> "Table":
    from ..measure.specs import read
    from ..profile.threads import ThreadProfile, measure_threads

    decoders = [*map(read, args.decoder or ())]
    return measure_threads(settings(ThreadProfile, args, decoders=decoders, device="cpu"))


# ---- whole commands -----------------------------------------------------------------------------


def _declare_workers(parser: argparse.ArgumentParser) -> None:
    add, numbers = parser.add_argument, arguments.whole_numbers
    _text(parser)
    processes = "numbers of workers, with commas (default: 1,2)"
    add("--processes", type=numbers, default=[1, 2], help=processes)
    add("--cluster", metavar="ADDRESS", help="by as many workers of this Ray cluster, too")
    _rounds(parser, 3)


def _workers(args: argparse.Namespace) -> "Table":
    from ..profile.workers import WorkerProfile, measure_workers

    return measure_workers(settings(WorkerProfile, args))


def _declare_clients(parser: argparse.ArgumentParser) -> None:
    add, number = parser.add_argument, arguments.whole_number
    _text(parser)
    usual = "but for greedy search's row (default: as paradec translate)"
    add("--decoding", metavar="D", help=usual)
    add("--clients", type=number, default=32, help="clients at once (default: 32)")
    add("--limit", type=number, default=1024, help="lines, sent again and again (default: 1024)")
    add("--alone", type=number, default=200, help="lines of one client (default: 200)")
    add("--typed", type=number, default=20, help="lines that are typed (default: 20)")
    threads = "of each process (default: 1)"
    add("--threads", type=arguments.number_of_threads, default=1, help=threads)
    _rounds(parser, 5)


def _clients(args: argparse.Namespace) -> "Table":
    from ..profile.clients import ClientProfile, measure_clients

    return measure_clients(settings(ClientProfile, args))


def _declare_start_up(parser: argparse.ArgumentParser) -> None:
    _model_folder(parser, required=False)
    parser.add_argument(
        "--arch-size",
        choices=arguments.ARCH_SIZES,
        help="instead of --model: random weights of this size, packed alone in int8; their output "
        "has as many tokens as the sentence",
    )
    text = "the sentence (default: %(default)s)"
    parser.add_argument("--text", type=arguments.utf8, default="A dog runs.", help=text)
    _rounds(parser, 5)


def _start_up(args: argparse.Namespace) -> "Table":
    from ..profile.start_up import StartProfile, measure_starts

    return measure_starts(settings(StartProfile, args))


# ---- training -----------------------------------------------------------------------------------


def _declare_training(parser: argparse.ArgumentParser) -> None:
    add, number = parser.add_argument, arguments.whole_number
    add("data", metavar="DATA", help="fairseq data folder with a training part")
    add(
        "--arch",
        action="append",
        required=True,
        metavar="NAME",
        help="an architecture; may be repeated; the others are compared with the first. With "
        "--before, flags of fairseq-train may follow in the same word, and behind ' + ' flags for "
        "this checkout alone",
    )
    add(
        "--before",
        metavar="CHECKOUT",
        help="an older checkout of this project: compare its updates with this one's instead",
    )
    add("--max-tokens", type=number, default=4096, help="of a batch (default: 4096)")
    add("--batches", type=number, default=10, help="how many different ones (default: 10)")
    arguments.declare_timing(parser, "over the batches ")
    arguments.declare_device(parser)


def _training(args: argparse.Namespace) -> "Table":
    from ..profile.training_speed import TrainingProfile, measure_training
    from ..profile.update_speed import measure_updates

    work = measure_updates if args.before else measure_training
    return work(settings(TrainingProfile, args))


WHATS = {
    "launches": What(
        "what a pass launches on a GPU, and waits for",
        """What keeps a pass from being faster on a device: launches, synchronisations, host or
        device. Each decoder translates the same sentences, timed, and once more under torch's
        profiler, which counts. Beside them stand the decoder's pass over a chunk of fixed width as
        decoders call it, and the same in a CUDA graph, which is launched at once. On the CPU there
        is nothing to launch: operators are counted.""",
        "data-bin/demo.en-de --path data-bin/demo.en-de/model.pt --decoder greedy "
        "--out runs/launches.json",
        _declare_launches,
        _launches,
        "Launches",
    ),
    "breakeven": What(
        "from how many tokens a pass drafting pays",
        """From how many tokens a pass drafting pays, on this machine. The command decodes for real.
        The drafter's passes run and are timed, but its drafts are replaced by greedy search's own
        tokens, each right at a chosen rate. So a model's size, an engine and a dtype tell how good
        a drafter must be before there is one. Every time is compared with greedy search in the same
        engine and dtype, in interleaved rounds. The model is a checkpoint with a drafter, or random
        weights of a known size with random drafters. Sentences are decoded one at a time, on the
        CPU.""",
        "--arch-size base --decoder assisted --drafter-width 128 --mark tiny=assisted:4:2.9 "
        "--out runs/breakeven.json --plot runs/breakeven.svg",
        _declare_breakeven,
        _breakeven,
        None,
    ),
    "modules": What(
        "what decoders consist of: encoder, decoder, vocabulary",
        """Where decoders' time goes, in milliseconds per sentence and module: Table 7 of Xia et al.
        2022, for any decoder of this package. Sentences are decoded one by one, warm, and decoders
        take turns at each sentence. The clocks inside the decoder slow it down a little: paradec
        benchmark compares speed.""",
        "data-bin/demo.en-de --path data-bin/demo.en-de/model.pt --decoder greedy "
        "--out runs/modules.json",
        _declare_modules,
        _modules,
        "Time per module",
    ),
    "threads": What(
        "what several threads, generators and processes give",
        """What more cores give: one generator on several threads, or several generators. Generators
        with one thread each run in threads of one process, where they share the weights, or in
        processes. All decode the same sentences, one at a time, in interleaved rounds, on the
        CPU.""",
        "data-bin/demo.en-de --path data-bin/demo.en-de/model.pt --threads 2,4 "
        "--out runs/threads.json",
        _declare_threads,
        _threads,
        "Threads and processes",
    ),
    "workers": What(
        "what several processes or a cluster give for a corpus",
        """What more workers give: a corpus by one process, and in parts by several workers. Each is
        the whole command, from its start to its end. The same command for one line tells what its
        start takes. The commands alternate, on an idle machine.""",
        "data-bin/demo.en-de/raw/demo.en --model data-bin/demo.en-de --processes 1,2 "
        "--out runs/workers.json",
        _declare_workers,
        _workers,
        "Workers on a corpus",
    ),
    "clients": What(
        "what clients of serve get, beside translate and Python",
        """What clients of paradec serve get, beside the same sentences without a server: many
        clients beside paradec translate --batch-size 32, one client beside a call in Python; the
        slowest requests beside their median, where requests come at random at 70% of what the
        server can do; and texts typed word by word, each with the last translation as its
        prediction, beside greedy search. Server and clients are on this machine; the measurements
        alternate.""",
        "data-bin/demo-small.en-de/raw/demo.en --model data-bin/demo-small.en-de "
        "--out runs/clients.json",
        _declare_clients,
        _clients,
        "Clients of a server",
    ),
    "start-up": What(
        "what an import, help and a first sentence cost",
        """What a start costs: an import, help, loading a model, a first sentence. Each runs in a
        process of its own, and the processes alternate. The processor's time counts: other work on
        the machine hardly changes it, unless two threads share a core.""",
        "--model data-bin/demo.en-de --out runs/start-up.json",
        _declare_start_up,
        _start_up,
        "Start-up",
    ),
    "training-speed": What(
        "the updates a second of architectures",
        """The training speed of architectures, relative to the first one. Architectures take turns
        at updates on the same batches: forward, backward and Adam, by fairseq's own task and
        label-smoothed criterion (zhang2020, Table 1, column Train). With --before, each is compared
        with itself in an older checkout, by fairseq's own trainer. After -- come more flags of
        fairseq-train, for all architectures.""",
        "data-bin/multi30k.en-de --arch transformer --arch ibdecoder --out "
        "runs/training-speed.json",
        _declare_training,
        _training,
        "Training speed",
    ),
}
