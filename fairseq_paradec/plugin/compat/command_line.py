"""Fixes of flags that fairseq 0.12 reads wrongly or ignores."""

import argparse
import ast
import json
import os
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from fairseq import options, utils
from fairseq.data import data_utils
from fairseq.dataclass.utils import gen_parser_from_dataclass
from fairseq.models import BaseFairseqModel

from ...config import RULE_FLAGS, SEARCH_OPTIONS, flag
from ...errors import needs, option_error
from .given import GIVEN
from .patching import Function, around

#: Flags whose value is a dict, how fairseq reads it, and what is allowed.
_DICTS: tuple[tuple[str, Callable[[str], Any], str], ...] = (
    ("model_overrides", ast.literal_eval, "a Python dict: \"{'max_source_positions': 512}\""),
    ("eval_bleu_args", json.loads, 'a JSON object: \'{"decoding": "greedy"}\''),
    ("eval_bleu_detok_args", json.loads, 'a JSON object: \'{"target_lang": "de"}\''),
)


#: Numbers of fairseq's commands, and the least that each may be. fairseq's own --buffer-size is 0.
_LEAST = {
    **dict.fromkeys(("beam", "batch_size", "max_tokens", "buffer_size", "num_shards"), 1),
    **dict.fromkeys(("required_batch_size_multiple", "required_seq_len_multiple"), 1),
    **dict.fromkeys(("seed", "num_workers", "prefix_size", "num_batch_buckets"), 0),
    **dict.fromkeys(("log_interval", "data_buffer_size"), 1),
}


def remember_user_dir() -> None:
    """Register this package with fairseq as an imported ``--user-dir``.

    Fault: fairseq 0.12 refuses ``--user-dir`` as "not globally unique" if the package was imported
    before under another spelling of its path: for a package in fairseq's parent folder it looks up
    ``fairseq/../NAME``, unnormalised. This adds all spellings of this folder to its memo, and the
    file that an editable install has there (setup.py).
    """
    here = os.path.abspath(os.path.join(os.path.dirname(__file__), "..", ".."))
    name = (__package__ or "").split(".")[-3]  # a user dir may be imported under another name
    spellings = {
        here,
        os.path.abspath(name),
        os.path.join(os.path.dirname(utils.__file__), "..", name),
    }
    memo: set[str] = getattr(utils.import_user_module, "memo", set())
    memo.update(
        s for s in spellings if os.path.isfile(s) or os.path.isdir(s) and os.path.samefile(s, here)
    )
    utils.import_user_module.memo = memo


def default_validation_task() -> None:
    """Let fairseq-validate run without ``--task``.

    Fault: it is the one command of fairseq 0.12 whose ``--task`` has no default; without it the
    parser ends with ``KeyError: None``. The name only decides which flags are known: the task
    itself comes from the checkpoint.
    """

    @around(options, "parse_args_and_arch", fix="default_validation_task")
    def parse(
        original: Function, parser: argparse.ArgumentParser, *args: Any, **kwargs: Any
    ) -> Any:
        if any(a.dest == "task" for a in parser._actions) and not parser.get_default("task"):
            parser.set_defaults(task="translation")
        return original(parser, *args, **kwargs)


def _after_parsing(fix: str, work: Callable[[argparse.Namespace], None]) -> None:
    """Show the arguments that a command has parsed to ``work``, which may change them."""

    @around(options, "parse_args_and_arch", fix=fix)
    def parse(original: Function, *args: Any, **kwargs: Any) -> Any:
        parsed = original(*args, **kwargs)
        work(parsed[0] if isinstance(parsed, tuple) else parsed)
        return parsed


def infer_moses_languages() -> None:
    """Give ``--tokenizer moses`` the language pair of DATA if -s and -t are left out.

    Fault: fairseq 0.12 infers the pair for the task but not for the tokenizer, and ends with
    ``Error merging override tokenizer.source_lang=null``.
    """
    _after_parsing("infer_moses_languages", _fill_languages)


def _fill_languages(args: argparse.Namespace) -> None:
    """Fill in the languages of parsed arguments for ``--tokenizer moses``."""
    sides = {"source_lang": "-s", "target_lang": "-t"}
    missing = [side for side in sides if getattr(args, side, "") is None]
    folders = utils.split_paths(getattr(args, "data", None) or "")
    # The task reports a missing folder.
    if getattr(args, "tokenizer", None) != "moses" or not missing or not os.path.isdir(folders[0]):
        return
    pair = dict(zip(sides, data_utils.infer_language_pair(folders[0])))
    for side in missing:
        if pair[side] is None:
            raise option_error(
                sides[side],
                None,
                "a language; --tokenizer moses needs it, and DATA "
                f"{folders[0]!r} has no file like test.en-de.en.bin to infer it from",
            )
        setattr(args, side, pair[side])


def check_arguments() -> None:
    """Name wrong arguments before anything is loaded.

    Fault: without ``--path`` fairseq 0.12 asserts, or splits None. It reads ``--model-overrides``
    after the task is set up: what is no Python ends with its parser's error, and validate would
    run it; settings of the search are ignored there. Numbers below what is possible end in numpy,
    torch or the search.
    """
    _after_parsing("check_arguments", _check_arguments)


def _check_arguments(args: argparse.Namespace) -> None:
    """Check parsed arguments; those that the command does not have are not there."""
    if getattr(args, "path", "") is None:
        raise option_error("--path", None, "a checkpoint, or several with ':' between them")
    for name, least in _LEAST.items():
        given = getattr(args, name, None)
        if given is not None and given < least and (name in GIVEN.get() or name != "buffer_size"):
            allowed = f"a whole number from {least} up"
            raise option_error(flag(name), given, allowed)
    for name, read, allowed in _DICTS:
        given = getattr(args, name, None) or "{}"
        try:
            fits = isinstance(read(given), dict)
        except (ValueError, SyntaxError):
            fits = False
        if not fits:
            raise option_error(flag(name), given, allowed)
        for key in read(given) if name == "model_overrides" else ():
            if key in ("decoding", *SEARCH_OPTIONS, *RULE_FLAGS):
                allowed = f"settings of the model; give {flag(key)}"
                raise option_error("--model-overrides", key, allowed)


def honour_shards() -> None:
    """Let fairseq-generate decode the shard ``--shard-id`` of ``--num-shards``.

    Fault: fairseq 0.12 ignores both flags there and shards by those of distributed training.
    """
    _after_parsing("honour_shards", _set_shard)


def _set_shard(args: argparse.Namespace) -> None:
    """Set the shard of parsed arguments; commands that do not generate are left alone."""
    shards, shard = getattr(args, "num_shards", 1), getattr(args, "shard_id", 0)
    if not hasattr(args, "nbest") or (shards, shard) == (1, 0):
        return
    if hasattr(args, "buffer_size"):
        raise needs("--num-shards", shards, "fairseq-generate, the one command that takes shards")
    if not 0 <= shard < shards:
        raise option_error("--shard-id", shard, f"from 0 up, below --num-shards ({shards})")
    args.distributed_world_size, args.distributed_rank = shards, shard


def show_flags_in_help(title: str, flags: Any, choices: Mapping[str, Sequence[str]]) -> None:
    """Let ``--help`` of every fairseq command list a task's flags.

    Fault: fairseq 0.12 prints the help before it asks the task for its flags.
    """

    @around(options, "parse_args_and_arch", fix="show_flags_in_help")
    def parse(
        original: Function, parser: Any, input_args: Any = None, *args: Any, **kwargs: Any
    ) -> Any:
        given = sys.argv[1:] if input_args is None else input_args
        if {"-h", "--help"} & set(given):
            group = parser.add_argument_group(title)
            gen_parser_from_dataclass(group, flags())
            for action in group._group_actions:
                if choices.get(action.dest):
                    action.metavar = "{" + ",".join(choices[action.dest]) + "}"
        return original(parser, input_args, *args, **kwargs)


def sample_without_beam(decodings: Collection[str]) -> None:
    """Let some decodings be asked for ``--sampling`` without ``--beam 1``.

    fairseq 0.12 asserts that ``--nbest`` is ``--beam`` under ``--sampling``, before it asks the
    task. These decodings sample one output or refuse; only a beam that is given counts. With the
    others the error says what to give.
    """

    def ask_for_one(args: argparse.Namespace) -> None:
        samples = getattr(args, "sampling", False)
        own = getattr(args, "decoding", "") in decodings
        if samples and own and "beam" not in GIVEN.get():
            args.beam = 1
        if samples and args.nbest != args.beam:
            raise needs(
                "--sampling",
                True,
                f"--beam 1; fairseq's search draws {args.beam} "
                f"outputs with --beam {args.beam} --nbest {args.beam}",
            )

    _after_parsing("sample_without_beam", ask_for_one)


def honour_bf16() -> None:
    """Let generate and interactive decode in bfloat16 when ``--bf16`` is given.

    Fault: fairseq 0.12 accepts the flag there and ignores it. Both commands pass their own settings
    to ``prepare_for_inference_``; hub passes those of the training, without a ``path``, and keeps
    its dtype.
    """

    @around(BaseFairseqModel, "prepare_for_inference_")
    def prepare_for_inference_(original: Function, self: BaseFairseqModel, cfg: Any) -> None:
        decodes = getattr(getattr(cfg, "common_eval", None), "path", None) is not None
        if decodes and getattr(getattr(cfg, "common", None), "bf16", False):
            self.bfloat16()
        original(self, cfg)
