"""A fix of fairseq's models that know the beam size."""

from typing import Any

from fairseq.sequence_generator import SequenceGenerator

from .patching import Function, around


def tell_beam_size() -> None:
    """Tell a model the beam size of the search that runs it.

    Fault: fairseq 0.12 tells it when a generator is made, and a beam of 1 not at all. A search of
    another beam size on the same model then ends with a RuntimeError of its attention.
    """

    @around(SequenceGenerator, "_generate")
    def generate(original: Function, self: Any, *args: Any, **kwargs: Any) -> Any:
        for model in self.model.models:
            if hasattr(model, "set_beam_size"):
                model.set_beam_size(self.beam_size)
        return original(self, *args, **kwargs)
