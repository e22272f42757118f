"""List every numbered table and figure of the five papers: where ours is, and whether it comes out.

Without ROW all rows are listed with their verdicts. With ROW its commands are run: on DATA and the
models of --path and --drafter-path, or on those that papers.toml names. --page writes
docs/papers.md from papers.toml and results/*.json.
"""

import argparse
import re
import shlex
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ...cli.main import main
from ...errors import UsageError, excludes, needs, option_error
from ...output import printable
from ..analysis import papers_page
from ..data import documents
from .results import check

DATA = Path(__file__).resolve().parent.parent / "papers.toml"


def load() -> dict[str, Any]:
    """Return papers.toml: ``papers`` by key, ``given`` (default data and models), ``rows``."""
    return tomllib.loads(DATA.read_text(encoding="utf-8"))


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
    found = []
    for line in row["run"]:
        wanted = set(re.findall(r"\{(\w+)\}", line))
        if missing := sorted(wanted - values.keys()):
            count = len({one for one in wanted if one.startswith("model")})
            raise UsageError(f"{row['id']} needs {count} --path; {', '.join(missing)} is not given")
        found.append([word.format(**values) for word in shlex.split(line)])
    return found


def _refuse_what_is_not_taken(
    name: str, taken: set[str], data: str | None, paths: list[str] | None, drafter: str | None
) -> None:
    """Refuse data and models of the user that a row's commands would leave out."""
    if data is not None and "data" not in taken:
        raise option_error("DATA", data, f"none; {name} takes no data")
    if data is not None and "lang" in taken and not re.search(r"-\w+$", Path(data).name):
        raise option_error("DATA", data, "a folder whose name ends in -LANG, such as data.en-de")
    models = sum(one.startswith("model") for one in taken)
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
    parser.set_defaults(
        fails="a row's command failed, or with --check the page differs", plugin=False
    )
    add = parser.add_argument
    add("row", nargs="?", metavar="ROW", help="of the list, such as xia-3 (Table 3) or zhang-f2")
    add("data", nargs="?", metavar="DATA", help="fairseq data folder; its name ends in -LANG")
    add("--path", action="append", help="checkpoint of the model; repeat it for more, in order")
    add("--drafter-path", help="drafter or heads, where the row has one")
    add("--out", type=Path, help="JSON file of ROW (default: runs/papers/ROW.json)")
    add("--list", action="store_true", help="only print the commands of ROW")
    add("--page", action="store_true", help="write docs/papers.md")
    add("--check", action="store_true", help="with --page: write nothing; exit 1 if it differs")
    add("--results", type=Path, default=Path("results"), help="(default: results)")


def run(args: argparse.Namespace) -> int:
    """List the rows, run one, or write the page; return the exit status."""
    data = load()
    _refuse_flags_of_other_uses(args)
    if args.page:
        text = papers_page.page(data, documents.read_folder("--results", args.results))
        out = Path("docs/papers.md")
        if args.check:
            return 0 if check(out, text) else 1
        documents.write(out, text)
        return 0
    if args.row is None:
        print("\n".join(map(printable, papers_page.overview(data["rows"]))))
        return 0
    rows = {row["id"]: row for row in data["rows"]}
    if args.row not in rows:
        raise option_error("ROW", args.row, ", ".join(rows))
    out = args.out or Path("runs/papers") / f"{args.row}.json"
    found = commands(rows[args.row], data["given"], out, args.data, args.path, args.drafter_path)
    if out.suffix != ".json":
        raise option_error("--out", str(out), "a file whose name ends in .json")
    if not args.list:
        documents.check_out(out)
    for words in found:
        print(shlex.join(["paradec", *words]), flush=True)
        if not args.list and (status := main(words)) != 0:
            return status
    return 0


def _refuse_flags_of_other_uses(args: argparse.Namespace) -> None:
    """Refuse what only a run of a row, or only the page, would heed."""
    if args.page and args.row is not None:
        raise excludes("--page", True, f"ROW, here {args.row}")
    if args.check and not args.page:
        raise needs("--check", True, "--page")
    for flag in ("path", "drafter_path", "out", "list"):
        if args.row is None and getattr(args, flag):
            raise needs(f"--{flag.replace('_', '-')}", True, "ROW")
