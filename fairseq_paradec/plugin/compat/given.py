"""Flags that a user gave: remembered, and refused where nothing reads them."""

import argparse
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from fairseq import options
from fairseq.registry import REGISTRIES
from omegaconf import OmegaConf

from ...config import ALL
from ...errors import UsageError
from .patching import Function, around

#: Names that the user gave to this command or this call of the hub, others than defaults.
GIVEN: ContextVar[frozenset[str]] = ContextVar("GIVEN", default=frozenset())

#: Whether a call of the hub runs.
_CALLED: ContextVar[bool] = ContextVar("_CALLED", default=False)

#: What fairseq-generate and fairseq-interactive both read, besides the options of decoding.
BOTH = frozenset(
    "data user_dir task seed cpu fp16 bf16 memory_efficient_fp16 memory_efficient_bf16 tokenizer "
    "bpe skip_invalid_size_inputs_valid_test max_tokens batch_size path post_process "
    "model_overrides retain_dropout_modules checkpoint_suffix checkpoint_shard_count source_lang "
    "target_lang max_source_positions max_target_positions".split()
)

#: What each reads alone.
ALONE = {
    "fairseq-generate": frozenset(
        "no_progress_bar log_interval log_format scoring num_workers required_batch_size_multiple "
        "required_seq_len_multiple dataset_impl data_buffer_size train_subset gen_subset "
        "num_shards shard_id distributed_world_size distributed_rank quiet results_path "
        "prefix_size print_step lm_weight load_alignments left_pad_source left_pad_target "
        "upsample_primary truncate_source num_batch_buckets".split()
    ),
    "fairseq-interactive": frozenset({"buffer_size", "input"}),
}

#: Options of decoding that fairseq-interactive ignores.
NOT_INTERACTIVE = frozenset({"lm_path", "print_step", "retain_iter_history"})

#: What to give instead.
INSTEAD = {
    "sacrebleu": "--scoring sacrebleu is what scores by sacreBLEU",
    "gen_subset": "it reads --input",
    "prefix_size": "it has no targets",
    "results_path": "its output goes to standard output",
}

#: Flags that only say more about another one.
ONLY_WITH = {
    "lm_weight": "lm_path",
    "retain_dropout_modules": "retain_dropout",
    "diverse_beam_strength": "diverse_beam_groups",
}


def remember_given() -> None:
    """Remember which flags fairseq-generate and -interactive get, and refuse what they ignore.

    Fault: fairseq 0.12 has all flags of training there too, and some that nothing reads.
    """

    @around(options, "parse_args_and_arch", fix="remember_given")
    def parse(
        original: Function, parser: Any, input_args: Any = None, *args: Any, **kwargs: Any
    ) -> Any:
        parsed = original(parser, input_args, *args, **kwargs)
        namespace = parsed[0] if isinstance(parsed, tuple) else parsed
        given = _given(parser, input_args)
        GIVEN.set(frozenset(given))
        if hasattr(namespace, "nbest") and hasattr(namespace, "decoding"):
            _refuse_unread(namespace, given)
        return parsed


def _given(parser: argparse.ArgumentParser, words: Sequence[str] | None) -> dict[str, str]:
    """Return the names that a command line gives, and the flag of each as it has to be typed."""
    own, others = parser._defaults, {action: action.default for action in parser._actions}
    parser._defaults = {}
    try:
        for action in parser._actions:
            action.default = argparse.SUPPRESS
        namespace, _ = parser.parse_known_args(words)
    finally:
        parser._defaults = own
        for action, default in others.items():
            action.default = default
    flags = {
        action.dest: action.option_strings[0] for action in parser._actions if action.option_strings
    }
    return {name: flags.get(name, name) for name in vars(namespace)}


def _refuse_unread(args: argparse.Namespace, given: dict[str, str]) -> None:
    """Refuse what this command does not read."""
    interactive = hasattr(args, "buffer_size")
    command = "fairseq-interactive" if interactive else "fairseq-generate"
    read = BOTH | ALONE[command] | ALL.keys() - (NOT_INTERACTIVE if interactive else set())
    read |= set(_of_parts(args))
    if interactive:  # refused with a hint elsewhere
        read |= {"num_shards", "shard_id"}
    for name, typed in given.items():
        if name not in read:
            hint = INSTEAD.get(name, "leave it out")
            raise UsageError(f"{typed}: {command} does not read it; {hint}")
        if name in ONLY_WITH and ONLY_WITH[name] not in given:
            raise UsageError(f"{typed} needs --{ONLY_WITH[name].replace('_', '-')}")


def _of_parts(args: argparse.Namespace) -> Iterator[str]:
    """Yield the names of the flags of the tokenizer, the BPE and the score that were chosen."""
    for part in ("tokenizer", "bpe", "scoring"):
        kind = REGISTRIES[part]["registry"].get(getattr(args, part, None))
        if part == "scoring" and getattr(args, part, None) == "bleu":
            continue  # fairseq takes its numbers from the dictionary
        own = argparse.ArgumentParser(add_help=False)
        if hasattr(kind, "add_args"):
            kind.add_args(own)
        elif hasattr(kind, "__dataclass"):
            options.gen_parser_from_dataclass(own, getattr(kind, "__dataclass")())
        yield from (action.dest for action in own._actions)


@contextmanager
def given_by(names: Iterable[str]) -> Iterator[None]:
    """Remember what a call of the hub gives while it runs, but not the calls that it makes."""
    if _CALLED.get():
        yield
        return
    before, called = GIVEN.set(frozenset(names)), _CALLED.set(True)
    try:
        yield
    finally:
        GIVEN.reset(before)
        _CALLED.reset(called)


def chosen(settings: Any) -> Any:
    """Return settings without those of fairseq's search that are there by default alone.

    Args:
        settings: fairseq's configuration of generation, which has all; what is not one, a Namespace
            with what was given, is returned as it is.
    """
    if not OmegaConf.is_config(settings):
        return settings
    given = GIVEN.get()
    return argparse.Namespace(
        **{
            name: value
            for name, value in settings.items()
            if name not in ALL or name in given or value != ALL[name].default
        }
    )
