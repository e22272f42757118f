"""``paradec drafts``: what earlier translations save as drafts, where texts are typed or edited."""

import random
import statistics
import string
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch

from ... import files
from ...translator.translation import Translation
from ...translator.translator import Translator
from ..data import documents
from ..data.table import Cells, Table, column
from ..settings import Made

#: The seed of the words that are changed.
SEED = 1
#: Each text is decoded by itself, as where someone waits for it.
ALONE: dict[str, Any] = {"batch_size": 1, "buffer_size": 1}


@dataclass(frozen=True)
class Settings:
    """Of ``paradec drafts``."""

    file: Path  # plain text, a sentence a line
    model: Path  # a model folder
    decoding: Sequence[str]  # lossless decoders
    limit: int | None  # lines; None: all
    rounds: int  # how often all are timed; 0: never
    argv: Sequence[str]  # the words after ``paradec``
    out: Path  # the JSON file to write


class Edit(NamedTuple):
    """Texts that follow earlier ones."""

    name: str  # what is done to a text
    texts: list[str]  # as they are to be translated
    earlier: list[str]  # the text before each of them; empty: there was none


def typed(lines: Sequence[str]) -> Edit:
    """Return each line's beginnings, word by word."""
    texts, earlier = [], []
    for line in lines:
        words = line.split()
        begun = [" ".join(words[: n + 1]) for n in range(len(words))]
        texts += begun
        earlier += ["", *begun[:-1]]
    return Edit("typed word by word", texts, earlier)


def changed(lines: Sequence[str]) -> Edit:
    """Return the lines with one word changed to one that stands at its place in another line."""
    draws, texts = random.Random(SEED), []
    for line in lines:
        words = line.split()
        at = draws.randrange(len(words))
        bare = words[at].rstrip(string.punctuation)
        others = [other.split()[at : at + 1] for other in lines]
        found = {one[0].rstrip(string.punctuation) for one in others if one} - {bare, ""}
        new = draws.choice(sorted(found)) if found else bare + bare
        words[at] = new + words[at][len(bare) :]
        texts.append(" ".join(words))
    return Edit("one word changed", texts, list(lines))


def same(lines: Sequence[str]) -> Edit:
    """Return the lines as they are."""
    return Edit("unchanged", list(lines), list(lines))


def drafts(args: Settings) -> int:
    """Translate all edits by all decoders, with drafts and without; write the table."""
    torch.set_num_threads(1)
    translator = Translator(args.model)
    text = files.read("FILE", str(args.file))
    lines = [line for line in text.splitlines() if line.strip()][: args.limit]
    rows = []
    for edit in (typed(lines), changed(lines), same(lines)):
        rows += rows_of(translator, edit, args.decoding, args.rounds)
    notes = [
        f"{len(lines)} lines of {args.file.name}; {translator.path.name}, fp32, each text alone. "
        "The draft of a text is the translation of the text before it, as plain text.",
        "One word changed: to one that stands at the same place in another line, at random.",
        "Steps of greedy: its passes without drafts, one a token, with `</s>`. Identical: texts "
        "that are greedy's.",
    ]
    if args.rounds:
        notes.append(
            f"ms: medians of {args.rounds} rounds over all texts, in turn; 1 thread. Speed-up: "
            "over greedy without drafts."
        )
    made = Made(args.argv, args.out, "Earlier translations as drafts")
    documents.save_made(made, Table.of(rows, notes=notes))
    return 0


def rows_of(
    translator: Translator, edit: Edit, decodings: Sequence[str], rounds: int
) -> list[Cells]:
    """Return the rows of one edit: each decoder without drafts, and with drafts given."""
    before = [text for text in dict.fromkeys(edit.earlier) if text]
    known = dict(zip(before, translator.translate(before, decoding="greedy"), strict=True))
    given = [known.get(text, "") for text in edit.earlier]
    ways = {
        f"{decoding}{', drafts given' if has else ''}": (decoding, given if has else None)
        for decoding in dict.fromkeys(("greedy", *decodings))
        for has in (False, True)
    }
    seconds: dict[str, list[float]] = {label: [] for label in ways}
    found: dict[str, list[Translation]] = {}
    for number in range(rounds + 1):  # the first warms up
        for label, (decoding, one) in ways.items():
            begin = time.perf_counter()
            found[label] = list(
                translator.results(edit.texts, drafts=one, decoding=decoding, **ALONE)
            )
            if number > 0:
                seconds[label].append(time.perf_counter() - begin)
    steps = statistics.mean(one.passes for one in found["greedy"])
    rows: list[Cells] = []
    for label, outputs in found.items():
        pairs = list(zip(outputs, found["greedy"], strict=True))
        passes = [one.passes for one in outputs]
        row: Cells = {
            "edit": edit.name,
            "decoder": label,
            "texts": len(outputs),
            "identical": sum(one.text == greedy.text for one, greedy in pairs),
            "steps_of_greedy": round(steps, 2),
            "passes": round(statistics.mean(passes), 2),
            column("in_one_pass", unit="%", form=".0f"): 100
            * sum(n == 1 for n in passes)
            / len(passes),
        }
        if rounds:
            own, greedy = (statistics.median(seconds[one]) for one in (label, "greedy"))
            row["ms"] = round(1000 * own / len(outputs), 2)
            row[column("speed_up", "speed-up")] = round(greedy / own, 2)
        rows.append(row)
    return rows
