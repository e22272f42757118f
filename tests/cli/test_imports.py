"""What an import, and a first translation, load: not what nobody calls."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from support import commands
from support.commands import DEMO, ROOT, run_python, succeed

from fairseq_paradec.cli.main import COMMANDS, NEEDS
from fairseq_paradec.extras import EXTRAS

#: What takes time to load, and translates nothing.
HEAVY = {
    "IPython",
    "PIL",
    "jsonschema",
    "matplotlib",
    "networkx",
    "nltk",
    "pandas",
    "pyarrow",
    "ray",
    "rouge_score",
    "scipy",
    "sentencepiece",
    "skimage",
    "sklearn",
    "torchaudio",
    "transformers",
}


def python(code: str, *args: object) -> str:
    """The last line of what a new process prints, which has imported nothing before."""
    done = subprocess.run(
        [sys.executable, "-P", "-c", f"import json, sys\n{code}", *map(str, args)],
        cwd=ROOT,
        env=commands.environment({"PYTHONPATH": str(ROOT)}),
        capture_output=True,
        text=True,
        timeout=commands.LONGEST,
    )
    return commands.succeed(done).stdout.splitlines()[-1]


@pytest.fixture(scope="module")
def first() -> dict[str, list[str]]:
    """What an import and a first translation load, and of which addresses it asks the network."""
    code = """
import fairseq_paradec
imported = sorted({name.partition(".")[0] for name in sys.modules})
asked = []
sys.addaudithook(lambda event, args: asked.append(f"{event} {args}")
    if event in ("socket.connect", "socket.sendto", "socket.getaddrinfo") else None)
sys.argv[0] = "paradec"
from fairseq_paradec.cli.main import main
assert main(sys.argv[1:]) == 0
loaded = sorted({name.partition(".")[0] for name in sys.modules})
print(json.dumps({"imported": imported, "loaded": loaded, "asked": asked}))"""
    words = ("translate", "--model", DEMO, "--text", "A dog runs.")
    found: dict[str, list[str]] = json.loads(python(code, *words))
    return found


def test_a_first_translation_loads_nothing_that_it_does_not_need(
    first: dict[str, list[str]],
) -> None:
    loaded = set(first["loaded"])
    assert {"numpy", "sacremoses"} <= loaded and not loaded & {"fairseq", "torch", *HEAVY}


def test_a_model_folder_loads_without_network(first: dict[str, list[str]]) -> None:
    assert first["asked"] == []


def test_an_import_loads_nothing_that_it_does_not_need(first: dict[str, list[str]]) -> None:
    assert not set(first["imported"]) & {"fairseq", "torch", "numpy", *HEAVY}


#: Whether fairseq's task is the plugin's; criterions and images are registered last.
REGISTERED = """
from fairseq.tasks import TASK_REGISTRY
from fairseq.criterions import CRITERION_REGISTRY
print(json.dumps([TASK_REGISTRY["translation"].__module__,
                  "image_super_resolution" in TASK_REGISTRY, "blockwise_loss" in CRITERION_REGISTRY,
                  sum(type(finder).__name__ == "_Finder" for finder in sys.meta_path)]))"""


def is_registered(*lines: str) -> bool:
    """Whether the plugin is whole after these lines, in a new process."""
    module, *registered, waiting = json.loads(python("\n".join([*lines, REGISTERED]), DEMO))
    return registered == [True, True] and waiting == 0 and module.startswith("fairseq_paradec.")


#: Who comes first.
ORDERS = {
    "fairseq": ["import fairseq.tasks", "import fairseq_paradec"],
    "the package": ["import fairseq_paradec", "import fairseq"],
    "a part of fairseq": ["import fairseq_paradec", "from fairseq.data import Dictionary"],
    "a user dir": [
        "import fairseq_paradec",
        "from argparse import Namespace",
        "from fairseq.utils import import_user_module",
        "import_user_module(Namespace(user_dir='fairseq_paradec'))",
    ],
    "a plugin module": ["import fairseq_paradec.plugin.tasks.batches"],
    "a public name": ["from fairseq_paradec import Decoder"],
    "a module of the core": ["import fairseq_paradec.methods.base"],
    "the Translator": ["from fairseq_paradec.translator.translator import Translator"],
    "a task": ["import fairseq_paradec.images.super_resolution"],
    "a model": ["import fairseq_paradec.images.image_transformer"],
    "a criterion": ["import fairseq_paradec.training.criterions.projected_cross_entropy"],
    "a command": ["import fairseq_paradec.lab.measure.systems"],
    "somebody who looks": [
        "import fairseq_paradec, importlib.util",
        "spec = importlib.util.find_spec('fairseq')",
        "assert 'fairseq' not in sys.modules and spec.origin.endswith('__init__.py')",
        "import fairseq",
        "assert fairseq.__spec__.loader is fairseq.__loader__",
        "assert fairseq.__loader__.get_filename('fairseq') == spec.origin",
    ],
}
SLOW = {"a part of fairseq", "a model", "a criterion", "a command", "a module of the core"}


@pytest.mark.parametrize(
    "first", [pytest.param(name, marks=[pytest.mark.slow] * (name in SLOW)) for name in ORDERS]
)
def test_the_plugin_is_registered_whoever_comes_first(first: str) -> None:
    assert is_registered(*ORDERS[first])


def test_a_fairseq_that_breaks_is_seen_again() -> None:
    code = """
import fairseq_paradec
sys.modules["fairseq.distributed"] = None
try:
    import fairseq
except ImportError:
    del sys.modules["fairseq.distributed"]
assert "fairseq" not in sys.modules"""
    assert is_registered(code)


def test_threads_that_import_at_once_have_a_whole_plugin() -> None:
    code = """
import threading, fairseq_paradec
WORDS = ["import fairseq", "fairseq_paradec.register()"]
done, barrier = [], threading.Barrier(2 * len(WORDS))
def work(words):
    barrier.wait()
    exec(words)
    from fairseq.tasks import TASK_REGISTRY
    assert TASK_REGISTRY["translation"].__module__.startswith("fairseq_paradec")
    done.append(words)
threads = [threading.Thread(target=work, args=(words,)) for words in 2 * WORDS]
for thread in threads: thread.start()
for thread in threads: thread.join()
assert len(done) == len(threads), set(WORDS) - set(done)"""
    assert is_registered(code)


@pytest.mark.parametrize("start", ["fork", pytest.param("spawn", marks=pytest.mark.slow)])
def test_a_new_process_has_its_own_plugin(start: str, tmp_path: Path) -> None:
    """A Translator crosses to it by its folder."""
    file = tmp_path / "work.py"
    file.write_text(
        """
import multiprocessing, sys
def work(made):
    from fairseq.tasks import TASK_REGISTRY
    assert TASK_REGISTRY["translation"].__module__.startswith("fairseq_paradec")
    return made.translate(["A dog runs."], decoding="greedy")
if __name__ == "__main__":
    import fairseq_paradec
    multiprocessing.set_start_method(sys.argv[1])
    if sys.argv[1] == "fork":
        import pickle
        made = pickle.dumps(fairseq_paradec.load(sys.argv[2]))
        with multiprocessing.Pool(1) as pool:
            there = pool.apply(work, (pickle.loads(made),))
    else:
        made = fairseq_paradec.load(sys.argv[2])
        with multiprocessing.Pool(1) as pool:
            there = pool.apply(work, (made,))
    assert there == work(fairseq_paradec.load(sys.argv[2])), there
"""
    )
    words = [sys.executable, str(file), start, str(DEMO)]
    env = commands.environment({"PYTHONPATH": str(ROOT)})
    succeed(subprocess.run(words, env=env, capture_output=True, text=True, timeout=120))


@pytest.mark.parametrize("words", [["--help"], ["--version"], ["doctor", "--help"]])
def test_what_tells_of_the_program_needs_neither_torch_nor_fairseq(words: list[str]) -> None:
    code = f"""
sys.modules["torch"] = sys.modules["fairseq"] = None
from fairseq_paradec.cli.main import main
try:
    status = main({words})
except SystemExit as ended:
    status = ended.code
print(json.dumps(status))"""
    assert json.loads(python(code)) == 0


def test_without_fairseq_one_line_names_the_extra() -> None:
    code = f"""
sys.modules["fairseq"] = None
from fairseq_paradec.errors import UsageError
import fairseq_paradec
try:
    fairseq_paradec.register()
except UsageError as error:
    assert str(error) == "needs fairseq; install fairseq_paradec[fairseq]", error
model = fairseq_paradec.load({str(DEMO)!r})
try:
    model.translate(["A dog."], decoding="beam", match_source_len=True)
except UsageError as error:
    said = "--decoding beam --match-source-len needs fairseq; install fairseq_paradec[fairseq]"
    assert str(error) == said, error
print(*model.translate(["A dog runs."]))"""
    assert python(code) == "Ein Hund rennt."


def test_fairseqs_scores_still_come_from_scikit_learn_and_scipy() -> None:
    code = """
import fairseq_paradec
from fairseq.criterions.sentence_prediction import acc_and_f1, matthews_corrcoef
from fairseq.criterions.sentence_prediction import pearson_and_spearman
from fairseq.tasks.audio_classification import sklearn_metrics
import numpy, sklearn.metrics, scipy.stats, scipy.sparse
assert callable(sklearn.metrics.roc_curve) and sklearn.metrics.__file__ and sklearn.__version__
a, b = numpy.array([1, 0, 1, 1, 0]), numpy.array([1, 0, 0, 1, 1])
curve = [list(map(float, x)) for x in sklearn_metrics.roc_curve(a, b * 0.5)]
print(json.dumps([acc_and_f1(a, b)["f1"], matthews_corrcoef(a, b),
                  pearson_and_spearman(a, b)["pearson"], curve[0]]))"""
    f1, matthews, pearson, rates = json.loads(python(code))
    # By hand: 2 hits, 1 miss, 1 false alarm, 1 correct rejection.
    assert abs(f1 - 4 / 6) < 1e-12 and abs(matthews - 1 / 6) < 1e-12
    assert abs(pearson - 1 / 6) < 1e-12 and rates == [0.0, 0.5, 1.0]


def test_fairseqs_configurations_are_there_for_who_looks() -> None:
    code = """
import gc
import fairseq_paradec, fairseq
from hydra.core.config_store import ConfigStore
store = ConfigStore.instance()
early = [len(store.repo), len(store.waiting) > 100, gc.isenabled()]
names = store.list("model")
node = store.load("model/wav2vec2.yaml").node
print(json.dumps([early, names, node._name, len(store.waiting), store.list("")]))"""
    early, names, name, waiting, groups = json.loads(python(code))
    # Hydra's own configurations are there before fairseq's.
    assert early[1:] == [True, True] and waiting == 0 and name == "wav2vec2"
    assert {"wav2vec2.yaml", "transformer_lm.yaml"} <= set(names)
    assert {"model", "task", "criterion", "lr_scheduler", "optimizer"} <= set(groups)


def test_an_import_needs_no_shared_memory() -> None:
    """In some containers nobody may write to /dev/shm, where Python's locks of processes are."""
    code = """
import _multiprocessing
def refuse(*args): raise PermissionError(13, "Permission denied")
_multiprocessing.SemLock = type("SemLock", (), {"__new__": refuse, "_rebuild": None,
                                                "SEM_VALUE_MAX": 9})
import fairseq_paradec, fairseq, sys
assert "fairseq.pdb" not in sys.modules
"""
    succeed(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True))


def test_the_second_import_of_fairseq_changes_nothing() -> None:
    code = """
import json, sys
sys.path.insert(0, sys.argv[1])
import fairseq.criterions.sentence_prediction as s
before = s.f1_score
import fairseq_paradec
print(json.dumps(s.f1_score is before and s.f1_score.__module__.startswith("sklearn")))"""
    assert json.loads(succeed(run_python(code, ROOT)).stdout)


@pytest.mark.slow
def test_what_the_extras_bring_can_be_imported() -> None:
    """Also the parts that users of [peers], [import] and [cluster] ask for by name."""
    names = [name for name, extra in EXTRAS.items() if extra in ("peers", "import", "cluster")]
    assert {"transformers", "ctranslate2", "yaml", "ray"} <= {*names}
    lines = [f"import {name}" for name in names]
    lines += [
        "from transformers import MarianMTModel, M2M100ForConditionalGeneration",
        "from transformers import MBartForConditionalGeneration, GenerationConfig",
        "from transformers import AutoModelForSeq2SeqLM, AutoTokenizer, MarianTokenizer",
        "from pyarrow import parquet",
        "print('all')",
    ]
    assert succeed(run_python("\n".join(lines))).stdout.endswith("all\n")


def test_every_help_needs_the_core_alone_and_names_the_extra_that_is_missing() -> None:
    """Without torch, fairseq, and the packages of all extras."""
    code = f"""
import contextlib, io
for package in {[*EXTRAS]}:
    sys.modules[package] = None
from fairseq_paradec.cli.main import COMMANDS, main
said = {{}}
for words in ([], *([name] for name in COMMANDS)):
    with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.suppress(SystemExit):
        assert main([*words, "--help"]) in (0, None)
    said[" ".join(words)] = out.getvalue()
print(json.dumps(said))"""
    said = json.loads(python(code))
    for name in COMMANDS:
        packages, extra = NEEDS.get(name, ((), ""))
        assert said[name].startswith(("usage: ", "paradec ")), name
        note = said[name].partition("\nexit status: ")[2].partition("needs fairseq_paradec")[2]
        found = " ".join(note.split())
        wanted = f"[{extra}]; not installed here: {', '.join(packages)}" if packages else ""
        assert found == wanted, name
    assert "not installed here: fairseq_paradec[serve], for serve\n" in said[""]
    assert "for profile, trace, analyse, report,\npapers, images\n" in said[""]
