"""Train a drafter for a model folder from text in its source language alone.

The model translates the text greedily, and a drafter on its encoder learns these translations. The
folder gets it as drafter.pt. paradec translate then uses it with --decoding assisted (of --kind
block: gad) and, where it pays, auto_fast. One line in ten, at most 200, is held out to count the
drafted tokens that the model accepts. After a stop or a kill the same command goes on.
"""

import argparse
import dataclasses
import hashlib
import json
import os
import shutil
import sys
import time
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING

from ...cli import arguments
from ...errors import option_error
from ...files import checksum
from ...translator import model_folder
from ...translator.corpus.parts import locked
from ...translator.hub import folder_of
from ...translator.model_folder import ModelFolder
from ..distill.plan import by_number
from ..drafter_text import Subset, made_of, write_sources
from ..drafter_training import KINDS, LAST, SMALL, Training
from ..log import in_words

if TYPE_CHECKING:  # torch takes seconds to load
    from ...translator.translator import Translator

#: The drafter's name in the folder.
DRAFTER = "drafter.pt"

#: Bytes on the disk for each token of the text: sources, translations, as text, and finished parts.
BYTES_A_TOKEN = 60


def declare(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.set_defaults(plugin=False, flags=[])
    parser.usage = "%(prog)s --model DIR --text FILE [FILE ...] [options] [-- flags]"
    parser.epilog = (
        "After -- come flags of fairseq-train, such as --decoder-embed-dim 64. "
        "example: paradec train-drafter --model my-model --text news.en"
    )
    add, number = parser.add_argument, arguments.whole_number
    add("--model", metavar="DIR", required=True, help=arguments.MODEL)
    add(
        "--text",
        metavar="FILE",
        type=Path,
        nargs="+",
        required=True,
        help="plain text in UTF-8, a sentence a line; lines that occur again are left out",
    )
    add(
        "--kind",
        choices=tuple(KINDS),
        default="shallow",
        help="shallow: one decoder layer that drafts token by token, for assisted; block: four "
        "that draft a block in one pass, for gad (default: shallow)",
    )
    add("--replace", action="store_true", help="the folder has a drafter, which this one replaces")
    add(
        "--save-dir",
        metavar="DIR",
        type=Path,
        help="translations and checkpoints (default: the folder's name with .drafter behind it)",
    )
    add(
        "--updates",
        type=number,
        help="of training (default: for shallow 2,500, or 20,000 of a model wider than 256; for "
        "block 12,000 or 50,000; at most 60 times through the text)",
    )
    add("--seed", type=number, default=1, help="(default: 1)")
    arguments.declare_languages(parser)
    add("--device", choices=("cpu", "cuda"), help="(default: cuda if there is one)")
    add("--threads", type=arguments.number_of_threads, help="CPU threads (default: torch's)")


def run(args: argparse.Namespace) -> int:
    """Make the drafter, and put it into the folder."""
    for path in args.text:
        if not path.is_file():
            raise option_error("--text", str(path), "a text file")
    args.model = folder_of(args.model, args.source_language, args.target_language)
    folder = model_folder.read(args.model)
    args.save_dir = args.save_dir or args.model.absolute().with_name(args.model.name + ".drafter")
    if ":" in str(args.save_dir):
        raise option_error("--save-dir", str(args.save_dir), "a path without ':'")
    # Threads that spin while they wait slow each other down where cores are shared.
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    from ... import register

    register()
    with arguments.warnings_alone(), locked(args.save_dir, "--save-dir"):
        return make(args, folder)


def make(args: argparse.Namespace, folder: ModelFolder) -> int:
    """Do the steps; each goes on from what is finished.

    Raises:
        UsageError: the folder has another drafter, or a setting or file does not fit.
    """
    import torch

    from ...translator.translator import Translator

    if args.threads:
        torch.set_num_threads(args.threads)
    device = args.device or ("cuda" if torch.cuda.is_available() else "cpu")
    record = made_of(args.text, args.model, folder)
    key = json.dumps([record, args.kind, args.updates, args.seed, args.flags])
    work = args.save_dir / f"{args.kind}-{hashlib.sha256(key.encode()).hexdigest()[:8]}"
    is_there = same_file(args.model / DRAFTER, work / DRAFTER)
    if is_there and folder.drafter == DRAFTER:
        note(f"already made: {args.model / DRAFTER}")
        return 0
    is_taken = folder.drafter or (args.model / DRAFTER).exists() and not is_there
    if is_taken and not args.replace:
        allowed = f"a folder without {folder.drafter or DRAFTER}; --replace puts a new one there"
        raise option_error("--model", str(args.model), allowed)
    folder = dataclasses.replace(folder, drafter=None)
    translator = Translator(args.model, folder, device=device)
    verifier = args.model / folder.model
    width = translator.models[0].decoder.embed_dim
    training = Training(
        args.kind, verifier, width <= SMALL, args.updates, args.seed, device, args.flags
    )
    pair = (folder.source, folder.target)
    training.parse(args.save_dir, pair, 1, [])  # errors come before work
    note(f"[1/4] text: {args.save_dir}")
    source, valid, data = (args.save_dir / name for name in ("source", "valid", "greedy"))
    write_sources(source, args.text, translator, record)
    held_out = Subset(source, "valid", valid, translator)
    held_out.finish()
    train = Subset(valid, "train", data, translator)
    note(estimate(args, held_out, train, training))
    note(f"[2/4] translations: {data}")
    train.finish()
    note(f"[3/4] drafter: {work}")
    if not (work / DRAFTER).is_file():
        training.run(data, pair, work, training.length(target_tokens(translator, data, "train")))
    note("[4/4] acceptance on the held-out lines")
    decoding = KINDS[args.kind][1]
    print(count_accepted(held_out, translator, decoding, work / DRAFTER))
    install(args.model, folder, work / DRAFTER)
    size = sum(path.stat().st_size for path in args.save_dir.rglob("*") if path.is_file())
    note(f"{args.save_dir} has {size / 1e6:.0f} MB and is no longer needed")
    command = f"paradec translate --model {quote(str(args.model))}"
    print(f"{args.model / DRAFTER}: {command} --decoding {decoding} uses it")
    return 0


def estimate(args: argparse.Namespace, held_out: Subset, train: Subset, training: Training) -> str:
    """Measure translating and training on held-out lines; return what all will take, in words.

    Raises:
        UsageError: the disk is too small.
    """
    some = range(0, len(held_out.sources), -(-len(held_out.sources) // 32))
    numbers = [*some]
    held_out.translate(numbers)  # warms up
    begin = time.perf_counter()
    targets = held_out.translate(numbers)
    seconds = time.perf_counter() - begin
    sources = int(held_out.sources.sizes[numbers].sum())
    tokens = train.tokens * sum(len(target) + 1 for target in targets) // sources
    pair = held_out.settings["languages"]
    an_update, checkpoint = training.measure(held_out.dest, pair, tokens)
    updates = training.length(tokens)
    space = train.tokens * BYTES_A_TOKEN + (LAST + 3) * checkpoint
    free = shutil.disk_usage(args.save_dir).free
    if space > free:
        allowed = f"a disk with {space / 1e6:.0f} MB; this has {free / 1e6:.0f}"
        raise option_error("--save-dir", str(args.save_dir), allowed)
    return (
        f"{len(train.sources)} lines, {len(held_out.sources)} more held out: about "
        f"{in_words(train.tokens * seconds / sources)} of translation and "
        f"{in_words(updates * an_update)} of training ({updates} updates), "
        f"less what is finished; {space / 1e6:.0f} MB"
    )


def target_tokens(translator: "Translator", data: Path, subset: str) -> int:
    """Return the number of target tokens of a subset."""
    from fairseq.data import data_utils

    pair = f"{translator.folder.source}-{translator.folder.target}"
    stem = str(data / f"{subset}.{pair}.{translator.folder.target}")
    dataset = data_utils.load_indexed_dataset(stem, translator.task.target_dictionary)
    return int(dataset.sizes.sum())


def count_accepted(held_out: Subset, translator: "Translator", decoding: str, drafter: Path) -> str:
    """Return what the drafter saves on the held-out lines, in words."""
    from ...methods.configure import configure

    config = configure(decoding=decoding, drafter_path=str(drafter))
    decoder = translator.task.build_decoder(translator.models, config)
    drafted = by_number(
        translator.task, translator.models, decoder, held_out.sources, translator.device
    )
    numbers = range(len(held_out.sources))
    others = sum(drafted([i]) != held_out.translate([i]) for i in numbers)
    equal = "all outputs are greedy's" if others == 0 else f"{others} outputs differ from greedy's"
    return (
        f"{decoding}: {decoder.stats.tokens / decoder.stats.passes:.2f} tokens a pass on "
        f"{len(numbers)} held-out lines; {equal}"
    )


def install(path: Path, folder: ModelFolder, drafter: Path) -> None:
    """Put a drafter into a folder, which is whole at any time."""
    partial = path / (DRAFTER + ".partial")
    shutil.copyfile(drafter, partial)
    model_folder.write(path, folder)  # an old drafter of this name goes before its file does
    partial.replace(path / DRAFTER)
    model_folder.write(path, dataclasses.replace(folder, drafter=DRAFTER))


def same_file(first: Path, second: Path) -> bool:
    """Return whether two files are there and have the same content."""
    there = first.is_file() and second.is_file()
    return there and checksum(first) == checksum(second)


def note(text: str) -> None:
    """Say how far the work is."""
    print(f"train-drafter: {text}", file=sys.stderr, flush=True)
