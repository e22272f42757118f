"""One file per method; ``METHODS`` says which ``--decoding`` is which class."""

from .base import ParallelGenerator
from .gad import GadGenerator, NatGenerator
from .greedy import GreedyGenerator
from .jacobi import JacobiGenerator

METHODS: dict[str, type[ParallelGenerator]] = {
    "greedy": GreedyGenerator,
    "pj": JacobiGenerator,
    "pgj": JacobiGenerator,
    "hgj": JacobiGenerator,
    "gad": GadGenerator,
    "gad_pp": GadGenerator,
    "nat": NatGenerator,
}
