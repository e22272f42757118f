"""The packages that the core does without, and the extra of setup.py that brings each.

Modules import such a package where they use it. ``named`` turns its absence into one line, and
every command runs inside it; ``require`` asks before a command begins its work.
"""

import contextlib
import importlib.util
from collections.abc import Iterator

from .errors import UsageError

#: The extra that a user installs, by the name under which a package is imported.
EXTRAS: dict[str, str] = {
    "torch": "torch",
    "fairseq": "fairseq",
    "matplotlib": "lab",
    "networkx": "lab",
    "jinja2": "lab",
    "jsonschema": "lab",
    "sacrebleu": "lab",
    "rouge_score": "lab",
    "nltk": "lab",
    "polib": "train",
    "PIL": "images",
    "skimage": "images",
    "sklearn": "images",
    "ctranslate2": "peers",
    "transformers": "peers",
    "yaml": "import",
    "huggingface_hub": "hub",
    "fastapi": "serve",
    "uvicorn": "serve",
    "prometheus_client": "serve",
    "lingua": "detect",
    "ray": "cluster",
    "pyarrow": "cluster",
}

#: What each extra adds.
ADDS: dict[str, str] = {
    "torch": "decoders in Python of several models",
    "fairseq": "--audit, GPUs, --engine torch, models that native passes do not know, "
    "training, fairseq's commands",
    "lab": "commands that measure and draw, with fairseq; scores and pictures of benchmarks",
    "train": "scores and curves of training, with fairseq; .po files",
    "images": "images as sequences of tokens, with fairseq",
    "peers": "engines to compare with: transformers with fairseq, CTranslate2 without",
    "import": "models of Marian",
    "hub": "models by their names on Hugging Face's hub",
    "text": "nothing more: a name of earlier versions",
    "serve": "translations over HTTP",
    "detect": "the language of a text, in the server",
    "cluster": "corpora on Ray and in parquet",
}

#: What ``paradec serve`` needs.
SERVE = ("fastapi", "uvicorn", "prometheus_client")

#: What the commands that measure and draw need all together; setup.py's ``[lab]`` is these.
LAB = ("matplotlib", "networkx", "jinja2", "jsonschema", "sacrebleu", "rouge_score", "PIL")


@contextlib.contextmanager
def named(what: str = "") -> Iterator[None]:
    """Name the extra of a package that is not installed.

    Args:
        what: the flag or file that needs the package, for the message; without it the command.

    Raises:
        UsageError: the body imports a package of ``EXTRAS``, which is not installed.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package not in EXTRAS:
            raise
        raise lacks(package, what) from error


def require(packages: tuple[str, ...], extra: str) -> None:
    """Check that packages are installed, without importing them.

    Raises:
        UsageError: one is not; the message names it and the extra.
    """
    for package in packages:
        if not is_installed(package):
            raise lacks(package, extra=extra)


def is_installed(package: str) -> bool:
    """Return whether a package can be imported."""
    try:
        return importlib.util.find_spec(package) is not None
    except ValueError:  # None in sys.modules: somebody hides it
        return False


def lacking(extra: str) -> list[str]:
    """Return the packages of an extra that are not installed."""
    return [name for name, own in EXTRAS.items() if own == extra and not is_installed(name)]


def lacks(package: str, what: str = "", extra: str | None = None) -> UsageError:
    """Return the error of a package that is missing.

    Args:
        package: its name.
        what: the flag or file that needs it; empty: the command.
        extra: that brings it; None: that of ``EXTRAS``.
    """
    subject = f"{what} needs" if what else "needs"
    return UsageError(f"{subject} {package}; install fairseq_paradec[{extra or EXTRAS[package]}]")
