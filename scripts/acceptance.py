#!/usr/bin/env python3
"""Count how much of what a drafter drafts its verifier accepts, in every combination of settings.

For each --path a row for greedy search, then one for each combination of --decoding with the flags
that it reads. fairseq's own beam-1 search says which outputs are greedy's. Nothing is timed, so it
may run beside other work. A finished row is kept at once; given again, the command makes only rows
that are missing, or whose checkpoints, data, flags, plugin or machine have changed.
"""

from __future__ import annotations

import argparse
import collections
import hashlib
import itertools
import json
import logging
import os
import shlex
import signal
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

logging.disable(logging.INFO)  # what fairseq says while it is imported
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
import torch  # noqa: E402
from evaluate import checksum, read_references, subset_files  # noqa: E402
from fairseq import utils  # noqa: E402
from tqdm import tqdm  # noqa: E402

from fairseq_paradec import images  # noqa: E402
from fairseq_paradec.analysis.blocks import block_sizes  # noqa: E402
from fairseq_paradec.analysis.quality import Quality  # noqa: E402
from fairseq_paradec.cli import arguments  # noqa: E402
from fairseq_paradec.cli.benchmark import Journal, evenly  # noqa: E402
from fairseq_paradec.decoding.audit import Audit  # noqa: E402
from fairseq_paradec.errors import option_error  # noqa: E402
from fairseq_paradec.measure import documents, loading, machine  # noqa: E402
from fairseq_paradec.measure.systems import (  # noqa: E402
    DTYPES,
    EXACT,
    OTHER_MODEL,
    RELAXED,
    Models,
)
from fairseq_paradec.measure.text import holds_images, plain_text, quality_of, text_language  # noqa: E402
from fairseq_paradec.methods.registry import METHODS  # noqa: E402

# The flags whose values are combined.
SWEPT = (
    "drafter_path", "block_size", "accept_topk", "accept_margin", "accept_distance", "min_block",
)  # fmt: skip
SMOKE_SENTENCES = 8
JUDGE = "fairseq --beam 1"
BLOCK = "mean accepted block (tokens / blocks)"
# Columns that a table is without if no row has a value in them.
OPTIONAL = ("model", "drafter", "beta", "tau", "epsilon", "l", BLOCK)

Options = dict[str, Any]


class Test(NamedTuple):
    """What is translated: a verifier, and the sentences of a subset that it can translate.

    Attributes:
        path: the verifier's.
        models: where drafters are loaded, too.
        verifier: the model, or an ensemble.
        task: fairseq's, with the subset.
        numbers: of the sentences, from short to long.
        batch_size: sentences per batch.
        limits: fairseq's flags that all settings have, too.
    """

    path: str
    models: Models
    verifier: list[Any]
    task: Any
    numbers: list[int]
    batch_size: int
    limits: Options

    def samples(self) -> Iterator[dict[str, Any]]:
        """Yield the batches, on the device."""
        dataset = self.task.dataset(self.models.subset)
        for start in range(0, len(self.numbers), self.batch_size):
            batch = self.numbers[start : start + self.batch_size]
            sample = dataset.collater([dataset[i] for i in batch])
            yield utils.move_to_cuda(sample) if self.models.device == "cuda" else sample

    def text(self, tokens: Any) -> str:
        """Return the text of an output or a target."""
        symbols = self.task.target_dictionary.string(tokens).split()
        language = text_language(self.models.data, self.task.cfg.target_lang)
        return plain_text(symbols, language)

    def generator(self, options: Options, **more: Any) -> tuple[Any, list[Any]]:
        """Return the generator of a setting, and the models whose output it gives."""
        if options["decoding"] == "nat":  # the drafter alone
            models = self.models.load(options["drafter_path"])[0]
            options = {k: v for k, v in options.items() if k != "drafter_path"}
        else:
            models = self.verifier
        return loading.generator(self.task, models, **options, **self.limits, **more), models


class Setting(NamedTuple):
    """What one row measures.

    Attributes:
        test: what is translated.
        options: how, named as the flags are.
    """

    test: Test
    options: Options


def combinations(args: argparse.Namespace, tests: Sequence[Test]) -> list[Setting]:
    """Return the settings: greedy, then every method with all values of the flags it reads.

    Raises:
        UsageError: no method reads a flag that is given.
    """
    found = [Setting(test, options) for test in tests for options in _of_one(args, test, tests)]
    for name in SWEPT:
        first = getattr(args, name)[0]
        if first is None or any(name in setting.options for setting in found):
            continue
        flag = "--" + name.replace("_", "-")
        users = [one.name for one in METHODS.values() if name in one.reads]
        if any(name in METHODS[d].reads for d in args.decoding):  # blockwise, by its own heads
            raise option_error(flag, first, "it with a --path that has no heads of its own")
        raise option_error(flag, first, f"it with --decoding {' or '.join(users)}")
    return found


def _of_one(args: argparse.Namespace, test: Test, tests: Sequence[Test]) -> list[Options]:
    """Return the settings of one of the tests."""
    found: list[Options] = [{"decoding": "greedy"}]
    has_heads = any(hasattr(model, "block_heads") for model in test.verifier)
    for decoding in args.decoding:
        reads = {*METHODS[decoding].reads, *(["drafter_path"] if decoding == "nat" else [])}
        if decoding == "blockwise" and has_heads:
            reads.remove("drafter_path")
        elif decoding == "blockwise" and len(tests) > 1 and args.drafter_path == [None]:
            continue  # a base, to compare with
        names = [name for name in SWEPT if name in reads]
        for values in itertools.product(*(getattr(args, name) for name in names)):
            given = {k: v for k, v in zip(names, values, strict=True) if v is not None}
            found.append({"decoding": decoding, **given})
    if args.smoke:
        found = list({options["decoding"]: options for options in reversed(found)}.values())[::-1]
    return [options for i, options in enumerate(found) if options not in found[:i]]


def prepare(args: argparse.Namespace) -> list[Setting]:
    """Load the models and choose the sentences; find mistakes in the settings before any work.

    Raises:
        UsageError: files are missing, or no sentence is left.
    """
    for path in args.path:
        loading.check_inputs(args.data, path)
    subset_files(args.data, args.subset)
    if args.device == "cuda" and not torch.cuda.is_available():
        raise option_error("--device", "cuda", "cpu: torch finds no CUDA device")
    for path in args.drafter_path:
        if path is None and "nat" in args.decoding:
            raise option_error("--drafter-path", None, "a checkpoint of --arch block_nat, with nat")
        if path is not None and not Path(path).is_file():
            raise option_error("--drafter-path", path, "a fairseq checkpoint")
    models = Models(args.data, args.subset, args.dtype, args.device)
    limits = {} if args.max_len_b is None else {"max_len_b": args.max_len_b}
    tests = [
        Test(path, models, *models.load(path), [], args.batch_size, limits)
        for path in dict.fromkeys(args.path)
    ]
    settings = combinations(args, tests)
    dataset = tests[0].task.dataset(args.subset)
    alone = [options["drafter_path"] for _, options in settings if options["decoding"] == "nat"]
    translators = [model for test in tests for model in test.verifier]
    translators += [models.load(path)[0][0] for path in alone]
    longest = min(model.max_positions()[0] for model in translators)
    sizes = dataset.src_sizes
    order = [i for i in loading.by_length(dataset) if 1 < sizes[i] <= longest]
    if not order:
        raise option_error("--subset", args.subset, "a subset with sentences that can be decoded")
    tests[0].numbers.extend(evenly(order, SMOKE_SENTENCES if args.smoke else args.sentences))
    for test in tests[1:]:
        test.numbers.extend(tests[0].numbers)
    for test, options in settings:
        test.generator(options)
    return settings


def same_greedy(ours: Sequence[Any], theirs: Sequence[Any]) -> bool:
    """Say whether models have one greedy search: the same weights, whatever heads look ahead."""
    if len(ours) != len(theirs):
        return False
    for pair in zip(ours, theirs, strict=True):
        if any(0 in model.block_heads.learned for model in pair if hasattr(model, "block_heads")):
            return pair[0] is pair[1]
        first, second = (
            {name: w for name, w in m.state_dict().items() if not name.startswith("decoder.heads.")}
            for m in pair
        )
        if first.keys() != second.keys():
            return False
        if not all(torch.equal(w, second[name]) for name, w in first.items()):
            return False
    return True


# ---- one row ------------------------------------------------------------------------------------


def judged(test: Test, bar: Any) -> dict[str, Any]:
    """Translate by fairseq's own search; return the tokens, in the order of ``test.numbers``."""
    search, _ = test.generator({"decoding": "beam", "beam": 1})
    found: dict[int, list[int]] = {}
    for sample in test.samples():
        hypos = search.generate(test.verifier, sample)
        found |= _tokens(sample, hypos)
        bar.update(len(hypos))
    return {"tokens": [found[i] for i in test.numbers]}


def counted(test: Test, options: Options, wanted: Sequence[list[int]], bar: Any) -> dict[str, Any]:
    """Translate by one setting.

    Args:
        test: what.
        options: the setting.
        wanted: the judge's tokens.
        bar: progress, advanced by one a sentence.

    Returns:
        By sentence ``tokens``, ``passes``, and for each pass how many tokens were ``drafted`` and
        ``accepted``; ``flags``, what the method's own stood at; ``ties``, how many outputs part
        from the judge's where two tokens are hardly told apart, or None if none is promised.
    """
    judge = dict(zip(test.numbers, wanted, strict=True))
    audit = Audit(test.verifier, test.task.target_dictionary)
    found: dict[int, list[int]] = {}
    with tempfile.TemporaryDirectory(prefix="paradec-acceptance-") as folder:
        file = Path(folder) / "stats.jsonl"
        generator, models = test.generator(options, stats_file=str(file))
        for sample in test.samples():
            hypos = test.task.inference_step(generator, models, sample)
            found |= _tokens(sample, hypos)
            if generator.lossless:
                theirs = [[{"tokens": torch.tensor(judge[i])}] for i in sample["id"].tolist()]
                audit.compare_with(sample, hypos, theirs)
            bar.update(len(hypos))
        with file.open(encoding="utf-8") as stream:
            records = {record["id"]: record for record in map(json.loads, stream)}
    return {
        "tokens": [found[i] for i in test.numbers],
        "passes": [records[i]["decoder_passes"] for i in test.numbers],
        "drafted": [records[i]["num_drafted"] for i in test.numbers],
        "accepted": [records[i]["num_accepted"] for i in test.numbers],
        "flags": records[test.numbers[0]]["flags"],
        "ties": audit.ties if generator.lossless else None,
    }


def _tokens(sample: dict[str, Any], hypos: list[list[dict[str, Any]]]) -> dict[int, list[int]]:
    """Return the outputs of a batch by the sentences' numbers."""
    ids = sample["id"].tolist()
    return {i: hypo[0]["tokens"].tolist() for i, hypo in zip(ids, hypos, strict=True)}


def row(
    options: Options, entry: dict[str, Any], wanted: Sequence[list[int]], model: str = "-"
) -> dict[str, Any]:
    """Sum up one setting.

    Args:
        options: the setting.
        entry: what ``counted`` found.
        wanted: the judge's tokens.
        model: its name, if there are several.
    """
    flags, outputs = entry["flags"], entry["tokens"]
    tokens, passes = sum(map(len, outputs)), sum(entry["passes"])
    drafted = sum(map(sum, entry["drafted"]))
    accepted = sum(map(sum, entry["accepted"]))
    return {
        "model": model,
        "decoder": options["decoding"],
        "label": label(options, entry, wanted),
        "drafter": options.get("drafter_path", "-"),
        "k": flags.get("block_size", "-"),
        "beta": flags.get("accept_topk", "-"),
        "tau": flags.get("accept_margin", "-"),
        "epsilon": options.get("accept_distance", "-"),
        "l": options.get("min_block", "-"),
        "sentences": len(outputs),
        "tokens": tokens,
        "passes per sentence": round(passes / len(outputs), 3),
        "tokens per pass": round(tokens / passes, 3),
        BLOCK: mean_block(entry) if options["decoding"] in ("greedy", "blockwise") else "-",
        "accepted per pass": round(accepted / passes, 3) if drafted else "-",
        "identical, %": round(100 * _same(outputs, wanted) / len(outputs), 2),
        "ties": "-" if entry["ties"] is None else entry["ties"],
    }


def label(options: Options, entry: dict[str, Any], wanted: Sequence[list[int]]) -> str:
    """Return what the outputs are to their model's greedy search.

    One that promises to be exact and was not, once, ties apart, is never called so.
    """
    if options["decoding"] == "nat":
        return OTHER_MODEL
    if entry["ties"] is None:
        return RELAXED
    beyond = len(wanted) - _same(entry["tokens"], wanted) - entry["ties"]
    if beyond:
        return f"NOT EXACT ({beyond} of {len(wanted)})"
    return f"{EXACT} but for {entry['ties']} ties of {len(wanted)}" if entry["ties"] else EXACT


def mean_block(entry: dict[str, Any]) -> float:
    """Return the mean accepted block size, over all blocks of all sentences."""
    sizes = [
        size
        for accepted, tokens in zip(entry["accepted"], entry["tokens"], strict=True)
        for size in block_sizes(accepted, len(tokens))
    ]
    return round(sum(sizes) / len(sizes), 3)


def histogram(entry: dict[str, Any]) -> dict[str, str]:
    """Return the column that says which share of the passes accepts how many tokens."""
    counts = collections.Counter(itertools.chain(*entry["accepted"]))
    text = " ".join(f"{100 * counts[i] / counts.total():.0f}" for i in range(max(counts) + 1))
    drafts = any(map(any, entry["drafted"]))
    return {"% of passes that accept 0, 1, 2, ... tokens": text if drafts else "-"}


def _same(ours: Sequence[list[int]], theirs: Sequence[list[int]]) -> int:
    return sum(a == b for a, b in zip(ours, theirs, strict=True))


def scores(quality: Quality, texts: Sequence[str], greedy: Sequence[str]) -> dict[str, Any]:
    """Return the columns of quality, with differences from greedy search.

    Args:
        quality: with the references.
        texts: the setting's.
        greedy: those of the greedy row.
    """
    found: dict[str, Any] = {k: round(score, 2) for k, score in quality.scores(texts).items()}
    for metric, (mean, low, high) in quality.differences(texts, greedy).items():
        text = f"{mean:+.2f} [{low:+.2f}, {high:+.2f}]"
        found[f"{metric} - greedy"] = "-" if texts is greedy else text
    return found


def table(rows: Sequence[dict[str, Any]]) -> str:
    """Format rows for a terminal, columns aligned.

    Columns without a value are left out, and that of the drafter if there is only one.
    """
    columns = [c for c in rows[0] if any(r[c] != "-" for r in rows)]
    if len({row.get("drafter", "-") for row in rows} - {"-"}) == 1:
        columns.remove("drafter")
    cells = [columns, *([str(r[c]) for c in columns] for r in rows)]
    widths = [max(len(line[i]) for line in cells) for i in range(len(columns))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in cells
    )


# ---- all rows -----------------------------------------------------------------------------------


def key(args: argparse.Namespace, test: Test, options: Options) -> str:
    """Return what tells a setting's result from any other: a checksum of all it is made from."""
    files = [Path(one) for one in test.path.split(os.pathsep)]
    files += sorted(Path(args.data).glob("dict.*.txt"))
    files += [*subset_files(args.data, args.subset), *Path(args.data).glob(images.SIZES)]
    files += sorted((Path(documents.__file__).resolve().parents[1]).rglob("*.py"))
    here = machine.circumstances("", [])
    del here["machine"]["threads"]  # they change no token
    drafter = options.get("drafter_path")
    made_of = {
        "options": options | ({"drafter_path": checksum(Path(drafter))} if drafter else {}),
        "limits": test.limits,
        "sentences": test.numbers,
        "setting": [args.subset, args.batch_size, args.dtype, args.device],
        "files": [(file.name, checksum(file)) for file in files],
        "machine": [here["machine"], here["versions"]],
    }
    return hashlib.sha256(json.dumps(made_of).encode()).hexdigest()


def measured(
    args: argparse.Namespace, settings: Sequence[Setting]
) -> tuple[dict[str, list[list[int]]], list[dict[str, Any]]]:
    """Return what each setting gave, from an earlier run if it has it.

    Returns:
        The judge's tokens for each model, and the settings' entries.
    """
    tests = {test.path: test for test, _ in settings}
    judges = {path: key(args, test, {"decoding": JUDGE}) for path, test in tests.items()}
    keys = [key(args, test, options) for test, options in settings]
    try:
        args.out.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        allowed = f"a file in a folder that can be made ({error.strerror})"
        raise option_error("--out", str(args.out), allowed) from error
    journal = Journal(
        args.out.with_suffix(".partial.jsonl"), {"schema": "acceptance", "version": 1}
    )
    missing = [one for one in (*judges.values(), *keys) if one not in journal.entries]
    with tqdm(
        desc="acceptance",
        total=len(missing) * len(settings[0].test.numbers),
        unit=" sentences",
        mininterval=0.5 if sys.stderr.isatty() else 30,
    ) as bar:
        for path, one in judges.items():
            if one in missing:
                journal.put(one, judged(tests[path], bar))
        wanted = {path: journal.entries[one]["tokens"] for path, one in judges.items()}
        for one, (test, options) in zip(keys, settings, strict=True):
            if one in missing:
                said = (str(value) for value in options.values())
                bar.set_postfix_str(" ".join(said), refresh=False)
                journal.put(one, counted(test, options, wanted[test.path], bar))
    entries = [journal.entries[one] for one in keys]
    journal.close()
    return wanted, entries


def scored_by(args: argparse.Namespace, test: Test, given: list[str] | None) -> Quality | None:
    """Return what scores the outputs; None for texts without ``--raw``.

    Args:
        args: the command's arguments.
        test: what is translated.
        given: the lines of ``--raw``.

    Raises:
        UsageError: there are more or fewer of them, or they are not what they should be.
    """
    dataset = test.task.dataset(args.subset)
    if given is None and holds_images(args.data):
        given = [test.text(tokens) for tokens in dataset.tgt]
    if given is None:
        return None
    if len(given) != len(dataset):
        allowed = f"{len(dataset)} lines, as {args.subset} of DATA has"
        raise option_error("--raw", str(args.raw), allowed)
    references = [given[i] for i in test.numbers]
    return quality_of(args.data, test.task.cfg.target_lang, references)


def acceptance(args: argparse.Namespace, argv: Sequence[str]) -> int:
    """Measure all settings and write the table; return the exit status.

    Args:
        args: the command's arguments.
        argv: as they were typed, for the record.
    """
    if args.out.is_dir():
        raise option_error("--out", str(args.out), "a file, not a folder")
    given = None if args.raw is None else read_references(args.raw)
    settings = prepare(args)
    first = settings[0].test
    quality = scored_by(args, first, given)
    wanted, entries = measured(args, settings)
    several = len(wanted) > 1
    rows = [
        row(options, entry, wanted[test.path], test.path if several else "-")
        for (test, options), entry in zip(settings, entries, strict=True)
    ]
    for one, (test, _) in zip(rows, settings, strict=True):
        if one["label"] != OTHER_MODEL and not same_greedy(test.verifier, first.verifier):
            one["label"] = f"{OTHER_MODEL}: {one['label']}"
    if quality is not None:
        texts = [[first.text(tokens) for tokens in entry["tokens"]] for entry in entries]
        greedy = {
            test.path: text
            for (test, options), text in zip(settings, texts, strict=True)
            if options["decoding"] == "greedy"
        }
        for one, (test, _), text in zip(rows, settings, texts, strict=True):
            one |= scores(quality, text, greedy[test.path])
            if several:
                found = scores(quality, text, greedy[first.path])
                one |= {f"{k} - first": found[f"{k} - greedy"] for k in quality.metrics}
    for one, entry in zip(rows, entries, strict=True):
        one |= histogram(entry)
    idle = {name for name in OPTIONAL if all(one[name] == "-" for one in rows)}
    if all(one["decoder"] != "blockwise" for one in rows):
        idle.add(BLOCK)
    rows = [{k: v for k, v in one.items() if k not in idle} for one in rows]
    verifiers = "the models are in the rows" if several else f"verifier {first.path}"
    notes = [
        f"{len(first.numbers)} sentences of {args.data} ({args.subset}), batch size "
        f"{args.batch_size}, {args.dtype}, {args.device}; {verifiers}"
        + ("." if args.max_len_b is None else f"; --max-len-b {args.max_len_b}."),
        f"Label: {EXACT}, the outputs are those of the model's own greedy search; {RELAXED}, they "
        "may be others"
        + (
            f"; {OTHER_MODEL}: ..., the same of a model whose greedy search is not the first's."
            if several
            else f"; {OTHER_MODEL}, the drafter's own."
        ),
        "Identical: to fairseq's own --beam 1, with the same model; ties among the others, where "
        "exactness is promised: the two tokens' log-probabilities are closer than 1e-4.",
        "Tokens count the end of the sentence; a pass gives the accepted tokens and one of the "
        "verifier's own.",
        "k: --block-size, beta: --accept-topk, tau: --accept-margin.",
    ]
    if BLOCK not in idle:
        notes[-1] = (
            "k: --block-size, beta: --accept-topk, tau: --accept-margin, epsilon: "
            "--accept-distance, l: --min-block."
        )
        notes.append(
            "Mean accepted block, as Stern et al. (2018) count it: all tokens by the number of "
            "blocks. A block is a token of the model's own and the drafts after it that hold; the "
            "pass that verifies them finds the next block's first token, too."
        )
    if quality is not None:
        notes.append(f"{quality.compared}; 95% paired-bootstrap.")
        if several:
            notes.append(
                "Differences are from the same model's greedy search, and from the first model's."
            )
        notes += [f"{name}: {signature}" for name, signature in quality.signatures().items()]
    command = f"python scripts/acceptance.py {shlex.join(argv)}"
    made_by = machine.circumstances("", argv) | {"command": command}
    documents.save(args.out, args.title, notes, rows, made_by)
    print(table(rows))
    return 0


def main(argv: Sequence[str] | None = None) -> int:
    """Console entry point; returns the exit status."""
    argv = list(sys.argv[1:] if argv is None else argv)
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        usage="%(prog)s DATA --path VERIFIER [--drafter-path DRAFTER] [options] --out FILE",
        epilog="Each of the options down to --path may be given several times: all combinations "
        "are made.\nexamples:\n  scripts/acceptance.py data-bin/multi30k.en-de --path verifier.pt "
        "--drafter-path drafter.pt \\\n    --block-size 5 --block-size 10 --accept-margin 1 "
        "--accept-margin 3 --out results/k.json\n  scripts/acceptance.py data-bin/multi30k.en-de "
        "--decoding blockwise --path base.pt \\\n    --path fine-tuned.pt --accept-topk 1 "
        "--accept-topk 2 --out results/blocks.json",
    )
    add, number = parser.add_argument, arguments.whole_number
    add("data", metavar="DATA", help="a folder that fairseq-preprocess made")
    methods = [name for name in METHODS if name != "greedy"]
    add(
        "--drafter-path",
        action="append",
        help="the drafter's checkpoint; for nat, which drafts without a verifier, too; for "
        "blockwise, heads that were trained on --path",
    )
    add(
        "--decoding",
        action="append",
        choices=methods,
        metavar="D",
        help=f"{', '.join(methods)} (default: gad and gad_pp)",
    )
    add("--block-size", type=number, action="append", help="(default: as the drafter was trained)")
    add(
        "--accept-topk",
        type=number,
        action="append",
        help="gad_pp's beta (default: 3), and how many of the best blockwise accepts (default: 1)",
    )
    add("--accept-margin", type=float, action="append", help="gad_pp's tau (default: 1.0)")
    add("--accept-distance", type=int, action="append", help="blockwise's epsilon, for numbers")
    add("--min-block", type=number, action="append", help="blockwise's l (default: 1)")
    add(
        "--path",
        action="append",
        required=True,
        help="the verifier's checkpoint, several with ':' between them; again for another model. "
        "With blockwise a model with heads, or a Transformer and --drafter-path; among several "
        "one without heads has its greedy row alone",
    )
    add("--subset", default="valid", help="of DATA (default: valid)")
    add(
        "--raw",
        type=Path,
        help="its references, plain text, one per line: for BLEU and chrF, or ROUGE of summaries; "
        "images have PSNR against the targets of DATA without it",
    )
    add("--max-len-b", type=number, help="fairseq's, of all rows (default: of texts 200)")
    add("--batch-size", type=number, default=1, help="sentences (default: 1)")
    add("--sentences", type=number, help="so many, evenly from short to long (default: all)")
    add("--dtype", choices=list(DTYPES), default="fp32", help="(default: fp32)")
    add("--device", choices=["cpu", "cuda"], default="cpu", help="(default: cpu)")
    add(
        "--smoke",
        action="store_true",
        help=f"a try-out: {SMOKE_SENTENCES} sentences, and of each --decoding the first row",
    )
    add("--title", default="Acceptance", help="of the section in RESULTS.md")
    add(
        "--out",
        type=Path,
        required=True,
        help="the JSON; finished rows are kept beside it, in FILE.partial.jsonl",
    )
    args = parser.parse_args(argv)
    args.decoding = args.decoding or ["gad", "gad_pp"]
    for name in SWEPT:
        setattr(args, name, getattr(args, name) or [None])
    logging.disable(logging.WARNING)  # the judge warns of every sentence that differs
    try:
        return arguments.run("acceptance", lambda: acceptance(args, argv))
    finally:
        logging.disable(logging.INFO)


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # not without tidying up
    sys.exit(main())
