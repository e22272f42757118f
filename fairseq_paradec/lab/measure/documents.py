"""The JSON files that hold measurements: writing a table, reading and checking every kind."""

import json
import os
import re
import shlex
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from ...config import ALL
from ...errors import UsageError, option_error
from ...files import replacing
from ..analysis import benchmark_tables, pass_costs
from ..analysis.promises import EARLIER, PROVENANCE
from ..settings import Made

# Schemas of the JSON files: a table; BENCHMARK and PASSES hold several tables and raw samples.
SCHEMA = "fairseq_paradec.table"
BENCHMARK = "fairseq_paradec.benchmark"
PASSES = "fairseq_paradec.passes"
# The versions that are read; the last is written, and changes when the meaning of a key changes, or
# tables of the same samples. A benchmark's first lacks PROVENANCE.
VERSIONS = {SCHEMA: (1,), BENCHMARK: (1, 2, 3), PASSES: (1, 2)}

# The keys of a table, and their types.
FIELDS: dict[str, type] = {
    "title": str,
    "notes": list,
    "command": str,
    "date": str,
    "machine": dict,
    "versions": dict,
    "rows": list,
}


def check_out(path: Path) -> None:
    """Refuse an ``--out`` that cannot be written, before any work; make its folder.

    Raises:
        UsageError: it is a folder, or lies in one that cannot be made or written to.
    """
    if path.is_dir():
        raise option_error("--out", str(path), "a file, not a folder")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        allowed = f"a file in a folder that can be made ({error.strerror})"
        raise option_error("--out", str(path), allowed) from error
    if not os.access(path.parent, os.W_OK):
        raise option_error("--out", str(path), "a file in a folder that can be written to")


def write(path: Path, text: str) -> None:
    """Write a file by an atomic replacement."""
    with replacing(path) as partial:
        partial.write_bytes(text.encode())


def compact(document: dict[str, Any]) -> str:
    """Return a document of raw samples as JSON in one line."""
    return json.dumps(document, ensure_ascii=False, separators=(",", ":")) + "\n"


def save(
    path: Path,
    title: str,
    notes: Sequence[str],
    rows: Sequence[dict[str, Any]],
    made_by: dict[str, Any],
) -> None:
    """Write a table as JSON; rows have the same keys, and ``made_by`` is ``circumstances``."""
    document = {
        "schema": SCHEMA,
        "version": VERSIONS[SCHEMA][-1],
        "title": title,
        "notes": list(notes),
        **made_by,
        "rows": list(rows),
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    write(path, json.dumps(document, indent=1, ensure_ascii=False) + "\n")


def save_made(made: Made, notes: Sequence[str], rows: Sequence[dict[str, Any]]) -> None:
    """Write the table that a command made."""
    from .machine import circumstances  # imports torch, which readers do not need

    save(made.out, made.title, notes, rows, circumstances(made.argv))


def check(document: dict[str, Any], name: str) -> None:
    """Check a document; of a benchmark or passes, also its tables against its raw samples.

    Tables of versions that had other ones are made anew, and decoders get the options by name that
    older files lack.
    """
    if document["schema"] == SCHEMA:
        _check_table(document, name)
        return
    schema_file, contradiction, make_tables, since = _RAW[document["schema"]]
    import jsonschema

    schema = json.loads(Path(__file__).with_name(schema_file).read_text("utf-8"))
    errors = jsonschema.Draft202012Validator(schema).iter_errors(json.loads(json.dumps(document)))
    worst = jsonschema.exceptions.best_match(errors)
    if worst is not None:
        raise UsageError(f"{name}: {worst.json_path}: {worst.message}")
    problem = contradiction(document)
    if problem is None and document["version"] < since:
        document["tables"] = make_tables(document)
    elif problem is None and document["tables"] != make_tables(document):
        problem = "its tables do not follow from its raw samples"
    if problem is not None:
        raise UsageError(f"{name}: {problem}")
    for system in document["systems"] if document["schema"] == BENCHMARK else ():
        if system["promise"] != "peer" and "options" not in system:
            system["options"] = options_of(system["command"])


def options_of(command: str) -> dict[str, Any]:
    """Return a decoder's options by name, as ``Spec`` has them, with ``path``.

    Files of earlier versions have them as typed only. A flag that there is no more keeps its text.
    """
    decoding, *words = shlex.split(command)
    found: dict[str, Any] = {"decoding": decoding}
    name = ""
    for word in words:
        if word.startswith("--"):
            typed, sign, value = word.partition("=")
            name = typed[2:].replace("-", "_")
            found[name] = ALL[name].kind(value) if sign and name in ALL else value or True
        else:
            found[name] = ALL[name].kind(word) if name in ALL else word
    return found


def passes_contradiction(document: dict[str, Any]) -> str | None:
    """Return the contradiction in a file of passes, or None."""
    setting, passes = document["setting"], document["passes"]
    if list(dict.fromkeys(one["engine"] for one in passes)) != setting["engines"]:
        return "its passes are not of the engines that the setting names"
    for engine in setting["engines"]:
        own = [one for one in passes if one["engine"] == engine]
        chunks = [one["chunk"] for one in own if one["part"] == "decoder"]
        if chunks != setting["chunks"] or [one["part"] for one in own].count("encoder") != 1:
            return f"the passes of {engine} are not one of each chunk, and the encoder"
    needed = {"large", *map(pass_costs.dtype_of, setting["engines"])}
    names = [one["name"] for one in document["bandwidth"]]
    if set(names) != needed or len(set(names)) < len(names):
        return "its bandwidths are not those of a large tensor and of each engine's weights"
    timed = [*document["bandwidth"], *document["peak"], *passes, *document["searches"]]
    timed += [piece for one in passes for piece in one["pieces"] if "seconds" in piece]
    if any(len(one["seconds"]) != setting["rounds"] for one in timed):
        return "other numbers of samples than rounds"
    return None


def benchmark_contradiction(document: dict[str, Any]) -> str | None:
    """Return the contradiction in a benchmark, or None.

    A column has one dtype and one number of threads, except systems labelled with another, and
    each system has one sample per round and sentence.
    """
    setting, seconds = document["setting"], document["seconds"]
    names = [s["label"] for s in document["systems"]]
    own = [s for s in document["systems"] if s["promise"] != "peer"]
    if len(set(names)) < len(names):
        return "two systems have the same label"
    metrics = set(document["signatures"])
    scored = [one for s in document["systems"] for one in (s["scores"], *s["differences"].values())]
    if any(set(one) != metrics for one in scored):
        return "its scores are not of the metrics whose signatures it has"
    if any(
        s["dtype"] == setting["dtype"]
        if s["promise"] == "other dtype"
        else s["dtype"] != setting["dtype"] and s["promise"] not in ("relaxed", "other model")
        for s in own
    ) or any(s["threads"] is not None for s in own):
        return "systems of several dtypes or threads in one column"
    if list(seconds["latency"]) != [str(count) for count in setting["threads"]]:
        return "the times are not of the threads that the setting names"
    if len(document["source_lengths"]) != setting["timed sentences"]:
        return "as many source lengths as timed sentences are needed"
    for kind, settings in seconds.items():
        for key, times in settings.items():
            # With the first number of threads every peer is timed once.
            first = (kind, key) == ("latency", str(setting["threads"][0]))
            needed = set(names) if first else {s["label"] for s in own}
            if not needed <= set(times) <= set(names):
                return f"{kind} {key} is not of the systems that are listed"
            items = setting["timed sentences"]
            if kind == "throughput":
                items = -(-setting["sentences"] // int(key))
            shapes = {(len(rounds), *map(len, rounds)) for rounds in times.values()}
            if shapes != {(setting["rounds"], *[items] * setting["rounds"])}:
                return f"{kind} {key} has other numbers of samples than rounds and sentences"
    return None


#: For each kind of document with raw samples: its schema's file beside this module, the check for
#: contradictions, the function that makes its tables, and the first version with these tables.
_RAW: dict[str, tuple[str, Callable[..., str | None], Callable[..., Any], int]] = {
    BENCHMARK: ("benchmark.schema.json", benchmark_contradiction, benchmark_tables.tables, 1),
    PASSES: ("passes.schema.json", passes_contradiction, pass_costs.tables, 2),
}


def read_document(path: Path) -> dict[str, Any]:
    """Read a table, a benchmark or passes, and check that it is one.

    Returns:
        The document; each kind has ``tables``.

    Raises:
        UsageError: it is no JSON, none of the three, of another version, or names a path that
            exists on one machine only.
    """
    try:
        table = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UsageError(f"{path}: cannot be read as JSON: {error}") from error
    keys = ("schema", "version")
    given = [table.get(key) for key in keys] if isinstance(table, dict) else [None, None]
    if given[1] not in VERSIONS.get(str(given[0]), ()):
        allowed = [f"{k!r}, version {' or '.join(map(str, v))}" for k, v in VERSIONS.items()]
        raise UsageError(
            f"{path}: got schema {given[0]!r}, version {given[1]!r}; allowed: " + "; ".join(allowed)
        )
    check(table, str(path))
    if given[0] == SCHEMA:
        rows = columns(table["rows"])
        table |= {"tables": [{"title": "", "notes": table["notes"], "rows": rows}]}
        table |= {"notes": []}
    texts = [table["command"], table["title"], *table["notes"]]
    texts += [str(value) for value in table.get("setting", {}).values()]
    for word in re.split(r"[\s=:;,`'\"]+", " ".join(texts)):
        if os.path.isabs(word) and len(word) > 1:
            raise UsageError(f"{path}: it names {word!r}; allowed: paths relative to the checkout")
    return table


def columns(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return a table's rows as shown: if they have all of PROVENANCE, only the engine of it.

    In other tables ``model`` and ``drafter`` are ordinary columns.
    """
    if not all(row.keys() >= set(PROVENANCE) for row in rows):
        return list(rows)
    return [
        {k: v for k, v in row.items() if k not in (*PROVENANCE, *EARLIER)}
        | {"engine": f"{row['engine']} {row['engine_dtype']}"}
        for row in rows
    ]


def _check_table(table: dict[str, Any], name: str) -> None:
    """Refuse a table with a missing or malformed part."""
    for key, kind in FIELDS.items():
        if not isinstance(table.get(key), kind):
            raise UsageError(f"{name}: {key!r} is missing or no {kind.__name__}")
    for key in ("setting", "signatures"):
        if not isinstance(table.get(key, {}), dict):
            raise UsageError(f"{name}: {key!r} is no dict")
    rows = table["rows"]
    if not rows or any(not isinstance(row, dict) or list(row) != list(rows[0]) for row in rows):
        raise UsageError(f"{name}: 'rows' must be one or more, all with the same columns")
