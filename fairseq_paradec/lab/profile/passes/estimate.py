"""Passes per sentence from a benchmark: what sentences would take in passes that were measured."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ....config import ENGINE_FLAGS, flag
from ....errors import option_error
from ....registry import METHODS
from ...data.documents import read
from ...measure.traits import traits


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
    result = read(path)
    document = result.content
    if result.kind != "benchmark":
        raise option_error("--acceptance", str(path), "a JSON that paradec benchmark wrote")
    count = document["setting"]["sentences"]
    systems, left_out, assumed = [], [], []
    for system in document["systems"]:
        if system["promise"] == "peer" or system["passes"] is None:
            continue
        options = system["options"]
        if not options.keys().isdisjoint(ENGINE_FLAGS):
            continue  # the same passes as without; the engines are those measured here
        needed = what_passes_need(options, block_size)
        if isinstance(needed, str):
            left_out.append(f"`{system['label']}`: {needed}")
            continue
        numbers = {name: system[name] / count for name in ("passes", "tokens")}
        systems.append({"label": system["label"]} | numbers | needed)
        if needed["masks"] is not None and "block_size" not in options:
            assumed.append(system["label"])
    return {
        "file": path.name,
        "systems": systems,
        "left_out": left_out,
        "block_size": block_size,
        "assumed": assumed,
    }


def what_passes_need(options: Mapping[str, Any], block_size: int) -> dict[str, Any] | str:
    """Say what a pass of a decoder consists of, or in words why that is not known.

    Args:
        options: of the decoder, by name.
        block_size: k, where a drafter's method does not say it.
    """
    if "path" in options:
        return "another model"
    for name in ("adaptive_block", "hybrid_length", "drafter_shortlist", "draft_tree"):
        if name in options:
            return f"its passes differ ({flag(name)})"
    decoding, beam = options["decoding"], options.get("beam", 5)
    needed: dict[str, Any] = {"chunk": 1, "masks": None, "search": None}
    if decoding == "beam" and options.keys() <= {"decoding", "beam"} and beam in (1, 5):
        return needed | {"search": "fairseq greedy" if beam == 1 else "fairseq beam 5"}
    method = METHODS.get(decoding)
    if method is not None and (pass_size := traits(decoding).pass_size) is not None:
        usual = block_size if method.trained_block else method.default("block_size")
        return needed | pass_size(options.get("block_size", usual))
    return "what its passes consist of is not known here"
