"""What a result depends on: the files of data and models, the code, and the machine."""

import hashlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from ... import images
from ...errors import option_error
from ...files import check_inputs, checksum
from . import machine


def subset_files(data: str, subset: str) -> list[Path]:
    """Return the binarised files of a subset.

    Raises:
        UsageError: there are none.
    """
    names = {path.name.split(".")[0] for path in Path(data).glob("*.*-*.*.idx")}
    if subset not in names:
        held = " ".join(sorted(names)) or "none"
        raise option_error("--subset", subset, f"one that DATA ({data}) holds: {held}")
    return sorted(Path(data).glob(f"{subset}.*-*.*"))


def check_all(data: str, paths: Iterable[str], subsets: Iterable[str]) -> None:
    """Refuse models and subsets that are not there, before anything is loaded."""
    for path in paths:
        check_inputs(data, path)
    for subset in subsets:
        subset_files(data, subset)


def origin(data: str, subset: str, files: Iterable[str | Path]) -> dict[str, Any]:
    """Return the inputs that a result depends on.

    Args:
        data: fairseq's data folder; its dictionaries, images' sizes and raw references count.
        subset: of the data.
        files: more files, as checkpoints.
    """
    folder = Path(data)
    patterns = ("dict.*.txt", f"raw/{subset}.*", images.SIZES)
    made_of = {*map(Path, files), *subset_files(data, subset)}
    made_of |= {path for pattern in patterns for path in folder.glob(pattern)}
    return {"file": {str(file): checksum(file) for file in sorted(made_of)}, **code_and_machine()}


def code_and_machine() -> dict[str, Any]:
    """Return what a result depends on besides files: the code, the machine and its packages."""
    made_by, code = machine.circumstances([]), hashlib.sha256()
    for path in sorted(Path(__file__).resolve().parents[2].rglob("*.py")):
        code.update(path.read_bytes())
    return {
        "code": code.hexdigest(),
        # The number of threads changes no token.
        "machine": {k: v for k, v in made_by["machine"].items() if k != "threads"},
        "version": made_by["versions"],
    }
