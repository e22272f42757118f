"""Make a model folder of what fairseq left behind: dictionaries, a checkpoint, BPE, a drafter.

paradec translate reads the folder, and it is DATA for fairseq-interactive and fairseq-generate. The
command writes the models as model files, copies the rest, and loads all once to see that they fit
each other. With OUT the same as DATA, where all files then lie, it writes paradec.json alone.
"""

import argparse
import shutil
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from shlex import quote
from typing import Any

from ..config import flag
from ..engine.chunk import ChunkScorer
from ..engine.native.packing import save_packed
from ..engine.settings import Engine
from ..errors import UsageError, needs, option_error
from ..extras import is_installed
from ..files import language_pair
from ..model.dictionary import Dictionary
from ..model.model import Model
from ..translator.model_folder import NAME, ModelFolder, described, new_folder, write
from ..translator.translator import Translator
from . import arguments

#: The files of each kind of BPE, by the names of fairseq's flags that take them.
BPE_FILES = {
    "subword_nmt": ("bpe_codes",),
    "fastbpe": ("bpe_codes",),
    "sentencepiece": ("sentencepiece_model",),
    "gpt2": ("gpt2_encoder_json", "gpt2_vocab_bpe"),
    "hf_byte_bpe": ("bpe_merges", "bpe_vocab"),
    "characters": (),
    "bytes": (),
}


#: Of --engine-dtype: those that native passes know.
DTYPES = ("fp32", "bf16", "int8")
#: What new folders call their models.
MODEL, DRAFTER = "model.safetensors", "drafter.safetensors"


def declare(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.usage = "%(prog)s DATA OUT --path FILE [--tokenizer NAME] [--bpe NAME and its files] ..."
    parser.epilog = (
        "example: paradec pack data-bin/iwslt model --path checkpoints/checkpoint_best.pt "
        "--tokenizer moses --bpe subword_nmt --bpe-codes prep/code"
    )
    parser.set_defaults(plugin=False)
    add = parser.add_argument
    add("data", metavar="DATA", type=Path, help="a folder with dict.SOURCE.txt and dict.TARGET.txt")
    add("out", metavar="OUT", type=Path, help="the model folder: a new or empty one, or DATA")
    add("--path", type=Path, required=True, help=f"the checkpoint, which becomes {MODEL}")
    add("--drafter-path", type=Path, help="a drafter of the checkpoint, or heads on it")
    add(
        "--engine-dtype",
        metavar="LIST",
        default="",
        help="also keep the weights as native passes read them, in these dtypes of fp32, bf16 and "
        "int8, with commas: processes that read the folder share them",
    )
    add(
        "--packed-only",
        action="store_true",
        help="of the weights that --engine-dtype packs keep no others: the folder is smaller, and "
        "decodes on CPUs of this kind alone, by native passes alone",
    )
    add("-s", "--source-lang", help="(default: as files of DATA say)")
    add("-t", "--target-lang", help="(default: as files of DATA say)")
    add("--tokenizer", help="fairseq's name of the tokenizer that made the text, such as moses")
    add("--bpe", choices=tuple(BPE_FILES), help="fairseq's name of the BPE that split the text")
    for name in dict.fromkeys(name for names in BPE_FILES.values() for name in names):
        users = [bpe for bpe, names in BPE_FILES.items() if name in names]
        add(flag(name), type=Path, help=f"with --bpe {' or '.join(users)}")


def run(args: argparse.Namespace) -> int:
    """Make the folder."""
    folder, files = plan(args)
    dtypes = [dtype for dtype in args.engine_dtype.split(",") if dtype]
    for dtype in dtypes:
        if dtype not in DTYPES:
            raise option_error("--engine-dtype", dtype, ", ".join(DTYPES))
    in_place = args.out.resolve() == args.data.resolve()
    if args.packed_only and not dtypes:
        raise needs("--packed-only", True, "--engine-dtype")
    if args.packed_only and in_place:
        raise option_error("OUT", str(args.out), "a new folder with --packed-only")
    said: list[str] = []
    with arguments.quiet(), nullcontext(args.out) if in_place else new_folder(args.out) as made:
        for name, path in files.items():
            if in_place and not ((made / name).is_file() and path.samefile(made / name)):
                allowed = f"a new folder, as {path} lies outside of {args.data}"
                raise option_error("OUT", str(args.out), allowed)
            if not in_place and name not in (folder.model, folder.drafter):
                shutil.copyfile(path, made / name)
        try:
            if not in_place:
                folder, said = _write_models(args, folder, made)
            model = _load(made, folder)
        except UsageError as error:
            given = {folder.model: args.path, str(folder.drafter): args.drafter_path}
            message = str(error)
            for name, path in (files | given).items():
                message = message.replace(str(made / name), str(path))
            raise UsageError(message.replace(str(made), str(args.out))) from error
        folder = replace(folder, packed=_save_packed(model, made, dtypes))
        if args.packed_only:
            if not isinstance(model, Model):
                raise option_error("--packed-only", True, "none with this model: torch computes it")
            model.save(made / folder.model, packed_only=True)
            settings = {**folder.settings, "engine_dtype": dtypes[0]}
            folder = replace(folder, packed_only=True, settings=settings)
        write(made, folder)
    size = sum((args.out / name).stat().st_size for name in folder.files) / 1e6
    for line in said:
        print(line)
    print(f"{args.out}: {size:.1f} MB; paradec translate --model {quote(str(args.out))} reads it")
    return 0


def _dictionaries(path: Path, folder: ModelFolder) -> tuple[Dictionary, Dictionary]:
    """Read the dictionaries of a folder."""
    source, target = (path / f"dict.{name}.txt" for name in (folder.source, folder.target))
    return Dictionary.read(source), Dictionary.read(target)


def _write_models(
    args: argparse.Namespace, folder: ModelFolder, made: Path
) -> tuple[ModelFolder, list[str]]:
    """Write the model and its drafter; one that no record describes stays fairseq's checkpoint.

    Returns:
        What the folder holds, and a line for each checkpoint.

    Raises:
        UsageError: a file holds no model, and fairseq is not installed, or weights are missing.
    """
    words, base, said = _dictionaries(made, folder), None, []
    for name, path in (("model", args.path), ("drafter", args.drafter_path)):
        if path is None:
            continue
        try:
            model = Model.read(path, *words, base=base)
        except UsageError as error:
            if not is_installed("fairseq"):
                raise
            file = f"{name}.pt"
            shutil.copyfile(path, made / file)
            folder = replace(folder, model=file) if base is None else replace(folder, drafter=file)
            said.append(f"{file} stays a checkpoint, which fairseq loads: {error}")
            continue
        if model.is_packed_only:
            raise option_error(flag(f"{name}_path"), str(path), "a model with all weights")
        model.save(made / (folder.model if name == "model" else str(folder.drafter)))
        base = base or model
    return folder, said


def _load(path: Path, folder: ModelFolder) -> Any:
    """Load all that a folder holds; return the model: the core's, or fairseq's.

    Raises:
        UsageError: its files do not fit each other.
    """
    translator = Translator(path, folder, flag="--path")
    return translator.models[0] if translator.core is None else translator.core.model


def _save_packed(model: Any, folder: Path, dtypes: Sequence[str]) -> dict[str, str]:
    """Write the model's packed weights: -> the names of files by dtype."""
    names = {dtype: f"packed.{dtype}" for dtype in dtypes}
    for dtype, name in names.items():
        if isinstance(model, Model):
            save_packed(model, dtype, folder / name)
            continue
        try:
            ChunkScorer(model, Engine(dtype, kind="auto")).save_packed(folder / name)
        except ValueError as error:
            raise option_error("--engine-dtype", dtype, f"none with this model: {error}") from error
    return names


def plan(args: argparse.Namespace) -> tuple[ModelFolder, dict[str, Path]]:
    """Return what the folder will hold, and the given files by their names in it.

    Settings are those of DATA, if it is a model folder, and so is what processes text, unless flags
    say it.

    Raises:
        UsageError: a file or a language is missing, or a flag does not belong to the BPE.
    """
    bpe_flags = BPE_FILES.get(args.bpe, ())
    for name in dict.fromkeys(name for names in BPE_FILES.values() for name in names):
        if (getattr(args, name) is None) == (name in bpe_flags):
            if name in bpe_flags:
                raise option_error(flag(name), None, f"a file with --bpe {args.bpe}")
            raise needs(flag(name), getattr(args, name), "its --bpe")
    given = {"path": args.path, "drafter_path": args.drafter_path}
    given |= {name: getattr(args, name) for name in bpe_flags}
    given = {name: path for name, path in given.items() if path is not None}
    known = args.data / NAME
    was = described(known, "DATA")[0] if known.is_file() else ModelFolder("", "")
    tokenizer, bpe = args.tokenizer, args.bpe
    if args.tokenizer is None and args.bpe is None:  # text is processed as DATA says
        tokenizer, bpe, bpe_flags = was.tokenizer, was.bpe, tuple(was.bpe_files)
        given |= {name: args.data / file for name, file in was.bpe_files.items()}
    for name, path in given.items():
        if not path.is_file():
            raise option_error(flag(name), str(path), "a file; there is none")
    in_place = args.out.resolve() == args.data.resolve()
    own = {} if in_place else {"path": MODEL, "drafter_path": DRAFTER}
    names = {name: own.get(name, path.name) for name, path in given.items()}
    folder = ModelFolder(
        *_pair(args),
        model=names["path"],
        drafter=names.get("drafter_path"),
        tokenizer=tokenizer,
        bpe=bpe,
        bpe_files={name: names[name] for name in bpe_flags},
        settings=was.settings,
    )
    files = {name: args.data / name for name in folder.files if name.startswith("dict.")}
    for name, path in files.items():
        if not path.is_file():
            raise option_error("DATA", str(args.data), f"a folder with {name}, a dictionary")
    for key, name in names.items():
        if files.get(name, given[key]) != given[key]:
            raise option_error(
                flag(key), str(given[key]), f"another name than {name}, which is taken"
            )
        files[name] = given[key]
    return folder, files


def _pair(args: argparse.Namespace) -> tuple[str, str]:
    """Return source and target language, given or as files of DATA are named.

    Raises:
        UsageError: there is no DATA, or no language.
    """
    if not args.data.is_dir():
        raise option_error(
            "DATA", str(args.data), "a folder that fairseq-preprocess made; there is none"
        )
    named = language_pair(str(args.data))
    if (args.data / NAME).is_file():
        was = described(args.data / NAME, "DATA")[0]
        named = was.source, was.target
    pair: tuple[Any, Any] = args.source_lang or named[0], args.target_lang or named[1]
    for name, language in zip(("-s", "-t"), pair, strict=True):
        if language is None:
            allowed = "a language; DATA has no file like test.en-de.en.bin to infer it from"
            raise option_error(name, None, allowed)
    return str(pair[0]), str(pair[1])
