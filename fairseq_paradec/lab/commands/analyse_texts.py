"""The analyses of texts and their scores, for ``paradec analyse``.

Those of zhang2020 (IBDecoder) and imamura2020 (double-token decoding), xia2022's repetition rate,
and ROUGE of summaries.
"""

import argparse
import functools
import math
from collections.abc import Callable, Iterable
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np

from ...cli import arguments
from ...errors import UsageError, option_error
from ..analysis import agreement, likelihood, ngrams
from ..analysis.quality import (
    RESAMPLES,
    SEED,
    SummaryQuality,
    TranslationQuality,
    equal_bins,
    in_lines,
)
from ..data.table import Cells, Table, Value, column
from .text_files import (
    REFERENCE,
    SCORED,
    SOURCE,
    TRANSLATION,
    each_once,
    named,
    read,
    same_number,
    scores,
    seconds_of,
    sentences,
)

OTEM_ORDERS = (2, 4)


def system_texts(
    args: argparse.Namespace, flag: str = "REF"
) -> tuple[dict[str, list[str]], list[str]]:
    """Read the translations of all systems, and the references.

    Returns:
        The translations by name of file (see ``named``), and the references; none without.

    Raises:
        UsageError: a file is named twice, or the numbers of sentences differ.
    """
    texts = {path: sentences("HYP", path, TRANSLATION) for path in each_once("HYP", args.hyp)}
    references = [] if args.ref is None else sentences(flag, args.ref, REFERENCE)
    if args.ref is not None:  # which may be one of the systems, too
        same_number({f"{args.ref} ({flag})": references} | texts)
    return named(texts), references


def tokens(lines: Iterable[str]) -> list[list[str]]:
    """Split sentences at spaces."""
    return [line.split() for line in lines]


def number_or_scores(flag: str, given: str) -> float | dict[int, list[float]]:
    """Return a perplexity, or the scores of a file."""
    try:
        value = float(given)
    except ValueError:
        return scores(flag, given)
    if not 1 <= value < math.inf:
        raise option_error(flag, given, f"a perplexity, from 1 up; or a file: {SCORED}")
    return value


def pmi(args: argparse.Namespace) -> Table:
    """Compare a model's perplexity with those of others."""
    model = number_or_scores("MODEL", args.model)
    rows: list[Cells] = []
    for name in args.ar:
        plain = number_or_scores("AR", name)
        if isinstance(model, dict) and isinstance(plain, dict):
            likelihood.check_same_targets(plain, model, (name, args.model))
        own, others = (
            likelihood.perplexity(given) if isinstance(given, dict) else given
            for given in (model, plain)
        )
        row: Cells = {"AR": name, "perplexity": round(own, 4)}
        row[column("AR_perplexity", "AR's perplexity")] = round(others, 4)
        rows.append(row | {"PMI": round(likelihood.pmi(own, others), 4)})
    notes = [
        "PMI = log10 perplexity - log10 perplexity of AR, a model that writes in the same order, a "
        "token a step; 0 where words predicted at once are independent, if both learned as long: "
        "an AR that learned for fewer epochs lowers it, whatever the words are. zhang2020, Table "
        "3: 0.235 for two neighbours (6.95, 4.04), -0.014 for two ends (4.72, 4.86), on other "
        "data: an equal difference of other perplexities does not replicate it."
    ]
    return Table.of(rows, notes=notes)


def over_translation(args: argparse.Namespace) -> Table:
    """Measure each system's over-translation."""
    systems, references = system_texts(args)
    rows: list[Cells] = []
    for name, lines in {**systems, "(reference)": references}.items():
        surplus = ngrams.over_translation(tokens(lines), tokens(references))
        row: Cells = {"system": name}
        row |= {f"OTEM-{n}": round(100 * surplus.otem(n), 2) for n in OTEM_ORDERS}
        row |= {f"{n}-grams": round(100 * rate, 2) for n, rate in enumerate(surplus.rates, start=1)}
        row["length_penalty"] = round(surplus.length_penalty, 3)
        row["repeated"] = round(100 * surplus.repeated, 2)
        rows.append(row)
    notes = [
        "In %, lower is better. n-grams: share of surplus ones (Yang et al. 2018): k - max(r, 1) "
        "of an n-gram that is k times in a translation and r times in its reference. OTEM-N: "
        "length penalty times the geometric mean for n = 1..N; the authors' script reports OTEM-2. "
        "repeated: tokens in an n-gram (n up to 4) directly behind an equal one."
    ]
    return Table.of(rows, notes=notes)


def repetition(args: argparse.Namespace) -> Table:
    """Measure how often a token directly repeats."""
    systems, references = system_texts(args, "--ref")
    rows: list[Cells] = []
    for name, lines in (systems | ({"(reference)": references} if references else {})).items():
        repeated = ngrams.repetition(tokens(lines))
        rows.append(
            {
                "system": name,
                "tokens": repeated.tokens,
                "repeated": repeated.repeated,
                column("repeated_share", "% repeated", "%"): round(100 * repeated.rate, 2),
                "sentences_with_one": repeated.sentences,
            }
        )
    notes = [
        "repeated: tokens equal to the one directly before them in their sentence; % of all "
        "tokens (xia2022, Table 9: 0.18 for greedy search, 0.24 to 1.13 for CMLM; WMT14 En-De). A "
        "token is what stands between spaces. References repeat some rightly."
    ]
    return Table.of(rows, notes=notes)


def rouge(args: argparse.Namespace) -> Table:
    """Compute ROUGE of summaries."""
    mark = args.sentence_mark
    systems, references = system_texts(args, "--ref")
    if mark is not None and not any(mark in words for words in tokens(references)):
        raise option_error("--sentence-mark", mark, f"a token of {args.ref}, between spaces")
    lines = None if mark is None else functools.partial(in_lines, mark=mark)
    try:
        judge = SummaryQuality(references, stemming=args.stemming, lines=lines)
    except UsageError as error:
        raise UsageError(f"--ref {args.ref}: {error}") from error
    rows: list[Cells] = []
    for name, texts in systems.items():
        intervals = judge.intervals(texts)
        for metric, each in judge.each(texts).items():
            precision, recall, _ = (float(numbers.mean()) for numbers in each)
            rows.append(
                {
                    "system": name,
                    "measure": metric,
                    column("F1", form=".2f"): Value(*intervals[metric]),
                    "precision": round(precision, 2),
                    "recall": round(recall, 2),
                }
            )
    union = f"; ROUGE-Lsum: sentence by sentence, where sentences end at {mark!r}" if mark else ""
    notes = [
        f"In %, each the mean over {len(references)} summaries; the interval is that of F1, of "
        f"{RESAMPLES} resamples of the summaries (seed {SEED}). ROUGE-1, -2: words and pairs of "
        "words in both; ROUGE-L: longest common subsequence of the whole texts" + union + ".",
        f"By rouge-score {metadata.version('rouge-score')}, "
        f"{'Porter stems' if args.stemming else 'no stems'}, in lower case; a word is a run of "
        "a-z and 0-9. zhang2020, Table 6, has ROUGE-L and does not say by which program: 35.03 "
        "(Gigaword) and 36.88 (CNN/DailyMail) for a Transformer with beam 4.",
    ]
    others = sum(any(c.isalpha() and not c.isascii() for c in line) for line in references)
    if others:
        notes.append(
            f"{others} of {len(references)} references have letters outside a to z, at which ROUGE "
            "splits words: these scores mean little."
        )
    return Table.of(rows, notes=notes)


def ngram_precision(args: argparse.Namespace) -> Table:
    """Compare the precision of the two ends of translations."""
    systems, references = system_texts(args)
    words = tokens(references)
    chosen = [i for i, line in enumerate(words) if len(line) >= args.min_length]
    if not chosen:
        allowed = f"no more than the longest reference, {max(map(len, words))} tokens"
        raise option_error("--min-length", args.min_length, allowed)
    ours = {name: tokens(lines[i] for i in chosen) for name, lines in systems.items()}
    wanted = [words[i] for i in chosen]
    first, *others = systems
    rows: list[Cells] = []
    for end in [{}, *({side: edge} for side in ("left", "right") for edge in args.edges)]:
        row: Cells = {"tokens": " ".join(f"{side} {edge}" for side, edge in end.items()) or "all"}
        for n in args.n or (1, 4):
            rates = {
                name: ngrams.edge_precision(lines, wanted, n, **end) for name, lines in ours.items()
            }
            for name, rate in rates.items():
                key, head = f"{n}-grams_{name}", f"{n}-grams, {name}"
                row[column(key, head, form=".1f")] = None if rate is None else 100 * rate
                if name in others:
                    base = rates[first]
                    change = column(f"{key}_less_first", f"{head}: change", form="+.1f")
                    less = None if rate is None or base is None else 100 * (rate - base)
                    row[change] = less
        rows.append(row)
    notes = [
        f"{len(chosen)} of {len(references)} sentences: references of {args.min_length} tokens or "
        "more. Clipped precision in % of the n-grams within the first (left) or last (right) "
        f"tokens, against the whole reference; change: from {first}."
    ]
    return Table.of(rows, notes=notes)


def length_bins(args: argparse.Namespace) -> Table:
    """Show quality and time by length of the source."""
    systems, references = system_texts(args)
    sources = sentences("SRC", args.src, SOURCE)
    same_number({args.ref: references, f"{args.src} (SRC)": sources})
    if args.bins > len(sources):
        raise option_error("--bins", args.bins, f"no more than the {len(sources)} sentences")
    if args.stats and len(args.stats) != len(systems):
        allowed = f"one file for each HYP: {len(systems)}"
        raise option_error("--stats", " ".join(args.stats), allowed)
    lengths = [len(line.split()) for line in sources]
    bins = [*equal_bins(lengths, args.bins), range(len(sources))]
    counts = np.array([np.bincount(members, minlength=len(sources)) for members in bins])
    judge = (SummaryQuality if args.rouge else TranslationQuality)(references, 1)
    metric = "ROUGE-L" if args.rouge else "BLEU"
    quality = {
        name: judge.of_samples(texts, counts)[metric].tolist() for name, texts in systems.items()
    }
    times = [seconds_of(path, len(sources)) for path in args.stats or ()]
    rows: list[Cells] = []
    for place, members in enumerate(bins):
        low, high = min(lengths[i] for i in members), max(lengths[i] for i in members)
        span = str(low) if low == high else f"{low}-{high}"
        source_tokens = "all" if place == args.bins else span
        row: Cells = {"source_tokens": source_tokens, "sentences": len(members)}
        for name, values in quality.items():
            row[column(f"{metric}_{name}", f"{metric}, {name}")] = round(values[place], 2)
        totals = {
            name: sum(seconds[i] for i in members)
            for name, seconds in zip(systems, times, strict=False)
        }
        for name, total in totals.items():
            row[column(f"ms_{name}", f"ms, {name}", "ms")] = round(1000 * total / len(members), 1)
        for name in [*totals][1:]:
            gain = totals[[*totals][0]] / totals[name]
            row[column(f"speed_up_{name}", f"speed-up, {name}")] = round(gain, 2)
        rows.append(row)
    rouge = "ROUGE-L is the mean F1 of each bin's summaries, in %."
    bleu = "BLEU is sacreBLEU's, of each bin as a corpus."
    notes = [
        "Sentences ranked by source tokens, in bins of the same number of sentences (zhang2020, "
        f"Figure 3). {rouge if args.rouge else bleu}"
    ]
    if times:
        notes.append(
            f"ms: mean time of a sentence at batch 1; speed-up: of total times, against "
            f"{list(systems)[0]}. The runs were not interleaved: paradec benchmark measures speed."
        )
    return Table.of(rows, notes=notes)


def contrastive(args: argparse.Namespace) -> Table:
    """Measure how often a model prefers the right target."""
    right, wrong = scores("SCORES_RIGHT", args.right), scores("SCORES_WRONG", args.wrong)
    likelihood.check_same_sentences(right, wrong, (args.right, args.wrong))
    preferred = likelihood.prefers_right(right, wrong)
    distances = dict.fromkeys(preferred, 0)
    if args.distances is not None:
        lines = read("--distances", args.distances).split()
        if not all(line.isdecimal() for line in lines) or len(lines) != len(right):
            allowed = f"a file of {len(right)} whole numbers, one a pair"
            raise option_error("--distances", args.distances, allowed)
        if set(preferred) != set(range(len(lines))):
            raise option_error("SCORES_RIGHT", args.right, "scores of all pairs, for --distances")
        distances = dict(enumerate(map(int, lines)))
    groups = likelihood.accuracy_by_distance(preferred, distances, args.longest)
    rows: list[Cells] = [
        {
            "distance": name,
            "pairs": pairs,
            column("right_preferred", "right preferred, %", "%"): round(100 * share, 1),
        }
        for name, (pairs, share) in groups.items()
        if args.distances is not None or name == "all"
    ]
    notes = [
        "The share of pairs whose right target is more probable than the wrong one (Sennrich 2017; "
        "zhang2020, Figure 5), by distance in tokens."
    ]
    return Table.of(rows, notes=notes)


def contrastive_make(args: argparse.Namespace) -> Table:
    """Write a contrastive test set."""
    sources = sentences("SRC", args.src, SOURCE)
    references = sentences("REF", args.ref, REFERENCE)
    same_number({f"{args.ref} (REF)": references, f"{args.src} (SRC)": sources})
    pairs = agreement.contrastive_pairs(references)
    if not pairs:
        like = "'Ein Mann steht ...' or 'Zwei Kinder spielen ...'"
        raise option_error("REF", args.ref, f"tokenised German sentences like {like}")
    own_sources = [sources[pair.sentence] for pair in pairs]
    texts = {
        "right.en": own_sources,
        "wrong.en": own_sources,
        "right.de": [pair.right for pair in pairs],
        "wrong.de": [pair.wrong for pair in pairs],
        "distances": [str(pair.distance) for pair in pairs],
    }
    folder = Path(args.folder)
    folder.mkdir(parents=True, exist_ok=True)
    for name, lines in texts.items():
        (folder / name).write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    counts = {
        "sentences": len(references),
        "pairs": len(pairs),
        "singular": sum(p.right.split()[0] in agreement.SINGULAR for p in pairs),
        "longest_distance": max(p.distance for p in pairs),
    }
    notes = [
        f"Written to {folder}: {', '.join(texts)}. In each wrong sentence one verb has the other "
        "number. A rule chose the verbs, not a parser: check a sample."
    ]
    return Table.of([counts], notes=notes)


# ---- the subcommands ----------------------------------------------------------------------------


def declare(command: Callable[..., Any]) -> None:
    """Declare the subcommands; see ``analyse.declare``."""
    number: dict[str, Any] = {"type": arguments.whole_number, "metavar": "N"}
    add = command("pmi", pmi, "dependence between words that are predicted at once")
    add("model", metavar="MODEL", help=f"scores of the model: {SCORED}; or its perplexity")
    add(
        "ar",
        nargs="+",
        metavar="AR",
        help="the same for models of that order that write a token a step; one of them should have "
        "learned for as many epochs as MODEL",
    )

    texts = {"nargs": "+", "metavar": "HYP", "help": "translations, a file of each system"}
    add = command("over-translation", over_translation, "surplus n-grams of translations (OTEM)")
    add("hyp", **texts)
    add("ref", metavar="REF", help="references")

    add = command("repetition", repetition, "how often a token stands directly behind itself")
    add("hyp", **texts)
    add("--ref", metavar="REF", help="references, whose own rate is shown too")

    add = command("rouge", rouge, "overlap of summaries and references (ROUGE)")
    add("hyp", nargs="+", metavar="HYP", help="summaries, a file of each system")
    add("--ref", metavar="REF", required=True, help="references, the same texts for all")
    add("--stemming", action="store_true", help="compare words by their Porter stems")
    add(
        "--sentence-mark",
        metavar="TOKEN",
        help="the token between sentences, for ROUGE-Lsum: '.' in tokenised text, or '<q>'",
    )

    add = command("ngram-precision", ngram_precision, "precision of the first and last tokens")
    add("hyp", **texts)
    add("ref", metavar="REF", help="references")
    lengths = "length of the n-grams; may be repeated (default: 1 and 4)"
    add("--n", **number, action="append", help=lengths)
    edges = "number of tokens of each end (default: 5 10 15)"
    add("--edges", **number, nargs="+", default=[5, 10, 15], help=edges)
    add(
        "--min-length",
        **number,
        default=31,
        help="only sentences whose reference has N tokens or more (default: 31, the paper's 'over "
        "30')",
    )

    add = command("length-bins", length_bins, "quality and time by length of the source")
    add("hyp", **texts)
    add("ref", metavar="REF", help="references, for BLEU detokenised")
    add("src", metavar="SRC", help="sources")
    add("--bins", **number, default=10, help="how many (default: 10)")
    add("--rouge", action="store_true", help="score summaries by ROUGE-L instead of BLEU")
    add(
        "--stats",
        nargs="+",
        metavar="FILE",
        help="for times: what --stats-file wrote at --batch-size 1, one for each HYP",
    )

    add = command("contrastive", contrastive, "how often a model prefers a right target")
    add("right", metavar="SCORES_RIGHT", help=f"of the right targets: {SCORED}")
    add("wrong", metavar="SCORES_WRONG", help="of the wrong ones, in the same order")
    add("--distances", metavar="FILE", help="a whole number for each pair, to group by")
    larger = "larger distances make one group (default: 15)"
    add("--longest", **number, default=15, help=larger)

    add = command(
        "contrastive-make",
        contrastive_make,
        "make pairs for contrastive: German sentences whose verb has the wrong number",
        out=False,
    )
    add("src", metavar="SRC", help="sources, tokenised; they end in .en in FOLDER")
    add("ref", metavar="REF", help="German references, tokenised, not in sub-words")
    add("folder", metavar="FOLDER", help="folder for right.*, wrong.* and distances")
