"""``make demo``: the same sentences by every decoder, and one table that compares them.

Every sentence is translated alone (batch 1, fp32, CPU) by fairseq's own search with beam 5 and
beam 1 and by this package's exact decoders. Their tokens are compared with fairseq's beam 1,
the number of decoder passes is counted in a round that is not timed, and the timed rounds are
interleaved, so that a busy moment of the machine hits all decoders alike.
"""

from __future__ import annotations

import argparse
import logging
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from sacremoses import MosesDetokenizer
from torch import Tensor
from tqdm import tqdm

from ..decoding.audit import Audit
from ..errors import option_error
from . import measure

DEFAULT_DATA = Path(__file__).resolve().parents[2] / "data-bin" / "demo.en-de"

# Places in `decoders`: the speed-up's 1.0, the judge of tokens, the one whose output is shown.
BASELINE, JUDGE, SHOWN = 0, 1, -1


@dataclass(frozen=True)
class Decoder:
    """One row of the table.

    Attributes:
        label: its name in the table.
        options: what ``task.build_generator`` gets, beside the defaults.
        promises_greedy: its tokens must be those of fairseq's greedy search.
    """

    label: str
    options: dict[str, Any]
    promises_greedy: bool = True


@dataclass
class Record:
    """What one decoder did, by sentence.

    Attributes:
        hypos: best hypothesis of each sentence, as fairseq's dict.
        passes: decoder passes of each sentence.
        seconds: every timed translation, all sentences and rounds together.
    """

    hypos: list[dict[str, Any]] = field(default_factory=list)
    passes: list[int] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)

    @property
    def tokens(self) -> list[list[int]]:
        """The output of each sentence, ``</s>`` included."""
        return [hypo["tokens"].tolist() for hypo in self.hypos]


def decoders(block_size: int) -> list[Decoder]:
    """Return the rows of the table, fairseq's own first.

    Args:
        block_size: positions per pass of the blocked decoders and of the sliding window.
    """
    block = {"block_size": block_size, "jacobi_window": "block"}
    sliding = {"block_size": block_size, "jacobi_window": "sliding"}
    return [
        Decoder("fairseq beam 5", {"decoding": "beam", "beam": 5}, promises_greedy=False),
        Decoder("fairseq greedy", {"decoding": "beam", "beam": 1}),
        Decoder("greedy", {"decoding": "greedy"}),
        Decoder("pj", {"decoding": "pj"}),
        Decoder(f"pgj block {block_size}", {"decoding": "pgj", **block}),
        Decoder(f"hgj block {block_size}", {"decoding": "hgj", **block}),
        Decoder(f"hgj sliding {block_size}", {"decoding": "hgj", **sliding}),
    ]


class Translator:
    """A model with its test set, one sentence a batch, in the order of the text."""

    def __init__(self, data: Path, path: Path, sentences: int) -> None:
        """Load the model and at most ``sentences`` sentences.

        Args:
            data: fairseq data-bin folder with a ``test`` subset.
            path: checkpoint.
            sentences: upper limit of sentences.

        Raises:
            UsageError: a file is missing, or is not what it should be.
        """
        if not data.is_dir():
            raise option_error("--data", str(data), "a folder made by fairseq-preprocess")
        if not any(data.glob("test.*")):
            raise option_error("--data", str(data), "a folder with a `test` subset")
        if not path.is_file():
            raise option_error("--path", str(path), "a fairseq checkpoint")
        self.models, self.task = measure.load(str(data), str(path))
        samples = measure.batches(self.task, "test", 1, sentences)
        self.samples = sorted(samples, key=lambda sample: int(sample["id"]))

    def generator(self, decoder: Decoder) -> Any:
        """Build a decoder's search."""
        return measure.generator(self.task, self.models, **decoder.options)

    def translate(self, generator: Any, sentence: int) -> dict[str, Any]:
        """Return the best hypothesis of one sentence, as fairseq's dict."""
        return self.task.inference_step(generator, self.models, self.samples[sentence])[0][0]

    def texts(self, sentence: int, hypo: dict[str, Any]) -> tuple[str, str, str]:
        """Return source, translation and reference of a sentence as plain text.

        Args:
            sentence: its place among the samples.
            hypo: its translation.
        """
        sample, task = self.samples[sentence], self.task
        reference = sample.get("target")
        return (
            readable(sample["net_input"]["src_tokens"][0], task.source_dictionary),
            readable(hypo["tokens"], task.target_dictionary),
            "-" if reference is None else readable(reference[0], task.target_dictionary),
        )


def readable(tokens: Tensor, dictionary: Any) -> str:
    """Return ids as text: sub-words and Moses tokens joined.

    Args:
        tokens: ids (T).
        dictionary: the fairseq Dictionary they belong to.
    """
    tokens = tokens[tokens.ne(dictionary.pad())]
    if any(symbol.startswith("\u2581") for symbol in dictionary.symbols):
        return dictionary.string(tokens, "sentencepiece")
    return MosesDetokenizer().detokenize(dictionary.string(tokens, "subword_nmt").split())


def count_stock_passes(generator: Any) -> list[int]:
    """Count the decoder passes of a fairseq SequenceGenerator in the one-element list returned.

    fairseq's own search does not say how often it ran its decoder, so its calls are counted.
    """
    calls = [0]
    inner = generator.model.forward_decoder

    def counted(*args: Any, **kwargs: Any) -> Any:
        calls[0] += 1
        return inner(*args, **kwargs)

    generator.model.forward_decoder = counted
    return calls


def observe(translator: Translator, decoder: Decoder, progress: Any) -> Record:
    """Translate every sentence once, untimed: tokens and passes. It is the warm-up, too.

    Args:
        translator: model and sentences.
        decoder: which decoder.
        progress: tqdm bar, advanced by one a sentence.
    """
    generator = translator.generator(decoder)
    stock = decoder.options["decoding"] == "beam"
    calls = count_stock_passes(generator) if stock else [0]
    record = Record()
    for sentence in range(len(translator.samples)):
        calls[0] = 0
        hypo = translator.translate(generator, sentence)
        record.hypos.append(hypo)
        record.passes.append(calls[0] if stock else int(hypo["steps"]))
        progress.update()
    return record


def time_rounds(
    translator: Translator,
    rows: list[Decoder],
    records: list[Record],
    rounds: int,
    progress: Any,
) -> None:
    """Time whole translations, encoder included, and add them to ``records``.

    Args:
        translator: model and sentences.
        rows: the decoders.
        records: theirs, in the same order; ``seconds`` is extended.
        rounds: how often each sentence is translated by each decoder.
        progress: tqdm bar, advanced by one a translation.
    """
    # Fresh generators: those of the untimed round carry the counter.
    generators = [translator.generator(row) for row in rows]
    for turn in range(rounds):
        for sentence in range(len(translator.samples)):
            for place in range(len(rows)):
                # Each sentence starts with another decoder: none profits from its place.
                row = (place + sentence + turn) % len(rows)
                start = time.perf_counter()
                translator.translate(generators[row], sentence)
                records[row].seconds.append(time.perf_counter() - start)
                progress.update()


def divergences(
    translator: Translator, rows: list[Decoder], records: list[Record]
) -> list[tuple[str, dict[str, Any]]]:
    """Return the decoder and the verdict wherever one that promises greedy's tokens left them.

    Args:
        translator: model and sentences.
        rows: the decoders.
        records: theirs, in the same order.
    """
    found = []
    for decoder, record in zip(rows, records, strict=True):
        if not decoder.promises_greedy:
            continue
        audit = Audit(translator.models, translator.task.target_dictionary)
        triples = zip(translator.samples, record.hypos, records[JUDGE].hypos, strict=True)
        for sample, ours, theirs in triples:
            with torch.no_grad():
                (verdict,) = audit.compare_with(sample, [[ours]], [[theirs]])
            if not verdict["identical"]:
                found.append((decoder.label, verdict | {"id": int(sample["id"])}))
    return found


def table(rows: list[Decoder], records: list[Record]) -> str:
    """Format the comparison.

    Args:
        rows: the decoders.
        records: theirs, in the same order.
    """
    heads = ["decoder", "passes", "tokens", "ms per", "speed-up", "identical"]
    under = ["", "per sentence", "per pass", "sentence", "", "to greedy"]
    cells = [heads, under]
    baseline = statistics.median(records[BASELINE].seconds)
    for decoder, record in zip(rows, records, strict=True):
        count = len(record.tokens)
        tokens = sum(len(sentence) for sentence in record.tokens)
        median = statistics.median(record.seconds)
        same = sum(a == b for a, b in zip(record.tokens, records[JUDGE].tokens, strict=True))
        cells.append(
            [
                decoder.label,
                f"{sum(record.passes) / count:.2f}",
                f"{tokens / sum(record.passes):.2f}",
                f"{1000 * median:.1f}",
                f"{baseline / median:.2f}x",
                f"{same}/{count}",
            ]
        )
    widths = [max(len(row[column]) for row in cells) for column in range(len(heads))]
    lines = []
    for row in cells:
        first = row[0].ljust(widths[0])
        rest = (cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True))
        lines.append("  ".join([first, *rest]).rstrip())
    lines.insert(2, "-" * (sum(widths) + 2 * (len(widths) - 1)))
    return "\n".join(lines)


def examples(translator: Translator, record: Record) -> str:
    """Show a short, a medium and a long sentence with translation and reference."""
    lengths = [len(sample["net_input"]["src_tokens"][0]) for sample in translator.samples]
    order = sorted(range(len(lengths)), key=lambda i: (lengths[i], i))
    lines = []
    chosen = [order[int(share * (len(order) - 1))] for share in (0.1, 0.5, 0.9)]
    for sentence in dict.fromkeys(chosen):  # fewer than three sentences: each once
        source, translation, reference = translator.texts(sentence, record.hypos[sentence])
        lines += ["", f"source       {source}", f"translation  {translation}"]
        lines += [f"reference    {reference}"]
    return "\n".join(lines)


def describe(found: list[tuple[str, dict[str, Any]]], rows: list[Decoder]) -> str:
    """Say in plain words which sentences are not greedy's.

    Args:
        found: the divergences.
        rows: the decoders.
    """
    if not found:
        names = [r.label for i, r in enumerate(rows) if r.promises_greedy and i != JUDGE]
        return f"Every sentence identical, token for token, to fairseq greedy: {', '.join(names)}."
    lines = []
    for label, verdict in found:
        gap = "the outputs' lengths differ"
        if verdict["gap"] is not None:
            gap = f"gap of the two tokens there {verdict['gap']:.1e}"
        lines.append(
            f"{label}: sentence {verdict['id']} differs from fairseq greedy at token "
            f"{verdict['position']}; {gap}: {'a tie' if verdict['tie'] else 'NOT A TIE'}"
        )
    return "\n".join(lines)


def main(argv: Sequence[str] | None = None) -> int:
    """Console entry point; returns 1 if an exact decoder diverged beyond ties, 2 for a mistake."""
    parser = argparse.ArgumentParser(
        prog="paradec-demo",
        description="Translate the same sentences by every decoder, one at a time on the CPU, "
        "and print one table: passes, time, and whether the output is greedy's.",
    )
    add, number = parser.add_argument, measure.whole_number
    add("--data", type=Path, default=DEFAULT_DATA, help="fairseq data-bin folder, `test` subset")
    add("--path", type=Path, help="checkpoint (default: DATA/model.pt)")
    add("--sentences", type=number, default=100, help="at most so many (default: 100)")
    add("--rounds", type=number, default=1, help="timed rounds (default: 1)")
    add("--block-size", type=number, default=5, help="positions per pass (default: 5)")
    add("--threads", type=number, default=1, help="CPU threads (default: 1, enough for a tiny one)")
    args = parser.parse_args(argv)
    # The table is all the demo should say: no closing line of each decoder, no audit's warning.
    logging.disable(logging.WARNING)
    try:
        return measure.run("paradec-demo", lambda: _run(args))
    finally:
        logging.disable(logging.NOTSET)


def _run(args: argparse.Namespace) -> int:
    """Run the demo; return 1 if an exact decoder diverged beyond ties, else 0."""
    torch.set_num_threads(args.threads)
    translator = Translator(args.data, args.path or args.data / "model.pt", args.sentences)
    rows, count = decoders(args.block_size), len(translator.samples)
    work = len(rows) * count * (1 + args.rounds)
    with tqdm(total=work, desc="translating", unit="sentence", leave=False) as progress:
        records = [observe(translator, row, progress) for row in rows]
        time_rounds(translator, rows, records, args.rounds, progress)
    found = divergences(translator, rows, records)

    print(
        f"{count} sentences, batch 1, fp32, CPU, {args.threads} thread(s); "
        f"times are medians of {args.rounds} interleaved round(s) after a warm-up, encoder "
        "included; speed-up is against fairseq beam 5.\n"
    )
    print(table(rows, records))
    print("\nidentical: token for token as fairseq greedy. Times depend on this machine.")
    print(describe(found, rows))
    print(examples(translator, records[SHOWN]))
    return int(not all(verdict["tie"] for _, verdict in found))


if __name__ == "__main__":
    sys.exit(main())
