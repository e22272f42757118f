"""Make documents and summaries from captions: a stand-in where no summarisation corpus is at hand.

A document is N captions. Its summary has the first clause of each of the first K, in order: all of
them by default, so that summaries are long, as in CNN/DailyMail, and grow with N; with K = 1 it is
one short line about what comes first, as in Gigaword. Several N give documents of several lengths,
each length with all captions. A first clause ends before the first comma,
preposition or conjunction that has three words or more before it ("a man in a red hat stands on a
ladder" becomes "a man in a red hat stands": after two words, "in" is too early).

It is copying with omissions, by a rule: this should be within reach of a small model and little
data, outputs are long and follow the document closely, and what is right is known. It has nothing
of what is hard in summarisation, so no figure from it is one of Gigaword or CNN/DailyMail.

Of a length, each caption is used once in a document of valid and test. For training, the captions
are shuffled and dealt out anew --times times. Captions that valid or test has (in lower case) are
left out of train, those of test also out of valid. What is too little for a document at the end is
left out.
"""

from __future__ import annotations

import argparse
import os
import random
import tempfile
from collections.abc import Sequence
from pathlib import Path

from ...errors import UsageError, option_error
from .. import arguments
from ..text_files import read

ENDS = frozenset(
    ", ; : . ! ? and or but while as that who which where with without in into inside on onto at "
    "by of off for from to toward towards through over under near next beside behind between "
    "around along across against above below during outside up down".split()
)
FEWEST_WORDS = 3
MARK = "."


def first_clause(caption: str) -> str:
    """Return the words of a caption up to where its first clause ends."""
    words = caption.split()
    for place in range(FEWEST_WORDS, len(words)):
        if words[place].lower() in ENDS:
            return " ".join(words[:place])
    return " ".join(words).removesuffix(MARK).rstrip()


def documents(
    captions: Sequence[str], size: int, summarised: int, times: int, lots: random.Random
) -> list[tuple[str, str]]:
    """Deal captions out.

    Args:
        captions: each goes into at most one document of a round.
        size: captions of a document.
        summarised: how many of them, from the first one, the summary is about.
        times: rounds.
        lots: for the order of the captions.

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
        "texts", metavar="TEXTS", type=Path,
        help="a folder with train.LANG, valid.LANG, test.LANG, a tokenised caption a line: tok/ of "
        "what scripts/prepare_multi30k.sh made",
    )  # fmt: skip
    add(
        "dest", metavar="DEST", type=Path,
        help="the new folder, for scripts/prepare_summarisation.sh --tokenized; must not exist",
    )  # fmt: skip
    number = arguments.whole_number
    add("--language", default="en", metavar="LANG", help="ending of the files (default: en)")
    add(
        "--captions", type=arguments.whole_numbers, default=[8],
        metavar="N[,N...]", help="of a document, one length or several (default: 8)",
    )  # fmt: skip
    add("--summarised", type=number, metavar="K", help="the first K of them (default: all)")
    add("--times", type=number, default=8, metavar="R", help="rounds, in train, per N (default 8)")
    add(
        "--most", type=number, metavar="D",
        help="documents of an N in valid and test, so that all lengths have as many (default: all)",
    )  # fmt: skip
    add("--seed", type=int, default=1, help="(default: 1)")


def run(args: argparse.Namespace) -> int:
    """Write the folder, whole or not at all."""
    sizes = list(dict.fromkeys(args.captions))
    if args.summarised is not None and args.summarised > min(sizes):
        raise option_error("--summarised", args.summarised, f"at most --captions, {min(sizes)}")
    if args.dest.exists():
        raise option_error("DEST", str(args.dest), "a folder that does not exist yet")
    made, seen = {}, set[str]()
    for split in ("test", "valid", "train"):
        file = str(args.texts / f"{split}.{args.language}")
        captions = [" ".join(line.split()) for line in read("TEXTS", file).split("\n")]
        kept = [text for text in captions if text and text.lower() not in seen]
        seen |= {text.lower() for text in captions}
        # A split has lots of its own: another number of captions in one changes no other.
        lots = random.Random(f"{args.seed} {split}")
        times = args.times if split == "train" else 1
        if len(kept) < max(sizes):
            raise UsageError(
                f"{file}: got {len(kept)} captions that no other split has; "
                f"allowed: at least --captions, {max(sizes)}"
            )
        most = None if split == "train" else args.most
        made[split] = [
            pair for size in sizes
            for pair in documents(kept, size, args.summarised or size, times, lots)[:most]
        ]  # fmt: skip
    args.dest.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".captions-", dir=args.dest.parent) as work:
        folder = Path(work) / "data"
        folder.mkdir()
        for split, pairs in made.items():
            for side, texts in zip(("document", "summary"), zip(*pairs)):
                lines = "".join(f"{text}\n" for text in texts)
                (folder / f"{split}.{side}").write_text(lines, encoding="utf-8")
        os.rename(folder, args.dest)
    print(*(f"{split}: {len(pairs)} documents" for split, pairs in made.items()), sep="\n")
    return 0
