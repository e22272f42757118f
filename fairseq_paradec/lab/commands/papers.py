"""List every numbered table and figure of the five papers: where ours is, and whether it comes out.

Without ROW all rows are listed with their verdicts. With ROW its commands are run: on DATA and the
models of --path and --drafter-path, or on those that papers.toml names.
"""

import argparse
import re
import shlex
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ...cli.main import main
from ...errors import UsageError, needs, option_error
from ...output import printable
from ..data import documents

ROWS = Path(__file__).resolve().parent.parent / "papers.toml"

#: What was measured here beside the paper, in words.
VERDICTS = {
    "same": "same direction",
    "other": "other direction",
    "shown": "nothing measured",
    "cannot": "cannot be run here",
    "not yet": "not yet run",
}


def load() -> dict[str, Any]:
    """Return papers.toml: ``given`` (default data and models) and ``rows``."""
    return tomllib.loads(ROWS.read_text(encoding="utf-8"))


def overview(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return each row in a line, and the number of each verdict."""
    lines = [f"{row['id']:11}  {VERDICTS[row['verdict']]:18}  {row['asks']}" for row in rows]
    return [*lines, "", "; ".join(f"{text}: {count}" for text, count in counts(rows).items())]


def counts(rows: Sequence[Mapping[str, Any]]) -> dict[str, int]:
    """Return how many rows have each verdict, in words."""
    return {
        text: sum(row["verdict"] == verdict for row in rows) for verdict, text in VERDICTS.items()
    }


def commands(
    row: Mapping[str, Any],
    given: Mapping[str, Any],
    out: Path,
    data: str | None = None,
    paths: list[str] | None = None,
    drafter: str | None = None,
) -> list[list[str]]:
    """Return a row's commands, the words after ``paradec`` of each.

    Args:
        row: of papers.toml; ``run`` has commands with ``{data}``, ``{model}``, ``{model2}``, ...,
            ``{drafter}``, ``{lang}`` (the target language, the end of DATA's name), ``{out}``,
            ``{out2}``, ... and ``{picture}``. ``data``, ``models`` and ``drafter`` are its own
            defaults.
        given: the defaults of all rows.
        out: the JSON file of its first command; others have ``-2``, ``-3``, ... in their names.
        data: of the user.
        paths: models of the user, in the order of ``models``.
        drafter: of the user.

    Raises:
        UsageError: the row has no command, the user gave too few models, or what it does not take.
    """
    if not row.get("run"):
        raise option_error("ROW", row["id"], "a row with commands; see docs/papers.md")
    own = {**given, **row}
    taken = set(re.findall(r"\{(\w+)\}", " ".join(row["run"])))
    _refuse_what_is_not_taken(row["id"], taken, data, paths, drafter)
    data = data or own["data"]
    models = paths or own["models"]
    values = {
        "data": data,
        "lang": Path(data).name.rpartition("-")[2],
        "drafter": drafter or own["drafter"],
        "picture": str(out.with_suffix(".svg")),
        "out": str(out),
    }
    values |= {f"model{i or ''}": path for i, path in zip([0, *range(2, 99)], models)}
    values |= {f"out{i}": str(out.with_stem(f"{out.stem}-{i}")) for i in range(2, 9)}
    lines = []
    for line in row["run"]:
        wanted = set(re.findall(r"\{(\w+)\}", line))
        if missing := sorted(wanted - values.keys()):
            count = len({name for name in wanted if name.startswith("model")})
            raise UsageError(f"{row['id']} needs {count} --path; {', '.join(missing)} is not given")
        lines.append([word.format(**values) for word in shlex.split(line)])
    return lines


def _refuse_what_is_not_taken(
    name: str, taken: set[str], data: str | None, paths: list[str] | None, drafter: str | None
) -> None:
    """Refuse data and models of the user that a row's commands would leave out."""
    if data is not None and "data" not in taken:
        raise option_error("DATA", data, f"none; {name} takes no data")
    if data is not None and "lang" in taken and not re.search(r"-\w+$", Path(data).name):
        raise option_error("DATA", data, "a folder whose name ends in -LANG, such as data.en-de")
    models = sum(name.startswith("model") for name in taken)
    if len(paths or []) > models:
        raise option_error("--path", " ".join(paths or []), f"{models} for {name}")
    if drafter is not None and "drafter" not in taken:
        raise option_error("--drafter-path", drafter, f"none; {name} takes no drafter")


def declare(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.epilog = (
        "example: paradec papers xia-3 data-bin/demo.en-de --path data-bin/demo.en-de/model.pt \\\n"
        "    --drafter-path data-bin/demo.en-de/drafter.pt"
    )
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.set_defaults(fails="a row's command failed", plugin=False)
    add = parser.add_argument
    add("row", nargs="?", metavar="ROW", help="of the list, such as xia-3 (Table 3) or zhang-f2")
    add("data", nargs="?", metavar="DATA", help="fairseq data folder; its name ends in -LANG")
    add("--path", action="append", help="checkpoint of the model; repeat it for more, in order")
    add("--drafter-path", help="drafter or heads, where the row has one")
    add("--out", type=Path, help="JSON file of ROW (default: runs/papers/ROW.json)")
    add("--list", action="store_true", help="only print the commands of ROW")


def run(args: argparse.Namespace) -> int:
    """List the rows, or run one; return the exit status."""
    data = load()
    if args.row is None:
        for flag in ("path", "drafter_path", "out", "list"):
            if getattr(args, flag):
                raise needs(f"--{flag.replace('_', '-')}", True, "ROW")
        print("\n".join(map(printable, overview(data["rows"]))))
        return 0
    rows = {row["id"]: row for row in data["rows"]}
    if args.row not in rows:
        raise option_error("ROW", args.row, ", ".join(rows))
    out = args.out or Path("runs/papers") / f"{args.row}.json"
    lines = commands(rows[args.row], data["given"], out, args.data, args.path, args.drafter_path)
    if out.suffix != ".json":
        raise option_error("--out", str(out), "a file whose name ends in .json")
    if not args.list:
        documents.check_out(out)
    for words in lines:
        print(shlex.join(["paradec", *words]), flush=True)
        if not args.list and (status := main(words)) != 0:
            return status
    return 0
