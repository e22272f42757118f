"""Make docs/gallery.md and its pictures from the demo's models and a stored benchmark.

The page names the commands that this one runs; traces go to a temporary folder, and their checksums
to traces.json beside the pictures. --check writes nothing: it fails if a page or picture is
missing, or if the demo's models decode differently. It does not compare pictures, because another
matplotlib draws other bytes.
"""

import argparse
import hashlib
import json
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...errors import UsageError, option_error
from ...records import Record, read

ROOT = Path(__file__).resolve().parents[3]

DATA = "data-bin/demo.en-de"
TRACE = ".jsonl"
EXACTLY = ("--drafter-dtype", "fp32", "--drafter-path")  # drafts in int8 may differ between CPUs
#: The model and the flags of fairseq-generate, by trace.
TRACES: dict[str, tuple[str, ...]] = {
    "greedy": ("model.pt", "--decoding", "greedy"),
    "pj": ("model.pt", "--decoding", "pj", "--jacobi-length", "oracle"),
    "hgj": ("model.pt", "--decoding", "hgj"),
    "gad": ("model.pt", "--decoding", "gad", *EXACTLY, f"{DATA}/drafter.pt"),
    "gad_pp": ("model.pt", "--decoding", "gad_pp", *EXACTLY, f"{DATA}/drafter.pt"),
    "blockwise": ("model.pt", "--decoding", "blockwise", *EXACTLY, f"{DATA}/heads.pt"),
    "ibdecoder_sa": ("ibdecoder_sa.pt", "--beam", "1"),
    "beam": ("model.pt", "--decoding", "assisted", "--beam", "4", *EXACTLY, f"{DATA}/assistant.pt"),
}
#: The sentences in the pictures; their drafts are compared, too.
GRAPHS, RACE = (33, 74), 25
RACERS = ("greedy", "hgj", "gad", "gad_pp", "blockwise", "ibdecoder_sa")
DRAFTING = ("hgj", "blockwise", "gad", "gad_pp")
BENCHMARK = "results/benchmark-gad-tiny.json"

MAX_BYTES, MAX_TOTAL = 300_000, 1_500_000


@dataclass(frozen=True)
class Picture:
    """A picture of the gallery."""

    name: str  # of its file, without ``.svg``
    title: str  # above it
    text: str  # how to read it
    # the words after ``paradec`` that make it, but for the picture's own flag
    command: tuple[str, ...]
    flag: str = "--plot"  # names the picture

    def words(self, traces: str, out: str) -> list[str]:
        """Return the words after ``paradec``; both folders end in ``/``, or are empty."""
        named = [traces + word if word.endswith(TRACE) else word for word in self.command]
        return [*named, self.flag, f"{out}{self.name}.svg"]


PICTURES = [
    *(
        Picture(
            f"ddg-{number}",
            title,
            text,
            ("trace", f"pj{TRACE}", "--sentence", str(number), "--kind", "dependencies"),
            "--picture",
        )
        for number, title, text in zip(
            GRAPHS,
            ("Which tokens become right together", "Three at once"),
            (
                "Parallel Jacobi decoding predicts all tokens again in each pass. Above: a column "
                "is a pass, with the tokens that became final in it. Below: a row is a pass; the "
                "number is the probability of a token in the pass in which it became final "
                "(Santilli et al. 2023, Figure 4). Most passes settle one token on a model this "
                "small.",
                "Another sentence: pass 3 settles three tokens, two of them after a guess that was "
                "still wrong.",
            ),
            strict=True,
        )
    ),
    Picture(
        "methods",
        "One sentence, six methods",
        "Each strip is a method, each row a pass, each column a token. The colour tells the "
        "model's own tokens from accepted drafts.",
        ("trace", *(f"{name}{TRACE}" for name in RACERS), "--sentence", str(RACE)),
        "--picture",
    ),
    Picture(
        "beam",
        "The tree of a drafted beam",
        "Beam search with four hypotheses whose next steps a small model drafts. All hypotheses "
        "are paths of one tree; the number is the pass in which the model read a token. Grey "
        "tokens were drafted in vain: no hypothesis of the search had them.",
        ("trace", f"beam{TRACE}", "--sentence", str(RACE), "--kind", "tree"),
        "--picture",
    ),
    Picture(
        "acceptance",
        "Acceptance by position",
        "Left: the share of accepted tokens by position in the draft. Right: the same among tokens "
        "with all before them accepted; a flat line means that drafts could be longer. A hollow "
        "mark stands for fewer than ten drafts. GAD's drafter sees the whole source, blockwise "
        "heads one state of the decoder; Jacobi decoding has no drafter.",
        ("analyse", "acceptance", *(f"{name}{TRACE}" for name in DRAFTING)),
    ),
    Picture(
        "order",
        "Two words from each end per step",
        "The target order of `ibdecoder_sa`: the step of each word, its inputs, and which input "
        "sees which (Zhang et al. 2020, Figure 1).",
        ("trace", "--kind", "order", "--arch", "ibdecoder_sa", "--length", "9"),
        "--picture",
    ),
    Picture(
        "histogram",
        "Speed-up of single sentences",
        "The number of sentences by speed-up against fairseq's beam 5 (Xia et al. 2022, Figure 4).",
        ("analyse", "histogram", BENCHMARK),
    ),
    *(
        Picture(
            f"speed-up-{by}",
            f"Speed-up by {what}",
            text,
            ("analyse", "speed-up", BENCHMARK, "--by", by),
        )
        for by, what, text in (
            (
                "batch",
                "batch size",
                "Against fairseq's beam 5 in the same batches; a line reaches from the slowest to "
                "the fastest round. Larger batches favour greedy search over decoders of several "
                "tokens a pass, because they already use the machine fully.",
            ),
            (
                "length",
                "source length",
                "The same at batch 1, in bins of source length with equally many sentences.",
            ),
        )
    ),
]

HEAD = f"""\
# Gallery

Made by `paradec gallery` from the demo's models and from `{BENCHMARK}`; \
each picture has its command. The traces are of the demo's 100 test sentences:

```
"""


def generates(name: str, trace: str) -> list[str]:
    """Return the words after ``fairseq-generate`` that make a trace: a key of TRACES, a file."""
    model, *flags = TRACES[name]
    words = [DATA, "--user-dir", "fairseq_paradec", "--path", f"{DATA}/{model}", *flags]
    return [*words, "--batch-size", "1", "--trace-file", trace]


def page(out: Path) -> str:
    """Return the gallery's text."""
    traces = "\n".join(
        shlex.join(["fairseq-generate", *generates(name, f"{name}{TRACE}")]) for name in TRACES
    )
    shown = out.relative_to(ROOT) if out.is_relative_to(ROOT) else out
    parts = [f"{HEAD}{traces}\n```"]
    for one in PICTURES:
        command = shlex.join(["paradec", *one.words("", f"{shown.as_posix()}/")])
        parts += [
            f"## {one.title}",
            f"![{one.title}]({out.name}/{one.name}.svg)",
            one.text,
            f"```\n{command}\n```",
        ]
    parts.append(
        "## Pages\n\n"
        "`--html` of [`paradec trace`](trace.md#look-at-a-trace) shows traces side by side on a "
        "page to click through, [`paradec report`](report.md) all results of a folder."
    )
    return "\n\n".join(parts) + "\n"


def execute(module: str, words: Sequence[str]) -> None:
    """Run a command that the page names, in a process of its own, in the checkout.

    Raises:
        UsageError: it fails.
    """
    result = subprocess.run(
        [sys.executable, "-m", module, *words],
        cwd=ROOT,
        capture_output=True,
        encoding="utf-8",
    )
    if result.returncode != 0:
        print(result.stderr[-4000:], file=sys.stderr)
        raise UsageError(f"status {result.returncode} of: {shlex.join([module, *words])}")


def decode(name: str, folder: Path) -> dict[str, Any]:
    """Decode the demo's test set by one method; return a digest of its trace."""
    path = folder / f"{name}{TRACE}"
    execute("fairseq_cli.generate", generates(name, str(path)))
    records = [record for _, record in read(str(path))]
    records.sort(key=lambda record: record["id"] or 0)
    return {
        "sentences": len(records),
        "tokens": sum(record["num_tokens"] for record in records),
        "passes": sum(record["decoder_passes"] for record in records),
        "digest": digest(records),
    }


def digest(records: Sequence[Record]) -> str:
    """Return a checksum of all outputs and pass counts, and of the drafts that pictures show.

    Probabilities are left out: another processor rounds them differently.
    """
    fields = ("start", "draft", "verifier", "num_accepted", "num_committed", "positions")
    facts = [
        [record["id"], record["output"], record["decoder_passes"]]
        + (
            [[entry.get(field) for field in fields] for entry in record["trace"]]
            if record["id"] in (*GRAPHS, RACE)
            else []
        )
        for record in records
    ]
    return hashlib.sha256(json.dumps(facts).encode()).hexdigest()


def make(out: Path) -> None:
    """Write the page, its pictures and traces.json."""
    text = out.with_suffix(".md")
    if text.exists() and not text.read_text("utf-8").startswith("# Gallery\n"):
        raise option_error("--out", str(out), f"a folder whose page {text} does not exist yet")
    out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        brief = {name: decode(name, Path(folder)) for name in TRACES}
        for one in PICTURES:
            execute("fairseq_paradec", one.words(f"{folder}/", f"{out}/"))
    (out / "traces.json").write_text(json.dumps(brief, indent=1) + "\n", "utf-8")
    text.write_text(page(out), "utf-8")


def problems(out: Path, methods: Sequence[str] = tuple(TRACES)) -> list[str]:
    """Return the differences from what ``make`` writes."""
    text = out.with_suffix(".md")
    found = []
    if not text.is_file() or text.read_text("utf-8") != page(out):
        found.append(f"{text} is not what paradec gallery writes")
    wanted = {"traces.json", *(f"{one.name}.svg" for one in PICTURES)}
    there = {path.name: path for path in out.glob("*")}
    found += [f"{out / name} is missing" for name in sorted(wanted - there.keys())]
    found += [f"{out / name} is on no page" for name in sorted(there.keys() - wanted)]
    sizes = {path: path.stat().st_size for path in there.values()}
    found += [f"{path} has {size} bytes" for path, size in sizes.items() if size > MAX_BYTES]
    if sum(sizes.values()) > MAX_TOTAL:
        found.append(f"{out} has {sum(sizes.values())} bytes; allowed: {MAX_TOTAL}")
    if "traces.json" in there:
        brief = json.loads(there["traces.json"].read_text("utf-8"))
        with tempfile.TemporaryDirectory() as folder:
            found += [
                f"the trace of {name} differs"
                for name in methods
                if decode(name, Path(folder)) != brief.get(name)
            ]
    return found


def declare(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.epilog = "example: paradec gallery --check"
    parser.set_defaults(fails="with --check a file differs", plugin=False)
    out = ROOT / "docs" / "gallery"
    parser.add_argument("--out", type=Path, default=out, help="folder (default: docs/gallery)")
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 if it differs")


def run(args: argparse.Namespace) -> int:
    """Make or check the gallery."""
    if not (ROOT / DATA / "model.pt").is_file():
        raise option_error("data", DATA, "the demo's data and models, as in the checkout")
    if not args.check:
        make(args.out.resolve())
        return 0
    found = problems(args.out.resolve())
    print("\n".join(found) or f"{args.out} is up to date")
    return 1 if found else 0
