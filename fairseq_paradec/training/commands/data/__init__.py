"""Data folders made from existing data, and steps of the data recipes in scripts/."""

import argparse

from ....cli import arguments

#: By name; a step is the module of this name here.
STEPS = {
    "captions": "documents and summaries made of captions",
    "cross-sources": "more sources for distillation, from existing ones",
    "detokenise": "Moses tokens to plain text",
    "first-words": "lines cut to their first words",
    "hash-split": "train, valid and test by a hash of the English side",
    "images": "photographs to pairs of small and large images",
    "markup": "the text of .sgm and .tmx files",
    "pairs": "clean raw pairs; filter training pairs",
    "po": "the translated messages of .po files",
}


def declare(parser: argparse.ArgumentParser) -> None:
    """Declare the steps."""
    parser.epilog = "example: paradec data detokenise en < test.tok.en > test.en"
    arguments.declare_steps(parser, __name__, STEPS)


def run(args: argparse.Namespace) -> int:
    """Run one step."""
    return args.step(args)
