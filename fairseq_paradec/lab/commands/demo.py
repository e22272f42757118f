"""Compare our decoders on the 100 sentences of each pair that a checkout has: one table a pair.

The core decodes, without torch and fairseq. Outputs are compared with those of fairseq's greedy
search, which are stored beside the sentences. --plugin shows the same by fairseq-generate instead:
fairseq's own search, a lossless decoder, and one that is not.
"""

import argparse

from ... import extras
from ...cli import arguments
from ...errors import excludes


def declare(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.epilog = 'example: paradec demo --sentences 20 --text "A dog runs."'
    parser.set_defaults(plugin=False, fails="a lossless decoder's outputs are not fairseq's")
    add = parser.add_argument
    add("--sentences", type=arguments.whole_number, help="so many of each pair (default: all)")
    add("--text", type=arguments.utf8, help="a sentence to translate, too")
    add("--plugin", dest="live", action="store_true", help="run the plugin, with fairseq installed")


def run(args: argparse.Namespace) -> int:
    """Compare, and print."""
    from ..measure import demo

    if args.live:
        for flag, given in (("--text", args.text), ("--sentences", args.sentences)):
            if given is not None:
                raise excludes(flag, given, "--plugin")
        extras.require(("torch", "fairseq"), "fairseq")
        return demo.live()
    with arguments.quiet():
        return demo.compare(args.sentences, args.text)
