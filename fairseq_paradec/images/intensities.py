"""Intensities of images as words of a fairseq dictionary."""

from fairseq.data import Dictionary

from . import PEAK


def dictionary() -> Dictionary:
    """Return the dictionary of intensities: fairseq's special symbols, then "0" to "255".

    So the index of an intensity is the intensity plus ``nspecial``. The dictionary is not padded to
    a round number of symbols.
    """
    symbols = Dictionary()
    for intensity in range(PEAK + 1):
        symbols.add_symbol(str(intensity))
    return symbols
