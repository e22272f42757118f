"""What ``paradec profile`` is asked for: a class for each WHAT, whose fields are its arguments.

A class's text is the help of its WHAT. This file imports neither torch nor fairseq.
"""

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ...cli import arguments
from ...config import DRAFTER_DTYPES
from ..analysis.break_even import Mark
from ..measure.traits import drafting
from ..settings import flag, position

number, numbers = arguments.whole_number, arguments.whole_numbers


# ---- values of flags ----------------------------------------------------------------------------


def parse_words(text: str) -> list[str]:
    """Read a list of words with commas between them, each once."""
    return [*dict.fromkeys(text.split(","))]


def parse_rates(text: str) -> list[float]:
    """Read a list of numbers from 0 to 1 with commas between them; return them in order."""
    try:
        numbers = [float(part) for part in text.split(",")]
    except ValueError:
        numbers = [-1.0]
    if not all(0 <= rate <= 1 for rate in numbers):
        raise argparse.ArgumentTypeError(f"got {text!r}; allowed: numbers from 0 to 1")
    return sorted({*numbers})


def parse_mark(text: str) -> Mark:
    """Read ``NAME=DECODER:K:TOKENS``."""
    name, _, rest = text.rpartition("=")
    try:
        decoder, block_size, tokens = rest.split(":")
        if not name:
            raise ValueError
        return Mark(name, decoder, number(block_size), arguments.positive(tokens))
    except (ValueError, argparse.ArgumentTypeError):
        allowed = "NAME=DECODER:BLOCK_SIZE:TOKENS_A_PASS, for example tiny=gad:8:2.6"
        raise argparse.ArgumentTypeError(f"got {text!r}; allowed: {allowed}") from None


# ---- what several have --------------------------------------------------------------------------


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
    decoder: Sequence[str] = flag(
        "[LABEL=]DECODING [flags of fairseq-generate]; may be repeated",
        action="append",
        metavar="SPEC",
        required=True,
    )
    subset: str = flag("of DATA", "test")
    sentences: int = flag("how many at most", 200, type=number)
    device: str = flag("cpu or cuda", "cpu", choices=("cpu", "cuda"))


#: The vocabulary of random weights, and those of sizes that have another.
WORDS, WORDS_OF = 7944, {"nllb-600m": 256206, "nllb-3.3b": 256206}
#: The help of --engines.
ENGINES = (
    "what computes passes, with commas: native, native-bf16, native-int8, torch, torch-bf16, "
    "torch-fp16, torch-int8; without a dtype in fp32"
)


def words_of(arch_size: str | None) -> int:
    """Return the vocabulary of random weights of a size."""
    return WORDS_OF.get(arch_size or "", WORDS)


@dataclass(frozen=True, kw_only=True)
class SizedModel(Rounds):
    """A checkpoint, or random weights of a known size; and what computes its passes."""

    data: str | None = position("DATA", "fairseq data folder, with --path", nargs="?")
    path: str | None = flag("checkpoint of a Transformer")
    arch_size: str | None = flag(
        "instead of --path: random weights of this size", choices=arguments.ARCH_SIZES
    )
    vocabulary: int | None = flag(
        f"with --arch-size (default: {WORDS}; of nllb-* 256206)", type=number
    )
    drafter_path: str | None = flag(
        "with --path: a drafter of it, or heads; --arch-size has its own"
    )
    engines: Sequence[str] = flag(ENGINES, ["native", "torch"], type=parse_words, metavar="LIST")
    threads: int = flag("of the CPU", 1, type=arguments.number_of_threads)
    # Of what drafts token by token for random weights; see ``random_pair``.
    drafter_width: int | None = None
    drafter_layers: int = 1
    drafter_size: str | None = None

    @property
    def num_words(self) -> int:
        """The vocabulary of random weights."""
        return self.vocabulary or words_of(self.arch_size)

    @property
    def name(self) -> str:
        """The checkpoint's path, or the size of random weights."""
        return self.path or f"{self.arch_size}, random weights"


# ---- what is measured ---------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Passes(SizedModel):
    """What a pass costs on this machine, and how far that is from what it could cost.

    The command times the decoder's pass over chunks of several lengths (torch's also piece by
    piece), the encoder, a drafter's pass, prediction heads and, for comparison, whole searches,
    fairseq's and CTranslate2's among them. Engines take turns, in interleaved rounds. Beside each
    time stands the least that the part can take: what it reads over the machine's bandwidth, or
    what it computes over the machine's peak, both measured in the same rounds. The model is a
    checkpoint, or random weights of a known size: a pass takes as long. All runs on the CPU.
    """

    chunks: Sequence[int] = flag("tokens", [1, 2, 4, 9, 26], type=numbers)
    block_sizes: Sequence[int] = flag(
        "masks in a drafter's pass, behind 5 new tokens; the first also for the heads of "
        "--arch-size, and for the methods of --acceptance that do not say theirs",
        [10],
        type=numbers,
    )
    peers: bool = flag("CTranslate2's time per token, too", False, action="store_true")
    acceptance: Path | None = flag(
        "a benchmark's JSON: estimate sentences from its numbers of passes",
        type=Path,
        metavar="FILE",
    )
    argv: Sequence[str]  # the words after ``paradec``
    out: Path | None  # the JSON file to write; None: none
    title: str | None  # of the document; None: made of the model's name


@dataclass(frozen=True, kw_only=True)
class BreakEven(SizedModel):
    """From how many tokens a pass drafting pays, on this machine.

    The command decodes for real. The drafter's passes run and are timed, but its drafts are
    replaced by greedy search's own tokens, each right at a chosen rate. So a model's size, an
    engine and a dtype tell how good a drafter must be before there is one. Every time is compared
    with greedy search in the same engine and dtype, in interleaved rounds. The model is a
    checkpoint with a drafter, or random weights of a known size with random drafters. Sentences are
    decoded one at a time, on the CPU.
    """

    decoder: Sequence[str] | None = flag(
        "may be repeated (default: those for which there is a drafter)",
        action="append",
        choices=drafting(),
    )
    block_sizes: Sequence[int] = flag("as --block-size of the decoders", [4, 8], type=numbers)
    rates: Sequence[float] = flag(
        "how often a drafted token is right", [0.3, 0.6, 0.8, 0.9, 1.0], type=parse_rates
    )
    drafter_width: int | None = flag(
        "with --arch-size: of assisted's drafter (default: the model's width); a multiple of 32",
        type=number,
    )
    drafter_layers: int = flag("the same: its decoder's", 1, type=number)
    drafter_size: str | None = flag(
        "with --arch-size: assisted's drafter is a Transformer of this size, encoder and all",
        choices=arguments.ARCH_SIZES,
    )
    drafter_shortlist: int | None = flag(
        "draft from so many first tokens (default: all)", type=number
    )
    drafter_dtype: str | None = flag(
        "of the drafts' weights (default: the decoders' own)", choices=DRAFTER_DTYPES
    )
    mark: Sequence[Mark] | None = flag(
        "where a trained pair stands: its block size and tokens a pass; may be repeated",
        action="append",
        type=parse_mark,
        metavar="NAME=DECODER:K:TOKENS",
    )
    beam: int | None = flag(
        "of drafted beams, from 2: by what passes cost, from how many steps a pass self_draft and "
        "assisted with --beam pay; --block-sizes are then steps of a draft, and the TOKENS of "
        "--mark steps",
        type=number,
    )
    subset: str = flag("of DATA", "test")
    sentences: int = flag("from short to long", 24, type=number)
    plot: Path | None = flag("picture to write, .png or .svg", metavar="FILE", type=Path)
    engines: Sequence[str] = flag(
        ENGINES, ["native", "native-bf16", "native-int8"], type=parse_words, metavar="LIST"
    )
    title: str | None  # of table and picture; None: made of the model's name


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
class Installation:
    """What pip installs with a wheel, by package, and which files a first sentence opens.

    The wheel is installed into an environment of its own; pip downloads what it requires.
    """

    wheel: Path = position("WHEEL", "the wheel's file, which make wheel makes", type=Path)
    model: Path = flag("a folder of paradec pack", metavar="DIR", type=Path, required=True)
    extra: str | None = flag("also what this extra brings, such as serve")
    text: str = flag("the sentence", "A dog runs.", type=arguments.utf8)


@dataclass(frozen=True, kw_only=True)
class Training(Rounds):
    """The training speed of architectures, relative to the first one.

    Architectures take turns at updates on the same batches: forward, backward and Adam, by
    fairseq's own task and label-smoothed criterion (zhang2020, Table 1, column Train). After --
    come more flags of fairseq-train, for all architectures.
    """

    data: str = position("DATA", "fairseq data folder with a training part")
    arch: Sequence[str] = flag(
        "an architecture; may be repeated; the others are compared with the first",
        action="append",
        metavar="NAME",
        required=True,
    )
    max_tokens: int = flag("of a batch", 4096, type=number)
    batches: int = flag("how many different ones", 10, type=number)
    threads: int = flag("of the CPU", 1, type=arguments.number_of_threads)
    device: str = flag("cpu or cuda", "cpu", choices=("cpu", "cuda"))
    flags: Sequence[str]
