"""What ``paradec profile`` is asked for: a class for each WHAT, whose fields are its arguments.

A class's text is the help of its WHAT. This file imports neither torch nor fairseq.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ...cli import arguments
from ..settings import flag, position

number, numbers = arguments.whole_number, arguments.whole_numbers


@dataclass(frozen=True, kw_only=True)
class Rounds:
    """How is timed."""

    rounds: int = flag("interleaved", 5, type=number)
    busy: bool = flag(
        "measure on a busy machine too; the result says so", False, action="store_true"
    )


@dataclass(frozen=True, kw_only=True)
class Decoders:
    """Decoders on some sentences of a subset."""

    data: str = position("DATA", "fairseq data folder")
    path: str = flag("checkpoint of the model", required=True)
    decoder: Sequence[str] | None = flag(
        "[LABEL=]DECODING [flags of fairseq-generate]; may be repeated",
        action="append",
        metavar="SPEC",
        required=True,
    )
    subset: str = flag("of DATA", "test")
    sentences: int = flag("how many at most", 200, type=number)
    device: str = flag("cpu or cuda", "cpu", choices=("cpu", "cuda"))


@dataclass(frozen=True, kw_only=True)
class Modules(Decoders, Rounds):
    """Where decoders' time goes, in milliseconds per sentence and module.

    This is Table 7 of Xia et al. 2022, for any decoder of this package. Sentences are decoded one
    by one, warm, and decoders take turns at each sentence. The clocks inside the decoder slow it
    down a little: paradec benchmark compares speed.
    """

    threads: int = flag("of the CPU", 1, type=arguments.number_of_threads)


@dataclass(frozen=True, kw_only=True)
class Launches(Decoders):
    """What keeps a pass from being faster on a device: launches, synchronisations, host or device.

    Each decoder translates the same sentences, timed, and once more under torch's profiler, which
    counts. Beside them stand the decoder's pass over a chunk of fixed width as decoders call it,
    and the same in a CUDA graph, which is launched at once. On the CPU there is nothing to launch:
    operators are counted.
    """

    sentences: int = flag("how many at most", 8, type=number)
    batch_sizes: Sequence[int] = flag("of decoders and passes", [1, 8], type=numbers)
    chunks: Sequence[int] = flag("tokens of a pass", [1, 8], type=numbers)


@dataclass(frozen=True, kw_only=True)
class Threads(Decoders, Rounds):
    """What more cores give: one generator on several threads, or several generators.

    Generators with one thread each run in threads of one process, where they share the weights, or
    in processes. All decode the same sentences, one at a time, in interleaved rounds, on the CPU.
    """

    decoder: Sequence[str] | None = flag(
        "[LABEL=]DECODING [flags of fairseq-generate]; may be repeated (default: greedy, and gad "
        "with --drafter-path, on the native engine in fp32 and int8)",
        action="append",
        metavar="SPEC",
    )
    drafter_path: str | None = flag(
        "a block_nat drafter of it: gad is measured, too", metavar="FILE"
    )
    threads: Sequence[int] = flag("numbers besides 1, with commas", [2], type=numbers)
    device: str = "cpu"


@dataclass(frozen=True, kw_only=True)
class Workers(Rounds):
    """What more workers give: a corpus by one process, and in parts by several workers.

    Each is the whole command, from its start to its end. The same command for one line tells what
    its start takes. The commands alternate, on an idle machine.
    """

    file: Path = position("FILE", "plain text, a sentence a line", type=Path)
    model: Path = flag("a folder of paradec pack", metavar="DIR", type=Path, required=True)
    processes: Sequence[int] = flag("numbers of workers, with commas", [1, 2], type=numbers)
    cluster: str | None = flag("by as many workers of this Ray cluster, too", metavar="ADDRESS")
    rounds: int = flag("interleaved", 3, type=number)


@dataclass(frozen=True, kw_only=True)
class Clients(Rounds):
    """What clients of paradec serve get, beside the same sentences without a server.

    Many clients are compared with paradec translate --batch-size 32, one client with a call in
    Python; the slowest requests with their median, where requests come at random at 70% of what the
    server can do; and texts typed word by word, each with the last translation as its prediction,
    with greedy search. Server and clients are on this machine; the measurements alternate.
    """

    file: Path = position("FILE", "plain text, a sentence a line", type=Path)
    model: Path = flag("a folder of paradec pack", metavar="DIR", type=Path, required=True)
    decoding: str | None = flag(
        "but for greedy search's row (default: as paradec translate)", metavar="D"
    )
    clients: int = flag("clients at once", 32, type=number)
    limit: int = flag("lines, sent again and again", 1024, type=number)
    alone: int = flag("lines of one client", 200, type=number)
    typed: int = flag("lines that are typed", 20, type=number)
    threads: int = flag("of each process", 1, type=arguments.number_of_threads)


@dataclass(frozen=True, kw_only=True)
class Starts(Rounds):
    """What a start costs: an import, help, loading a model, a first sentence.

    Each runs in a process of its own, and the processes alternate. The processor's time counts:
    other work on the machine hardly changes it, unless two threads share a core.
    """

    model: Path | None = flag("a folder of paradec pack", metavar="DIR", type=Path)
    arch_size: str | None = flag(
        "instead of --model: random weights of this size, packed alone in int8; their output has "
        "as many tokens as the sentence",
        choices=arguments.ARCH_SIZES,
    )
    text: str = flag("the sentence", "A dog runs.", type=arguments.utf8)


@dataclass(frozen=True, kw_only=True)
class Training(Rounds):
    """The training speed of architectures, relative to the first one.

    Architectures take turns at updates on the same batches: forward, backward and Adam, by
    fairseq's own task and label-smoothed criterion (zhang2020, Table 1, column Train). With
    --before, each is compared with itself in an older checkout, by fairseq's own trainer. After --
    come more flags of fairseq-train, for all architectures.
    """

    data: str = position("DATA", "fairseq data folder with a training part")
    arch: Sequence[str] = flag(
        "an architecture; may be repeated; the others are compared with the first. With --before, "
        "flags of fairseq-train may follow in the same word, and behind ' + ' flags for this "
        "checkout alone",
        action="append",
        metavar="NAME",
        required=True,
    )
    before: str | None = flag(
        "an older checkout of this project: compare its updates with this one's instead",
        metavar="CHECKOUT",
    )
    max_tokens: int = flag("of a batch", 4096, type=number)
    batches: int = flag("how many different ones", 10, type=number)
    threads: int = flag("of the CPU", 1, type=arguments.number_of_threads)
    device: str = flag("cpu or cuda", "cpu", choices=("cpu", "cuda"))
    flags: Sequence[str]
