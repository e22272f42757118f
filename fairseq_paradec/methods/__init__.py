"""One file per method; ``METHODS`` says which ``--decoding`` is which class."""

from .base import ParallelGenerator
from .greedy import GreedyGenerator
from .jacobi import JacobiGenerator

METHODS: dict[str, type[ParallelGenerator]] = {
    "greedy": GreedyGenerator,
    "pj": JacobiGenerator,
    "pgj": JacobiGenerator,
    "hgj": JacobiGenerator,
}
