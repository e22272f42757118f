"""The results that this repository publishes, and the list of them."""

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fairseq_paradec.errors import UsageError, option_error
from fairseq_paradec.lab.data import documents
from fairseq_paradec.lab.data.table import Result

#: The file of a folder of results that says what RESULTS.md shows.
SUMMARY = "summary.json"

Results = Mapping[str, Result]


def read_result(path: Path) -> Result:
    """Read a result that others see, too.

    Raises:
        UsageError: as ``documents.read``; or it names a path that exists on one machine only.
    """
    result = documents.read(path)
    content = result.content
    texts = [content["command"], content["title"], *content["notes"]]
    texts += [str(value) for value in content.get("setting", {}).values()]
    for word in re.split(r"[\s=:;,`'\"]+", " ".join(texts)):
        if os.path.isabs(word) and len(word) > 1:
            raise UsageError(f"{path}: it names {word!r}; allowed: paths relative to the checkout")
    return result


def read_results(folder: Path) -> dict[str, Result]:
    """Return all results of a folder, by name.

    Raises:
        UsageError: there is none, or one is wrong.
    """
    files = [file for file in sorted(folder.glob("*.json")) if file.name != SUMMARY]
    if not files:
        raise option_error("--results", str(folder), "a folder with results, *.json")
    return {file.stem: read_result(file) for file in files}


def read_summary(folder: Path) -> dict[str, Any]:
    """Return what RESULTS.md shows of a folder; empty without ``summary.json``."""
    file = folder / SUMMARY
    return documents.load(file) if file.is_file() else {}
