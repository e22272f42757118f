"""RESULTS.md and the page of each result: pure functions of the JSON documents."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ...errors import UsageError
from .benchmark_tables import (
    BEAM,
    GREEDY,
    OWN_GREEDY,
    label,
    listed,
    milliseconds,
    output_row,
    threads,
)
from .markdown import markdown, table
from .timing import speed_up

HEAD = """\
# Results

`paradec results` renders this page from [results/summary.json](results/summary.json), and
[a page for each result](results) from its JSON file. To change a number, run the command on its
page again.
"""

# Older results show their command as it was typed.
OLD_COMMAND = "Today `paradec NAME` is what was `python -m fairseq_paradec.cli.NAME` then."

Row = dict[str, Any]


def bullets(lines: Iterable[str]) -> str:
    """Return a Markdown list."""
    return "\n".join(f"- {line}" for line in lines)


def page(document: Mapping[str, Any], picture: str | None = None) -> str:
    """Render one document with its circumstances.

    Args:
        document: what ``lab.measure.documents.read_document`` returns, or a benchmark.
        picture: path of its picture.
    """
    packages = (f"{package} {version}" for package, version in document["versions"].items())
    parts = [
        f"# {document['title']}",
        "; ".join([document["date"], machine(document), ", ".join(packages)]),
        f"```\n{document['command']}\n```",
        OLD_COMMAND if "fairseq_paradec.cli." in document["command"] else "",
        bullets(document["notes"]),
        f"![{document['title']}]({picture})" if picture else "",
        markdown(document["tables"]).rstrip("\n"),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def machine(document: Mapping[str, Any]) -> str:
    """Return the machine that a document was measured on."""
    found = document["machine"]
    return (
        f"{found['processor']}, {found['cores']} cores, {found['threads']} used, "
        f"accelerator: {found['accelerator']}"
    )


def summary(
    chosen: Mapping[str, Any], documents: Mapping[str, Mapping[str, Any]], folder: str
) -> str:
    """Render RESULTS.md: a table of decoders, conclusions, targets.

    Args:
        chosen: summary.json: ``benchmark`` (the name of a result), ``rows`` (labels of its
            systems), ``peer`` (the label of the fourth baseline), ``lines`` (each with ``text``,
            and ``from``, the results with its numbers), ``targets`` (each with ``target``,
            ``found``, ``met`` and ``from``) and ``not run``; or empty.
        documents: all results, by name.
        folder: path of their pages.

    Raises:
        UsageError: a named result or system is missing, or the named results lack a number.
    """
    parts = [HEAD.rstrip("\n")]
    if chosen:
        name = chosen["benchmark"]
        document = _of(documents, name)
        for line in [*chosen["lines"], *chosen["targets"]]:
            _check_numbers(line, documents)
        parts += [
            f"## Which decoder is fastest\n\n{_setting(document, f'{folder}/{name}.md')}",
            table(summary_rows(document, chosen["rows"], chosen["peer"])),
            bullets(line["text"] for line in chosen["lines"]),
            "## Targets\n\n[docs/experiments.md](docs/experiments.md) has the reasons, and what was"
            " tried.",
            table(
                [{key: one[key] for key in ("target", "found", "met")} for one in chosen["targets"]]
            ),
            f"Not run: {'; '.join(chosen['not run'])}.",
        ]
    return "\n\n".join(parts) + "\n"


def summary_rows(document: Mapping[str, Any], labels: Sequence[str], peer: str) -> list[Row]:
    """Return the rows of the summary's table: passes, time, four speed-ups, and the label.

    Args:
        document: a benchmark.
        labels: of its systems, in the order of the rows.
        peer: the label of the fourth baseline.

    Raises:
        UsageError: the benchmark lacks a system.
    """
    systems = {system["label"]: system for system in document["systems"]}
    missing = [name for name in [*labels, peer] if name not in systems]
    if missing:
        raise UsageError(f"summary.json: got {listed(missing)}; allowed: {', '.join(systems)}")
    times = document["seconds"]["latency"][str(document["setting"]["threads"][0])]
    baselines = {"beam 5": BEAM, "fairseq greedy": GREEDY, "our greedy": OWN_GREEDY}
    return [
        {
            "decoder": name,
            "passes": output_row(systems[name])["passes per sentence"],
            "ms": f"{milliseconds(times[name]).median:.1f}",
            **{
                f"x {head}": f"{speed_up(times[base], times[name]).median:.2f}"
                for head, base in (baselines | {peer.split()[0]: peer}).items()
            },
            "output": label(systems[name]),
            "identical": output_row(systems[name])["identical to greedy"],
        }
        for name in labels
    ]


def _setting(document: Mapping[str, Any], address: str) -> str:
    """Return the setting of the summary's table."""
    setting = document["setting"]
    return (
        f"[{document['title']}]({address}): {setting['timed sentences']} of "
        f"{setting['sentences']} sentences, batch 1, {setting['dtype']}, "
        f"{threads(str(setting['threads'][0]))}, {document['machine']['processor']}, "
        f"{document['date']}. Passes and median milliseconds a sentence, from ids to text; "
        "speed-ups (x) against four baselines; outputs identical to fairseq's greedy search."
    )


def _of(documents: Mapping[str, Mapping[str, Any]], name: str) -> Mapping[str, Any]:
    """Return a result by its name."""
    if name not in documents:
        raise UsageError(f"summary.json: got {name!r}; allowed: {', '.join(documents)}")
    return documents[name]


def _check_numbers(line: Mapping[str, Any], documents: Mapping[str, Mapping[str, Any]]) -> None:
    """Refuse a decimal number that is in none of its results, rounded."""
    pages = " ".join(page(_of(documents, name)) for name in line["from"])
    known = [float(number) for number in re.findall(r"\d+\.\d+", pages)]
    for number in re.findall(r"\d+\.\d+", line.get("found", line.get("text", ""))):
        digits = len(number.partition(".")[2])
        if not any(f"{one:.{digits}f}" == number for one in known):
            raise UsageError(
                f"summary.json: {number} does not stand in {', '.join(line['from']) or 'a result'}"
            )
