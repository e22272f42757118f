"""RESULTS.md, and what other pages show of the results: pure functions of the JSON documents.

``choice`` is summary.json everywhere here. ``benchmark`` is the name of a result, ``model`` says of
what model it is. ``decoders`` and ``peers`` are rows: text by column, and the label of a system for
each dtype; without one of fp32 the benchmark has not run it. ``drafting`` are labels of systems,
``lossless`` names of results. ``which``, ``sure``, ``not paying`` and ``beside`` are conclusions,
each with ``text``, and ``from``, the results with its numbers. ``targets`` are alike, with
``target``, ``found`` and ``met``; ``not run`` are words. What is not there raises a UsageError.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from fairseq_paradec.errors import UsageError
from fairseq_paradec.lab.analysis import Fields
from fairseq_paradec.lab.analysis.benchmark_tables import (
    AGAINST,
    BEAM,
    GREEDY,
    OWN_GREEDY,
    alone_samples,
    label,
    latencies,
    listed,
    milliseconds,
    output_row,
    percentile,
    threads,
    throughput,
)
from fairseq_paradec.lab.analysis.result_pages import bullets
from fairseq_paradec.lab.data.samples import THROUGHPUT, samples, speed_ups
from fairseq_paradec.lab.data.table import Cells, Result, Table, column
from fairseq_paradec.lab.show.table import markdown_table

from .published import Results

HEAD = """\
# Results

`make docs` renders this page from [results/summary.json](results/summary.json), and a page for \
each file of [results](results/README.md). To change a number, run the command in its file again."""

#: The dtypes of a table, one group of columns each.
DTYPES = ("fp32", "bf16", "int8")

#: The speed-up in the table of decoders.
FP32_GAIN = column("fp32_x_beam_5", "fp32: x beam 5", "x", ".2f")

#: What the table of README.md calls the output of a lossless decoder.
GREEDY_OUTPUT = "greedy's"

Choice = Mapping[str, Any]
Document = Mapping[str, Any]


def summary(choice: Choice, results: Results) -> str:
    """Render RESULTS.md: four questions, each with a table and conclusions.

    Args:
        choice: without content the page has links alone.
        results: all of them, by name.
    """
    if not choice:
        return f"{HEAD}\n"
    name = choice["benchmark"]
    document = _result(results, name).content
    size = max(document["seconds"]["throughput"], key=int, default="1")
    parts = [
        HEAD,
        "## Which decoder should I take",
        _setting(document, f"results/{name}.json", choice["model"]),
        markdown_table(decoder_rows(document, choice["decoders"])),
        _conclusions(choice["which"], results),
        "## How sure is it that lossless is lossless",
        f"{counts(choice, results)} [docs/exactness.md](docs/exactness.md) says what is "
        "proved and what is tested, and how you check your own model.",
        markdown_table(lossless_rows(choice["lossless"], results)),
        _conclusions(choice["sure"], results),
        "## Where drafting does not pay",
        f"Speed against our `greedy` in fp32, for one sentence and in batches of {size}, from "
        "the same benchmark:",
        markdown_table(drafting_rows(document, choice["drafting"], size)),
        _conclusions(choice["not paying"], results),
        "## Beside fairseq and CTranslate2",
        "From the same benchmark, on one thread: milliseconds a sentence at batch 1 (median and"
        f" 90th percentile), sentences a second in batches of {size}, and the peak of memory"
        " beyond the loaded model in MiB, for one sentence and in batches.",
        markdown_table(peer_rows(document, choice["peers"], size)),
        _conclusions(choice["beside"], results),
        "Our own targets, met and missed: [docs/experiments.md](docs/experiments.md#targets).",
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def first_table(choice: Choice, results: Results) -> str:
    """Render README.md's table: our decoders, by their names in the papers, in fp32."""
    document = _result(results, choice["benchmark"]).content
    lines = [line for line in choice["decoders"] if "paper" in line]
    systems = _systems(document, lines)
    for line in lines:
        if line["output"] == GREEDY_OUTPUT and label(systems[line["fp32"]]) != "exact":
            raise UsageError(f"summary.json: {line['fp32']} is not exact")
    rows = [
        {
            column("decoding", "`--decoding`"): line["decoder"],
            column("paper", "in the papers"): line["paper"],
            "needs": line["needs"],
            "output": line["output"],
            column("ms", unit="ms", form=".1f"): row["fp32_ms"],
            AGAINST[BEAM]: row[FP32_GAIN.key],
        }
        for line, row in zip(lines, decoder_rows(document, lines).rows, strict=True)
    ]
    return markdown_table(Table.of(rows))


def targets(choice: Choice, results: Results) -> str:
    """Render the targets, for docs/experiments.md."""
    _check_numbers(choice["targets"], "found", results)
    rows = [{key: line[key] for key in ("target", "found", "met")} for line in choice["targets"]]
    return f"{markdown_table(Table.of(rows))}\n\nNot run: {'; '.join(choice['not run'])}."


def counts(choice: Choice, results: Results) -> str:
    """Return how many outputs were compared, and how many differ, as sentences."""
    rows = lossless_rows(choice["lossless"], results).rows
    outputs, ties, beyond = (
        sum(int(str(row[key])) for row in rows) for key in ("outputs", "ties", "differ")
    )
    return (
        f"{outputs:,} outputs of lossless decoders in fp32 were compared with fairseq's greedy "
        f"search: {beyond} differ beyond ties, {ties} by a tie."
    )


# ---- tables -------------------------------------------------------------------------------------


def decoder_rows(document: Document, lines: Sequence[Mapping[str, str]]) -> Table:
    """Return the table of decoders, a group of columns for each dtype."""
    systems = _systems(document, lines)
    times, gains = latencies(document), speed_ups(alone_samples(document), BEAM)
    rows = []
    for line in lines:
        row: Cells = {"decoder": line["decoder"], "needs": line["needs"], "passes": None}
        for dtype in DTYPES:
            ms = gain = equal = None
            if name := line.get(dtype):
                output = output_row(systems[name])
                ms, equal = milliseconds(times[name]).middle, output["identical_to_greedy"]
                gain = gains[name, None].middle
                if dtype == "fp32":
                    row["passes"] = output["passes_per_sentence"]
            row[column(f"{dtype}_ms", f"{dtype}: ms", "ms", ".1f")] = ms
            if dtype == "fp32":
                row[FP32_GAIN] = gain
            row[column(f"{dtype}_equal", f"{dtype}: = greedy")] = equal
        rows.append(row)
    return Table.of(rows)


def lossless_rows(names: Iterable[str], results: Results) -> Table:
    """Return the table of results that compare outputs."""
    rows = []
    for name in names:
        settings, compared = _compared(_result(results, name))
        rows.append(
            {
                "result": f"[{name}](results/{name}.json)",
                "decoders": ", ".join(dict.fromkeys(f"`{row['decoder']}`" for row in compared)),
                "settings": settings,
                "batch_sizes": ", ".join(map(str, sorted({row["batch_size"] for row in compared}))),
                "outputs": sum(row["sentences"] for row in compared),
                "differ": sum(row["beyond_ties"] for row in compared),
                "ties": sum(row["ties"] for row in compared),
            }
        )
    return Table.of(rows)


def drafting_rows(document: Document, names: Sequence[str], size: str) -> Table:
    """Return the speed of drafting decoders against greedy search, alone and in batches."""
    _systems(document, [{"fp32": name} for name in names])
    batches = [
        sample
        for sample in samples(document)
        if (sample.kind, sample.batch) == (THROUGHPUT, int(size))
    ]
    gains = {
        column("alone", "batch 1", form=".2f"): speed_ups(alone_samples(document), OWN_GREEDY),
        column("batches", f"batch {size}", form=".2f"): speed_ups(batches, OWN_GREEDY),
    }
    rows = []
    for name in names:
        row: Cells = {"decoder": name}
        for head, by_system in gains.items():
            row[head] = by_system[name, None].middle if (name, None) in by_system else None
        rows.append(row)
    return Table.of(rows)


def peer_rows(document: Document, lines: Sequence[Mapping[str, str]], size: str) -> Table:
    """Return latency, throughput and memory of engines, a group of columns for each dtype.

    Args:
        document: a benchmark.
        lines: those without a label of a dtype have dashes there.
        size: of the batches.
    """
    systems = _systems(document, lines)
    alone = latencies(document)
    batches = document["seconds"]["throughput"].get(size, {})
    sentences = document["setting"]["sentences"]
    rows = []
    for line in lines:
        row: Cells = {key: text for key, text in line.items() if key not in DTYPES}
        for dtype in sorted({key for line in lines for key in line} & {*DTYPES}):
            ms = p90 = rate = mib = None
            if name := line.get(dtype):
                ms, p90 = milliseconds(alone[name]).middle, 1000 * percentile(alone[name], 90)
                peaks = (systems[name]["memory"].get(batch) for batch in ("1", size))
                mib = " / ".join("unknown" if peak is None else str(peak) for peak in peaks)
                if name in batches:
                    rate = throughput(batches[name], sentences).middle
            row[column(f"{dtype}_ms", f"{dtype}: ms", "ms", ".1f")] = ms
            row[column(f"{dtype}_p90", f"{dtype}: p90", "ms", ".1f")] = p90
            row[column(f"{dtype}_rate", f"{dtype}: sentences/s", form=".0f")] = rate
            row[column(f"{dtype}_MiB", f"{dtype}: MiB")] = mib
        rows.append(row)
    return Table.of(rows)


def _compared(result: Result) -> tuple[int, list[Fields]]:
    """Return the settings of decoders with greedy's output in fp32, and a row for each and size."""
    if "systems" not in result.content:
        rows: list[Fields] = [dict(row) for row in result.tables[0].rows if row["lossless"]]
        return len(rows) // len({row["batch_size"] for row in rows}), rows
    ours = [
        system
        for system in result.content["systems"]
        if system["promise"] == "exact" and system["label"] != GREEDY
    ]
    rows = [
        {
            "decoder": system["options"]["decoding"],
            "batch_size": int(size),
            "beyond_ties": agreement["beyond ties"],
            **agreement,
        }
        for system in ours
        for size, agreement in system["agreement"].items()
    ]
    return len(ours), rows


# ---- sentences, and what is refused -------------------------------------------------------------


def _setting(document: Document, address: str, model: str) -> str:
    """Return the setting of the table of decoders."""
    setting = document["setting"]
    return (
        f"[{document['title']}]({address}): {model}; {setting['timed sentences']} of "
        f"{setting['sentences']} sentences, batch 1, {threads(str(setting['threads'][0]))}, "
        f"{document['machine']['processor']}, {document['date']}. Median milliseconds a sentence, "
        "from ids to text; speed against fairseq's beam 5; outputs identical to fairseq's greedy "
        "search in fp32."
    )


def _conclusions(lines: Sequence[Mapping[str, Any]], results: Results) -> str:
    """Return conclusions as a list, their numbers checked."""
    _check_numbers(lines, "text", results)
    return bullets(line["text"] for line in lines)


def _result(results: Results, name: str) -> Result:
    """Return a result by its name."""
    if name not in results:
        raise UsageError(f"summary.json: got {name!r}; allowed: {', '.join(results)}")
    return results[name]


def _systems(document: Document, lines: Sequence[Mapping[str, str]]) -> dict[str, Fields]:
    """Return the systems of a benchmark by label; refuse labels that it lacks."""
    systems = {system["label"]: system for system in document["systems"]}
    named = [line[dtype] for line in lines for dtype in DTYPES if dtype in line]
    if missing := [name for name in named if name not in systems]:
        raise UsageError(f"summary.json: got {listed(missing)}; allowed: {', '.join(systems)}")
    return systems


def _check_numbers(lines: Iterable[Mapping[str, Any]], key: str, results: Results) -> None:
    """Refuse a decimal number in a line's text that is in none of its results, rounded."""
    for line in lines:
        tables = [shown for name in line["from"] for shown in _result(results, name).tables]
        measured = [abs(float(number)) for shown in tables for number in shown.numbers()]
        for number in re.findall(r"\d+\.\d+", line[key]):
            digits = len(number.partition(".")[2])
            if not any(f"{value:.{digits}f}" == number for value in measured):
                sources = ", ".join(line["from"]) or "a result"
                raise UsageError(f"summary.json: {number} does not stand in {sources}")
