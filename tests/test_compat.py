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
from fairseq_paradec.compat.checkpoints import explain_models
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

    def state(self) -> dict[str, Any]:
        """Read the checkpoint, for a test to spoil it."""
        return torch.load(self.path, weights_only=True)


@pytest.fixture(scope="session")
def micro(tmp_path_factory: pytest.TempPathFactory) -> Micro:
    return Micro(tmp_path_factory.mktemp("micro"))


@pytest.fixture(scope="session")
def other_data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Data of 50 words instead of 20."""
    return preprocess(tmp_path_factory.mktemp("other"), words=50)


def load_models(path: Path, **overrides: object) -> Any:
    """Load a model as hub and validate do: with the task that the checkpoint names."""
    given = {name: str(value) for name, value in overrides.items()}
    return checkpoint_utils.load_model_ensemble_and_task([str(path)], arg_overrides=given)


def pickled_names(path: Path) -> set[str]:
    """Return the names of all functions and classes in a checkpoint's pickle."""
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


def test_a_checkpoint_written_under_numpy_2_loads(tmp_path: Path) -> None:
    state = torch.load(NUMPY1, weights_only=True)
    path = tmp_path / "numpy2.pt"
    torch.save(state, path)
    assert "numpy._core.multiarray._reconstruct" in pickled_names(path)
    again = checkpoint_utils.load_checkpoint_to_cpu(str(path))["extra_state"]
    assert again["arrays"]["i8"].tolist() == [0, 1, 1] and again["scalars"]["bool"]


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
    state = micro.state()
    if kind == "folder":
        path.mkdir()
    elif kind in ("half", "almost whole", "a few bytes", "empty", "text"):
        length = {"half": len(whole) // 2, "almost whole": len(whole) - 30, "a few bytes": 10}
        content = b"This is not a model.\n" * 9 if kind == "text" else whole[: length.get(kind, 0)]
        path.write_bytes(content)
    elif kind == "a list":
        torch.save([1, 2], path)
    elif kind == "a tensor":
        torch.save(torch.zeros(3), path)
    elif kind == "plain weights":
        torch.save(state["model"], path)
    elif kind == "no settings":
        torch.save({**state, "cfg": None, "args": None}, path)
    elif kind == "no weights":
        torch.save({k: v for k, v in state.items() if k != "model"}, path)
    elif kind == "unknown arch":
        state["cfg"]["model"].arch = state["cfg"]["model"]._name = "ibdecoder_of_elsewhere"
        torch.save(state, path)
    elif kind == "unknown arch in args":
        args = argparse.Namespace(arch="ibdecoder_of_elsewhere", task="translation", data="data")
        torch.save({**state, "cfg": None, "args": args}, path)
    elif kind == "unknown task":
        state["cfg"]["task"]["_name"] = "task_of_elsewhere"
        torch.save(state, path)


NOT_A_CHECKPOINT = r"truncated or no checkpoint at all; allowed: a checkpoint file that fairseq-tr"
FOREIGN = r"no fairseq checkpoint but a {}.*allowed: .*'model' and 'cfg' \(or 'args'\)"
SPOILT = {
    "missing": r"which does not exist; allowed: a checkpoint file",
    "folder": r"which is a folder \(with no \.pt file in it\)",
    "half": NOT_A_CHECKPOINT,
    "almost whole": NOT_A_CHECKPOINT,
    "a few bytes": NOT_A_CHECKPOINT,
    "empty": NOT_A_CHECKPOINT,
    "text": NOT_A_CHECKPOINT,
    "a list": FOREIGN.format("list"),
    "a tensor": FOREIGN.format("Tensor"),
    "plain weights": FOREIGN.format("(dict|OrderedDict) with the keys decoder"),
    "no settings": FOREIGN.format("dict with the keys"),
    "no weights": FOREIGN.format("dict with the keys"),
    "unknown arch": r"architecture 'ibdecoder_of_elsewhere' is not registered; allowed: --user-dir",
    "unknown arch in args": r"architecture 'ibdecoder_of_elsewhere' is not registered",
    "unknown task": r"task 'task_of_elsewhere' is not registered; allowed: --user-dir",
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", SPOILT)
def test_a_spoilt_checkpoint_is_named_with_what_is_wrong(
    kind: str, micro: Micro, tmp_path: Path
) -> None:
    path = tmp_path / "spoilt.pt"
    spoil(kind, micro, path)
    with pytest.raises(UsageError, match=r"--path .*spoilt\.pt', .*" + SPOILT[kind]) as caught:
        load_models(path, data=micro.data)
    assert isinstance(caught.value.__cause__, Exception)


@pytest.mark.slow
@pytest.mark.parametrize("given_task", [True, False], ids=["generate", "hub"])
def test_another_dictionary_is_named_with_both_sizes(
    given_task: bool, micro: Micro, other_data: Path
) -> None:
    _, cfg, task = load_models(micro.path, data=micro.data)
    assert len(task.source_dictionary) == 24
    overrides = {"data": str(other_data)}
    other = None
    if given_task:
        cfg.task.data = str(other_data)
        other = type(task).setup_task(cfg.task)
    pattern = rf"encoder embeds 24 .*source dictionary \(en\) of DATA '{other_data}' has 5[46]: .*"
    with pytest.raises(UsageError, match=pattern + "do not belong together; allowed: "):
        checkpoint_utils.load_model_ensemble_and_task([str(micro.path)], overrides, other)


@pytest.mark.slow
def test_weights_that_do_not_fit_are_named(micro: Micro, tmp_path: Path) -> None:
    state = micro.state()
    del state["model"]["decoder.layers.0.fc1.weight"]
    path = tmp_path / "incomplete.pt"
    torch.save(state, path)
    with pytest.raises(UsageError, match=r"incomplete\.pt.*do not fit.*Missing key.*fc1\.weight"):
        load_models(path, data=micro.data)


@pytest.mark.slow
def test_an_error_that_is_not_understood_stays(micro: Micro) -> None:
    def original(*args: object) -> None:
        raise KeyError("strange")

    with pytest.raises(KeyError, match="strange"):
        explain_models(original)([str(micro.path)])


@pytest.mark.slow
def test_another_language_pair_is_only_a_warning(
    micro: Micro, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    _, cfg, task = load_models(micro.path, data=micro.data)
    state = micro.state()
    state["cfg"]["task"].update(source_lang="en", target_lang="fr")
    path = tmp_path / "en-fr.pt"
    torch.save(state, path)
    checkpoint_utils.load_model_ensemble_and_task([str(micro.path)], task=task)
    assert "was trained for" not in caplog.text
    models, _, _ = checkpoint_utils.load_model_ensemble_and_task([str(path)], task=task)
    assert len(models) == 1
    assert re.search(r"en-fr\.pt was trained for en-fr and is asked for en-de", caplog.text)


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
    """Give the root logger with nothing set up; pytest's own handlers are away meanwhile."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    root.handlers[:] = []
    try:
        yield root
    finally:
        root.handlers[:] = handlers
        root.setLevel(level)


@pytest.mark.parametrize("wanted, level", [(None, "INFO"), ("warning", "WARNING")])
def test_the_log_level_is_what_loglevel_says(
    wanted: str | None, level: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("LOGLEVEL", raising=False)
    if wanted is not None:
        monkeypatch.setenv("LOGLEVEL", wanted)
    stream = io.StringIO()
    with bare_root_logger() as root:
        logging.basicConfig(level=logging.DEBUG, stream=stream)  # as wav2vec2_classification.py
        compat.set_log_level()
        assert logging.getLevelName(root.level) == level
        logging.getLogger("a").debug("unwanted")
        logging.getLogger("a").warning("wanted")
    time = r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d"
    assert re.fullmatch(time + r" \| WARNING \| a \| wanted\n", stream.getvalue())


def test_a_root_logger_set_up_by_somebody_else_is_left_alone() -> None:
    stream = io.StringIO()
    with bare_root_logger() as root:
        logging.basicConfig(level=logging.DEBUG, format="mine: %(message)s", stream=stream)
        compat.set_log_level()
        assert root.level == logging.DEBUG
        logging.getLogger("a").debug("wanted")
    assert stream.getvalue() == "mine: wanted\n"


# ---- the command line ---------------------------------------------------------------------------


def generate(micro: Micro, *args: object) -> subprocess.CompletedProcess[str]:
    """Translate the test set through the plugin of the checkout."""
    search = ("--path", micro.path, "--max-len-b", 15, "--beam", 2)
    return succeed(fairseq("generate", micro.data, *WITH_PLUGIN, *search, *args))


def check_quiet(stderr: str) -> None:
    """Check that nothing of what users can do nothing about stands on stderr."""
    assert "Warning" not in stderr and "DEBUG" not in stderr and "Traceback" not in stderr, stderr


@pytest.mark.slow
def test_generate_gives_every_sentence_and_reports_it(micro: Micro) -> None:
    result = generate(micro, "--batch-size", 1, "--tokenizer", "moses")  # without -s and -t
    assert len(lines_of(result.stdout, "H")) == TEST_SENTENCES
    assert f"| fairseq_cli.generate | Translated {TEST_SENTENCES} sentences" in result.stderr
    assert "Translated" not in result.stdout and " | INFO | " not in result.stdout
    check_quiet(result.stderr)


@pytest.mark.slow
def test_the_results_file_holds_the_report(micro: Micro, tmp_path: Path) -> None:
    result = generate(micro, "--batch-size", 7, "--results-path", tmp_path)
    written = (tmp_path / "generate-test.txt").read_text(encoding="utf-8")
    assert len(lines_of(written, "H")) == TEST_SENTENCES
    assert written.count(f"Translated {TEST_SENTENCES} sentences") == 1
    assert result.stderr.count(f"Translated {TEST_SENTENCES} sentences") == 1
    assert result.stdout == ""


@pytest.mark.slow
def test_training_resumes(micro: Micro, tmp_path: Path) -> None:
    check_quiet(micro.training.stderr + micro.training.stdout)
    assert "numpy.ndarray" in pickled_names(micro.path)  # what --eval-bleu leaves there
    (tmp_path / "checkpoint_last.pt").write_bytes(micro.path.read_bytes())
    result = micro.train(tmp_path, 24)
    assert "checkpoint_last.pt (epoch" in result.stdout and "@ 20 updates" in result.stdout
    assert micro.state()["optimizer_history"][-1]["num_updates"] == 20
    resumed = torch.load(tmp_path / "checkpoint_last.pt", weights_only=True)
    assert resumed["optimizer_history"][-1]["num_updates"] == 24


@pytest.mark.slow
def test_validate_needs_no_task(micro: Micro) -> None:
    model = ("--path", micro.path, "--batch-size", 5)
    result = succeed(fairseq("validate", micro.data, *WITH_PLUGIN, *model))
    assert re.search(r"valid on 'valid' subset \| loss \d", result.stdout + result.stderr)
    check_quiet(result.stderr)


@pytest.mark.slow
def test_the_package_may_be_imported_before_user_dir(micro: Micro, tmp_path: Path) -> None:
    """Under the path of the checkout, spelt from the current folder and through a link."""
    link = tmp_path / "fairseq_paradec"
    link.symlink_to(PLUGIN, target_is_directory=True)
    code = f"""
import argparse, os, sys
sys.path.insert(0, {str(ROOT)!r})
os.chdir({str(tmp_path)!r})
import fairseq_paradec
from fairseq import utils
from fairseq.tasks import TASK_REGISTRY
task = TASK_REGISTRY["translation"]
for user_dir in ({str(PLUGIN)!r}, "fairseq_paradec", "fairseq_paradec/"):
    utils.import_user_module(argparse.Namespace(user_dir=user_dir))
assert TASK_REGISTRY["translation"] is task
print(task.__module__, [name for name in sys.modules if name.endswith(".compat")])
"""
    result = succeed(run_python(code, python=sys.executable))
    assert "fairseq_paradec.tasks" in result.stdout
    assert "fairseq_paradec.compat" in result.stdout


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


@pytest.mark.parametrize(
    "path, bf16, dtype",
    [
        ("m.pt", True, torch.bfloat16),
        ("m.pt", False, torch.float32),
        (None, True, torch.float32),  # a hub model that was trained in bf16
    ],
)
def test_bf16_is_honoured_where_fairseq_ignores_it(
    path: str | None, bf16: bool, dtype: torch.dtype
) -> None:
    class Model(BaseFairseqModel):
        def __init__(self) -> None:
            super().__init__()
            self.weight = torch.nn.Parameter(torch.zeros(1))

    model = Model()
    model.prepare_for_inference_(
        OmegaConf.create(
            {"common": {"bf16": bf16}, "common_eval": {"path": path}, "generation": {"beam": 1}}
        )
    )
    assert model.weight.dtype == dtype
    assert model._is_generation_fast
