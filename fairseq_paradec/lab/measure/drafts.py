"""The preset ``drafts``: what earlier translations save as drafts, where texts are edited.

Each line is typed word by word, has one word changed, or stays as it is; the translation of the
text before is the draft.
"""

import random
import statistics
import string
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from ... import files
from ...errors import option_error
from ...registry import METHODS
from ...threads import set_threads
from ...translator.translator import Translation, Translator
from ..data.table import Cells, Table, column
from . import rounds
from .kept import save
from .presets import Comparison

#: The seed of the words that are changed.
SEED = 1
#: What all is compared with.
GREEDY = "greedy"


class Variant(NamedTuple):
    """How texts are translated."""

    decoding: str  # a lossless decoder
    given: bool  # whether the earlier translations are given as drafts


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
        other_words = {word.rstrip(string.punctuation) for each in others for word in each}
        other_words -= {bare, ""}
        new = draws.choice(sorted(other_words)) if other_words else bare + bare
        words[at] = new + words[at][len(bare) :]
        texts.append(" ".join(words))
    return Edit("one word changed", texts, list(lines))


def same(lines: Sequence[str]) -> Edit:
    """Return the lines as they are."""
    return Edit("unchanged", list(lines), list(lines))


def drafts(asked: Comparison) -> int:
    """Translate all edits by all decoders, with drafts and without; write the table."""
    able = [name for name, method in METHODS.items() if method.is_lossless_by_default]
    for spec in asked.decoder:
        if spec.options != {"decoding": spec.label} or spec.label not in able:
            raise option_error("--decoder", spec.command, ", ".join(able))
    (path,) = asked.path
    translator = Translator(Path(path), flag="--path")
    set_threads(asked.threads[0])  # torch's, too, if the model made it load
    text = files.read("TEXT", asked.data)
    lines = [line for line in text.splitlines() if line.strip()][: asked.sentences]
    names = [spec.label for spec in asked.decoder]
    rows = []
    for edit in (typed(lines), changed(lines), same(lines)):
        rows += rows_of(translator, edit, names, asked)
    notes = [
        f"{len(lines)} lines of {Path(asked.data).name}; {translator.path.name}, fp32, each text "
        "alone. The draft of a text is the translation of the text before it, as plain text.",
        "One word changed: to one that stands at the same place in another line, at random.",
        "Steps of greedy: its passes without drafts, one a token, with `</s>`. Identical: texts "
        "that are greedy's.",
    ]
    if asked.rounds:
        notes.append(
            f"ms: medians of {asked.rounds} rounds over all texts, in turn; {asked.threads[0]} "
            "thread. Speed-up: over greedy without drafts."
        )
    save(asked, Table.of(rows, notes=notes))
    return 0


def rows_of(
    translator: Translator, edit: Edit, decodings: Sequence[str], asked: Comparison
) -> list[Cells]:
    """Return the rows of one edit: each decoder without drafts, and with drafts given."""
    before = [text for text in dict.fromkeys(edit.earlier) if text]
    known = dict(zip(before, translator.translate(before, decoding=GREEDY), strict=True))
    earlier = [known.get(text, "") for text in edit.earlier]
    texts = range(len(edit.texts))
    variants = [
        Variant(name, given)
        for name in dict.fromkeys((GREEDY, *decodings))
        for given in (False, True)
    ]

    def translated(variant: Variant, number: int) -> Translation:
        draft = [earlier[number]] if variant.given else None
        text = edit.texts[number]
        (translation,) = translator.results([text], drafts=draft, decoding=variant.decoding)
        return translation

    def seconds(variant: Variant, number: int) -> float:
        begin = rounds.now()
        translated(variant, number)
        return rounds.now() - begin

    outputs = [[translated(variant, number) for number in texts] for variant in variants]
    by_round, _ = rounds.all_rounds(variants, texts, asked.rounds, asked.busy, seconds, "texts")
    greedy = outputs[0]
    rows: list[Cells] = []
    for place, (variant, own) in enumerate(zip(variants, outputs, strict=True)):
        passes = [translation.passes for translation in own]
        row: Cells = {
            "edit": edit.name,
            "decoder": f"{variant.decoding}, drafts given" if variant.given else variant.decoding,
            "texts": len(texts),
            "identical": sum(a.text == b.text for a, b in zip(own, greedy, strict=True)),
            "steps_of_greedy": round(statistics.mean(first.passes for first in greedy), 2),
            "passes": round(statistics.mean(passes), 2),
            column("in_one_pass", unit="%", form=".0f"): 100 * passes.count(1) / len(texts),
        }
        if asked.rounds:
            ours, greedys = (
                statistics.median(sum(results[i]) for results in by_round) for i in (place, 0)
            )
            row["ms"] = round(1000 * ours / len(texts), 2)
            row[column("speed_up", "speed-up")] = round(greedys / ours, 2)
        rows.append(row)
    return rows
