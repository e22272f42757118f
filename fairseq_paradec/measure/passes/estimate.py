"""Passes per sentence from a benchmark: what sentences would take in passes that were measured."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

from ...errors import option_error
from ...methods.registry import METHODS
from ..documents import BENCHMARK, read_document
from ..traits import traits


def read_acceptance(path: Path, block_size: int) -> dict[str, Any]:
    """Take the passes per sentence of a benchmark's decoders.

    Args:
        path: what ``paradec benchmark`` wrote.
        block_size: k of a drafter's method whose command does not say it.

    Returns:
        ``file``; ``systems``: ``label``, ``passes`` and ``tokens`` per sentence, ``chunk`` of a
        pass, ``masks`` or ``steps`` of drafting, ``search`` of fairseq's; ``left_out``: which are
        not there, and why; ``block_size``, and ``assumed``: the labels of those for which it was
        assumed.

    Raises:
        UsageError: it is no such file.
    """
    document = read_document(path)
    if document["schema"] != BENCHMARK:
        raise option_error("--acceptance", str(path), "a JSON that paradec benchmark wrote")
    count = document["setting"]["sentences"]
    systems, left_out, assumed = [], [], []
    for system in document["systems"]:
        if system["promise"] == "peer" or system["passes"] is None:
            continue
        if any(f in system["command"].split() for f in ("--engine", "--engine-dtype", "--compile")):
            continue  # the same passes as without; the engines are those measured here
        needed = what_passes_need(system["command"], block_size)
        if isinstance(needed, str):
            left_out.append(f"`{system['label']}`: {needed}")
            continue
        numbers = {name: system[name] / count for name in ("passes", "tokens")}
        systems.append({"label": system["label"]} | numbers | needed)
        if needed["masks"] is not None and "--block-size" not in system["command"]:
            assumed.append(system["label"])
    return {
        "file": path.name,
        "systems": systems,
        "left_out": left_out,
        "block_size": block_size,
        "assumed": assumed,
    }


def what_passes_need(command: str, block_size: int) -> dict[str, Any] | str:
    """Say what a pass of a decoder consists of, or in words why that is not known.

    Args:
        command: of the benchmark, as in ``gad --drafter-path FILE --block-size 10``.
        block_size: k, where a drafter's method does not say it.
    """
    name, *flags = shlex.split(command.replace("=", " "))
    if "--path" in flags:
        return "another model"
    for flag in ("--adaptive-block", "--hybrid-length", "--drafter-shortlist", "--draft-tree"):
        if flag in flags:
            return f"its passes differ ({flag})"
    needed: dict[str, Any] = {"chunk": 1, "masks": None, "search": None}
    if name == "beam" and not set(flags) - {"--beam", "1", "5"}:
        greedy = flags == ["--beam", "1"]
        return needed | {"search": "fairseq greedy" if greedy else "fairseq beam 5"}
    method = METHODS.get(name)
    if method is not None and (pass_size := traits(name).pass_size) is not None:
        block = block_size if method.trained_block else method.default("block_size")
        if "--block-size" in flags:
            block = int(flags[flags.index("--block-size") + 1])
        return needed | pass_size(block)
    return "what its passes consist of is not known here"
