"""Show which tokens of a translation depend on which.

Jacobi decoding predicts all positions in every pass, until nothing changes. This command shows the
pass in which each token became final, and its probability there: tokens of one pass were decoded in
parallel, and depend on those of the pass before (Santilli et al. 2023, section 3.5 and Figure 4).
"""

import argparse
import contextlib
import io
import logging
import os
import re
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ... import files
from ...cli import arguments
from ...errors import UsageError, needs, option_error
from ...records import TRACE, is_report, written_by
from ...utf8 import without_marks
from ..show import ddg, page, viewer
from . import pages, trace

EXAMPLE = """\
The first sentence of a trace, or those of --sentence:
  paradec ddgviz trace.jsonl --sentence 7 --out sentence7.svg

A sentence of your own, or sentences of the data folder:
  paradec ddgviz data-bin/demo.en-de --text "A man is waiting for the train." --out man.png
  paradec ddgviz data-bin/demo.en-de --ids 8 33 --html graphs.html

A line per pass has the tokens that became final in it: position, token, probability.
"""

#: Flags that need a data folder: what to decode, and how.
DECODING_FLAGS = (
    "path",
    "text",
    "ids",
    "input",
    "subset",
    "decoding",
    "jacobi_length",
    "block_size",
    "bpe_codes",
    "sentencepiece_model",
    "tokenized",
    "trace",
)

#: Optional files of a data folder.
MODEL, CODES = "model.pt", "codes.bpe"


def declare(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.epilog = EXAMPLE
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    add, number = parser.add_argument, arguments.whole_number
    add("given", metavar="FILE|DATA", help=f"{written_by(TRACE)}; or a fairseq data folder")
    show = parser.add_argument_group("what to show").add_argument
    show("--sentence", metavar="ID", nargs="+", help="of FILE: these numbers (default: the first)")
    show("--out", metavar="PICTURE", help="draw it: .png or .svg; several get -ID in their names")
    show("--html", metavar="PAGE", help="write all of them to one page, which needs no other file")
    what = parser.add_argument_group("what to decode, with DATA").add_argument
    what("--path", metavar="MODEL", help=f"checkpoint of a Transformer (default: DATA/{MODEL})")
    what(
        "--text",
        type=arguments.utf8,
        metavar="SENTENCE",
        nargs="+",
        help="raw sentences of the source language",
    )
    what("--input", metavar="LINES", help="a file with a raw sentence a line; - is standard input")
    what(
        "--ids",
        metavar="ID",
        type=_index,
        nargs="+",
        help="numbers of sentences of a subset, from 0",
    )
    what("--subset", metavar="NAME", help="which (default: test)")
    what("--bpe-codes", metavar="FILE", help=f"subword-nmt's (default: DATA/{CODES})")
    what("--sentencepiece-model", metavar="FILE", help="in place of Moses tokens and BPE codes")
    what("--tokenized", action="store_true", default=None, help="lines are in sub-words already")
    how = parser.add_argument_group("how to decode, with DATA").add_argument
    how("--decoding", metavar="METHOD", help=f"{', '.join(ddg.DECODINGS)} (default: pj)")
    how(
        "--jacobi-length",
        metavar="HOW",
        help="of pj: oracle (the paper's, default): one block of the output's own length, which "
        "greedy search finds; grow: blocks of the source's length, doubled until it ends",
    )
    how("--block-size", metavar="N", type=number, help="of pgj and hgj (default: 5)")
    how("--trace", metavar="FILE", help="keep the trace")


def run(args: argparse.Namespace) -> int:
    """Read or decode, then show everything."""
    with arguments.quiet(logging.INFO):  # without the decoder's closing line, and fairseq's log
        return _run(args)


def _index(text: str) -> int:
    """Read an argument that is a whole number from 0 up."""
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"got {text!r}; allowed: a whole number from 0 up")
    return int(text)


def _run(args: argparse.Namespace) -> int:
    """Read or decode, then show everything."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")
    if args.html is not None:
        pages.check_page("--html", args.html)
    if args.out is not None:
        pages.check_picture("--out", args.out)
    if args.html is not None and args.trace is not None:
        if os.path.realpath(args.html) == os.path.realpath(args.trace):
            raise option_error("--trace", args.trace, "another file than --html's")
    if not os.path.isdir(args.given):
        _check_file(args)
        groups = trace.groups([args.given], args.sentence, None if args.sentence else 1)
        _show(args, [_read(args.given, entry) for (entry,) in groups])
        return 0
    _check_data(args)
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "trace.jsonl")
        _decode(args, path)
        found = [_read(args.given, entry) for (entry,) in trace.groups([path])]
        if args.trace is not None:
            with pages.whole_file(args.trace) as file:
                file.write(Path(path).read_text(encoding="utf-8"))
    _show(args, found)
    return 0


# ---- arguments ---------------------------------------------------------------------------------


def _check_file(args: argparse.Namespace) -> None:
    """Refuse flags that need a data folder."""
    for name in DECODING_FLAGS:
        if getattr(args, name) is not None:
            needed = f"a data folder; {args.given} is none"
            raise needs(f"--{name.replace('_', '-')}", getattr(args, name), needed)


def _check_data(args: argparse.Namespace) -> None:
    """Fill in the defaults, and refuse what cannot be decoded before a model is loaded.

    Raises:
        UsageError: sentences are named in no way or in several; a file is missing, or exists.
    """
    if args.sentence is not None:
        raise option_error("--sentence", " ".join(args.sentence), "--ids, with a data folder")
    ways = [flag for flag in ("--text", "--input", "--ids") if getattr(args, flag[2:]) is not None]
    if len(ways) != 1:
        given = " and ".join(ways) or "none"
        raise UsageError(f"DATA: got {given}; allowed: one of --text, --input, --ids")
    if args.subset is not None and args.ids is None:
        raise needs("--subset", args.subset, "--ids")
    encodings = [
        (f"--{name.replace('_', '-')}", getattr(args, name))
        for name in ("bpe_codes", "sentencepiece_model", "tokenized")
        if getattr(args, name) is not None
    ]
    for flag, value in encodings:
        if args.ids is not None:
            raise needs(flag, value, "--text or --input")
        if len(encodings) > 1:
            names = ", ".join(name for name, _ in encodings)
            raise option_error(flag, value, f"one of {names}")
    if args.decoding not in (None, *ddg.DECODINGS):
        raise option_error("--decoding", args.decoding, ", ".join(ddg.DECODINGS))
    if args.path is None:
        args.path = os.path.join(args.given, MODEL)
        if not os.path.isfile(args.path):
            raise UsageError(f"DATA: {args.given} has no {MODEL}; allowed: --path MODEL")
    from ...plugin.tasks import loading

    loading.check_inputs(args.given, args.path)
    if args.trace is not None:
        pages.check_folder("--trace", args.trace)
        if os.path.exists(args.trace) and not os.path.isfile(args.trace):
            raise option_error("--trace", args.trace, "a plain file")
        if not is_report(args.trace):
            raise option_error("--trace", args.trace, "a new file, or an earlier trace")


# ---- decoding ----------------------------------------------------------------------------------


def _decode(args: argparse.Namespace, path: str) -> None:
    """Decode the sentences one by one, as fairseq's commands do; ``path`` gets the trace.

    Raises:
        UsageError: a flag or a sentence is wrong, or no sentence could be decoded.
    """
    from ...plugin.tasks import loading

    by_number = args.ids is not None
    lines, encoding = ([], {}) if by_number else (_lines(args), _encoding(args))
    models, task = loading.load(args.given, args.path)
    if by_number:
        dataset, numbers = _subset(args, task), list(dict.fromkeys(args.ids))
    else:
        dataset, numbers = _dataset(lines, encoding, task), list(range(len(lines)))
    options = {"decoding": args.decoding or "pj", "trace_file": path}
    if options["decoding"] == "pj":
        options["jacobi_length"] = args.jacobi_length or "oracle"
    elif args.jacobi_length is not None:
        options["jacobi_length"] = args.jacobi_length
    if args.block_size is not None:
        options["block_size"] = args.block_size
    generator = loading.decoder(task, models, **options)
    for number in numbers:
        task.inference_step(generator, models, dataset.collater([dataset[number]]))
    if not os.path.exists(path):
        raise UsageError("no sentence could be decoded: all are empty, or longer than the model's")


def _lines(args: argparse.Namespace) -> list[str]:
    """Return the raw sentences.

    Raises:
        UsageError: there is none, or the file cannot be read.
    """
    if args.text is not None:
        return [str(line) for line in args.text]
    text = sys.stdin.read() if args.input == "-" else files.read("--input", args.input)
    return text.removesuffix("\n").split("\n")


def _subset(args: argparse.Namespace, task: Any) -> Any:
    """Return the data set that ``--ids`` counts in.

    Raises:
        UsageError: there is no such subset, or no such sentence in it.
    """
    subset = args.subset or "test"
    task.load_dataset(subset)
    dataset = task.dataset(subset)
    for number in args.ids:
        if number >= len(dataset):
            allowed = f"numbers from 0 to {len(dataset) - 1}, of sentences in {subset!r}"
            raise option_error("--ids", number, allowed)
    return dataset


def _encoding(args: argparse.Namespace) -> dict[str, str]:
    """Return fairseq's options that split lines into sub-words; none with ``--tokenized``.

    Raises:
        UsageError: the data folder has no codes, and no flag names them.
    """
    if args.tokenized:
        return {}
    if args.sentencepiece_model is not None:
        _check_is_file("--sentencepiece-model", args.sentencepiece_model)
        return {"bpe": "sentencepiece", "sentencepiece_model": args.sentencepiece_model}
    codes = args.bpe_codes or os.path.join(args.given, CODES)
    if args.bpe_codes is None and not os.path.isfile(codes):
        raise UsageError(
            f"DATA: {args.given} has no {CODES}; allowed: --bpe-codes FILE, "
            "--sentencepiece-model FILE, or --tokenized for lines in sub-words"
        )
    _check_is_file("--bpe-codes", codes)
    return {"tokenizer": "moses", "bpe": "subword_nmt", "bpe_codes": codes}


def _dataset(lines: Sequence[str], encoding: dict[str, str], task: Any) -> Any:
    """Make a data set of raw lines as fairseq-interactive does, by fairseq's own encoders.

    Raises:
        UsageError: sentencepiece is not installed, or the file is not of its kind.
    """
    from fairseq.data import encoders

    languages = {"source_lang": task.cfg.source_lang, "target_lang": task.cfg.target_lang}
    given = argparse.Namespace(**languages, **encoding)
    try:
        with contextlib.redirect_stderr(io.StringIO()):  # the error is raised below
            made = [encoders.build_tokenizer(given), encoders.build_bpe(given)]
    except ImportError as error:
        raise UsageError(f"--sentencepiece-model: {error}") from error
    except (SystemExit, ValueError, OSError, RuntimeError) as error:  # subword-nmt exits
        name = "bpe_codes" if "bpe_codes" in encoding else "sentencepiece_model"
        kind = {"bpe_codes": "subword-nmt's codes", "sentencepiece_model": "sentencepiece's model"}
        raise option_error(f"--{name.replace('_', '-')}", encoding[name], kind[name]) from error

    def encode(line: str) -> str:
        line = without_marks(line)
        for step in made:
            line = line if step is None else step.encode(line)
        return line

    return task.build_dataset_for_inference(*task.get_interactive_tokens_and_lengths(lines, encode))


def _check_is_file(flag: str, path: str) -> None:
    if not os.path.isfile(path):
        raise option_error(flag, path, "a file that is there")


# ---- showing -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Found:
    """A sentence to be shown: its entry of the trace, and its graph."""

    entry: trace.Entry
    graph: ddg.DependencyGraph


def _read(path: str, entry: trace.Entry) -> _Found:
    """Make the graph of an entry."""
    try:
        return _Found(entry, ddg.from_record(entry.record, entry.sentence.name))
    except UsageError as error:
        raise UsageError(f"{path}, line {entry.number}: {error}") from error


def _show(args: argparse.Namespace, found: Sequence[_Found]) -> None:
    """Write pictures, then the page, then print the graphs."""
    if args.out is not None:
        _draw(Path(args.out), found)
    if args.html is not None:
        name = os.path.basename(os.path.normpath(args.given))
        with pages.whole_file(args.html) as file:
            file.write(viewer.head(f"Dependencies {name}", "dependencies"))
            for one in found:
                file.write(viewer.sentence([one.entry.sentence], [one.entry.record]))
            file.write(page.TAIL)
    blocks = [ddg.as_text(one.graph, one.entry.sentence.source) for one in found]
    trace.show("\n\n".join(blocks))


def _draw(path: Path, found: Sequence[_Found]) -> None:
    """Write a picture per sentence; warn of characters that cannot be drawn."""
    from ..show import ddg_plot  # matplotlib takes a second to load

    texts: list[str] = []
    for one, target in zip(found, _pictures(path, found)):
        source = one.entry.sentence.source
        ddg_plot.draw(one.graph, target, source)
        texts += ddg_plot.texts(one.graph, source)
    pages.warn_of_fonts("ddgviz", texts)


def _pictures(path: Path, found: Sequence[_Found]) -> Iterator[Path]:
    """Yield the pictures' names: as given, or with each sentence's number before the ending.

    The line's number is added where an earlier sentence has the same number.
    """
    names: set[str] = set()
    for one in found:
        known, line = one.entry.record.get("id"), f"line{one.entry.number}"
        name = re.sub(r"[^\w.-]", "_", line if known is None else str(known))[:100]
        name = f"{name}-{line}" if name in names else name
        names.add(name)
        yield path if len(found) == 1 else path.with_name(f"{path.stem}-{name}{path.suffix}")
