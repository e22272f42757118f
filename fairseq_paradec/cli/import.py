"""Turn a model of another toolkit into a model folder.

The folder's model is fairseq's: every decoder, fairseq-generate and fairseq-interactive take it; a
T5 is paradec's alone. FORMAT is seen by PATH, and need not be given: "hf" is a folder that
transformers saved (MarianMT, M2M-100, NLLB, mBART-50, T5, mT5, MADLAD-400), "marian" is Marian's
own MODEL.npz or MODEL.bin beside its decoder.yml, or the folder of one, "ct2" is a folder that
CTranslate2 converted, with model.bin, and "argos" a package of Argos Translate. PATH may be a
model's name on Hugging Face's hub.
"""

import argparse
from pathlib import Path
from shlex import quote

from ..config import flag
from ..errors import excludes, needs, option_error
from ..output import printable

#: The formats, and what they are called in messages.
FORMATS = {"hf": "DIR", "marian": "MODEL", "ct2": "DIR", "argos": "FILE.argosmodel"}
#: How the text of a folder of CTranslate2 is split: flags, with the kinds of files.
SPLITTING = {
    "sentencepiece_source": "sentencepiece's model of sources",
    "sentencepiece_target": "that of targets (default: that of sources)",
    "bpe_codes": "subword-nmt's codes",
}


def declare(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.usage = "%(prog)s [FORMAT] PATH OUT [--source LANGUAGE] [--target LANGUAGE] ..."
    parser.epilog = "example: paradec import opus-mt-en-de models/en-de"
    parser.set_defaults(fails="--selftest finds a difference", plugin=False, intermixed=True)
    add = parser.add_argument
    add("words", nargs="*", metavar="[FORMAT] PATH OUT", help="the model, and the folder to make")
    add(
        "--selftest",
        metavar="DIR",
        type=Path,
        help="compare DIR, a folder that transformers saved, with what is imported of it: sources, "
        "logits, greedy and beam 5 on 200 sentences in ten scripts; nothing is written",
    )
    for side in ("source", "target"):
        add(
            f"--{side}",
            metavar="LANGUAGE",
            help=f"the {side} language, by the model's own name if it has several, such as en or "
            "eng_Latn (default: what the files say)",
        )
    for name, what in SPLITTING.items():
        add(flag(name), metavar="FILE", type=Path, help=f"ct2: {what}")
    add("--tokenizer", metavar="NAME", help="ct2: what parts words before --bpe-codes, as moses")


def run(args: argparse.Namespace) -> int:
    """Read the model and write the folder."""
    if args.selftest is not None:
        return _selftest(args)
    kind, given, out = _asked(args.words)
    for name in (*SPLITTING, "tokenizer"):
        if kind != "ct2" and getattr(args, name) is not None:
            raise needs(flag(name), getattr(args, name), "a model of CTranslate2: ct2 DIR OUT")
    from ..translator.importing.ctranslate2 import Splitting
    from ..translator.importing.opening import import_into
    from ..translator.model_folder import new_folder

    pieces = args.sentencepiece_source, args.sentencepiece_target
    splitting = Splitting(*pieces, args.bpe_codes, args.tokenizer)
    with new_folder(out) as folder:
        model = import_into(folder, kind, given, (args.source, args.target), splitting)
    for line in model.notes:
        print(line)
    print(f"{out}: a model folder, {model.source} to {model.target}")
    print(f"paradec translate --model {quote(str(out))}")
    return 0


def _asked(words: list[str]) -> tuple[str, Path, Path]:
    """Return format, model and folder of the words.

    Raises:
        UsageError: there are more or fewer, or the model is missing or of no known format.
    """
    if len(words) not in (2, 3):
        raise needs("import", True, "PATH OUT, a model and a folder to make, or --selftest DIR")
    if len(words) == 3 and words[0] not in FORMATS:
        raise option_error("FORMAT", words[0], ", ".join(FORMATS))
    from ..translator import hub
    from ..translator.importing.opening import format_of

    name = "PATH" if len(words) == 2 else FORMATS[words[0]]
    given, out = Path(words[-2]), Path(words[-1])
    if hub.is_name(words[-2]):
        given = hub.fetch(words[-2], name)
    if not given.exists():
        raise option_error(name, str(given), "what the model was saved as; there is none")
    return (format_of(given) if len(words) == 2 else words[0]), given, out


def _selftest(args: argparse.Namespace) -> int:
    """Compare a model with transformers; return 1 if something differs."""
    from ..translator.importing.files import known_form
    from ..translator.importing.selftest import selftest
    from . import arguments

    if args.words:
        raise excludes("--selftest", str(args.selftest), "PATH OUT")
    if not args.selftest.is_dir():
        raise option_error("--selftest", str(args.selftest), "a folder; there is none")
    with arguments.quiet(), known_form(args.selftest, "a whole model, undamaged"):
        passed, said = selftest(args.selftest, args.source, args.target)
    print("\n".join(map(printable, said)))
    return 0 if passed else 1
