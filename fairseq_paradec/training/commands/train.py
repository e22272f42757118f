"""Train a model with fairseq-train and the plugin, and average its last checkpoints.

A CUDA device is used if there is one (in half precision), else the CPU; CUDA_VISIBLE_DEVICES= keeps
it on the CPU. A run that was stopped or killed goes on from its newest whole checkpoint by the same
command. Settings are in fairseq_paradec/training/presets.toml.
"""

import argparse
from pathlib import Path

from ... import extras
from ...cli import arguments
from ...errors import UsageError

PRESETS = ("tiny", "small", "iwslt", "base", "big", "deep-shallow")

AFTER = """\
output:
  DIR/model.pt        the average, written last: use this one
  DIR/checkpoint*.pt  fairseq's own, with the optimizer's state; _best and _last among them
  DIR/train.log       what fairseq says, as JSON
  DIR/curve.png       loss, and accepted tokens or BLEU if they are logged
  DIR/settings.txt    flags, and checksums of the data; a run goes on by these

presets:
  tiny          4+4 layers, d 128, 38 epochs
  small         6+6 layers, d 256, ffn 1024, 12 epochs
  iwslt         6+6 layers, d 512, ffn 1024, 40 epochs
  base          6+6 layers, d 512, ffn 2048, 100,000 updates
  big           6+6 layers, d 1024, ffn 4096, 300,000 updates
  deep-shallow  base with 12 encoder layers and 1 decoder layer
  On a CPU base, big and deep-shallow have updates of 4,096 tokens, on a GPU the papers'.
  Of other kinds of models a preset has other settings, and drafters and heads have the sizes of
  what they start from.

architectures, besides fairseq's, and what --start-from is to them:
  block_nat, block_nat_fast   GAD's drafter (Xia et al. 2022): its verifier
  shallow_decoder             drafts for --decoding assisted: its verifier
  blockwise_transformer       heads (Stern et al. 2018): their base, frozen, or trained with
                              -- --fine-tune-base, also with heads on it
  ibdecoder, ibdecoder_sa, imdecoder, sa_transformer, transformer_r2l, transformer_both_ends
                              (Zhang et al. 2020): a Transformer of the same size; optional
  double_token, double_token_l2r, double_token_r2l
                              (Imamura and Sumita 2020): the same
  image_transformer, blockwise_image_transformer
                              (Stern et al. 2018, section 7.2): DATA is of paradec data images

examples:
  paradec train data-bin/multi30k.en-de --save-dir checkpoints/tiny --preset tiny
  paradec train data-bin/multi30k.en-de --save-dir checkpoints/drafter --preset tiny \\
      --arch block_nat_fast --start-from checkpoints/tiny/model.pt
  paradec train data-bin/multi30k.en-de --save-dir checkpoints/heads --preset tiny \\
      --arch blockwise_transformer --start-from checkpoints/tiny/model.pt
"""


def declare(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.set_defaults(fails="fairseq-train failed", plugin=False, flags=[])
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.usage = "%(prog)s DATA --save-dir DIR [options] [-- fairseq-train's flags, which win]"
    parser.epilog = AFTER
    add, number = parser.add_argument, arguments.whole_number
    add("data", metavar="DATA", type=Path, help="a folder that fairseq-preprocess made")
    add("--save-dir", metavar="DIR", type=_named, help="where the model is written")
    add("--preset", choices=PRESETS, default="base", help="size and settings (default: base)")
    add("--arch", metavar="NAME", default="transformer", help="(default: transformer)")
    add("--start-from", metavar="FILE", type=Path, help="the trained model to start from")
    length = parser.add_mutually_exclusive_group()
    length.add_argument(
        "--epochs", type=number, help="the length in epochs, with a checkpoint after each"
    )
    length.add_argument(
        "--updates", type=number, help="or in updates, with one after each hundredth of it, too"
    )
    add(
        "--average",
        type=number,
        metavar="N",
        help="the last N checkpoints are kept and averaged (default: the preset's)",
    )
    add("--seed", type=number, default=1, help="(default: 1)")
    of_threads = "of each process on a CPU (default: the cores shared out)"
    add("--threads", type=arguments.number_of_threads, help=of_threads)
    add(
        "--processes",
        type=number,
        default=1,
        help="data-parallel; each takes a part of every batch (default: 1)",
    )
    add(
        "--autocast",
        choices=("auto", "on", "off"),
        default="auto",
        help="on a CPU: products in bfloat16; auto: if a measurement at the start says that they "
        "are faster; a run that goes on keeps what it began with (default: auto)",
    )
    add(
        "--smoke",
        action="store_true",
        help="a try-out: 20 updates on batches of 128 tokens (longer sentences are left out) or of "
        "one image, 2 checkpoints averaged; without --save-dir in a temporary folder",
    )


def _named(text: str) -> Path:
    """Read a folder's path; an empty one, of a shell's unset variable, would be this folder."""
    if not text:
        raise argparse.ArgumentTypeError("got ''; allowed: a folder's path")
    return Path(text)


def run(args: argparse.Namespace) -> int:
    """Train, and average."""
    extras.require(("fairseq",), "train")
    from ..plan import Request
    from ..run import train

    if args.smoke and (args.epochs or args.updates or args.average):
        raise UsageError("--smoke sets --epochs, --updates and --average itself")
    if not args.smoke and args.save_dir is None:
        raise UsageError("--save-dir is missing: where the model is written")
    request = Request(**{name: getattr(args, name) for name in Request.__dataclass_fields__})
    with arguments.quiet():
        return train(request, args.save_dir, args.threads)
