"""What several measurements of ``paradec profile`` share: decoders on sentences of a folder."""

from collections.abc import Sequence
from dataclasses import dataclass

from ...engine.settings import usable_device
from ...plugin.tasks.loading import check_inputs
from ..measure.loading import choose
from ..measure.specs import Spec
from ..measure.systems import FairseqSystem, Models
from ..settings import Made


@dataclass(frozen=True)
class ProfiledDecoders(Made):
    """Decoders on some sentences of a subset."""

    data: str  # fairseq's data folder
    path: str  # the checkpoint
    decoders: Sequence[Spec]  # what is measured
    subset: str  # of the data
    sentences: int  # at most so many
    device: str  # ``cpu`` or ``cuda``

    def load(self) -> tuple[list[FairseqSystem], list[int]]:
        """Return the decoders, and the numbers of the sentences, from short to long."""
        check_inputs(self.data, self.path)
        usable_device(self.device)
        models = Models(self.data, self.subset, "fp32", self.device)
        systems = [FairseqSystem(spec, models, self.path, {}) for spec in self.decoders]
        verifier, task = models.load(self.path)
        return systems, choose(task, self.subset, verifier, self.sentences)
