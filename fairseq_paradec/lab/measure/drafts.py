"""The preset ``drafts``: what earlier translations save as drafts, where texts are edited.

Each line is typed word by word, has one word changed, or stays as it is; the translation of the
text before is the draft.
"""

import random
import statistics
import string
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch

from ... import files
from ...errors import option_error
from ...registry import METHODS
from ...translator.translator import Translator
from ..analysis.promises import EXACT
from ..data import documents
from ..data.journal import Journal
from ..data.table import Cells, Table, column
from ..settings import Made
from ..show.table import terminal_table
from .presets import Comparison
from .systems import Output, System
from .timings import Benchmark, Plan

#: The seed of the words that are changed.
SEED = 1
#: What all is compared with.
GREEDY = "greedy"


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


class Translating:
    """A system of ``timings``: translates texts, each by itself, with drafts or without.

    Args:
        translator: a model folder's.
        decoding: a lossless decoder.
        texts: the texts.
        drafts: a draft for each of them; None: without.
    """

    promise, dtype, parameters = EXACT, "fp32", 0
    threads: int | None = None
    task: Any = None

    def __init__(
        self,
        translator: Translator,
        decoding: str,
        texts: Sequence[str],
        drafts: Sequence[str] | None,
    ) -> None:
        self.translator, self.command, self.texts = translator, decoding, texts
        self.drafts = drafts
        self.label = decoding if drafts is None else f"{decoding}, drafts given"
        self.files: list[str] = []
        self.models: list[Any] = []

    def translate(self, sentences: Sequence[int]) -> list[Output]:
        """Translate the texts with these numbers."""
        outputs = []
        for number in sentences:
            draft = None if self.drafts is None else [self.drafts[number]]
            (translation,) = self.translator.results(
                [self.texts[number]], drafts=draft, decoding=self.command
            )
            outputs.append(Output(translation.text.split(), translation.text, translation.passes))
        return outputs

    def provenance(self) -> Mapping[str, Any]:
        """Return nothing: the table does not say it."""
        return {}

    def tie(self, sentence: int, ours: list[str], theirs: list[str]) -> bool:
        """Return whether outputs differ by a tie: it is not known here."""
        return False


def drafts(asked: Comparison) -> int:
    """Translate all edits by all decoders, with drafts and without; write the table."""
    assert asked.out is not None
    able = [name for name, method in METHODS.items() if method.is_lossless_by_default]
    for spec in asked.decoder:
        if spec.options != {"decoding": spec.label} or spec.label not in able:
            raise option_error("--decoder", spec.command, ", ".join(able))
    torch.set_num_threads(asked.threads[0])
    (path,) = asked.path
    translator = Translator(Path(path), flag="--path")
    text = files.read("TEXT", asked.data)
    lines = [line for line in text.splitlines() if line.strip()][: asked.sentences]
    names = [spec.label for spec in asked.decoder]
    rows = []
    for edit in (typed(lines), changed(lines), same(lines)):
        rows += rows_of(translator, edit, names, asked.rounds, asked.busy)
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
    table = Table.of(rows, notes=notes)
    documents.save_made(Made(asked.argv, asked.out, str(asked.title)), table)
    print(terminal_table(table))
    return 0


def rows_of(
    translator: Translator, edit: Edit, decodings: Sequence[str], rounds: int, busy: bool
) -> list[Cells]:
    """Return the rows of one edit: each decoder without drafts, and with drafts given."""
    before = [text for text in dict.fromkeys(edit.earlier) if text]
    known = dict(zip(before, translator.translate(before, decoding=GREEDY), strict=True))
    earlier = [known.get(text, "") for text in edit.earlier]
    systems: list[System] = [
        Translating(translator, decoding, edit.texts, given)
        for decoding in dict.fromkeys((GREEDY, *decodings))
        for given in (None, earlier)
    ]
    texts = [*range(len(edit.texts))]
    plan = Plan(texts, texts, (), (torch.get_num_threads(),), rounds, busy=busy)
    bench = Benchmark(systems, plan, Journal(None, {}))
    bench.run()
    outputs = {
        system.label: bench.journal.entries[f"outputs/1/{system.label}"] for system in systems
    }
    greedy = outputs[GREEDY]
    seconds = bench.seconds(f"latency/{plan.threads[0]}") if rounds else {}
    rows: list[Cells] = []
    for label, own in outputs.items():
        row: Cells = {
            "edit": edit.name,
            "decoder": label,
            "texts": len(texts),
            "identical": sum(a == b for a, b in zip(own["texts"], greedy["texts"], strict=True)),
            "steps_of_greedy": round(statistics.mean(greedy["passes"]), 2),
            "passes": round(statistics.mean(own["passes"]), 2),
            column("in_one_pass", unit="%", form=".0f"): 100
            * sum(passes == 1 for passes in own["passes"])
            / len(texts),
        }
        if rounds:
            ours, greedys = (statistics.median(map(sum, seconds[name])) for name in (label, GREEDY))
            row["ms"] = round(1000 * ours / len(texts), 2)
            row[column("speed_up", "speed-up")] = round(greedys / ours, 2)
        rows.append(row)
    return rows
