"""Make more source sentences for distillation: the first part of one and the last part of another.

A drafter learns to agree with its verifier, so its training sources need no translations; they only
have to look like real ones. Sentences of one kind (captions, for example) can be crossed: both are
cut at the same share of their words, chosen at random for each pair. The new data folder has the
old training pairs, then N times as many crossed sources. Their targets are placeholders, copied
from the first sentence, for scripts/distill.sh to replace.
"""

import argparse
import random
import shutil
from collections.abc import Sequence
from pathlib import Path

from ....cli import arguments
from ....errors import UsageError, option_error
from ....translator.model_folder import new_folder

SMOKE_PAIRS = 64


def boundaries(symbols: Sequence[str]) -> list[int]:
    """Return where a sentence can be cut: at its ends and between words.

    Args:
        symbols: sub-words of subword-nmt (``@@`` where the word continues) or sentencepiece
            (``▁`` at the start of a word), without ``</s>``.
    """
    if any(symbol.startswith("\u2581") for symbol in symbols):
        inner = [i for i in range(1, len(symbols)) if symbols[i].startswith("\u2581")]
    else:
        inner = [i for i in range(1, len(symbols)) if not symbols[i - 1].endswith("@@")]
    return [0, *inner, len(symbols)]


def cross(first: Sequence[str], second: Sequence[str], share: float) -> list[str]:
    """Join the start of one sentence and the end of another, both cut at a share of their words."""
    starts, ends = boundaries(first), boundaries(second)
    here = starts[round(share * (len(starts) - 1))]
    there = ends[round(share * (len(ends) - 1))]
    return [*first[:here], *second[there:]]


def declare(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.set_defaults(plugin=True)
    add = parser.add_argument
    add("data", metavar="DATA", type=Path, help="a folder that fairseq-preprocess made")
    add("dest", metavar="DEST", type=Path, help="the folder to make, new or empty")
    add("--times", type=arguments.whole_number, default=4, metavar="N", help="(default: 4)")
    add("--seed", type=int, default=1, help="(default: 1)")
    add("--smoke", action="store_true", help=f"only the first {SMOKE_PAIRS} pairs")


def run(args: argparse.Namespace) -> int:
    """Write the folder, whole or not at all."""
    from fairseq.data import data_utils

    pair = data_utils.infer_language_pair(str(args.data)) if args.data.is_dir() else (None, None)
    if None in pair:
        raise option_error("DATA", str(args.data), "a folder that fairseq-preprocess made")
    with new_folder(args.dest, "DEST") as folder:
        for file in args.data.iterdir():
            if file.is_file() and not file.name.startswith(("train.", ".")):
                shutil.copy(file, folder)
        _write(args, folder, *pair)
    return 0


def _write(args: argparse.Namespace, folder: Path, source: str, target: str) -> None:
    """Write the training set."""
    import torch
    from fairseq.data import Dictionary, data_utils, indexed_dataset
    from tqdm import tqdm

    pair = f"train.{source}-{target}"
    dictionary = Dictionary.load(str(args.data / f"dict.{source}.txt"))
    sides = {}
    for language in (source, target):
        sides[language] = data_utils.load_indexed_dataset(str(args.data / f"{pair}.{language}"))
        if sides[language] is None:
            raise UsageError(f"DATA: got {str(args.data)!r}, without {pair}.{language}.bin")
    count = min(len(sides[source]), SMOKE_PAIRS) if args.smoke else len(sides[source])
    if count < 2:
        raise option_error("DATA", str(args.data), "a training set of at least two pairs")
    sentences = [[dictionary[t] for t in sides[source][i][:-1]] for i in range(count)]
    lots = random.Random(args.seed)
    builders = {}
    for language in (source, target):
        size = len(Dictionary.load(str(args.data / f"dict.{language}.txt")))
        path = str(folder / f"{pair}.{language}.bin")
        builders[language] = indexed_dataset.make_builder(path, "mmap", vocab_size=size)
    with tqdm(total=count * (1 + args.times), unit=" pairs", disable=None) as bar:
        for turn in range(1 + args.times):
            for i in range(count):
                tokens = sides[source][i]
                if turn:
                    other = lots.randrange(count - 1)
                    other += other >= i
                    words = cross(sentences[i], sentences[other], lots.random())
                    indices = [*map(dictionary.index, words), dictionary.eos()]
                    tokens = torch.tensor(indices, dtype=torch.int)
                builders[source].add_item(tokens)
                builders[target].add_item(sides[target][i])
                bar.update()
    for language, builder in builders.items():
        builder.finalize(str(folder / f"{pair}.{language}.idx"))
