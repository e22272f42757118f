"""What several measurements share: decoders on the sentences of a data folder."""

from collections.abc import Sequence

from ...engine.settings import usable_device
from ...plugin.tasks.loading import check_inputs
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
