"""Cures for today's fairseq and torch: one small function per fault, deletable one by one.

Every fault was seen with fairseq-fixed 0.12.3.1, torch 2.13.0, numpy 2.4 and hydra-core 1.3.2; what
a cure needs from one of them is said in its docstring. A cure changes nothing where the fault is
absent, and ``apply`` may be called any number of times.
"""

from __future__ import annotations

import argparse
import functools
import logging
import os
import sys
import warnings
from collections.abc import Callable
from types import FrameType
from typing import Any

import numpy as np
import torch
from fairseq import checkpoint_utils, options, utils
from fairseq.data import data_utils
from fairseq.models import BaseFairseqModel

from .checkpoint_errors import explain_file, explain_models
from .errors import UsageError, option_error

logger = logging.getLogger(__name__)

#: fairseq's own log format, as each of its commands gives it to ``logging.basicConfig``.
LOG_FORMAT = "%(asctime)s | %(levelname)s | %(name)s | %(message)s"
LOG_DATE_FORMAT = "%Y-%m-%d %H:%M:%S"


def apply() -> None:
    """Apply every cure."""
    allow_fairseq_checkpoints()
    explain_checkpoint_errors()
    silence_warnings()
    set_log_level()
    report_translated_sentences()
    remember_user_dir()
    default_validation_task()
    infer_moses_languages()
    honour_bf16()
    print_usage_errors()


# ---- checkpoints --------------------------------------------------------------------------------


def allow_fairseq_checkpoints() -> None:
    """Let torch's safe loading pass what fairseq-train puts into a checkpoint.

    Fault: ``torch.load`` loads weights only since torch 2.6, and refuses the ``argparse.Namespace``
    in every checkpoint and the numpy arrays and scalars in those trained with ``--eval-bleu``.
    numpy < 2 wrote them under ``numpy.core``, numpy >= 2 under ``numpy._core``; both names are
    allowed, whichever numpy runs. Safe loading stays on: these types hold data only.
    """
    reconstruct: Any = np.zeros(0).__reduce__()[0]
    scalar: Any = np.float64(0).__reduce__()[0]
    dtypes = {type(np.dtype(name)) for name in ("f4", "f8", "i4", "i8", "bool")}
    torch.serialization.add_safe_globals([argparse.Namespace, np.ndarray, np.dtype, *dtypes])
    for module in ("numpy.core.multiarray", "numpy._core.multiarray"):
        torch.serialization.add_safe_globals(
            [(reconstruct, f"{module}._reconstruct"), (scalar, f"{module}.scalar")]
        )


def explain_checkpoint_errors() -> None:
    """Say what is wrong with a checkpoint that does not load, and what would be right.

    Fault: fairseq 0.12 lets through whatever the loader stumbles over: ``KeyError: 'best_loss'``
    for a file of plain weights, ``IndexError: Replacement index 1 out of range`` for an
    architecture that no plugin has registered, a list of tensor shapes for the wrong dictionary.
    generate, interactive, hub and the trainer all reach the two functions wrapped here. An error
    that is not understood goes on unchanged.
    """
    _wrap_once(checkpoint_utils, "load_checkpoint_to_cpu", explain_file)
    _wrap_once(checkpoint_utils, "load_model_ensemble_and_task", explain_models)


# ---- what is printed ----------------------------------------------------------------------------

#: (category, start of message, module that warns): what a user of fairseq can do nothing about.
_SPAM: tuple[tuple[type[Warning], str, str], ...] = (
    # hydra-core 1.3: fairseq calls its API of 1.0. The last names whoever called fairseq as module.
    (UserWarning, r"hydra\.experimental\.\w+\(\) is no longer experimental", r"hydra\."),
    (UserWarning, r"\s*The version_base parameter is not specified", r"hydra\."),
    (UserWarning, r"In '.*': Usage of deprecated keyword in package header", r"hydra\."),
    (UserWarning, r"\s*The strict flag in the compose API is deprecated", r"hydra\."),
    (UserWarning, r"\s*'config' is validated against ConfigStore schema", r""),
    # torch 2: fairseq asks for pinned memory and CUDA's autocast on CPU, too, and mixes mask types.
    (UserWarning, r"'pin_memory' argument is set as true but no accelerator", r"torch\.utils"),
    (FutureWarning, r"`torch\.cuda\.amp\.\w+\(args\.\.\.\)` is deprecated", r"fairseq\."),
    (UserWarning, r"Support for mismatched key_padding_mask and attn_mask", r"torch\.nn"),
)


def silence_warnings() -> None:
    """Filter warnings that repeat at every start and that no user can act on.

    Fault: fairseq 0.12 with hydra-core 1.3 and torch 2.13 prints some twenty lines of them before a
    command does anything. Each is named by category, message and module; all others still show.
    """
    for category, message, module in _SPAM:
        warnings.filterwarnings("ignore", category=category, message=message, module=module)


def set_log_level() -> None:
    """Give the root logger the level and the format that fairseq's commands ask for.

    Fault: fairseq 0.12 configures logging while it is imported (``logging.basicConfig(DEBUG)`` in
    models/wav2vec/wav2vec2_classification.py), so that the set-up of generate, interactive and
    validate comes too late and is ignored. A root logger that somebody else set up is left alone.
    """
    root = logging.getLogger()
    if root.level != logging.DEBUG:
        return
    for handler in root.handlers:
        if getattr(handler.formatter, "_fmt", None) == logging.BASIC_FORMAT:
            handler.setFormatter(logging.Formatter(LOG_FORMAT, LOG_DATE_FORMAT))
            root.setLevel(os.environ.get("LOGLEVEL", "INFO").upper())


def report_translated_sentences() -> None:
    """Put generate's line "Translated N sentences" into the file of ``--results-path``, too.

    Fault: with the root logger configured too early (see ``set_log_level``) the line goes to stderr
    only, while fairseq 0.12 means it to stand in the results.
    """
    target = logging.getLogger("fairseq_cli.generate")
    if not any(type(f).__name__ == _TranslatedToResults.__name__ for f in target.filters):
        target.addFilter(_TranslatedToResults())


class _TranslatedToResults(logging.Filter):
    """Copies the record to the open results file; lets every record pass."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Copy the record if it is the one; the answer is always yes."""
        if str(record.msg).startswith("Translated "):
            results = self._results_file()
            if results is not None:
                line = logging.Formatter(LOG_FORMAT, LOG_DATE_FORMAT).format(record)
                print(line, file=results)
        return True

    @staticmethod
    def _results_file() -> Any:
        """Find the file that generate's ``_main`` writes to; None if that is stdout.

        Only the running function knows it: a second opening would overwrite what stands there.
        """
        frame: FrameType | None = sys._getframe()
        while frame is not None:
            # The module is __main__ under "python -m fairseq_cli.generate": its name is no guide.
            if frame.f_code.co_name == "_main" and "output_file" in frame.f_locals:
                output = frame.f_locals["output_file"]
                return None if output is sys.stdout else output
            frame = frame.f_back
        return None


# ---- the command line ---------------------------------------------------------------------------


def remember_user_dir() -> None:
    """Tell fairseq that this package is imported already.

    Fault: fairseq 0.12 refuses ``--user-dir`` as "not globally unique" if the package was imported
    before and its path is spelt in another way: for a package beside fairseq it asks for
    ``fairseq/../NAME``, unnormalised. The spellings that mean this very folder go into its memory.
    """
    here = os.path.abspath(os.path.dirname(__file__))
    name = (__package__ or here).rpartition(".")[2]
    spellings = {
        here,
        os.path.abspath(name),
        os.path.join(os.path.dirname(utils.__file__), "..", name),
    }
    memo: set[str] = getattr(utils.import_user_module, "memo", set())
    memo.update(s for s in spellings if os.path.isdir(s) and os.path.samefile(s, here))
    utils.import_user_module.memo = memo


def default_validation_task() -> None:
    """Let fairseq-validate run without ``--task``.

    Fault: it is the one command of fairseq 0.12 whose ``--task`` has no default; without it the
    parser ends with ``KeyError: None``. The name only decides which flags are known: the task
    itself comes from the checkpoint.
    """

    def wrap(original: Callable[..., Any]) -> Callable[..., Any]:
        def parse(parser: argparse.ArgumentParser, *args: Any, **kwargs: Any) -> Any:
            if any(a.dest == "task" for a in parser._actions) and not parser.get_default("task"):
                parser.set_defaults(task="translation")
            return original(parser, *args, **kwargs)

        return parse

    _wrap_once(options, "parse_args_and_arch", wrap, cure="default_validation_task")


def infer_moses_languages() -> None:
    """Give ``--tokenizer moses`` the language pair of DATA if -s and -t are left out.

    Fault: fairseq 0.12 infers the pair for the task but not for the tokenizer, and ends with
    ``Error merging override tokenizer.source_lang=null``.
    """

    def wrap(original: Callable[..., Any]) -> Callable[..., Any]:
        def parse(*args: Any, **kwargs: Any) -> Any:
            parsed = original(*args, **kwargs)
            _fill_languages(parsed[0] if isinstance(parsed, tuple) else parsed)
            return parsed

        return parse

    _wrap_once(options, "parse_args_and_arch", wrap, cure="infer_moses_languages")


def _fill_languages(args: argparse.Namespace) -> None:
    """Fill in the languages of parsed arguments where moses is to know them."""
    sides = {"source_lang": "-s", "target_lang": "-t"}
    missing = [side for side in sides if getattr(args, side, "") is None]
    folders = utils.split_paths(getattr(args, "data", None) or "")
    # A missing folder is the task's to report.
    if getattr(args, "tokenizer", None) != "moses" or not missing or not os.path.isdir(folders[0]):
        return
    pair = dict(zip(sides, data_utils.infer_language_pair(folders[0])))
    for side in missing:
        if pair[side] is None:
            raise option_error(
                sides[side], None, "a language; --tokenizer moses needs it, and DATA "
                f"{folders[0]!r} has no file like test.en-de.en.bin to infer it from",
            )  # fmt: skip
        setattr(args, side, pair[side])


def honour_bf16() -> None:
    """Let generate and interactive decode in bfloat16 when ``--bf16`` is given.

    Fault: fairseq 0.12 accepts the flag there and ignores it. Both commands hand their own settings
    to ``prepare_for_inference_``; hub hands over those of the training, in which no ``path`` is
    set, and keeps its dtype.
    """

    def wrap(original: Callable[..., Any]) -> Callable[..., Any]:
        def prepare_for_inference_(self: BaseFairseqModel, cfg: Any) -> None:
            decodes = getattr(getattr(cfg, "common_eval", None), "path", None) is not None
            if decodes and getattr(getattr(cfg, "common", None), "bf16", False):
                self.bfloat16()
            original(self, cfg)

        return prepare_for_inference_

    _wrap_once(BaseFairseqModel, "prepare_for_inference_", wrap)


def print_usage_errors() -> None:
    """Let a command end with one line that says what the user did wrong.

    Fault: fairseq's commands have no handler for wrong input: its users read a dozen frames of
    fairseq before the message. ``LOGLEVEL=DEBUG`` shows the frames; other errors are left alone.
    """

    def wrap(original: Callable[..., Any]) -> Callable[..., Any]:
        def excepthook(kind: type[BaseException], error: BaseException, trace: Any) -> None:
            # By name: a second copy of the package has a class of its own.
            debug = os.environ.get("LOGLEVEL", "").upper() == "DEBUG"
            if kind.__name__ != UsageError.__name__ or debug:
                original(kind, error, trace)
            else:
                print(f"error: {error}", file=sys.stderr)

        return excepthook

    _wrap_once(sys, "excepthook", wrap)


# ---- how cures are put in -----------------------------------------------------------------------


def _wrap_once(
    owner: Any, name: str, wrap: Callable[[Callable[..., Any]], Callable[..., Any]], cure: str = ""
) -> None:
    """Replace ``owner.name`` by ``wrap`` of it, unless this cure is in it already.

    The mark is on the function, so that a second copy of the package sees it, too.
    """
    original = getattr(owner, name)
    cures: tuple[str, ...] = getattr(original, "paradec_cures", ())
    cure = cure or name
    if cure in cures:
        return
    wrapped = functools.wraps(original)(wrap(original))
    wrapped.paradec_cures = (*cures, cure)  # type: ignore[attr-defined]
    setattr(owner, name, wrapped)
