"""What an import, and a first translation, load: not what nobody calls."""

import json
import subprocess
import sys

import pytest
from support import commands
from support.commands import DEMO, ROOT, run_python, succeed

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
    assert {"fairseq", "torch", "sacremoses"} <= loaded and not loaded & HEAVY


def test_a_model_folder_loads_without_network(first: dict[str, list[str]]) -> None:
    assert first["asked"] == []


def test_an_import_loads_nothing_that_it_does_not_need(first: dict[str, list[str]]) -> None:
    loaded = set(first["imported"])
    assert {"fairseq", "torch"} <= loaded and not loaded & HEAVY


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
import fairseq_paradec
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
import fairseq_paradec, sys
assert "fairseq" in sys.modules and "fairseq.pdb" not in sys.modules
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
    assert {"transformers", "ctranslate2", "sentencepiece", "ray"} <= {*names}
    lines = [f"import {name}" for name in names]
    lines += [
        "from transformers import MarianMTModel, M2M100ForConditionalGeneration",
        "from transformers import MBartForConditionalGeneration, GenerationConfig",
        "from transformers import AutoModelForSeq2SeqLM, AutoTokenizer, MarianTokenizer",
        "from pyarrow import parquet",
        "print('all')",
    ]
    assert succeed(run_python("\n".join(lines))).stdout.endswith("all\n")
