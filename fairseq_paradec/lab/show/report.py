"""One page of all measurements in a folder: benchmarks, tables, passes, statistics, traces.

Pure functions of the documents and records; ``commands/report.py`` reads and checks them. The
page's parts are the values of ``pages/report.html``.
"""

import io
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, BinaryIO

from ..analysis.acceptance_by_position import as_table
from ..analysis.benchmark_tables import label
from ..analysis.promises import EXACT, NOT_RECORDED
from ..data.table import Result, Table, column
from . import page as writer
from . import viewer
from .tally import Tally, decodings, per_sentence, totals

#: Kinds of files in the order of the page, and their headings in the contents.
KINDS = {
    "benchmark": "Benchmarks",
    "table": "Tables",
    "passes": "Passes",
    "trace": "Traces",
    "statistics": "Statistics",
}

#: The ``id`` of the totals of all traces, and of the view of their sentences.
TOTALS, VIEWER = "totals", "sentences"

#: A picture as SVG, and its description.
Picture = tuple[bytes, str]


@dataclass(frozen=True)
class Contents:
    """What is on a page."""

    documents: Sequence[Result]  # files of JSON, by name
    tallies: Sequence[Tally]  # traces and statistics, by name
    skipped: Mapping[str, str]  # the reason for each file left out, by name

    @property
    def files(self) -> list[Result | Tally]:
        """All files that are on the page."""
        return [*self.documents, *self.tallies]


def page(
    title: str,
    contents: Contents,
    pictures: Callable[[Result], Sequence[Picture]],
    acceptance: Sequence[Picture],
    sentences: Iterable[str] | None,
    is_shared: bool,
) -> Iterator[str]:
    """Yield the page piece by piece.

    Args:
        title: its heading.
        contents: its files.
        pictures: draws those of a document, when its part is written.
        acceptance: pictures of all traces.
        sentences: blocks of ``viewer.sentence``; None without traces.
        is_shared: whether they are of all traces.
    """
    names = ["report", *([] if sentences is None else ["viewer"])]
    ids = anchors(one.name for one in contents.files)
    dates = [one.content["date"] for one in contents.documents]
    yield from writer.page(
        "report.html",
        # the report's own style comes last
        [writer.resource(f"{name}.css") for name in reversed(names)],
        [writer.resource(f"{name}.js") for name in names],
        title=title,
        counts=Counter(KINDS[one.kind].lower() for one in contents.files),
        newest=max(dates, default=None),
        warnings=warnings(contents.documents, contents.tallies),
        links=_links(contents.files, ids, sentences is not None),
        machines=machines(contents.documents),
        skipped=contents.skipped,
        documents=(
            {"id": ids[one.name], "pictures": pictures(one), **_facts(one)}
            for one in contents.documents
        ),
        totals=totals(contents.tallies) if contents.tallies else None,
        acceptance=acceptance,
        sentences=sentences,
        is_shared=is_shared,
        tallies=[_parts(one, ids[one.name]) for one in contents.tallies],
        **viewer.opening(),
    )


def anchors(names: Iterable[str]) -> dict[str, str]:
    """Return an ``id`` for each file's part of the page, by the file's name."""
    ids: dict[str, str] = {}
    for name in names:
        stem = re.sub(r"[^a-z0-9]+", "-", name.rsplit(".", 1)[0].lower()).strip("-")
        wanted, number = f"file-{stem}", 1
        while wanted in ids.values():
            number += 1
            wanted = f"file-{stem}-{number}"
        ids[name] = wanted
    return ids


def svg(draw: Callable[[BinaryIO], object]) -> bytes:
    """Return a picture as SVG."""
    file = io.BytesIO()
    draw(file)
    return file.getvalue()


# ---- parts -------------------------------------------------------------------------------------


def _links(
    files: Iterable[Result | Tally], ids: Mapping[str, str], has_viewer: bool
) -> dict[str, list[tuple[str, str, str]]]:
    """Return the links to all parts by their heading: ``id``, text, file."""
    links: dict[str, list[tuple[str, str, str]]] = {name: [] for name in KINDS.values()}
    for one in files:
        links[KINDS[one.kind]].append((ids[one.name], _title(one), one.name))
    if has_viewer:
        links["Traces"].insert(0, (VIEWER, "sentence by sentence", ""))
    if first := links["Traces"] or links["Statistics"]:
        first.insert(0, (TOTALS, "all side by side", ""))
    return {name: lines for name, lines in links.items() if lines}


def _title(one: Result | Tally) -> str:
    """Return a file's title in the contents and above its part."""
    return str(one.content["title"]) if isinstance(one, Result) else "; ".join(decodings(one))


def _facts(one: Result) -> dict[str, Any]:
    """Return the values of a document's part."""
    content = one.content
    versions = ", ".join(f"{name} {version}" for name, version in content["versions"].items())
    facts = {**content.get("setting", {}), **content.get("signatures", {})}
    return {
        "title": _title(one),
        "name": one.name,
        "about": "; ".join([one.name, content["date"], _machine(one), versions]),
        "command": content["command"],
        "notes": content["notes"],
        "facts": {name: _in_words(value) for name, value in facts.items()},
        "tables": one.tables,
    }


def _in_words(value: Any) -> str:
    """Return a fact in words."""
    if isinstance(value, dict):
        return ", ".join(f"{name} {each}" for name, each in value.items()) or "none"
    if isinstance(value, list):
        return ", ".join(map(str, value))
    return "unknown" if value is None else str(value)


def _parts(one: Tally, anchor: str) -> dict[str, Any]:
    """Return the values of a trace's or statistics' part."""
    return {
        "id": anchor,
        "title": f"{_title(one)} ({one.name})",
        "name": one.name,
        "notes": [
            f"`{' '.join(filter(None, name))}`: sentences: {n}" for name, n in one.methods.items()
        ],
        "tables": [per_sentence(one), *([as_table(one.positions)] if one.positions else [])],
    }


# ---- what differs ------------------------------------------------------------------------------


def warnings(
    documents: Sequence[Result], tallies: Sequence[Tally] = ()
) -> list[tuple[str, list[str]]]:
    """Return warnings of incomparable documents and broken promises, each with its files."""
    found = [
        (
            "Times of different machines must not be compared.",
            _parted((one.name, _machine(one)) for one in documents),
        )
    ]
    for kind, what in (
        ("versions", "Not all was measured with the same {}."),
        ("signatures", "Not all {} scores are of one kind; those of two must not be compared."),
    ):
        facts = [(one.name, one.content.get(kind, {})) for one in documents]
        for name in dict.fromkeys(name for _, known in facts for name in known):
            pairs = [(file, f"{name} {known[name]}") for file, known in facts if name in known]
            found.append((what.format(name), _parted(pairs)))
    found = [(what, parts) for what, parts in found if len(parts) > 1]
    false = [
        f"{one.name}: {system['label']} is {label(system)}"
        for one in documents
        if one.kind == "benchmark"
        for system in one.content["systems"]
        if label(system).startswith("NOT")
    ]
    false += _beyond_ties(tallies, EXACT)
    found.append(("Not all is exact that promised it.", false))
    open_ = _beyond_ties(tallies, NOT_RECORDED)
    found.append(("Whether these outputs were promised to be exact is not recorded.", open_))
    return [(what, lines) for what, lines in found if lines]


def _beyond_ties(tallies: Sequence[Tally], promise: str) -> list[str]:
    """Return a line for each file that has outputs of this promise which differ beyond ties."""
    return [
        f"{one.name}: {one.beyond[promise]} of {one.audits.total()} outputs are not fairseq's "
        "greedy search's, ties apart"
        for one in tallies
        if one.beyond[promise]
    ]


def _machine(one: Result) -> str:
    """Return the machine of a document."""
    machine = one.content["machine"]
    return (
        f"{machine.get('processor', 'unknown')}, {machine.get('cores', '?')} cores, accelerator: "
        f"{machine.get('accelerator', 'unknown')}"
    )


def _parted(pairs: Iterable[tuple[str, str]]) -> list[str]:
    """Return a line with the files of each kind."""
    where: dict[str, list[str]] = {}
    for name, kind in pairs:
        where.setdefault(kind, []).append(name)
    return [f"{kind}: {', '.join(names)}" for kind, names in where.items()]


def machines(documents: Sequence[Result]) -> Table:
    """Return one row per machine and set of versions, with its files."""
    parts = ("processor", "cores", "accelerator", "threads")
    packages = dict.fromkeys(name for one in documents for name in one.content["versions"])
    where: dict[tuple[str, ...], list[str]] = {}
    for one in documents:
        machine, versions = one.content["machine"], one.content["versions"]
        key = [machine.get(name, "unknown") for name in parts]
        key += [versions.get(name, "unknown") for name in packages]
        where.setdefault(tuple(map(str, key)), []).append(one.name)
    columns = (*parts[:-1], "threads_used", *(column(name, name) for name in packages))
    return Table.of(
        [{"files": ", ".join(names)} | dict(zip(columns, key)) for key, names in where.items()]
    )
