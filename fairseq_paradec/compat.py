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
import re
import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from types import FrameType
from typing import Any

import numpy as np
import torch
from fairseq import checkpoint_utils, options, utils
from fairseq.data import data_utils
from fairseq.models import ARCH_MODEL_REGISTRY, MODEL_DATACLASS_REGISTRY, BaseFairseqModel
from fairseq.tasks import TASK_REGISTRY, setup_task

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
    _wrap_once(checkpoint_utils, "load_checkpoint_to_cpu", _explain_file)
    _wrap_once(checkpoint_utils, "load_model_ensemble_and_task", _explain_models)


def _explain_file(original: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap ``load_checkpoint_to_cpu``."""

    def load(path: str, *args: Any, **kwargs: Any) -> Any:
        try:
            return original(path, *args, **kwargs)
        except UsageError:
            raise
        except Exception as error:
            problem = _file_problem(path) or _registry_problem(path, _read(path))
            if problem is None:
                raise
            raise problem from error

    return load


def _explain_models(original: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap ``load_model_ensemble_and_task``."""

    def load(
        filenames: Sequence[str],
        arg_overrides: dict[str, Any] | None = None,
        task: Any = None,
        *args: Any,
        **kwargs: Any,
    ) -> Any:
        try:
            models, cfg, loaded_task = original(filenames, arg_overrides, task, *args, **kwargs)
        except UsageError:
            raise
        except Exception as error:
            problem = _models_problem(filenames, arg_overrides, task, error)
            if problem is None:
                raise
            raise problem from error
        if task is not None:
            _warn_of_other_languages(filenames, cfg, task)
        return models, cfg, loaded_task

    return load


def _models_problem(
    filenames: Sequence[str], arg_overrides: dict[str, Any] | None, task: Any, error: Exception
) -> UsageError | None:
    """Find the first of the files that explains why an ensemble did not load."""
    # fairseq adds suffixes and shard numbers to the name: its message knows what is missing.
    missing = re.match(r"Model file not found: (.*)", str(error), flags=re.DOTALL)
    if missing is not None:
        return _file_problem(missing.group(1))
    for path in filenames:
        if not os.path.isfile(path):
            continue
        state = _read(path)
        problem = (
            _file_problem(path)
            or _registry_problem(path, state, task)
            or _dictionary_problem(path, state, task or _task_of(path, arg_overrides))
        )
        if problem is not None:
            return problem
    if isinstance(error, RuntimeError) and "state_dict" in str(error):
        first = " ".join(str(error).split())[:200]
        return _checkpoint_error(
            ", ".join(filenames),
            f"whose weights do not fit its architecture ({first} ...)",
            "an undamaged checkpoint, and --model-overrides that fit it",
        )
    return None


def _checkpoint_error(path: str, wrong: str, allowed: str) -> UsageError:
    """Build the message: the flag, what was given, what is wrong with it, what is allowed."""
    return UsageError(
        f"--path (or the flag that gave this checkpoint): got {str(path)!r}, {wrong}; "
        f"allowed: {allowed}"
    )


def _read(path: str) -> Any:
    """Read a checkpoint safely, without fairseq's upgrade; None if that is impossible."""
    try:
        return torch.load(path, map_location="cpu", weights_only=True)
    except Exception:
        return None


def _file_problem(path: str) -> UsageError | None:
    """Say why a file cannot be a fairseq checkpoint, or None if it can be one."""
    allowed = "a checkpoint file that fairseq-train wrote"
    if not os.path.exists(path):
        return _checkpoint_error(path, "which does not exist", allowed)
    if os.path.isdir(path):
        inside = sorted(name for name in os.listdir(path) if name.endswith(".pt"))
        held = f"which is a folder (with {', '.join(inside) or 'no .pt file'} in it)"
        return _checkpoint_error(path, held, allowed)
    try:
        state = torch.load(path, map_location="cpu", weights_only=True)
    except OSError:
        return None  # permissions, disks: said well enough by the system
    except Exception as error:
        refused = _refused_globals(path, error)
        if not refused:
            return _checkpoint_error(path, "which is truncated or no checkpoint at all", allowed)
        return _checkpoint_error(
            path,
            f"which holds objects that safe loading refuses: {', '.join(refused)}",
            "a checkpoint of tensors, numbers, numpy arrays and argparse.Namespace; if you wrote "
            "the file yourself, write it again without those objects",
        )
    keys = sorted(map(str, state)) if isinstance(state, Mapping) else []
    if "model" in keys and (state.get("args") is not None or state.get("cfg") is not None):
        return None
    held = f"the keys {', '.join(keys[:4])}{', …' * (len(keys) > 4)}" if keys else "no keys"
    kind = f"a {type(state).__name__} with {held}"
    return _checkpoint_error(
        path,
        f"which is no fairseq checkpoint but {kind}",
        f"{allowed}, with the keys 'model' and 'cfg' (or 'args')",
    )


def _refused_globals(path: str, error: Exception) -> list[str]:
    """Name what safe loading refused; empty if the file could not even be read."""
    try:
        found = torch.serialization.get_unsafe_globals_in_checkpoint(path)
    except Exception:  # not a zip file: checkpoints were none before torch 1.6
        found = []
    found += re.findall(r"GLOBAL (\w[\w.]*\w)", str(error))
    return sorted(set(found))


def _names(state: Any, part: str, legacy: str) -> str | None:
    """Look up the name of a checkpoint's model or task, in ``cfg`` or in old ``args``."""
    args, cfg = state.get("args"), state.get("cfg")
    if args is not None:
        return getattr(args, legacy, None)
    section = cfg.get(part) if isinstance(cfg, Mapping) else None
    fields = section if isinstance(section, Mapping) else getattr(section, "__dict__", {})
    return fields.get("_name") or fields.get(legacy)


def _registry_problem(path: str, state: Any, task: Any = None) -> UsageError | None:
    """Name an unknown architecture or, where the checkpoint's task is to be used, task."""
    if not isinstance(state, Mapping):
        return None
    arch = _names(state, "model", "arch")
    if arch and arch not in ARCH_MODEL_REGISTRY and arch not in MODEL_DATACLASS_REGISTRY:
        return _checkpoint_error(
            path,
            f"whose architecture {arch!r} is not registered",
            "--user-dir with the folder of the plugin that defines it",
        )
    task_name = _names(state, "task", "task")
    if task is None and task_name and task_name not in TASK_REGISTRY:
        return _checkpoint_error(
            path,
            f"whose task {task_name!r} is not registered",
            "--user-dir with the folder of the plugin that defines it",
        )
    return None


def _task_of(path: str, arg_overrides: dict[str, Any] | None) -> Any:
    """Set up the task that a checkpoint names, for its dictionaries; None if that is impossible."""
    try:
        state = checkpoint_utils.load_checkpoint_to_cpu(path, arg_overrides)
        return setup_task(state["cfg"].task, from_checkpoint=True)
    except Exception:
        return None


def _dictionary_problem(path: str, state: Any, task: Any) -> UsageError | None:
    """Compare the sizes of embeddings and dictionaries."""
    weights = state["model"] if isinstance(state, Mapping) else {}
    for side in ("encoder", "decoder"):
        weight = weights.get(f"{side}.embed_tokens.weight")
        name = "source" if side == "encoder" else "target"
        dictionary = getattr(task, f"{name}_dictionary", None)
        if weight is None or dictionary is None or len(weight) == len(dictionary):
            continue
        settings = getattr(task, "cfg", None) or getattr(task, "args", None)
        data = getattr(settings, "data", None)
        return _checkpoint_error(
            path,
            f"whose {side} embeds {len(weight)} symbols, while the {name} dictionary "
            f"({getattr(settings, f'{name}_lang', None)}) of DATA {data!r} has {len(dictionary)}: "
            "the checkpoint and DATA do not belong together",
            "a checkpoint and the data-bin folder it was trained with (or one preprocessed with "
            "that folder's dictionaries: --srcdict, --tgtdict)",
        )
    return None


def _warn_of_other_languages(filenames: Sequence[str], cfg: Any, task: Any) -> None:
    """Log a warning if the checkpoint was trained for another language pair than the task's."""
    settings = getattr(task, "cfg", None)
    sides = ("source_lang", "target_lang")
    trained = [getattr(cfg.task, side, None) for side in sides]
    wanted = [getattr(settings, side, None) for side in sides]
    if any(a and b and a != b for a, b in zip(trained, wanted)):
        logger.warning(
            "%s was trained for %s-%s and is asked for %s-%s",
            ", ".join(map(str, filenames)), *trained, *wanted,
        )  # fmt: skip


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
