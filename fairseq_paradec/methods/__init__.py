"""One file per method; ``METHODS`` says which ``--decoding`` is which class."""

from .auto_fast import AutoFastGenerator
from .base import MethodGenerator
from .blockwise import BlockwiseGenerator
from .double_token_beam import DoubleTokenBeamGenerator
from .gad import GadGenerator
from .greedy import GreedyGenerator
from .jacobi import JacobiGenerator
from .multiword_beam import MultiwordBeamGenerator
from .nat import NatGenerator

METHODS: dict[str, type[MethodGenerator]] = {
    "greedy": GreedyGenerator,
    "pj": JacobiGenerator,
    "pgj": JacobiGenerator,
    "hgj": JacobiGenerator,
    "gad": GadGenerator,
    "gad_pp": GadGenerator,
    "nat": NatGenerator,
    "blockwise": BlockwiseGenerator,
    "multiword_beam": MultiwordBeamGenerator,
    "double_token_beam": DoubleTokenBeamGenerator,
    "auto_fast": AutoFastGenerator,
}
