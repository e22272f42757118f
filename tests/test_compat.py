"""The fixes of compat, each shown on the fault that it fixes."""

from __future__ import annotations

import argparse
import contextlib
import io
import logging
import os
import pickle
import pickletools
import re
import subprocess
import sys
import warnings
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from fairseq import checkpoint_utils, options, utils
from fairseq.models import BaseFairseqModel
from omegaconf import OmegaConf
from support.commands import (
    PLUGIN,
    ROOT,
    TEST_SENTENCES,
    TRAINING,
    fairseq,
    lines_of,
    preprocess,
    run_python,
    succeed,
)

from fairseq_paradec import compat
from fairseq_paradec.compat.command_line import _fill_languages
from fairseq_paradec.errors import UsageError

WITH_PLUGIN = ("--user-dir", PLUGIN, "--cpu")
NUMPY1 = Path(__file__).parent / "fixtures" / "numpy1.pt"


class Micro:
    """A model trained for 20 updates through the plugin, and the data it was trained on."""

    def __init__(self, folder: Path) -> None:
        self.data = preprocess(folder)
        self.training = self.train(folder, 20)
        self.path = folder / "checkpoint_last.pt"

    def train(self, save_dir: Path, updates: int) -> subprocess.CompletedProcess[str]:
        """Train, or go on training from the checkpoint in the folder."""
        until = ("--save-dir", save_dir, "--max-update", updates)
        return succeed(fairseq("train", self.data, *WITH_PLUGIN, *TRAINING, *until))


@pytest.fixture(scope="session")
def micro(tmp_path_factory: pytest.TempPathFactory) -> Micro:
    return Micro(tmp_path_factory.mktemp("micro"))


def load_models(path: Path, **overrides: object) -> Any:
    """Load a model as hub and validate do: with the task that the checkpoint names."""
    given = {name: str(value) for name, value in overrides.items()}
    return checkpoint_utils.load_model_ensemble_and_task([str(path)], arg_overrides=given)


def pickled_names(path: Path) -> set[str]:
    """The names of all functions and classes in a checkpoint's pickle."""
    with zipfile.ZipFile(path) as archive:
        (name,) = (n for n in archive.namelist() if n.endswith("/data.pkl"))
        content = archive.read(name)
    return {
        str(argument).replace(" ", ".")
        for opcode, argument, _ in pickletools.genops(content)
        if opcode.name == "GLOBAL"
    }


def test_applying_twice_changes_nothing() -> None:
    compat.apply()
    compat.apply()
    assert checkpoint_utils.load_checkpoint_to_cpu.paradec_fixes == ("load_checkpoint_to_cpu",)
    of_parsing = options.parse_args_and_arch.paradec_fixes
    assert {"default_validation_task", "infer_moses_languages"} <= set(of_parsing)
    assert len(set(of_parsing)) == len(of_parsing)
    filters = [type(f).__name__ for f in logging.getLogger("fairseq_cli.generate").filters]
    assert filters.count("_TranslatedToResults") == 1


# ---- checkpoints --------------------------------------------------------------------------------


@pytest.fixture
def nothing_allowed() -> Iterator[None]:
    """Take back the names that the plugin allowed, for one test."""
    allowed = torch.serialization.get_safe_globals()
    torch.serialization.clear_safe_globals()
    yield
    torch.serialization.clear_safe_globals()
    torch.serialization.add_safe_globals(allowed)


def test_a_checkpoint_written_under_numpy_1_loads() -> None:
    names = pickled_names(NUMPY1)
    assert {"numpy.core.multiarray._reconstruct", "numpy.core.multiarray.scalar"} <= names
    extra = checkpoint_utils.load_checkpoint_to_cpu(str(NUMPY1))["extra_state"]
    for name in ("f4", "f8", "i4", "i8", "bool"):
        assert extra["arrays"][name].dtype == extra["scalars"][name].dtype == np.dtype(name)
        assert extra["arrays"][name].tolist() == [0, 1, 1]
        assert extra["scalars"][name] == 1


def test_what_is_not_allowed_is_refused_by_name(nothing_allowed: None) -> None:
    with pytest.raises(UsageError, match=r"refuses: argparse\.Namespace, .*numpy\.core"):
        checkpoint_utils.load_checkpoint_to_cpu(str(NUMPY1))


class Payload:
    """Runs a command when unpickled without care."""

    def __init__(self, witness: Path) -> None:
        self.witness = witness

    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, (f"touch '{self.witness}'",)


@pytest.mark.parametrize("zipped", [True, False], ids=["zip", "legacy"])
def test_an_unsafe_object_is_refused_and_not_run(tmp_path: Path, zipped: bool) -> None:
    path, witness = tmp_path / "evil.pt", tmp_path / "witness"
    state = {"model": {}, "cfg": {}, "extra_state": Payload(witness)}
    torch.save(state, path, _use_new_zipfile_serialization=zipped)
    with pytest.raises(UsageError, match=r"evil\.pt.*safe loading refuses: \w+\.system") as caught:
        checkpoint_utils.load_checkpoint_to_cpu(str(path))
    assert caught.value.__cause__ is not None
    assert not witness.exists()
    pickle.loads(pickle.dumps(Payload(witness)))  # the payload itself does work
    assert witness.exists()


def spoil(kind: str, micro: Micro, path: Path) -> None:
    """Write a file of which no model can be loaded."""
    whole = micro.path.read_bytes()
    state = torch.load(micro.path, weights_only=True)
    if kind == "folder":
        path.mkdir()
    elif kind in ("half", "empty", "text"):
        path.write_bytes({"half": whole[: len(whole) // 2], "text": b"no model.\n"}.get(kind, b""))
    elif kind == "a list":
        torch.save([1, 2], path)
    elif kind == "plain weights":
        torch.save(state["model"], path)
    elif kind == "no settings":
        torch.save({**state, "cfg": None, "args": None}, path)
    elif kind == "lacking weights":
        del state["model"]["decoder.layers.0.fc1.weight"]
        torch.save(state, path)
    elif kind == "unknown arch":
        state["cfg"]["model"].arch = state["cfg"]["model"]._name = "ibdecoder_of_elsewhere"
        torch.save(state, path)
    elif kind == "unknown task":
        state["cfg"]["task"]["_name"] = "task_of_elsewhere"
        torch.save(state, path)


NOT_A_CHECKPOINT = r"truncated or no checkpoint at all; allowed: a checkpoint file that fairseq-tr"
FOREIGN = r"no fairseq checkpoint but a {}.*allowed: .*'model' and 'cfg' \(or 'args'\)"
SPOILT = {
    "missing": r"which does not exist; allowed: a checkpoint file",
    "folder": r"which is a folder \(with no \.pt file in it\)",
    "half": NOT_A_CHECKPOINT,
    "empty": NOT_A_CHECKPOINT,
    "text": NOT_A_CHECKPOINT,
    "a list": FOREIGN.format("list"),
    "plain weights": FOREIGN.format("(dict|OrderedDict) with the keys decoder"),
    "no settings": FOREIGN.format("dict with the keys"),
    "lacking weights": r"do not fit.*Missing key.*fc1\.weight",
    "unknown arch": r"architecture 'ibdecoder_of_elsewhere' is not registered; allowed: --user-dir",
    "unknown task": r"task 'task_of_elsewhere' is not registered; allowed: --user-dir",
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", SPOILT)
def test_a_spoilt_checkpoint_is_named_with_what_is_wrong(
    kind: str, micro: Micro, tmp_path: Path
) -> None:
    path = tmp_path / "spoilt.pt"
    spoil(kind, micro, path)
    with pytest.raises(UsageError, match=r"spoilt\.pt.*" + SPOILT[kind]) as caught:
        load_models(path, data=micro.data)
    assert isinstance(caught.value.__cause__, Exception)


@pytest.mark.slow
def test_another_dictionary_is_named_with_both_sizes(
    micro: Micro, tmp_path_factory: pytest.TempPathFactory
) -> None:
    other = preprocess(tmp_path_factory.mktemp("other"), words=50)  # instead of 20
    pattern = rf"encoder embeds 24 .*source dictionary \(en\) of DATA '{other}' has 5[46]: .*"
    with pytest.raises(UsageError, match=pattern + "do not belong together; allowed: "):
        load_models(micro.path, data=other)


# ---- what is printed ----------------------------------------------------------------------------


def test_only_the_known_warnings_are_silent() -> None:
    pinned = "'pin_memory' argument is set as true but no accelerator is found"
    with warnings.catch_warnings(record=True) as shown:
        warnings.simplefilter("always")
        compat.silence_warnings()
        for category, text, module in (
            (UserWarning, pinned, "torch.utils.data.dataloader"),
            (UserWarning, pinned, "mine"),
            (UserWarning, "the learning rate is zero", "torch.utils.data.dataloader"),
            (FutureWarning, pinned, "torch.utils.data.dataloader"),
        ):
            warnings.warn_explicit(text, category, "file.py", 1, module=module)
    assert [(w.category, str(w.message)) for w in shown] == [
        (UserWarning, pinned),
        (UserWarning, "the learning rate is zero"),
        (FutureWarning, pinned),
    ]


@contextlib.contextmanager
def bare_root_logger() -> Iterator[logging.Logger]:
    """The root logger with nothing set up; pytest's own handlers are away meanwhile."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    root.handlers[:] = []
    try:
        yield root
    finally:
        root.handlers[:] = handlers
        root.setLevel(level)


def test_the_log_level_is_what_loglevel_says(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = io.StringIO()
    for wanted, level in (("", "INFO"), ("warning", "WARNING")):
        monkeypatch.setenv("LOGLEVEL", wanted) if wanted else monkeypatch.delenv("LOGLEVEL", False)
        with bare_root_logger() as root:
            logging.basicConfig(level=logging.DEBUG, stream=stream)  # as wav2vec2_classification.py
            compat.set_log_level()
            assert logging.getLevelName(root.level) == level
    assert not stream.getvalue()


def test_a_root_logger_set_up_by_somebody_else_is_left_alone() -> None:
    stream = io.StringIO()
    with bare_root_logger():
        logging.basicConfig(level=logging.DEBUG, format="mine: %(message)s", stream=stream)
        compat.set_log_level()
        logging.getLogger("a").debug("wanted")
    assert stream.getvalue() == "mine: wanted\n"


# ---- the command line ---------------------------------------------------------------------------


def check_quiet(stderr: str) -> None:
    """Check that nothing of what users can do nothing about stands on stderr."""
    assert "Warning" not in stderr and "DEBUG" not in stderr and "Traceback" not in stderr, stderr


@pytest.mark.slow
def test_generate_gives_every_sentence_and_reports_it(micro: Micro, tmp_path: Path) -> None:
    search = ("--path", micro.path, "--max-len-b", 15, "--beam", 2, "--tokenizer", "moses")
    result = succeed(fairseq("generate", micro.data, *WITH_PLUGIN, *search))  # without -s and -t
    assert len(lines_of(result.stdout, "H")) == TEST_SENTENCES
    assert f"| fairseq_cli.generate | Translated {TEST_SENTENCES} sentences" in result.stderr
    assert "Translated" not in result.stdout and " | INFO | " not in result.stdout
    check_quiet(result.stderr)
    into = ("--results-path", tmp_path)
    result = succeed(fairseq("generate", micro.data, *WITH_PLUGIN, *search, *into))
    written = (tmp_path / "generate-test.txt").read_text(encoding="utf-8")
    assert len(lines_of(written, "H")) == TEST_SENTENCES
    for report in (written, result.stderr):
        assert report.count(f"Translated {TEST_SENTENCES} sentences") == 1
    assert result.stdout == ""


@pytest.mark.slow
def test_training_resumes(micro: Micro, tmp_path: Path) -> None:
    check_quiet(micro.training.stderr + micro.training.stdout)
    assert "numpy.ndarray" in pickled_names(micro.path)  # what --eval-bleu leaves there
    (tmp_path / "checkpoint_last.pt").write_bytes(micro.path.read_bytes())
    result = micro.train(tmp_path, 24)
    assert "checkpoint_last.pt (epoch" in result.stdout and "@ 20 updates" in result.stdout
    resumed = torch.load(tmp_path / "checkpoint_last.pt", weights_only=True)
    assert resumed["optimizer_history"][-1]["num_updates"] == 24


@pytest.mark.slow
def test_validate_needs_no_task(micro: Micro) -> None:
    model = ("--path", micro.path, "--batch-size", 5)
    result = succeed(fairseq("validate", micro.data, *WITH_PLUGIN, *model))
    assert re.search(r"valid on 'valid' subset \| loss \d", result.stdout + result.stderr)
    check_quiet(result.stderr)


@pytest.mark.slow
def test_the_package_may_be_imported_before_user_dir() -> None:
    code = f"""
import argparse, sys
sys.path.insert(0, {str(ROOT)!r})
import fairseq_paradec
from fairseq import utils
from fairseq.tasks import TASK_REGISTRY
task = TASK_REGISTRY["translation"]
utils.import_user_module(argparse.Namespace(user_dir={str(PLUGIN)!r}))
assert TASK_REGISTRY["translation"] is task
"""
    succeed(run_python(code, python=sys.executable))


def test_the_package_beside_fairseq_is_remembered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As after an installation, where fairseq asks for site-packages/fairseq/../fairseq_paradec."""
    (tmp_path / "fairseq").mkdir()
    (tmp_path / "fairseq_paradec").symlink_to(PLUGIN, target_is_directory=True)
    monkeypatch.setattr(utils, "__file__", str(tmp_path / "fairseq" / "utils.py"))
    monkeypatch.setattr(utils.import_user_module, "memo", set(), raising=False)
    monkeypatch.chdir(tmp_path / "fairseq")
    compat.remember_user_dir()
    beside = os.path.join(tmp_path, "fairseq", "..", "fairseq_paradec")
    assert utils.import_user_module.memo == {str(PLUGIN), beside}
    utils.import_user_module(argparse.Namespace(user_dir="fairseq_paradec"))
    utils.import_user_module.memo.clear()
    with pytest.raises(ImportError, match="not globally unique"):
        utils.import_user_module(argparse.Namespace(user_dir="fairseq_paradec"))


def test_moses_learns_the_languages_from_data(tmp_path: Path) -> None:
    def parsed(**given: object) -> argparse.Namespace:
        args = {"source_lang": None, "target_lang": None, "tokenizer": "moses"}
        return argparse.Namespace(**(args | {"data": str(tmp_path)} | given))

    with pytest.raises(UsageError, match="-s: got None; allowed: a language; --tokenizer moses"):
        _fill_languages(parsed())
    (tmp_path / "test.en-de.en.bin").touch()
    for given, wanted in (
        ({}, ("en", "de")),
        ({"source_lang": "cs"}, ("cs", "de")),
        ({"tokenizer": None}, (None, None)),
        ({"data": str(tmp_path / "absent")}, (None, None)),
    ):
        args = parsed(**given)
        _fill_languages(args)
        assert (args.source_lang, args.target_lang) == wanted


def test_bf16_is_honoured_where_fairseq_ignores_it() -> None:
    for path, bf16, dtype in (
        ("m.pt", True, torch.bfloat16),
        ("m.pt", False, torch.float32),
        (None, True, torch.float32),  # a hub model that was trained in bf16
    ):
        model = BaseFairseqModel()
        model.weight = torch.nn.Parameter(torch.zeros(1))
        given = {"common": {"bf16": bf16}, "common_eval": {"path": path}, "generation": {"beam": 1}}
        model.prepare_for_inference_(OmegaConf.create(given))
        assert model.weight.dtype == dtype and model._is_generation_fast
