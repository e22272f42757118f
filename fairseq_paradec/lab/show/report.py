"""One page of all measurements in a folder: benchmarks, tables, passes, statistics, traces.

Pure functions of the documents and records; ``commands/report.py`` reads and checks them. The
page's parts are the values of ``pages/report.html``.
"""

import io
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, BinaryIO, TypeVar

from ..analysis.benchmark_tables import label
from ..analysis.promises import EXACT, NOT_RECORDED
from ..data.table import Result, Table, column
from . import page as writer
from . import viewer
from .tally import Tally, totals

T = TypeVar("T")

#: Kinds of files in the order of the page, and their headings in the contents.
KINDS = {
    "benchmark": "Benchmarks",
    "table": "Tables",
    "passes": "Passes",
    "trace": "Traces",
    "statistics": "Statistics",
}

#: A picture as SVG, and its description.
Picture = tuple[bytes, str]


@dataclass
class Contents:
    """What is on a page; files are in the order of their names."""

    title: str
    documents: list[Result] = field(default_factory=list)
    tallies: list[Tally] = field(default_factory=list)  # of traces and statistics
    # the reason for each file left out, by name
    skipped: dict[str, str] = field(default_factory=dict)
    sentences: Iterable[str] | None = None  # blocks of ``viewer.block``; None without traces

    @property
    def files(self) -> list[Result | Tally]:
        """All files that are on the page."""
        return [*self.documents, *self.tallies]


def page(
    contents: Contents,
    pictures: Callable[[Result], Sequence[Picture]],
    acceptance: Sequence[Picture],
) -> Iterator[str]:
    """Yield the page piece by piece.

    Args:
        contents: what is on it.
        pictures: draws those of a document, when its part is written.
        acceptance: pictures of all traces.
    """
    names = ["report", *([] if contents.sentences is None else ["viewer"])]
    files = contents.files
    yield from writer.page(
        "report.html",
        # the report's own style comes last
        [writer.resource(f"{name}.css") for name in reversed(names)],
        [writer.resource(f"{name}.js") for name in names],
        **vars(contents),
        counts=Counter(KINDS[file.kind].lower() for file in files),
        newest=max((file.content["date"] for file in contents.documents), default=None),
        warnings=warnings(contents.documents, contents.tallies),
        links={
            heading: [(file.name, title_of(file)) for file in files if file.kind == kind]
            for kind, heading in KINDS.items()
        },
        machines=machines(contents.documents),
        totals=totals(contents.tallies) if contents.tallies else None,
        title_of=title_of,
        machine_of=machine_of,
        in_words=in_words,
        pictures=pictures,
        acceptance=acceptance,
        **viewer.opening(),
    )


def svg(draw: Callable[[T, BinaryIO], object], content: T) -> bytes:
    """Draw something, and return the picture as SVG."""
    file = io.BytesIO()
    draw(content, file)
    return file.getvalue()


def title_of(file: Result | Tally) -> str:
    """Return a file's title in the contents and above its part."""
    return str(file.content["title"]) if isinstance(file, Result) else "; ".join(file.decodings)


def in_words(value: Any) -> str:
    """Return a fact in words."""
    if isinstance(value, dict):
        return ", ".join(f"{name} {each}" for name, each in value.items()) or "none"
    if isinstance(value, list):
        return ", ".join(map(str, value))
    return "unknown" if value is None else str(value)


# ---- what differs ------------------------------------------------------------------------------


def warnings(
    documents: Sequence[Result], tallies: Sequence[Tally] = ()
) -> list[tuple[str, list[str]]]:
    """Return warnings of incomparable documents and broken promises, each with its files."""
    warned = [
        (
            "Times of different machines must not be compared.",
            _parted((file.name, machine_of(file)) for file in documents),
        )
    ]
    for kind, what in (
        ("versions", "Not all was measured with the same {}."),
        ("signatures", "Not all {} scores are of one kind; those of two must not be compared."),
    ):
        facts = [(file.name, file.content.get(kind, {})) for file in documents]
        for name in dict.fromkeys(name for _, known in facts for name in known):
            pairs = [(file, f"{name} {known[name]}") for file, known in facts if name in known]
            warned.append((what.format(name), _parted(pairs)))
    warned = [(what, parts) for what, parts in warned if len(parts) > 1]
    false = [
        f"{file.name}: {system['label']} is {label(system)}"
        for file in documents
        if file.kind == "benchmark"
        for system in file.content["systems"]
        if label(system).startswith("NOT")
    ]
    false += _beyond_ties(tallies, EXACT)
    warned.append(("Not all is exact that promised it.", false))
    open_ = _beyond_ties(tallies, NOT_RECORDED)
    warned.append(("Whether these outputs were promised to be exact is not recorded.", open_))
    return [(what, lines) for what, lines in warned if lines]


def _beyond_ties(tallies: Sequence[Tally], promise: str) -> list[str]:
    """Return a line for each file that has outputs of this promise which differ beyond ties."""
    return [
        f"{file.name}: {file.beyond[promise]} of {file.audits.total()} outputs are not fairseq's "
        "greedy search's, ties apart"
        for file in tallies
        if file.beyond[promise]
    ]


def machine_of(file: Result) -> str:
    """Return the machine of a document."""
    machine = file.content["machine"]
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
    packages = dict.fromkeys(name for file in documents for name in file.content["versions"])
    where: dict[tuple[str, ...], list[str]] = {}
    for file in documents:
        machine, versions = file.content["machine"], file.content["versions"]
        key = [machine.get(name, "unknown") for name in parts]
        key += [versions.get(name, "unknown") for name in packages]
        where.setdefault(tuple(map(str, key)), []).append(file.name)
    columns = (*parts[:-1], "threads_used", *(column(name, name) for name in packages))
    return Table.of(
        [{"files": ", ".join(names)} | dict(zip(columns, key)) for key, names in where.items()]
    )
