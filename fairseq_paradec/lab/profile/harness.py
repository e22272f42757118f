"""What several measurements share: decoders on the sentences of a data folder, and a journal."""

import contextlib
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from ... import files
from ...engine.settings import usable_device
from ...plugin.tasks.loading import check_inputs
from ..data.journal import Journal
from ..measure.inputs import code_and_machine
from ..measure.loading import choose
from ..measure.specs import Spec
from ..measure.systems import FairseqSystem, Models
from .asked import Decoders


def load(asked: Decoders, specs: Sequence[Spec]) -> tuple[list[FairseqSystem], list[int]]:
    """Return the decoders, and the numbers of the sentences, from short to long."""
    check_inputs(asked.data, asked.path)
    usable_device(asked.device)
    models = Models(asked.data, asked.subset, "fp32", asked.device)
    systems = [FairseqSystem(spec, models, asked.path, {}) for spec in specs]
    verifier, task = models.load(asked.path)
    return systems, choose(task, asked.subset, verifier, asked.sentences)


@contextlib.contextmanager
def journal(what: str, asked: Any, out: Path | None) -> Iterator[Journal]:
    """Keep finished rounds beside a result until it is written.

    Args:
        what: the name of what is measured.
        asked: how; of files in it what they hold counts, too.
        out: the JSON file; None: rounds are not kept.

    Raises:
        UsageError: what is kept there is of another run.
    """
    ignored = ("busy", "plot", "title")
    given = {name: str(value) for name, value in vars(asked).items() if name not in ignored}
    held = {path: files.checksum(Path(path)) for path in given.values() if os.path.isfile(path)}
    path = None if out is None else out.with_suffix(".partial.jsonl")
    run = {"schema": "profile", "what": what, "argument": given, "file": held}
    kept = Journal(path, run | code_and_machine())
    try:
        yield kept
    finally:
        kept.close()
    if path is not None:
        path.unlink()
