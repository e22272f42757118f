"""``paradec demo``: our decoders on the two pairs of a checkout, by the core; or the plugin, live.

The core decodes sentence by sentence, the decoders in turn, from a line of text to a line of text.
Its outputs are compared with those of fairseq's greedy search, which lie beside the sentences, so
that neither torch nor fairseq is needed. The plugin is shown by ``fairseq-generate``.
"""

import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from ...errors import UsageError
from ...methods.base import Decoder
from ...registry import METHODS
from ...threads import set_threads
from ...translator.batches import collate
from ...translator.model_folder import ModelFolder, read
from ...translator.translator import Translator
from ..data.table import Cells, Table, Value, column
from ..show.table import terminal_table
from .traits import DRAFTERS, drafting, traits

ROOT = Path(__file__).resolve().parents[3]
SMALL, TINY = (ROOT / "data-bin" / name for name in ("demo-small.en-de", "demo.en-de"))
#: The sentences of a pair, and what fairseq's greedy search writes for each: tokens, with spaces.
SENTENCES, STORED = "raw/demo.en", "bpe/greedy.de"

#: Models of the tiny pair that write several words a step, by the file's name.
REORDERED = {"IBDecoder": "ibdecoder.pt", "IBDecoder+SA": "ibdecoder_sa.pt"}

#: What an output has to be: greedy search's, that of a method which gives it up, another model's.
EXACT, RELAXED, OTHER = "exact", "relaxed", "other"

#: Sentences that each decoder translates before any is timed.
WARM_UP = 2


@dataclass
class Row:
    """A decoder of the table, and what it has done."""

    label: str
    translator: Translator
    decoder: Decoder
    kind: str  # EXACT, RELAXED or OTHER
    seconds: float = 0.0  # of all sentences
    passes: int = 0
    outputs: list[str] = field(default_factory=list)  # tokens, with spaces

    def translate(self, line: str) -> tuple[str, int]:
        """Translate a line to text; return its tokens, with spaces, and the passes."""
        own = self.translator
        _, batch = collate([own.sources.encode_line(own.encode(line))], [0])
        ((best, *_),) = own.decode(self.decoder, batch)
        tokens = own.targets.string(best["tokens"].tolist())
        own.processing.decode(tokens)
        return tokens, best["steps"]

    def time(self, line: str) -> None:
        """Translate a line, and keep what comes out."""
        before = time.perf_counter()
        tokens, passes = self.translate(line)
        self.seconds += time.perf_counter() - before
        self.passes += passes
        self.outputs.append(tokens)


def check_there(folder: Path) -> None:
    """Refuse to begin where no demo is.

    Raises:
        UsageError: the package is installed without its checkout.
    """
    if not folder.is_dir():
        raise UsageError(
            f"needs {folder.parent.name}/{folder.name} of a checkout of the source; an installed "
            "package has none"
        )


# ---- the core -----------------------------------------------------------------------------------


def compare(sentences: int | None, text: str | None) -> int:
    """Print a table of each pair, and translations; return 1 if an exact decoder is not exact.

    Args:
        sentences: so many of each pair, at most; None: all.
        text: a sentence to translate, too; None: there is none.

    Raises:
        UsageError: there is no demo here.
    """
    check_there(SMALL)
    set_threads(1)
    print(
        "Our decoders, by the core, without torch and fairseq: one sentence at a time, fp32, one "
        "thread of the CPU.\nms a sentence: from text to text. as fairseq: outputs that are those "
        "of fairseq's greedy search, token for token, which are stored.\n",
        flush=True,
    )
    small = Translator(SMALL)
    missing = {name: lack for name in METHODS if (lack := lacks(SMALL, name)) is not None}
    rows = decoders(small, METHODS.keys() - missing.keys())
    wrong = show_pair("Small pair, 6+6 layers, d = 256", rows, missing, sentences)
    print("\n".join(examples(rows[0], read_lines(SMALL / SENTENCES)[:sentences])) + "\n")
    tiny = Translator(TINY)
    rows = [*decoders(tiny, {"greedy", *missing}), *reordered(tiny)]
    wrong += show_pair("Tiny pair, which has these drafters, too", rows, {}, sentences)
    print(f"NOT fairseq's outputs: {', '.join(wrong)}." if wrong else "Exact decoders are exact.")
    if text is not None:
        print("\n".join(["", *translated(small, text)]))
    return int(bool(wrong))


def show_pair(
    title: str, rows: Sequence[Row], absent: Mapping[str, str], sentences: int | None
) -> list[str]:
    """Measure the decoders of a pair, and print their table.

    Args:
        title: of the table.
        rows: the decoders, greedy search first.
        absent: methods that have no row, with the file that each misses.
        sentences: so many are translated, at most; None: all.

    Returns:
        The exact decoders that are not exact.
    """
    folder = rows[0].translator.path
    lines, stored = (read_lines(folder / name)[:sentences] for name in (SENTENCES, STORED))
    measure(rows, lines)
    cells = terminal_table(table(rows, stored, absent))
    print(f"{title} ({shown(folder)}):\n\n{cells}\n", flush=True)
    return [row.label for row in rows if row.kind == EXACT and row.outputs != stored]


def shown(folder: Path) -> str:
    """Return a folder's name from the checkout."""
    return str(folder.relative_to(ROOT))


def read_lines(file: Path) -> list[str]:
    """Return the lines of a text."""
    return file.read_text("utf-8").splitlines()


def lacks(folder: Path, name: str) -> str | None:
    """Return the file that a method of the demo misses in a folder; None: nothing."""
    kind = METHODS[name].drafter
    file = f"{DRAFTERS.get(str(kind))}.pt"
    needed = kind is not None and traits(name).demo is not None
    return file if needed and not (folder / file).is_file() else None


def drafter_of(folder: Path, name: str) -> dict[str, Any]:
    """Return the option of a method's drafter in a folder."""
    kind = METHODS[name].drafter
    return {} if kind is None else {"drafter_path": str(folder / f"{DRAFTERS[kind]}.pt")}


def decoders(translator: Translator, names: set[str]) -> list[Row]:
    """Return the rows of some methods, greedy search first."""
    rows = [Row("greedy", translator, translator.generator({"decoding": "greedy"}), EXACT)]
    for method in METHODS.values():
        if method.name in names:
            kind = EXACT if method.is_lossless_by_default else RELAXED
            for label, options in (traits(method.name).demo or {}).items():
                own = {**options, **drafter_of(translator.path, method.name)}
                decoder = translator.generator({"decoding": method.name, **own})
                rows.append(Row(label, translator, decoder, kind))
    return rows


def reordered(translator: Translator) -> Iterator[Row]:
    """Yield the rows of the folder's models that write several words a step."""
    for label, file in REORDERED.items():
        own: ModelFolder = replace(read(translator.path), model=file, drafter=None)
        other = Translator(translator.path, own)
        yield Row(label, other, other.generator({"decoding": "auto", "beam": 1}), OTHER)


def measure(rows: Sequence[Row], lines: Sequence[str]) -> None:
    """Translate all lines by all decoders, the decoders in turn, each time another one first."""
    for row in rows:
        for line in lines[:WARM_UP]:
            row.translate(line)
    for first, line in enumerate(lines):
        for place in range(len(rows)):
            rows[(first + place) % len(rows)].time(line)


def table(rows: Sequence[Row], stored: Sequence[str], absent: Mapping[str, str]) -> Table:
    """Return the table of what was measured.

    Args:
        rows: the decoders, greedy search first.
        stored: what fairseq's greedy search writes.
        absent: methods that have no row, with the file that each misses.
    """
    count, (greedy, *_) = len(stored), rows
    passes, ms = column("passes", "passes a sentence", form=".2f"), column("ms", "ms a sentence")
    ms, gain = replace(ms, form=".1f"), column("gain", "x greedy", "x", ".2f")
    same = column("same", "as fairseq")
    cells: list[Cells] = []
    for row in rows:
        equal = sum(map(str.__eq__, row.outputs, stored))
        cells.append(
            {
                "decoder": row.label,
                passes: row.passes / count,
                ms: 1000 * row.seconds / count,
                gain: greedy.seconds / row.seconds,
                same: "another model" if row.kind == OTHER else Value.share(equal, count),
                "lossless": None if row.kind == OTHER else row.kind == EXACT,
            }
        )
    for name, file in absent.items():
        nothing: Cells = dict.fromkeys((passes, ms, gain))
        cells.append({"decoder": name, **nothing, same: f"no {file} here", "lossless": None})
    return Table.of(cells)


def examples(row: Row, lines: Sequence[str]) -> Iterator[str]:
    """Yield three sentences with their translations."""
    for place in dict.fromkeys(int(share * (len(lines) - 1)) for share in (0.1, 0.5, 0.9)):
        yield f"  {lines[place]}"
        yield f"  -> {row.translator.processing.decode(row.outputs[place])}"


def translated(translator: Translator, text: str) -> Iterator[str]:
    """Yield a sentence and what greedy search, and the lossless drafters that are there, write."""
    yield f"{'source':<13}{text}"
    for name in ("greedy", *drafting()):
        if lacks(translator.path, name) is None:
            drafter = drafter_of(translator.path, name)
            (result,) = translator.results([text], decoding=name, **drafter)
            yield f"{name:<13}{result.problem or result.text}"


# ---- the plugin ---------------------------------------------------------------------------------

#: Flags of ``fairseq-generate``, by what they run; fairseq's own search first.
LIVE = {
    "fairseq's greedy search": "--decoding beam --beam 1",
    "self_draft, lossless": "--decoding self_draft",
    "gad_pp, not lossless": "--decoding gad_pp --drafter-path {data}/drafter.pt",
}
#: The commands' first words: those of README.
GENERATE = "fairseq-generate {data} --user-dir fairseq_paradec --path {data}/model.pt"
#: What fairseq-generate says at its end.
TIMED = re.compile(r"Translated [\d,]+ sentences .* in ([\d.]+)s")


def live() -> int:
    """Run the plugin by fairseq's command, on the tiny pair; return 1 if it is not exact.

    Raises:
        UsageError: there is no demo here, or the command fails.
    """
    check_there(TINY)
    print("The plugin, by fairseq's own command, one sentence at a time, one thread:\n")
    outputs: dict[str, list[str]] = {}
    cells: list[Cells] = []
    for label, flags in LIVE.items():
        words = f"{GENERATE} {flags} --batch-size 1 --cpu".format(data=shown(TINY))
        print(f"$ {words}", flush=True)
        outputs[label], seconds = generate(words.split())
        first, own = next(iter(outputs.values())), outputs[label]
        equal = sum(map(str.__eq__, own, first))
        cells.append(
            {
                "decoding": label,
                column("ms", "ms a sentence", form=".1f"): 1000 * seconds / len(own),
                column("same", "as fairseq"): Value.share(equal, len(first)),
            }
        )
    print(f"\n{terminal_table(Table.of(cells))}\n")
    fairseqs, lossless, _ = outputs.values()
    stored = read_lines(TINY / STORED)
    if fairseqs != stored:
        print(f"NOT what is stored in {shown(TINY)}/{STORED}: fairseq's greedy search.")
    if lossless != fairseqs:
        print("NOT fairseq's outputs: self_draft.")
    return int(fairseqs != stored or lossless != fairseqs)


def generate(words: Sequence[str]) -> tuple[list[str], float]:
    """Run fairseq-generate in the checkout; return outputs in the data's order, and its seconds.

    Raises:
        UsageError: it fails; its last line says why.
    """
    command = [sys.executable, "-m", "fairseq_cli.generate", *words[1:]]
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, encoding="utf-8")
    timed = TIMED.search(done.stderr + done.stdout)
    if done.returncode or timed is None:
        said = done.stderr.strip().splitlines()[-1:] or [f"status {done.returncode}"]
        raise UsageError(f"fairseq-generate failed: {said[0]}")
    found = (line[2:].split("\t") for line in done.stdout.splitlines() if line.startswith("H-"))
    numbered = {int(number): tokens for number, _, tokens in found}
    return [numbered[number] for number in sorted(numbered)], float(timed[1])
