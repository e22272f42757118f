"""The JSON files that hold measurements: writing, reading and checking every kind."""

import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from ...errors import UsageError, option_error
from ...extras import is_installed
from ...files import replacing
from ..analysis import benchmark_tables, pass_costs
from ..settings import Made
from .table import Result, Table, from_json, to_json

# Schemas of the JSON files: a table; BENCHMARK and PASSES hold samples, of which tables are made.
TABLE = "fairseq_paradec.table"
BENCHMARK = "fairseq_paradec.benchmark"
PASSES = "fairseq_paradec.passes"
# Changes when the meaning of a key changes.
VERSION = 4


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


def compact(document: Mapping[str, Any]) -> str:
    """Return a document of raw samples as JSON in one line."""
    return json.dumps(document, ensure_ascii=False, separators=(",", ":")) + "\n"


def save(path: Path, title: str, table: Table, made_by: dict[str, Any]) -> None:
    """Write a table as JSON; ``made_by`` is ``circumstances``."""
    document = {
        "schema": TABLE,
        "version": VERSION,
        "title": title,
        "notes": table.notes,
        **made_by,
        **to_json(table),
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    write(path, json.dumps(document, indent=1, ensure_ascii=False) + "\n")


def save_made(made: Made, table: Table) -> None:
    """Write the table that a command made."""
    from ..measure.machine import circumstances

    save(made.out, made.title, table, circumstances(made.argv))


def check(document: Mapping[str, Any], name: str) -> Result:
    """Check a document, and return it with its tables.

    Commands that read one require jsonschema. Where it is not installed, one that was made here is
    not compared with its schema.

    Raises:
        UsageError: it does not fit its schema, or contradicts itself.
    """
    schema_file, contradiction, make_tables = _KINDS[document["schema"]]
    if is_installed("jsonschema"):
        _check_schema(document, name, schema_file)
    if (problem := contradiction(document)) is not None:
        raise UsageError(f"{name}: {problem}")
    return Result(Path(name).name, document, make_tables(document))


def _check_schema(document: Mapping[str, Any], name: str, schema_file: str) -> None:
    """Check a document by its schema; see ``check``."""
    import jsonschema

    schema = json.loads(Path(__file__).with_name(schema_file).read_text("utf-8"))
    errors = jsonschema.Draft202012Validator(schema).iter_errors(json.loads(json.dumps(document)))
    worst = jsonschema.exceptions.best_match(errors)
    if worst is not None:
        raise UsageError(f"{name}: {worst.json_path}: {worst.message}")


def table_contradiction(document: Mapping[str, Any]) -> str | None:
    """Return the contradiction in a table's file, or None."""
    keys = [column["key"] for column in document["columns"]]
    if len(set(keys)) < len(keys):
        return "two of its columns have the same key"
    if any(list(row) != keys for row in document["rows"]):
        return "a row has other cells than the columns say"
    return None


def passes_contradiction(document: Mapping[str, Any]) -> str | None:
    """Return the contradiction in a file of passes, or None."""
    setting, passes = document["setting"], document["passes"]
    if list(dict.fromkeys(entry["engine"] for entry in passes)) != setting["engines"]:
        return "its passes are not of the engines that the setting names"
    for engine in setting["engines"]:
        own = [entry for entry in passes if entry["engine"] == engine]
        chunks = [entry["chunk"] for entry in own if entry["part"] == "decoder"]
        if chunks != setting["chunks"] or [entry["part"] for entry in own].count("encoder") != 1:
            return f"the passes of {engine} are not one of each chunk, and the encoder"
    needed = {"large", *map(pass_costs.dtype_of, setting["engines"])}
    names = [tensor["name"] for tensor in document["bandwidth"]]
    if set(names) != needed or len(set(names)) < len(names):
        return "its bandwidths are not those of a large tensor and of each engine's weights"
    timed = [*document["bandwidth"], *document["peak"], *passes, *document["searches"]]
    timed += [piece for entry in passes for piece in entry["pieces"] if "seconds" in piece]
    if any(len(entry["seconds"]) != setting["rounds"] for entry in timed):
        return "other numbers of samples than rounds"
    return None


def benchmark_contradiction(document: Mapping[str, Any]) -> str | None:
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
    scored = [
        by_metric
        for system in document["systems"]
        for by_metric in (system["scores"], *system["differences"].values())
    ]
    if any(set(by_metric) != metrics for by_metric in scored):
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


#: For each kind of document: its schema's file beside this module, the check for contradictions,
#: and the function that makes its tables.
_KINDS: dict[str, tuple[str, Callable[..., str | None], Callable[..., list[Table]]]] = {
    TABLE: ("table.schema.json", table_contradiction, lambda document: [from_json(document)]),
    BENCHMARK: ("benchmark.schema.json", benchmark_contradiction, benchmark_tables.tables),
    PASSES: ("passes.schema.json", passes_contradiction, pass_costs.tables),
}


def is_known(document: Any) -> bool:
    """Return whether a JSON file is of a kind that is read here, of any version."""
    return isinstance(document, dict) and str(document.get("schema")) in _KINDS


def checked(document: Any, path: Path) -> Result:
    """Return what a file holds, as ``read`` does."""
    version = document.get("version") if isinstance(document, dict) else None
    if not is_known(document) or version != VERSION:
        schema = document.get("schema") if isinstance(document, dict) else None
        raise UsageError(
            f"{path}: got schema {schema!r}, version {version!r}; allowed: version {VERSION} of "
            f"{', '.join(map(repr, _KINDS))}"
        )
    return check(document, str(path))


def load(path: Path) -> Any:
    """Return what a file of JSON holds, unchecked.

    Raises:
        UsageError: it is no JSON.
    """
    try:
        return json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        raise UsageError(f"{path}: cannot be read as JSON: {error}") from error


def read(path: Path) -> Result:
    """Read a table, a benchmark or passes, and check that it is one.

    Raises:
        UsageError: it is no JSON, none of the three, of another version, or contradicts itself.
    """
    return checked(load(path), path)
