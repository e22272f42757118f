"""Translate plain text by a model folder: a line of output for each line of input.

The text is that of FILES, of --text, or of standard input. It is tokenised and split as the folder
says, and the output is plain text again, in the order of the input; an empty line stays one. Lines
are printed as soon as they and those before them are finished, so that Ctrl-C keeps them. With
--out a corpus is translated in parts by many workers, of this machine or a Ray cluster
(docs/scale.md); the same command goes on where it was stopped. With --format the input is whole
texts, whose markup stays.
"""

import argparse
import os
import stat
import sys
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..config import ALL, OPTIONS, flag
from ..errors import excludes, needs, option_error
from ..methods.describe import flag_help
from ..output import FAILED, complain
from ..translator.markup import FORMATS
from ..translator.pipe import Pipe, Watched
from ..translator.sentences import has_several
from . import arguments, machines, translate_corpus

if TYPE_CHECKING:  # it takes seconds to load
    from ..translator.translation import Translation
    from ..translator.translator import Translator

#: Flags of fairseq's search that this command has.
SEARCH = (
    *("beam", "lenpen", "unkpen", "min_len", "max_len_a", "max_len_b", "no_repeat_ngram_size"),
    "temperature",
    *("sampling", "sampling_topk", "sampling_topp", "seed"),
)
#: A FILE that is standard input: "-", while "./-" is a file.
STDIN = None


def declare(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.set_defaults(fails="an audit failed or a report broke off", plugin=False)
    parser.usage = "%(prog)s --model DIR [FILE ...] [--text TEXT] [--decoding D] [flags of D]"
    parser.epilog = 'example: paradec translate --model data-bin/demo.en-de --text "A dog runs."'
    add, number = parser.add_argument, arguments.whole_number
    add(
        "files",
        metavar="FILE",
        nargs="*",
        help="plain text in UTF-8, a sentence a line, or a pipe, or - for standard input; with "
        "--out also folders, patterns, parquet and paths that fsspec reads",
    )
    add("--model", metavar="DIR", required=True, help=arguments.MODEL)
    arguments.declare_languages(parser)
    add(
        "--text",
        type=arguments.utf8,
        action="append",
        help="a sentence instead of files; may be repeated",
    )
    add("--device", choices=("cpu", "cuda"), default="cpu", help="(default: cpu)")
    add("--threads", type=arguments.number_of_threads, help="CPU threads (default: all cores)")
    add("--batch-size", type=number, help="sentences decoded together (default: 32)")
    add("--max-tokens", type=number, help="source tokens decoded together (default: 4000)")
    add(
        "--buffer-size",
        type=number,
        help="lines that are read and sorted by length together, of a pipe or a terminal at most: "
        "there what has come is answered at once (default: 512); with --out those of a part "
        "(default: 4096)",
    )
    add(
        "--format",
        choices=FORMATS,
        help="the input is not lines but whole texts: each file, or --text, is split into "
        "sentences, and put together as it was; tags, code, links and placeholders stay "
        "(default: a sentence a line)",
    )
    add(
        "--split",
        action="store_true",
        help="translate the sentences of a line one by one, and write them as a line again: most "
        "models know no lines of several",
    )
    add(
        "--drafts",
        metavar="FILE",
        type=Path,
        help="earlier translations of the same or nearly the same lines, a line for a line; they "
        "save passes and change no output",
    )
    add(
        "--nbest",
        metavar="N",
        type=number,
        help="print the N best outputs of each line, best first; --beam is N or more; with "
        "--sampling N draws (default: 1)",
    )
    add(
        "--scores",
        action="store_true",
        help="before each output its score, fairseq's, and a tab; nothing where there is no output",
    )
    corpus = parser.add_argument_group("corpora")
    corpus.add_argument(
        "--out",
        metavar="DIR",
        type=Path,
        help="write to DIR/parts rows of JSON: line, source, translation, score, problem, model, "
        "settings",
    )
    corpus.add_argument("--column", help="of parquet files (default: text)")
    machines.declare(corpus)
    search = parser.add_argument_group("fairseq's flags of the search").add_argument
    for name in SEARCH:
        option, text = ALL[name], ALL[name].help
        if option.kind is bool:
            search(flag(name), action="store_true", help=text)
            continue
        usual = option.absent if option.default is None else f"{option.default:g}"
        search(flag(name), type=option.kind, help=f"{text} (default: {usual})")
    decode = parser.add_argument_group("flags of decoding").add_argument
    for name, option in OPTIONS.items():
        text = flag_help(name).replace("%", "%%")
        if name == "decoding":
            text += (
                " (default: auto_fast, which measures; self_draft for one --text; greedy with "
                "--sampling; auto for a model that only its own method decodes)"
            )
        if option.kind is bool:
            decode(flag(name), action="store_true", help=text)
        else:
            decode(flag(name), type=option.kind, metavar=name.upper(), help=text)


def run(args: argparse.Namespace) -> int:
    """Translate; return 1 if an audit failed or a report could not be written."""
    if args.text and args.files:
        raise excludes("--text", args.text[0], "FILE")
    if args.drafts is not None:
        if args.out is not None:
            raise excludes("--drafts", str(args.drafts), "--out")
        if not args.drafts.exists() or args.drafts.is_dir():
            raise option_error("--drafts", str(args.drafts), "a text file; there is none")
    if args.format is not None and args.out is not None:
        raise excludes("--format", args.format, "--out")
    for name in ("nbest", "scores", "split"):
        if given := getattr(args, name):
            for other in ("format", "out", "split"):
                if name != other and getattr(args, other) not in (None, False):
                    raise excludes(flag(name), given, flag(other))
    if args.out is not None:
        return translate_corpus.translate_parts(args, given_options(args))
    for name in ("column", "cluster", "give_up", "processes"):
        if getattr(args, name) is not None:
            raise needs(flag(name), getattr(args, name), "--out")
    args.files = [STDIN if name == "-" else Path(name) for name in args.files]
    for path in args.files:
        if path is not STDIN and (not path.exists() or path.is_dir()):
            why = ", or a folder with --out" if path.exists() else "; there is none"
            allowed = f"a text file{why}"
            raise option_error("FILE", str(path), allowed)
    with arguments.warnings_alone():
        if args.format is None:
            print_translations(args)
        else:
            print_texts(args)
    return 1 if FAILED else 0


def given_options(args: argparse.Namespace) -> dict[str, Any]:
    """Return the options of ``Translator.results`` that the command line gives."""
    names = (*OPTIONS, *SEARCH, "batch_size", "max_tokens", "buffer_size")
    options = {name: getattr(args, name) for name in names}
    return {
        name: value for name, value in options.items() if value is not None and value is not False
    }


def print_translations(args: argparse.Namespace) -> None:
    """Print a line for each line of the input."""
    from tqdm import tqdm

    translator = load(args)
    lines = iter(args.text) if args.text else read_lines(args.files)
    if not args.text and args.files in ([], [STDIN]) and comes_in_parts():
        lines = Pipe(sys.stdin.fileno())
    again = args.files and all(  # a pipe is read once
        path is not STDIN and path.is_file() for path in args.files
    )
    total = sum(1 for _ in read_lines(args.files)) if again else None
    hidden = True if sys.stdout.isatty() else None  # None: shown in a terminal
    drafts = None if args.drafts is None else read_lines([args.drafts], "--drafts")
    options, nbest = given_options(args), args.nbest or 1
    if args.split:
        print_split(
            translator, lines, drafts, tqdm(total=total, unit=" lines", disable=hidden), options
        )
        return
    several = partial(has_several, language=translator.folder.source)
    lines = watched = Watched(lines, several)
    if len(args.text or ()) == 1:
        options = translator.of_one_sentence(options)
    if nbest > 1 and not args.sampling:
        decoder = translator.generator({name: options[name] for name in options if name in ALL})
        beam = getattr(decoder, "beam_size", decoder.config.beam)  # fairseq's own search has none
        if beam < nbest:
            raise needs("--nbest", nbest, f"--beam {nbest} or more; it is {beam}")
    results = translator.results(lines, drafts=drafts, others=nbest - 1, **options)
    for result in tqdm(results, total=total, unit=" lines", disable=hidden):
        for line in output_lines(result, nbest, args.scores):
            print(line)
    if watched.count:
        complain(
            f"lines with several sentences: {watched.count}, line {watched.first} the first; where "
            "a model knows single ones, --split translates them one by one"
        )


def print_split(
    translator: "Translator",
    lines: Iterator[str],
    drafts: Iterator[str] | None,
    progress: Any,
    options: dict[str, Any],
) -> None:
    """Print a line for each line of the input, whose sentences are translated one by one."""
    from ..translator.translator import BUFFER_SIZE

    together = options.get("buffer_size", BUFFER_SIZE)
    with progress:
        for translation in translator.texts(lines, "text", drafts, together=together, **options):
            print(translation.text.rstrip("\r\n"))
            for note in translation.notes:
                print(note, file=sys.stderr)
            progress.update()


def comes_in_parts() -> bool:
    """Return whether standard input is a pipe or a terminal, whose lines come one by one."""
    try:
        return not stat.S_ISREG(os.fstat(sys.stdin.fileno()).st_mode)
    except (OSError, ValueError):  # it is closed, or none of the system's
        return False


def output_lines(result: "Translation", nbest: int, scores: bool) -> Iterator[str]:
    """Yield the ``nbest`` lines of output for a line of input, with scores if they are wanted."""
    outputs: list[tuple[str, float | None]] = [(result.text, result.score)]
    outputs += zip(result.others, result.other_scores, strict=True)
    outputs += [("", None)] * (nbest - len(outputs))
    for text, score in outputs:
        before = "" if score is None else f"{score:.4f}"
        yield f"{before}\t{text}" if scores else text


def print_texts(args: argparse.Namespace) -> None:
    """Print whole texts, and on standard error what is not as in them."""
    sources = [[path] for path in args.files] or [[]]
    texts = args.text or ["".join(read_lines(files)) for files in sources]
    drafts = None
    if args.drafts is not None:
        if len(texts) > 1:
            raise option_error("--drafts", str(args.drafts), "one FILE or --text, with --format")
        drafts = ["".join(read_lines([args.drafts], "--drafts"))]
    for translation in load(args).texts(texts, args.format, drafts, **given_options(args)):
        print(translation.text, end="\n" if args.text else "")
        for note in translation.notes:
            print(note, file=sys.stderr)


def load(args: argparse.Namespace) -> "Translator":
    """Load the model folder."""
    from ..threads import set_threads
    from ..translator.hub import folder_of
    from ..translator.translator import Translator

    if args.threads:
        set_threads(args.threads)
    folder = folder_of(args.model, args.source_language, args.target_language)
    return Translator(folder, device=args.device)


def read_lines(files: Sequence[Path | None], flag: str = "FILE") -> Iterator[str]:
    """Yield the lines of files, or of standard input; ``flag``: the files', for errors.

    Raises:
        UsageError: one is not text in UTF-8.
    """
    for path in [*files] or [STDIN]:
        source = sys.stdin.fileno() if path is STDIN else path
        with open(source, encoding="utf-8", newline="\n", closefd=path is not STDIN) as stream:
            try:
                yield from stream
            except UnicodeDecodeError as error:
                near = error.object[max(0, error.start - 20) : error.end + 20]
                given = "standard input" if path is STDIN else str(path)
                raise option_error(flag, given, f"text in UTF-8; {near!r} is not") from error
