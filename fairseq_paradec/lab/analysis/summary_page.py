"""RESULTS.md, and what other pages show of the results: pure functions of the JSON documents."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from ...errors import UsageError
from ..data.samples import THROUGHPUT, samples, speed_ups
from ..data.table import Cells, Result, Table, column
from ..show.table import markdown_table
from . import Fields
from .benchmark_tables import (
    AGAINST,
    BEAM,
    GREEDY,
    OWN_GREEDY,
    alone_samples,
    label,
    latencies,
    listed,
    output_row,
    threads,
    throughput,
)
from .result_pages import bullets
from .timing import milliseconds, percentile

HEAD = """\
# Results

`paradec results` renders this page from [results/summary.json](results/summary.json), and
[a page for each result](results/README.md) from its JSON file. To change a number, run the command
on its page again.
"""

#: The dtypes of a table, one group of columns each.
DTYPES = ("fp32", "bf16", "int8")

#: The speed-up in the table of decoders.
FP32_GAIN = column("fp32_x_beam_5", "fp32: x beam 5", "x", ".2f")

#: What the table of README.md calls the output of a lossless decoder.
GREEDY_OUTPUT = "greedy's"

Results = Mapping[str, Result]


def summary(chosen: Mapping[str, Any], results: Results, folder: str) -> str:
    """Render RESULTS.md: four questions, each with a table and conclusions.

    Args:
        chosen: summary.json. ``benchmark`` is the name of a result, ``model`` says of what model it
            is. ``decoders`` and ``peers`` are
            rows: text by column, and the label of a system for each dtype; without one of fp32 the
            benchmark has not run it. ``drafting`` are labels
            of systems, ``lossless`` names of results. ``which``, ``sure``, ``not paying`` and
            ``beside`` are conclusions, each with ``text``, and ``from``, the results with its
            numbers. Or it is empty.
        results: all of them, by name.
        folder: path of their pages.

    Raises:
        UsageError: a named result or system is missing, or the named results lack a number.
    """
    parts = [HEAD.rstrip("\n")]
    if chosen:
        name = chosen["benchmark"]
        document = _of(results, name).content
        size = max(document["seconds"]["throughput"], key=int, default="1")
        parts += [
            "## Which decoder should I take",
            _setting(document, f"{folder}/{name}.md", chosen["model"]),
            markdown_table(decoder_rows(document, chosen["decoders"])),
            _lines(chosen["which"], results),
            "## How sure is it that lossless is lossless",
            f"{counts(chosen, results)} [docs/exactness.md](docs/exactness.md) says what is "
            "proved and what is tested, and how you check your own model.",
            markdown_table(lossless_rows(chosen["lossless"], results, folder)),
            _lines(chosen["sure"], results),
            "## Where drafting does not pay",
            f"Speed against our `greedy` in fp32, for one sentence and in batches of {size}, from "
            "the same benchmark:",
            markdown_table(drafting_rows(document, chosen["drafting"], size)),
            _lines(chosen["not paying"], results),
            "## Beside fairseq and CTranslate2",
            "From the same benchmark, on one thread: milliseconds a sentence at batch 1 (median and"
            f" 90th percentile), sentences a second in batches of {size}, and the peak of memory"
            " beyond the loaded model in MiB, for one sentence and in batches.",
            markdown_table(peer_rows(document, chosen["peers"], size)),
            _lines(chosen["beside"], results),
            "Our own targets, met and missed: [docs/experiments.md](docs/experiments.md#targets).",
        ]
    return "\n\n".join(part for part in parts if part) + "\n"


def targets(chosen: Mapping[str, Any], results: Results) -> str:
    """Render the targets, for docs/experiments.md.

    Args:
        chosen: summary.json: ``targets`` (each with ``target``, ``found``, ``met`` and ``from``)
            and ``not run``.
        results: all of them, by name.

    Raises:
        UsageError: a named result is missing, or lacks a number.
    """
    for one in chosen["targets"]:
        _check_numbers(one, results)
    rows = [{key: one[key] for key in ("target", "found", "met")} for one in chosen["targets"]]
    return f"{markdown_table(Table.of(rows))}\n\nNot run: {'; '.join(chosen['not run'])}."


def counts(chosen: Mapping[str, Any], results: Results) -> str:
    """Return how many outputs were compared, and how many differ, as sentences."""
    found = [_compared(_of(results, name)) for name in chosen["lossless"]]
    outputs, ties, beyond = (
        sum(one[key] for one in found) for key in ("outputs", "ties", "beyond")
    )
    return (
        f"{outputs:,} outputs of lossless decoders in fp32 were compared with fairseq's greedy "
        f"search: {beyond} differ beyond ties, {ties} by a tie."
    )


def fill(text: str, name: str, content: str) -> str:
    """Return a page with content between its marks ``<!-- name by paradec results -->``.

    Raises:
        UsageError: the page lacks a mark.
    """
    begin, end = f"<!-- {name} by paradec results -->", f"<!-- end of {name} -->"
    head, found, rest = text.partition(begin)
    _, ended, tail = rest.partition(end)
    if not (found and ended):
        raise UsageError(f"a page lacks {begin} or {end}")
    return f"{head}{begin}\n{content}\n{end}{tail}"


def decoder_rows(document: Mapping[str, Any], chosen: Sequence[Mapping[str, str]]) -> Table:
    """Return the table of decoders, a group of columns for each dtype.

    Raises:
        UsageError: the benchmark lacks a system.
    """
    systems = _systems(document, chosen)
    times, gains = latencies(document), speed_ups(alone_samples(document), BEAM)
    rows = []
    for one in chosen:
        row: Cells = {"decoder": one["decoder"], "needs": one["needs"], "passes": None}
        for dtype in DTYPES:
            ms = gain = equal = None
            if name := one.get(dtype):
                found = output_row(systems[name])
                ms, equal = milliseconds(times[name]).middle, found["identical_to_greedy"]
                gain = gains[name, None].middle
                if dtype == "fp32":
                    row["passes"] = found["passes_per_sentence"]
            row[column(f"{dtype}_ms", f"{dtype}: ms", "ms", ".1f")] = ms
            if dtype == "fp32":
                row[FP32_GAIN] = gain
            row[column(f"{dtype}_equal", f"{dtype}: = greedy")] = equal
        rows.append(row)
    return Table.of(rows)


def first_table(chosen: Mapping[str, Any], results: Results) -> str:
    """Render the table of README.md: our decoders, by their names in the papers, in fp32.

    Args:
        chosen: summary.json; rows of ``decoders`` without ``paper`` are left out.
        results: all of them, by name.
    """
    document = _of(results, chosen["benchmark"]).content
    lines = [one for one in chosen["decoders"] if "paper" in one]
    systems = _systems(document, lines)
    rows = [
        {
            column("decoding", "`--decoding`"): one["decoder"],
            column("paper", "in the papers"): one["paper"],
            "needs": one["needs"],
            "output": one["output"],
            column("ms", unit="ms", form=".1f"): row["fp32_ms"],
            AGAINST[BEAM]: row[FP32_GAIN.key],
        }
        for one, row in zip(lines, decoder_rows(document, lines).rows, strict=True)
    ]
    for one in lines:
        if one["output"] == GREEDY_OUTPUT and label(systems[one["fp32"]]) != "exact":
            raise UsageError(f"summary.json: {one['fp32']} is not exact")
    return markdown_table(Table.of(rows))


def lossless_rows(names: Sequence[str], results: Results, folder: str) -> Table:
    """Return the table of results that compare outputs."""
    rows = []
    for name in names:
        found = _compared(_of(results, name))
        rows.append(
            {
                "result": f"[{name}]({folder}/{name}.md)",
                "decoders": ", ".join(f"`{one}`" for one in found["decoders"]),
                "settings": found["settings"],
                "batch_sizes": ", ".join(map(str, found["sizes"])),
                "outputs": found["outputs"],
                "differ": found["beyond"],
                "ties": found["ties"],
            }
        )
    return Table.of(rows)


def drafting_rows(document: Mapping[str, Any], names: Sequence[str], size: str) -> Table:
    """Return the speed of drafting decoders against greedy search, alone and in batches."""
    _systems(document, [{"fp32": name} for name in names])
    batches = [one for one in samples(document) if (one.kind, one.batch) == (THROUGHPUT, int(size))]
    gains = {
        column("alone", "batch 1", form=".2f"): speed_ups(alone_samples(document), OWN_GREEDY),
        column("batches", f"batch {size}", form=".2f"): speed_ups(batches, OWN_GREEDY),
    }
    rows: list[Cells] = []
    for name in names:
        row: Cells = {"decoder": name}
        for head, found in gains.items():
            row[head] = found[name, None].middle if (name, None) in found else None
        rows.append(row)
    return Table.of(rows)


def peer_rows(document: Mapping[str, Any], chosen: Sequence[Mapping[str, str]], size: str) -> Table:
    """Return latency, throughput and memory of engines, a group of columns for each dtype.

    Args:
        document: a benchmark.
        chosen: rows; see ``summary``. Those without a label of a dtype have dashes there.
        size: of the batches.
    """
    systems = _systems(document, chosen)
    alone = latencies(document)
    batches = document["seconds"]["throughput"].get(size, {})
    sentences = document["setting"]["sentences"]
    rows = []
    for one in chosen:
        row: Cells = {key: text for key, text in one.items() if key not in DTYPES}
        for dtype in sorted({key for line in chosen for key in line} & {*DTYPES}):
            ms = p90 = rate = mib = None
            if name := one.get(dtype):
                ms, p90 = milliseconds(alone[name]).middle, 1000 * percentile(alone[name], 90)
                peaks = [systems[name]["memory"].get(batch) for batch in ("1", size)]
                mib = " / ".join("unknown" if one is None else str(one) for one in peaks)
                if name in batches:
                    rate = throughput(batches[name], sentences).middle
            row[column(f"{dtype}_ms", f"{dtype}: ms", "ms", ".1f")] = ms
            row[column(f"{dtype}_p90", f"{dtype}: p90", "ms", ".1f")] = p90
            row[column(f"{dtype}_rate", f"{dtype}: sentences/s", form=".0f")] = rate
            row[column(f"{dtype}_MiB", f"{dtype}: MiB")] = mib
        rows.append(row)
    return Table.of(rows)


def _compared(result: Result) -> Fields:
    """Return what a result says of outputs that should be greedy's, in fp32."""
    if "systems" in result.content:
        exact = [one for one in result.content["systems"] if one["promise"] == "exact"]
        ours = [one for one in exact if one["label"] != GREEDY]
        rows = [
            {
                "decoder": system["options"]["decoding"],
                "batch_size": int(size),
                "beyond_ties": one["beyond ties"],
                **one,
            }
            for system in ours
            for size, one in system["agreement"].items()
        ]
        settings = len(ours)
    else:
        rows = [one for one in result.tables[0].rows if one["lossless"]]
        settings = len(rows) // len({one["batch_size"] for one in rows})
    return {
        "decoders": list(dict.fromkeys(one["decoder"] for one in rows)),
        "settings": settings,
        "sizes": sorted({one["batch_size"] for one in rows}),
        "outputs": sum(one["sentences"] for one in rows),
        "ties": sum(one["ties"] for one in rows),
        "beyond": sum(one["beyond_ties"] for one in rows),
    }


def _systems(document: Mapping[str, Any], chosen: Sequence[Mapping[str, str]]) -> dict[str, Fields]:
    """Return the systems of a benchmark by label; refuse labels that it lacks."""
    systems = {system["label"]: system for system in document["systems"]}
    named = [one[dtype] for one in chosen for dtype in DTYPES if dtype in one]
    if missing := [name for name in named if name not in systems]:
        raise UsageError(f"summary.json: got {listed(missing)}; allowed: {', '.join(systems)}")
    return systems


def _setting(document: Mapping[str, Any], address: str, model: str) -> str:
    """Return the setting of the table of decoders."""
    setting = document["setting"]
    return (
        f"[{document['title']}]({address}): {model}; {setting['timed sentences']} of "
        f"{setting['sentences']} sentences, batch 1, {threads(str(setting['threads'][0]))}, "
        f"{document['machine']['processor']}, {document['date']}. Median milliseconds a sentence, "
        "from ids to text; speed against fairseq's beam 5; outputs identical to fairseq's greedy "
        "search in fp32."
    )


def _lines(lines: Sequence[Mapping[str, Any]], results: Results) -> str:
    """Return conclusions as a list, their numbers checked."""
    for line in lines:
        _check_numbers(line, results)
    return bullets(line["text"] for line in lines)


def _of(results: Results, name: str) -> Result:
    """Return a result by its name."""
    if name not in results:
        raise UsageError(f"summary.json: got {name!r}; allowed: {', '.join(results)}")
    return results[name]


def _check_numbers(line: Mapping[str, Any], results: Results) -> None:
    """Refuse a decimal number that is in none of its results, rounded."""
    shown = [n for name in line["from"] for one in _of(results, name).tables for n in one.numbers()]
    known = [float(number) for number in shown]
    for number in re.findall(r"\d+\.\d+", line.get("found", line.get("text", ""))):
        digits = len(number.partition(".")[2])
        if not any(f"{abs(one):.{digits}f}" == number for one in known):
            raise UsageError(
                f"summary.json: {number} does not stand in {', '.join(line['from']) or 'a result'}"
            )
