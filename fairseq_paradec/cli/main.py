"""paradec: the command of this package, in addition to fairseq's own commands.

A subcommand NAME is the module NAME of this folder, or of ``commands`` in another room:
``declare(parser)`` declares its arguments and imports neither torch nor fairseq, ``run(args)`` does
the work and returns the exit status.
``args.argv`` are the words after ``paradec``. ``parser.set_defaults(plugin=False)`` declares that a
command does not need the package's tasks and models; ``set_defaults(flags=[])`` requests the words
after ``--`` as ``args.flags``; ``set_defaults(fails="...")`` says when the exit status is 1.
"""

import argparse
import gc
import importlib.util
import sys
import textwrap
from collections.abc import Sequence
from types import ModuleType

from .. import extras, register
from ..errors import UsageError, suggestion
from ..output import open_streams
from ..utf8 import restart_in_utf8
from . import arguments

#: The subcommands by purpose.
GROUPS: dict[str, dict[str, str]] = {
    "decode, check, measure": {
        "translate": "translate plain text by a model folder, line by line",
        "score": "score given translations: log-probabilities by line or token",
        "serve": "serve translations over HTTP, and a page that shows the passes",
        "doctor": "tell what a checkpoint is, and which decoders fit it",
        "demo": "compare our decoders on 100 sentences: passes, times, outputs",
        "benchmark": "time, judge and count any decoders on a test set, by presets",
        "profile": "measure passes, drafts, modules, threads, clients, a start and more",
    },
    "look": {
        "trace": "show passes, steps, dependencies, a beam's tree, an order of writing",
        "analyse": "analyse texts, scores, benchmarks and traces",
        "report": "make one page of all benchmarks and traces of a folder",
        "papers": "list every table of the five papers, and run ours",
    },
    "make data and models": {
        "pack": "make a model folder of a checkpoint, dictionaries and BPE",
        "train": "train a model by a preset, go on with it, average it",
        "train-drafter": "train a drafter for a model folder, from text alone",
        "import": "make a model folder of another toolkit's model",
        "average": "average the last checkpoints of a training run",
        "shrink": "make a small copy of a checkpoint, or of its heads alone",
        "widen": "make a model twice as wide that computes the same, to train on",
        "images": "turn image files into tokens, and outputs into pictures",
        "distill": "make a data folder with a teacher's translations as targets",
        "data": "make data folders; the steps of scripts/prepare_*.sh",
    },
}

#: Commands that measure or draw: they need the packages of the extra ``[lab]``, and say so before
#: they begin to work.
LAB = frozenset("profile trace analyse report papers images".split())

#: By command, the packages that it needs beside the core's, and the extra that brings them.
NEEDS: dict[str, tuple[tuple[str, ...], str]] = {
    **dict.fromkeys(LAB, (extras.LAB, "lab")),
    "serve": (extras.SERVE, "serve"),
    "train": (("fairseq",), "train"),
    "train-drafter": (("fairseq",), "train"),
    **dict.fromkeys(("average", "shrink", "widen", "distill"), (("fairseq",), "fairseq")),
}

COMMANDS = tuple(name for group in GROUPS.values() for name in group)


def overview() -> str:
    """Return what ``paradec --help`` prints; it fits 80 columns."""
    width = max(len(name) for group in GROUPS.values() for name in group)
    lines = [
        "usage: paradec COMMAND ...    (paradec COMMAND --help: its arguments)",
        "       paradec --version      (engine, instruction set and library, too)",
    ]
    for title, commands in GROUPS.items():
        lines += [f"{title}:", *(f"  {name:{width}}  {text}" for name, text in commands.items())]
    lines.append(arguments.exit_statuses("a check failed, as its help says"))
    missing: dict[str, list[str]] = {}
    for name in COMMANDS:
        if lacking(name):
            missing.setdefault(NEEDS[name][1], []).append(name)
    for extra, names in missing.items():
        note = f"not installed here: fairseq_paradec[{extra}], for {', '.join(names)}"
        lines.append(textwrap.fill(note, 78))
    return "\n".join(lines)


def lacking(name: str) -> list[str]:
    """Return the packages that a command needs and that are not installed."""
    packages, _ = NEEDS.get(name, ((), ""))
    return [package for package in packages if not extras.is_installed(package)]


def main(argv: Sequence[str] | None = None) -> int:
    """Console entry point; returns the exit status: 2 for a user's mistake, 130 for Ctrl-C.

    Args:
        argv: the words after ``paradec``; None means the process's own.
    """
    if argv is None:
        restart_in_utf8()
    open_streams()
    words = list(sys.argv[1:] if argv is None else argv)
    name = "paradec" if words[:1] == [] or words[0] not in COMMANDS else f"paradec {words[0]}"
    return arguments.run(name, lambda: _run(words))


#: Where the modules of commands are, in this order.
FOLDERS = ("cli", "training.commands", "lab.commands", "images.commands")


def find(name: str) -> ModuleType:
    """Return the module of a command."""
    package = __package__.rpartition(".")[0]
    for folder in FOLDERS:
        module = f"{package}.{folder}.{name.replace('-', '_')}"
        spec = importlib.util.find_spec(module)
        if spec is not None and spec.origin is not None:  # a folder without modules has none
            return importlib.import_module(module)
    raise LookupError(f"no module of the command {name}")


def parse(words: Sequence[str]) -> tuple[ModuleType, argparse.Namespace]:
    """Read the words after ``paradec``; return the subcommand's module, and its arguments."""
    module = find(words[0])
    parser = arguments.Parser(prog=f"paradec {words[0]}", description=module.__doc__)
    module.declare(parser)
    if lacks := lacking(words[0]):
        extra = NEEDS[words[0]][1]
        parser.note = f"needs fairseq_paradec[{extra}]; not installed here: {', '.join(lacks)}"
    takes_flags = parser.get_default("flags") is not None
    end = words.index("--") if takes_flags and "--" in words else len(words)
    args = parser.parse_args(words[1:end])
    if takes_flags:
        args.flags = words[end + 1 :]
    args.argv = words
    return module, args


def _run(words: Sequence[str]) -> int:
    """Read the arguments of a subcommand, and run it; or say what there is."""
    if words[:1] in (["-h"], ["--help"]):
        print(overview())
        return 0
    if words[:1] == ["--version"]:
        from .version import lines

        print("\n".join(lines()))
        return 0
    if not words or words[0] not in COMMANDS:
        given = f"got {words[0]!r}{suggestion(words[0], COMMANDS)}" if words else "none is given"
        raise UsageError(f"COMMAND: {given}; allowed: {', '.join(COMMANDS)}")
    module, args = parse(words)
    if words[0] in LAB:
        extras.require(extras.LAB, "lab")
    if getattr(args, "plugin", True):
        register()
        gc.freeze()  # what imports made stays; no collection has to go through it
    return module.run(args)
