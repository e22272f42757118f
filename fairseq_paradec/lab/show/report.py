"""One page of all measurements in a folder: benchmarks, tables, passes, statistics, traces.

Pure functions of the documents and records; ``commands/report.py`` reads and checks them, and
writes the page part by part. Tables and pictures come from the other modules.
"""

import io
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, BinaryIO

from ..analysis.acceptance_by_position import as_table
from ..analysis.benchmark_tables import label
from ..analysis.promises import EXACT, NOT_RECORDED
from ..data.table import Result, Table, column
from . import page, viewer
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


# ---- the page ----------------------------------------------------------------------------------


def head(title: str, has_viewer: bool) -> str:
    """Return the page's beginning."""
    names = ["report", *(["viewer"] if has_viewer else [])]
    # The report's own style comes last.
    styles = [page.resource(f"{name}.css") for name in reversed(names)]
    return page.head(title, styles, [page.resource(f"{name}.js") for name in names])


def anchors(names: Iterable[str]) -> dict[str, str]:
    """Return an ``id`` for each file's part of the page, by the file's name."""
    found: dict[str, str] = {}
    for name in names:
        stem = re.sub(r"[^a-z0-9]+", "-", name.rsplit(".", 1)[0].lower()).strip("-")
        wanted, number = f"file-{stem}", 1
        while wanted in found.values():
            number += 1
            wanted = f"file-{stem}-{number}"
        found[name] = wanted
    return found


def overview(
    documents: Sequence[Result],
    tallies: Sequence[Tally],
    skipped: Mapping[str, str],
    ids: Mapping[str, str],
) -> str:
    """Return the page's overview: counts, warnings, contents, machines and versions."""
    dates = [d.content["date"] for d in documents]
    newest = f" The newest result is of {max(dates)}." if dates else ""
    files: list[Result | Tally] = [*documents, *tallies]
    counts = Counter(KINDS[one.kind].lower() for one in files)
    summary = "; ".join(f"{kind}: {count}" for kind, count in counts.items()).capitalize()
    parts = [f'<p class="about">{page.text(summary)}.{page.text(newest)}</p>\n']
    worries = "".join(
        f"<li>{prose(what)}\n<ul>\n{_items(lines)}</ul></li>\n"
        for what, lines in warnings(documents, tallies)
    )
    if worries:
        parts.append(f'<ul class="warnings" role="note">\n{worries}</ul>\n')
    parts.append(_contents(files, ids))
    found = machines(documents)
    if found.rows:
        table = page.table(found, "machines and versions")
        parts.append(f'<h2>Machines and versions</h2>\n<div class="machines">\n{table}</div>\n')
    if skipped:
        left = _items(f"{name}: {reason}" for name, reason in skipped.items())
        parts.append(f'<h2>Left out</h2>\n<ul class="skipped">\n{left}</ul>\n')
    return "".join(parts)


def _contents(files: Sequence[Result | Tally], ids: Mapping[str, str]) -> str:
    """Return links to all parts, by kind."""
    links: dict[str, str] = dict.fromkeys(KINDS, "")
    for one in files:
        links[one.kind] += _link(ids[one.name], _title(one), one.name)
    if links["trace"]:
        links["trace"] = _link(VIEWER, "sentence by sentence") + links["trace"]
    if links["trace"] or links["statistics"]:
        first = "trace" if links["trace"] else "statistics"
        links[first] = _link(TOTALS, "all side by side") + links[first]
    groups = "".join(
        f"<div><h3>{KINDS[kind]}</h3>\n<ul>\n{lines}</ul></div>\n"
        for kind, lines in links.items()
        if lines
    )
    return (
        '<nav id="contents" aria-label="contents">\n<h2>Contents</h2>\n'
        f'<div class="kinds">\n{groups}</div>\n</nav>\n'
    )


def _link(anchor: str, what: str, file: str = "") -> str:
    """Return an item of the contents."""
    name = f' <span class="faint">{page.text(file)}</span>' if file else ""
    return f'<li><a href="#{anchor}">{page.text(what)}</a>{name}</li>\n'


def _title(one: Result | Tally) -> str:
    """Return a file's title in the contents and above its part."""
    if isinstance(one, Result):
        return str(one.content["title"])
    return "; ".join(decodings(one))


def _items(lines: Iterable[str]) -> str:
    """Return lines as items of a list; text between backticks is code."""
    return "".join(f"<li>{prose(line)}</li>\n" for line in lines)


def prose(line: object) -> str:
    """Return a note as HTML; text between backticks is code."""
    parts = str(line).split("`")
    if len(parts) % 2 == 0:  # one of them has no other
        return page.text(line)
    return "".join(
        f"<code>{page.text(part)}</code>" if i % 2 else page.text(part)
        for i, part in enumerate(parts)
    )


def warnings(
    documents: Sequence[Result], tallies: Sequence[Tally] = ()
) -> list[tuple[str, list[str]]]:
    """Return warnings of incomparable documents and broken promises.

    Returns:
        Warnings, each with its files.
    """
    found = [
        (
            "Times of different machines must not be compared.",
            _parted((d.name, _machine(d)) for d in documents),
        )
    ]
    for kind, what in (
        ("versions", "Not all was measured with the same {}."),
        ("signatures", "Not all {} scores are of one kind; those of two must not be compared."),
    ):
        for name in dict.fromkeys(name for d in documents for name in d.content.get(kind, {})):
            pairs = [
                (d.name, f"{name} {d.content[kind][name]}")
                for d in documents
                if name in d.content.get(kind, {})
            ]
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
    packages = dict.fromkeys(name for d in documents for name in d.content["versions"])
    where: dict[tuple[Any, ...], list[str]] = {}
    for one in documents:
        machine, versions = one.content["machine"], one.content["versions"]
        key = [machine.get(name, "unknown") for name in parts]
        key += [versions.get(name, "unknown") for name in packages]
        where.setdefault(tuple(map(str, key)), []).append(one.name)
    columns = (*parts[:-1], "threads_used", *(column(name, name) for name in packages))
    found = [{"files": ", ".join(names)} | dict(zip(columns, key)) for key, names in where.items()]
    return Table.of(found)


# ---- benchmarks, tables, passes ----------------------------------------------------------------


def document_section(one: Result, anchor: str, pictures: Sequence[tuple[bytes, str]]) -> str:
    """Return a document's part of the page."""
    content = one.content
    versions = ", ".join(f"{name} {version}" for name, version in content["versions"].items())
    about = "; ".join([one.name, content["date"], _machine(one), versions])
    facts = {**content.get("setting", {}), **content.get("signatures", {})}
    return (
        _opening(_title(one), anchor)
        + f'<p class="about faint">{page.text(about)}</p>\n'
        + f'<div class="command"><pre>{page.text(content["command"])}</pre></div>\n'
        + '<div class="circumstances">\n'
        + _details("Notes", _notes(content["notes"]))
        + _details("Setting", _facts(facts))
        + "</div>\n"
        + _figures(pictures)
        + "".join(_table(table, one.name) for table in one.tables)
        + "</section>\n"
    )


def _opening(title: str, anchor: str) -> str:
    """Return the beginning of a file's part."""
    return (
        f'<section class="file" id="{anchor}">\n<h2>{page.text(title)} '
        '<a class="up" href="#contents">contents</a></h2>\n'
    )


def _figures(pictures: Sequence[tuple[bytes, str]]) -> str:
    """Return pictures below each other."""
    return "".join(
        f'<figure class="scroll" tabindex="0">\n{page.picture(*picture)}</figure>\n'
        for picture in pictures
    )


def _details(summary: str, inside: str) -> str:
    """Return a foldable element; nothing without content."""
    return f"<details open>\n<summary>{summary}</summary>\n{inside}</details>\n" if inside else ""


def _notes(notes: Sequence[str]) -> str:
    return f'<ul class="notes">\n{_items(notes)}</ul>\n' if notes else ""


def _facts(facts: Mapping[str, Any]) -> str:
    """Return names and values as a list."""
    lines = "".join(
        f"<dt>{page.text(name)}</dt><dd>{page.text(_value(value))}</dd>\n"
        for name, value in facts.items()
    )
    return f'<dl class="facts">\n{lines}</dl>\n' if lines else ""


def _value(value: Any) -> str:
    """Return a fact in words."""
    if isinstance(value, dict):
        return ", ".join(f"{name} {one}" for name, one in value.items()) or "none"
    if isinstance(value, list):
        return ", ".join(map(str, value))
    return "unknown" if value is None else str(value)


def _table(table: Table, name: str) -> str:
    """Return a table with its title and notes."""
    title = f"<h3>{page.text(table.title)}</h3>\n" if table.title else ""
    return title + _notes(table.notes) + page.table(table, table.title or name)


def svg(draw: Callable[[BinaryIO], object], texts: Iterable[str]) -> bytes:
    """Return a picture as SVG."""
    from . import fonts  # matplotlib takes a second to load

    file = io.BytesIO()
    with fonts.drawing(texts):
        draw(file)
    return file.getvalue()


# ---- traces and statistics ---------------------------------------------------------------------


def totals_section(tallies: Sequence[Tally], pictures: Sequence[tuple[bytes, str]]) -> str:
    """Return the part of the page with the totals of all traces and statistics."""
    table = totals(tallies)
    return (
        _opening(table.title, TOTALS)
        + _notes(table.notes)
        + page.table(table, table.title)
        + _figures(pictures)
        + "</section>\n"
    )


def tally_section(one: Tally, anchor: str) -> str:
    """Return a trace's or statistics' part of the page."""
    methods = [
        f"`{' '.join(filter(None, name))}`: sentences: {n}" for name, n in one.methods.items()
    ]
    tables = [per_sentence(one), *([as_table(one.positions)] if one.positions else [])]
    return (
        _opening(f"{_title(one)} ({one.name})", anchor)
        + _notes(methods)
        + '<div class="side">\n'
        + "".join(f"<div>\n{_table(table, one.name)}</div>\n" for table in tables)
        + "</div>\n</section>\n"
    )


def viewer_opening(is_shared: bool) -> str:
    """Return the beginning of the view of traces, sentence by sentence."""
    note = "" if is_shared else _notes(["No sentence is in all traces: each is shown by itself."])
    begin = _opening("Sentence by sentence", VIEWER)
    return f'{begin}{note}<div class="viewer">\n{viewer.opening()}'


VIEWER_END = "</div>\n</section>\n"
