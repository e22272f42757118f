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
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import UsageError

if TYPE_CHECKING:
    from torch import Tensor

DEFAULT_DATA = Path(__file__).resolve().parents[2] / "data-bin" / "demo.en-de"

# Two tokens whose log-probs lie closer than this may swap when a pass rounds differently.
TIE = 1e-4

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
    promises_greedy: bool


@dataclass
class Record:
    """What one decoder did, by sentence.

    Attributes:
        tokens: best hypothesis of each sentence, ``</s>`` included.
        passes: decoder passes of each sentence.
        seconds: every timed translation, all sentences and rounds together.
    """

    tokens: list[list[int]] = field(default_factory=list)
    passes: list[int] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)


@dataclass(frozen=True)
class Divergence:
    """A sentence that an exact decoder translated otherwise than fairseq's greedy search.

    Attributes:
        label: the decoder.
        sentence: 0-based index in the test set.
        position: 0-based index of the first differing token.
        gap: log-prob of the best token there minus that of the worse of the two chosen ones.
    """

    label: str
    sentence: int
    position: int
    gap: float

    @property
    def is_tie(self) -> bool:
        """Whether rounding explains the difference."""
        return self.gap < TIE


def decoders(block_size: int) -> list[Decoder]:
    """Return the rows of the table, fairseq's own first.

    Args:
        block_size: positions per pass of the blocked decoders and of the sliding window.
    """

    def row(label: str, exact: bool = True, beam: int = 1, **options: Any) -> Decoder:
        return Decoder(label, dict(beam=beam, **options), promises_greedy=exact)

    size: dict[str, Any] = dict(block_size=block_size)
    return [
        row("fairseq beam 5", exact=False, beam=5, decoding="beam"),
        row("fairseq greedy", decoding="beam"),
        row("greedy", decoding="greedy"),
        row("pj", decoding="pj"),
        row(f"pgj block {block_size}", decoding="pgj", jacobi_window="block", **size),
        row(f"hgj block {block_size}", decoding="hgj", jacobi_window="block", **size),
        row(f"hgj sliding {block_size}", decoding="hgj", jacobi_window="sliding", **size),
    ]


class Translator:
    """A model with its test set, read through fairseq's public functions."""

    def __init__(self, data: Path, path: Path, sentences: int) -> None:
        """Load the model and at most ``sentences`` sentences.

        Args:
            data: fairseq data-bin folder with a ``test`` subset.
            path: checkpoint.
            sentences: upper limit of sentences.

        Raises:
            UsageError: a file is missing.
        """
        check_files(data, path)
        from fairseq import checkpoint_utils

        # fairseq configures logging while it is imported; the table is all the demo should say.
        logging.disable(logging.INFO)
        self.models, cfg, self.task = checkpoint_utils.load_model_ensemble_and_task(
            [str(path)], arg_overrides={"data": str(data)}
        )
        for model in self.models:
            model.float().eval()
            model.prepare_for_inference_(cfg)
        self.task.load_dataset("test")
        dataset = self.task.dataset("test")
        self.samples = [dataset.collater([dataset[i]]) for i in range(min(sentences, len(dataset)))]

    def generator(self, options: dict[str, Any]) -> Any:
        """Build the search that ``options`` ask for."""
        return self.task.build_generator(self.models, argparse.Namespace(**options))

    def translate(self, generator: Any, sentence: int) -> dict[str, Any]:
        """Return the best hypothesis of one sentence, as fairseq's dict."""
        return self.task.inference_step(generator, self.models, self.samples[sentence])[0][0]

    def texts(self, sentence: int, tokens: list[int]) -> tuple[str, str, str]:
        """Return source, translation and reference of a sentence as plain text.

        Args:
            sentence: its index.
            tokens: ids of the translation.
        """
        import torch

        sample, task = self.samples[sentence], self.task
        source = readable(sample["net_input"]["src_tokens"][0], task.source_dictionary)
        reference = sample.get("target")
        return (
            source,
            readable(torch.tensor(tokens), task.target_dictionary),
            "-" if reference is None else readable(reference[0], task.target_dictionary),
        )

    def gap(self, sentence: int, prefix: list[int], chosen: tuple[int, int]) -> float:
        """Return how far the worse of two tokens lies behind the best one, in log-prob.

        fairseq's full forward is asked, without any cache, so neither decoder is its own judge.

        Args:
            sentence: its index.
            prefix: tokens before the place in question.
            chosen: the two tokens.
        """
        import torch

        net_input = dict(self.samples[sentence]["net_input"])
        dictionary = self.task.target_dictionary
        net_input["prev_output_tokens"] = torch.tensor([[dictionary.eos(), *prefix]])
        with torch.no_grad():
            model = self.models[0]
            lprobs = model.get_normalized_probs(model(**net_input), log_probs=True)[0, -1]
        lprobs[dictionary.pad()] = -float("inf")
        if not prefix:
            lprobs[dictionary.eos()] = -float("inf")
        return float(lprobs.max() - lprobs[list(chosen)].min())


def check_files(data: Path, path: Path) -> None:
    """Raise UsageError unless the data folder and the checkpoint are there."""
    if not data.is_dir():
        raise UsageError(f"--data: got {str(data)!r}; allowed: a folder made by fairseq-preprocess")
    if not any(data.glob("test.*")):
        raise UsageError(f"--data: got {str(data)!r}; allowed: a folder with a `test` subset")
    if not path.is_file():
        raise UsageError(f"--path: got {str(path)!r}; allowed: a fairseq checkpoint")


def readable(tokens: Tensor, dictionary: Any) -> str:
    """Return ids as text: sub-words joined, Moses tokens joined where sacremoses is installed.

    Args:
        tokens: ids (T).
        dictionary: the fairseq Dictionary they belong to.
    """
    tokens = tokens[tokens.ne(dictionary.pad())]
    if any(symbol.startswith("\u2581") for symbol in dictionary.symbols):
        return dictionary.string(tokens, "sentencepiece")
    text = dictionary.string(tokens, "subword_nmt")
    try:
        from sacremoses import MosesDetokenizer
    except ImportError:
        return text
    return MosesDetokenizer().detokenize(text.split())


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


def observe(translator: Translator, decoder: Decoder, sentences: int, progress: Any) -> Record:
    """Translate every sentence once, untimed: tokens and passes. It is the warm-up, too.

    Args:
        translator: model and sentences.
        decoder: which decoder.
        sentences: how many sentences.
        progress: tqdm bar, advanced by one a sentence.
    """
    generator = translator.generator(decoder.options)
    stock = decoder.options["decoding"] == "beam"
    calls = count_stock_passes(generator) if stock else [0]
    record = Record()
    for sentence in range(sentences):
        calls[0] = 0
        hypothesis = translator.translate(generator, sentence)
        record.tokens.append(hypothesis["tokens"].tolist())
        record.passes.append(calls[0] if stock else int(hypothesis["steps"]))
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
    generators = [translator.generator(row.options) for row in rows]
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
) -> list[Divergence]:
    """Return every place where a decoder that promises greedy's tokens left them."""
    found = []
    for decoder, record in zip(rows, records, strict=True):
        if not decoder.promises_greedy:
            continue
        pairs = zip(records[JUDGE].tokens, record.tokens, strict=True)
        for sentence, (expected, got) in enumerate(pairs):
            if expected == got:
                continue
            length = min(len(expected), len(got))
            differs = (i for i in range(length) if expected[i] != got[i])
            # No differing token: one output is the beginning of the other, and no tie explains it.
            position = next(differs, length)
            gap = float("inf")
            if position < length:
                chosen = (expected[position], got[position])
                gap = translator.gap(sentence, expected[:position], chosen)
            found.append(Divergence(decoder.label, sentence, position, gap))
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
    for share in (0.1, 0.5, 0.9):
        sentence = order[int(share * (len(order) - 1))]
        source, translation, reference = translator.texts(sentence, record.tokens[sentence])
        lines += ["", f"source       {source}", f"translation  {translation}"]
        lines += [f"reference    {reference}"]
    return "\n".join(lines)


def describe(found: list[Divergence], names: list[str]) -> str:
    """Say in plain words which sentences are not greedy's.

    Args:
        found: the divergences.
        names: labels of all decoders that promise greedy's tokens.
    """
    if not found:
        return f"Every sentence identical, token for token, to fairseq greedy: {', '.join(names)}."
    lines = []
    for item in found:
        verdict = "a tie" if item.is_tie else "NOT A TIE"
        lines.append(
            f"{item.label}: sentence {item.sentence} differs from fairseq greedy at token "
            f"{item.position}; top-2 gap there {item.gap:.1e}: {verdict}"
        )
    return "\n".join(lines)


def parse_args(argv: list[str] | None = None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        prog="paradec-demo",
        description="Translate the same sentences by every decoder, one at a time on the CPU, "
        "and print one table: passes, time, and whether the output is greedy's.",
    )
    add = parser.add_argument
    add("--data", type=Path, default=DEFAULT_DATA, help="fairseq data-bin folder, `test` subset")
    add("--path", type=Path, help="checkpoint (default: DATA/model.pt)")
    add("--sentences", type=int, default=100, help="use at most so many (default: 100)")
    add("--rounds", type=int, default=1, help="timed rounds (default: 1)")
    add("--block-size", type=int, default=5, help="positions per pass (default: 5)")
    add("--threads", type=int, default=1, help="CPU threads (default: 1, enough for a tiny model)")
    args = parser.parse_args(argv)
    for name in ("sentences", "rounds", "block_size", "threads"):
        value = getattr(args, name)
        if value < 1:
            parser.error(f"--{name.replace('_', '-')}: got {value}; allowed: 1 or more")
    return args


def run(args: argparse.Namespace) -> int:
    """Run the demo; return 1 if an exact decoder diverged beyond ties, else 0."""
    path = args.path or args.data / "model.pt"
    check_files(args.data, path)
    print("loading fairseq and the model ...", file=sys.stderr)
    import torch
    from tqdm import tqdm

    torch.set_num_threads(args.threads)
    translator = Translator(args.data, path, args.sentences)
    rows, count = decoders(args.block_size), len(translator.samples)
    work = len(rows) * count * (1 + args.rounds)
    with tqdm(total=work, desc="translating", unit="sentence", leave=False) as progress:
        records = [observe(translator, row, count, progress) for row in rows]
        time_rounds(translator, rows, records, args.rounds, progress)
    found = divergences(translator, rows, records)
    promising = [row.label for i, row in enumerate(rows) if row.promises_greedy and i != JUDGE]

    print(
        f"{count} sentences, batch 1, fp32, CPU, {args.threads} thread(s); "
        f"times are medians of {args.rounds} interleaved round(s) after a warm-up, encoder "
        "included; speed-up is against fairseq beam 5.\n"
    )
    print(table(rows, records))
    print("\nidentical: token for token as fairseq greedy. Times depend on this machine.")
    print(describe(found, promising))
    print(examples(translator, records[SHOWN]))
    return int(not all(item.is_tie for item in found))


def main(argv: list[str] | None = None) -> int:
    """Console entry point; returns the exit status, 2 for a mistake on the command line."""
    args = parse_args(argv)
    try:
        return run(args)
    except UsageError as error:
        print(f"paradec-demo: error: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
