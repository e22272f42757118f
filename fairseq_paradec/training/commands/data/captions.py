"""Make documents and summaries from captions: a substitute for a summarisation corpus.

A document is N captions. Its summary is the first clause of each of the first K captions, in order.
By default K = N: summaries are long, as in CNN/DailyMail. With K = 1 they are one short line, as in
Gigaword. Several N give documents of several lengths, each length from all captions. A first clause
ends before the first comma, preposition or conjunction after at least three words: "a man in a red
hat stands on a ladder" becomes "a man in a red hat stands".

The task is copying with omissions, by a rule. A small model can learn it from little data, and
outputs are long and follow the document closely. It is much easier than summarisation, so its
scores cannot be compared with those of Gigaword or CNN/DailyMail.

In valid and test, each caption is used once per length. In train, the captions are shuffled and
used --times times. Captions of valid or test (in lower case) are left out of train, those of test
also out of valid. Captions too few for a last document are left out.
"""

import argparse
import random
from collections.abc import Sequence
from pathlib import Path

from .... import files
from ....cli import arguments
from ....errors import UsageError, option_error
from ....translator.model_folder import new_folder

ENDS = frozenset(
    ", ; : . ! ? and or but while as that who which where with without in into inside on onto at "
    "by of off for from to toward towards through over under near next beside behind between "
    "around along across against above below during outside up down".split()
)
FEWEST_WORDS = 3
MARK = "."


def first_clause(caption: str) -> str:
    """Return the first clause of a caption."""
    words = caption.split()
    for place in range(FEWEST_WORDS, len(words)):
        if words[place].lower() in ENDS:
            return " ".join(words[:place])
    return " ".join(words).removesuffix(MARK).rstrip()


def documents(
    captions: Sequence[str], size: int, summarised: int, times: int, lots: random.Random
) -> list[tuple[str, str]]:
    """Make documents of captions.

    Args:
        captions: each goes into at most one document of a round.
        size: captions of a document.
        summarised: the number of captions in the summary, from the first one on.
        times: rounds.
        lots: generator for the order of the captions.

    Returns:
        Documents and their summaries.
    """
    pairs = []
    for _ in range(times):
        order = lots.sample(captions, len(captions))
        for start in range(0, len(order) - size + 1, size):
            texts = order[start : start + size]
            clauses = [f"{first_clause(text)} {MARK}" for text in texts[:summarised]]
            pairs.append((" ".join(texts), " ".join(clauses)))
    return pairs


def declare(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    add = parser.add_argument
    add(
        "texts",
        metavar="TEXTS",
        type=Path,
        help="a folder with train.LANG, valid.LANG, test.LANG, a tokenised caption a line, such as "
        "tok/ of scripts/prepare_multi30k.sh",
    )
    add(
        "dest",
        metavar="DEST",
        type=Path,
        help="the folder to make, for scripts/prepare_summarisation.sh --tokenized; new or empty",
    )
    number = arguments.whole_number
    add("--language", default="en", metavar="LANG", help="ending of the files (default: en)")
    add(
        "--captions",
        type=arguments.whole_numbers,
        default=[8],
        metavar="N[,N...]",
        help="of a document, one length or several (default: 8)",
    )
    add("--summarised", type=number, metavar="K", help="the first K of them (default: all)")
    add("--times", type=number, default=8, metavar="R", help="rounds, in train, per N (default 8)")
    add("--most", type=number, metavar="D", help="documents per N in valid and test (default: all)")
    add("--seed", type=int, default=1, help="(default: 1)")


def run(args: argparse.Namespace) -> int:
    """Write the folder, whole or not at all."""
    sizes = list(dict.fromkeys(args.captions))
    if args.summarised is not None and args.summarised > min(sizes):
        raise option_error("--summarised", args.summarised, f"at most --captions, {min(sizes)}")
    made, seen = {}, set[str]()
    for split in ("test", "valid", "train"):
        file = str(args.texts / f"{split}.{args.language}")
        captions = [" ".join(line.split()) for line in files.read("TEXTS", file).split("\n")]
        kept = [text for text in captions if text and text.lower() not in seen]
        seen |= {text.lower() for text in captions}
        # Each split has its own generator, so a change in one changes no other.
        lots = random.Random(f"{args.seed} {split}")
        times = args.times if split == "train" else 1
        if len(kept) < max(sizes):
            raise UsageError(
                f"{file}: got {len(kept)} captions that no other split has; "
                f"allowed: at least --captions, {max(sizes)}"
            )
        most = None if split == "train" else args.most
        made[split] = [
            pair
            for size in sizes
            for pair in documents(kept, size, args.summarised or size, times, lots)[:most]
        ]
    with new_folder(args.dest, "DEST") as folder:
        for split, pairs in made.items():
            for side, texts in zip(("document", "summary"), zip(*pairs)):
                lines = "".join(f"{text}\n" for text in texts)
                (folder / f"{split}.{side}").write_text(lines, encoding="utf-8")
    print(*(f"{split}: {len(pairs)} documents" for split, pairs in made.items()), sep="\n")
    return 0
