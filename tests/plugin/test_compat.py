"""The fixes of compat, each shown on the fault that it fixes."""

import argparse
import logging
import os
import pickle
import pickletools
import re
import shutil
import sys
import types
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
from fairseq import checkpoint_utils, options, utils
from fairseq.logging import meters
from fairseq.models import BaseFairseqModel
from fairseq.sequence_generator import SequenceGenerator
from omegaconf import OmegaConf
from support import builders, commands
from support.commands import DEMO, PLUGIN, fairseq, lines_of, succeed

from fairseq_paradec.cli.main import main as paradec
from fairseq_paradec.errors import UsageError
from fairseq_paradec.plugin import compat
from fairseq_paradec.plugin.compat.command_line import _fill_languages

WITH_PLUGIN = ("--user-dir", PLUGIN, "--cpu")
NUMPY1 = Path(__file__).parents[1] / "fixtures" / "numpy1.pt"


def pickled_names(path):
    """The names of all functions and classes in a checkpoint's pickle."""
    with zipfile.ZipFile(path) as archive:
        (name,) = (n for n in archive.namelist() if n.endswith("/data.pkl"))
        operations = pickletools.genops(archive.read(name))
        return {str(arg).replace(" ", ".") for code, arg, _ in operations if code.name == "GLOBAL"}


def test_applying_twice_changes_nothing():
    compat.apply()
    compat.apply()
    of_loading = checkpoint_utils.load_checkpoint_to_cpu.paradec_fixes
    assert of_loading == ("read_model_files", "load_checkpoint_to_cpu", "keep_last_norms")
    of_parsing = options.parse_args_and_arch.paradec_fixes
    assert {"default_validation_task", "infer_moses_languages"} <= set(of_parsing)
    assert len(set(of_parsing)) == len(of_parsing)
    filters = [type(f).__name__ for f in logging.getLogger("fairseq_cli.generate").filters]
    assert filters.count("_TranslatedToResults") == 1


def test_searches_of_several_beam_sizes_share_a_model():
    """BART's attention keeps a beam size; fairseq would tell it the last one above 1."""
    task = builders.task_for("bart")
    models = [builders.tiny_model(task, "bart")]
    sample = builders.batch(task, (5, 3, 7))
    searches = {
        beam: SequenceGenerator(models, task.target_dictionary, beam_size=beam, max_len_b=20)
        for beam in (1, 4, 2)
    }

    def lists(beam):
        with torch.no_grad():
            found = searches[beam].generate(models, sample)
        return [[hypo["tokens"].tolist() for hypo in row] for row in found]

    first = {beam: lists(beam) for beam in (4, 1, 2)}
    assert [[len(row) for row in first[beam]] for beam in (1, 4)] == [[1] * 3, [4] * 3]
    assert {beam: lists(beam) for beam in (2, 1, 4)} == first


def test_a_checkpoint_written_under_numpy_1_loads():
    names = pickled_names(NUMPY1)
    assert {"numpy.core.multiarray._reconstruct", "numpy.core.multiarray.scalar"} <= names
    extra = checkpoint_utils.load_checkpoint_to_cpu(str(NUMPY1))["extra_state"]
    for name in ("f4", "f8", "i4", "i8", "bool"):
        assert extra["arrays"][name].dtype == extra["scalars"][name].dtype == np.dtype(name)
        assert extra["arrays"][name].tolist() == [0, 1, 1]
        assert extra["scalars"][name] == 1


class Payload:
    """Runs a command when unpickled without care."""

    def __init__(self, witness):
        self.witness = witness

    def __reduce__(self):
        return os.system, (f"touch '{self.witness}'",)


@pytest.mark.parametrize("zipped", [True, False], ids=["zip", "legacy"])
def test_an_unsafe_object_is_refused_and_not_run(tmp_path, zipped, capsys):
    path, witness = tmp_path / "evil.pt", tmp_path / "witness"
    state = {"model": {}, "cfg": {}, "extra_state": Payload(witness)}
    torch.save(state, path, _use_new_zipfile_serialization=zipped)
    refused = r"evil\.pt.*safe loading refuses: \w+\.system"
    with pytest.raises(UsageError, match=refused) as caught:
        checkpoint_utils.load_checkpoint_to_cpu(str(path))
    assert caught.value.__cause__ is not None
    assert paradec(["shrink", str(path), str(tmp_path / "small.pt")]) == 2
    assert re.match(f"paradec shrink: error: SOURCE: got .*{refused}", capsys.readouterr().err)
    assert not witness.exists()
    pickle.loads(pickle.dumps(Payload(witness)))  # the payload itself does work
    assert witness.exists()


class Own:
    """A class that a user lets safe loading accept."""


def test_an_object_that_a_user_allows_is_not_what_is_wrong(tmp_path):
    state = torch.load(DEMO / "model.pt", weights_only=True)
    state["cfg"]["model"]["_name"] = "elsewhere"
    torch.save(state | {"extra_state": {"own": Own()}}, tmp_path / "x.pt")
    load = checkpoint_utils.load_model_ensemble_and_task
    with pytest.raises(UsageError, match=rf"safe loading refuses: {__name__}\.Own"):
        load([str(tmp_path / "x.pt")], {"data": str(DEMO)})
    with torch.serialization.safe_globals([Own]):
        with pytest.raises(UsageError, match="architecture 'elsewhere' is not registered"):
            load([str(tmp_path / "x.pt")], {"data": str(DEMO)})


@pytest.mark.parametrize("kind", ["omegaconf", "overlapping"])
def test_what_is_wrong_with_old_and_odd_checkpoints_is_found(kind, tmp_path):
    """1.0.0a0 wrote omegaconf's settings; weights that share memory in part are torch's to read."""
    state = torch.load(DEMO / "model.pt", weights_only=True)
    state["cfg"]["model"]["_name"] = "elsewhere"
    if kind == "omegaconf":
        state["cfg"] = OmegaConf.create(state["cfg"])
    else:
        state["extra_state"] = {"a": state["model"]["decoder.embed_tokens.weight"][1:]}
    torch.save(state, tmp_path / "x.pt")
    with pytest.raises(UsageError, match="architecture 'elsewhere' is not registered"):
        load = checkpoint_utils.load_model_ensemble_and_task
        load([str(tmp_path / "x.pt")], {"data": str(DEMO)})


def foreign(part):
    def change(state):
        state["cfg"][part]["_name"] = "elsewhere"
        return state

    return change


FOREIGN = r"no fairseq checkpoint but a {}.*allowed: .*'model' and 'cfg' \(or 'args'\)"
#: What becomes of what is in a whole file, and what is said of that.
SPOILT = {
    "a list": (lambda state: [1, 2], FOREIGN.format("list")),
    "plain weights": (lambda state: state["model"], FOREIGN.format(r"\w+ with the keys decoder")),
    "no settings": (lambda state: {**state, "cfg": None}, FOREIGN.format("dict with the keys")),
    "no weights": (lambda state: {**state, "model": {}}, r"do not fit.*Missing key.*embed_tokens"),
    "arch": (foreign("model"), r"architecture 'elsewhere' is not registered"),
    "task": (foreign("task"), r"task 'elsewhere' is not registered; allowed"),
}


@pytest.mark.parametrize("kind", SPOILT)
def test_a_spoilt_checkpoint_is_named_with_what_is_wrong(kind, tmp_path):
    (spoil, said), path = SPOILT[kind], tmp_path / "spoilt.pt"
    torch.save(spoil(torch.load(DEMO / "model.pt", weights_only=True)), path)
    with pytest.raises(UsageError, match=r"spoilt\.pt.*" + said) as caught:
        checkpoint_utils.load_model_ensemble_and_task([str(path)], {"data": str(DEMO)})
    assert isinstance(caught.value.__cause__, Exception)


@pytest.mark.parametrize("part", [None, 0, 1000])
def test_no_file_and_a_torn_one_are_told_apart(part, tmp_path):
    path = tmp_path / "spoilt.pt"
    if part is not None:
        path.write_bytes((DEMO / "model.pt").read_bytes()[:part])
    wrong = "does not exist" if part is None else "is truncated or no checkpoint at all"
    with pytest.raises(UsageError, match=f"which {wrong}; allowed: a checkpoint file that fairseq"):
        checkpoint_utils.load_model_ensemble_and_task([str(path)])


def test_meters_and_settings_of_old_checkpoints_are_read(tmp_path, monkeypatch):
    """fairseq 0.6 to 0.8 wrote meters, under another module's name, and 1.0.0a0 omegaconf's."""
    state = torch.load(DEMO / "model.pt", weights_only=True)
    plain = state["cfg"] | {"model": argparse.Namespace(**state["cfg"]["model"])}
    state["cfg"] = OmegaConf.create(plain, flags={"allow_objects": True})
    old = types.ModuleType("fairseq.meters")
    for kind in (meters.AverageMeter, meters.TimeMeter, meters.StopwatchMeter):
        setattr(old, kind.__name__, type(kind.__name__, (kind,), {"__module__": old.__name__}))
    monkeypatch.setitem(sys.modules, old.__name__, old)
    found = {"loss": old.AverageMeter(), "wall": old.TimeMeter(), "gnorm": old.StopwatchMeter()}
    state["extra_state"] = {"train_meters": found}
    torch.save(state, tmp_path / "old.pt")
    monkeypatch.delitem(sys.modules, old.__name__)
    loaded = checkpoint_utils.load_checkpoint_to_cpu(str(tmp_path / "old.pt"))
    assert loaded["extra_state"]["train_meters"]["loss"].avg == found["loss"].avg
    assert paradec(["shrink", str(tmp_path / "old.pt"), str(tmp_path / "small.pt")]) == 0
    small = torch.load(tmp_path / "small.pt", weights_only=True)
    assert small["cfg"]["model"] == vars(plain["model"])


def test_changed_bytes_are_found(tmp_path):
    """torch would load them, and the model would translate to noise."""
    path, data = tmp_path / "spoilt.pt", bytearray((DEMO / "model.pt").read_bytes())
    for at in range(len(data) // 2, len(data) // 2 + 5000):
        data[at] ^= 0x40
    path.write_bytes(data)
    with pytest.raises(UsageError, match=r"spoilt\.pt.*damaged \(the checksum of .*an undamaged"):
        checkpoint_utils.load_model_ensemble_and_task([str(path)], {"data": str(DEMO)})


def test_another_dictionary_is_named_with_both_sizes(tmp_path):
    shutil.copytree(DEMO, tmp_path, dirs_exist_ok=True)
    words = (DEMO / "dict.en.txt").read_text()
    size = words.count("\n") + 4
    (tmp_path / "dict.en.txt").write_text(words + "one_more 1\n")
    said = rf"encoder embeds {size} .*source dictionary \(en\) of DATA '{tmp_path}' has {size + 1}"
    with pytest.raises(UsageError, match=said):
        path = [str(DEMO / "model.pt")]
        checkpoint_utils.load_model_ensemble_and_task(path, {"data": str(tmp_path)})


def train(data, save_dir, updates):
    until = ("--save-dir", save_dir, "--max-update", updates)
    return succeed(fairseq("train", data, *WITH_PLUGIN, *commands.TRAINING, *until))


@pytest.fixture(scope="module")
def micro(tmp_path_factory):
    """A model trained for 20 updates through the plugin, its data, and what was printed."""
    folder = tmp_path_factory.mktemp("micro")
    data = commands.preprocess(folder)
    result = train(data, folder, 20)
    return folder / "checkpoint_last.pt", data, result.stderr + result.stdout


def check_quiet(stderr):
    """Check that nothing of what users can do nothing about stands on stderr."""
    assert "Warning" not in stderr and "DEBUG" not in stderr and "Traceback" not in stderr, stderr


@pytest.mark.slow
def test_generate_gives_every_sentence_and_reports_it(micro, tmp_path):
    path, data, _ = micro
    count = commands.TEST_SENTENCES
    search = ("--path", path, "--max-len-b", 15, "--beam", 2, "--tokenizer", "moses")
    search += ("--num-batch-buckets", 3)  # numpy 2 breaks fairseq's code
    result = succeed(fairseq("generate", data, *WITH_PLUGIN, *search))  # without -s and -t
    assert len(lines_of(result.stdout, "H")) == count
    assert f"| fairseq_cli.generate | Translated {count} sentences" in result.stderr
    assert "Translated" not in result.stdout and " | INFO | " not in result.stdout
    check_quiet(result.stderr)
    into = ("--results-path", tmp_path)
    result = succeed(fairseq("generate", data, *WITH_PLUGIN, *search, *into))
    written = (tmp_path / "generate-test.txt").read_text(encoding="utf-8")
    assert len(lines_of(written, "H")) == count and result.stdout == ""
    for report in (written, result.stderr):
        assert report.count(f"Translated {count} sentences") == 1


@pytest.mark.slow
def test_training_resumes_and_validate_needs_no_task(micro, tmp_path):
    path, data, printed = micro
    check_quiet(printed)
    assert "numpy.ndarray" in pickled_names(path)  # what --eval-bleu leaves there
    (tmp_path / "checkpoint_last.pt").write_bytes(path.read_bytes())
    result = train(data, tmp_path, 24)
    assert "checkpoint_last.pt (epoch" in result.stdout and "@ 20 updates" in result.stdout
    resumed = torch.load(tmp_path / "checkpoint_last.pt", weights_only=True)
    assert resumed["optimizer_history"][-1]["num_updates"] == 24
    result = succeed(fairseq("validate", data, *WITH_PLUGIN, "--path", path, "--batch-size", 5))
    assert "valid on 'valid' subset | loss " in result.stdout + result.stderr
    check_quiet(result.stderr)


def test_the_package_beside_fairseq_is_remembered(tmp_path, monkeypatch):
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


def test_moses_learns_the_languages_from_data(tmp_path):
    def languages(**given):
        args = {"source_lang": None, "target_lang": None, "tokenizer": "moses"}
        args = argparse.Namespace(**args | {"data": str(tmp_path)} | given)
        _fill_languages(args)
        return args.source_lang, args.target_lang

    with pytest.raises(UsageError, match="-s: got None; allowed: a language; --tokenizer moses"):
        languages()
    (tmp_path / "test.en-de.en.bin").touch()
    assert languages() == ("en", "de")
    assert languages(source_lang="cs") == ("cs", "de")
    assert languages(tokenizer=None) == (None, None)
    assert languages(data=str(tmp_path / "absent")) == (None, None)


def test_bf16_is_honoured_where_fairseq_ignores_it():
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
