"""Turn a model of Hugging Face's transformers or of Marian into a model folder.

The folder's model is fairseq's: every decoder, fairseq-generate and fairseq-interactive take it.
"""

import argparse
import importlib
from pathlib import Path
from shlex import quote

from ..errors import excludes, needs, option_error
from ..output import printable


def declare(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.epilog = "example: paradec import hf opus-mt-en-de models/en-de"
    parser.set_defaults(fails="--selftest finds a difference", format=None, plugin=False)
    parser.add_argument(
        "--selftest",
        metavar="DIR",
        type=Path,
        help="compare DIR, a folder that transformers saved, with what is imported of it: sources, "
        "logits, greedy and beam 5 on 200 sentences in ten scripts; nothing is written",
    )
    for side in ("source", "target"):
        parser.add_argument(f"--{side}", metavar="LANGUAGE", help=f"with --selftest: the {side}")
    kinds = parser.add_subparsers(metavar="FORMAT")
    hugging_face = kinds.add_parser(
        "hf", help="a folder that transformers saved: MarianMT (OPUS-MT), M2M-100, NLLB, mBART-50"
    )
    hugging_face.add_argument(
        "given",
        type=Path,
        metavar="DIR",
        help="with config.json, model.safetensors or pytorch_model.bin, and the tokenizer's files",
    )
    marian = kinds.add_parser("marian", help="Marian's own file, as OPUS-MT offers it")
    marian.add_argument(
        "given",
        type=Path,
        metavar="MODEL.npz",
        help="beside decoder.yml, the vocabularies that it names, source.spm and target.spm",
    )
    for name, command in (("hugging_face", hugging_face), ("marian", marian)):
        command.set_defaults(format=name)
        command.add_argument("out", type=Path, metavar="OUT", help="folder to make")
        for side in ("source", "target"):
            command.add_argument(
                f"--{side}",
                metavar="LANGUAGE",
                help=f"the {side} language, by the model's own name if it has several, such as "
                "en or eng_Latn (default: what the files say)",
            )


def run(args: argparse.Namespace) -> int:
    """Read the model and write the folder."""
    if args.selftest is not None:
        return _selftest(args)
    if args.format is None:
        raise needs("import", True, "hf DIR OUT, marian MODEL.npz OUT, or --selftest DIR")
    from ..translator.importing import writing
    from ..translator.importing.files import known_form
    from ..translator.model_folder import new_folder

    if not args.given.exists():
        name = "DIR" if args.format == "hugging_face" else "MODEL.npz"
        raise option_error(name, str(args.given), "what the model was saved as; there is none")
    reader = importlib.import_module(f"..translator.importing.{args.format}", __package__)
    with new_folder(args.out) as folder, known_form(args.given, "a whole model, undamaged"):
        model = reader.read(args.given, args.source, args.target)
        writing.write(model, folder)
    print(f"{args.out}: a model folder, {model.source} to {model.target}")
    print(f"paradec translate --model {quote(str(args.out))}")
    return 0


def _selftest(args: argparse.Namespace) -> int:
    """Compare a model with transformers; return 1 if something differs."""
    from ..translator.importing.files import known_form
    from ..translator.importing.selftest import selftest
    from . import arguments

    if args.format is not None:
        raise excludes("--selftest", str(args.selftest), "hf and marian")
    if not args.selftest.is_dir():
        raise option_error("--selftest", str(args.selftest), "a folder; there is none")
    with arguments.quiet(), known_form(args.selftest, "a whole model, undamaged"):
        passed, said = selftest(args.selftest, args.source, args.target)
    print("\n".join(map(printable, said)))
    return 0 if passed else 1
