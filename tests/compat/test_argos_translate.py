"""Argos Translate with our Translator in the place of CTranslate2's: one import differs."""

import importlib
import json
import sys
import types
from pathlib import Path
from typing import Any

import pytest
from support.commands import DEMO

import fairseq_paradec
import fairseq_paradec.compat.ctranslate2 as door
from fairseq_paradec.lab.measure.peers import converted_model

pytestmark = pytest.mark.slow
pytest.importorskip("argostranslate")
#: What splits texts there, and loads models from the network: the test splits its texts itself.
SPLITTERS = ("stanza", "minisbd", "spacy")
#: Between the sentences of a text.
MARK = " | "


@pytest.fixture
def argos(tmp_path: Path, monkeypatch: Any) -> Any:
    """Argos' module that translates, and its package made of the demo's model."""
    for name in ("XDG_DATA_HOME", "XDG_CONFIG_HOME"):
        monkeypatch.setenv(name, str(tmp_path / name))
    for name in SPLITTERS:
        fake: Any = types.ModuleType(name)
        fake.SBDetect, fake.models = None, types.SimpleNamespace()
        monkeypatch.setitem(sys.modules, name, fake)
    model = fairseq_paradec.load(DEMO)
    folder = tmp_path / "package"
    folder.mkdir()
    words = [model.sources.symbols, model.targets.symbols]
    (folder / "model").symlink_to(converted_model(model.core.model, words))
    (folder / "bpe.model").symlink_to(DEMO / "codes.bpe")
    about = {"from_code": "en", "to_code": "de", "from_name": "English", "to_name": "German"}
    about |= {"package_version": "1.0", "argos_version": "1.9"}
    (folder / "metadata.json").write_text(json.dumps(about), "utf-8")
    module = importlib.import_module("argostranslate.translate")
    packages = importlib.import_module("argostranslate.package")

    class Splitter:
        """Sentences as the test marks them."""

        def __init__(self, package: Any) -> None:
            pass

        def split_sentences(self, text: str) -> list[str]:
            """Split at the marks."""
            return text.split(MARK)

    monkeypatch.setattr(module, "MiniSBDSentencizer", Splitter)
    monkeypatch.setattr(module.settings, "compute_type", "float32")
    english, german = module.Language("en", "English"), module.Language("de", "German")
    return module, lambda: module.PackageTranslation(english, german, packages.Package(folder))


@pytest.mark.parametrize("together", [1, 5])
def test_argos_translates_the_same(argos: Any, together: int, monkeypatch: Any) -> None:
    """Single sentences, and texts of five, in beams of 4, with two hypotheses of each."""
    module, package = argos
    lines = (DEMO / "raw/demo.en").read_text("utf-8").splitlines()
    texts = [MARK.join(lines[i : i + together]) for i in range(0, len(lines), together)]
    found = []
    for engine in (module.ctranslate2, door):
        monkeypatch.setattr(module, "ctranslate2", engine)
        translation = package()
        found.append([translation.hypotheses(text, 2) for text in texts])
        assert isinstance(translation.translator, engine.Translator)
    both = list(zip(*found, strict=True))
    same = sum(theirs[0].value == ours[0].value for theirs, ours in both)
    print(f"{same} of {len(texts)} texts of {together} sentences are the same")
    for theirs, ours in both:
        for one, other in zip(theirs, ours, strict=True):
            assert one.value == other.value or abs(one.score - other.score) < 1e-4 * together
            assert one.value != other.value or abs(one.score - other.score) < 1e-3 * together
    assert same >= len(texts) - 1
