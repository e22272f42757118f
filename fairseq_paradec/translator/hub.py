"""Models by their names on Hugging Face's hub: fetched, imported into the user's cache, and kept.

huggingface_hub downloads, by its own cache, tokens and settings: ``HF_HOME``, ``HF_TOKEN``,
``HF_ENDPOINT``, ``HF_HUB_OFFLINE``. Once a model is imported, nothing asks the hub again.
"""

import contextlib
import hashlib
import logging
import os
import re
import shutil
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

from ..engine.native.library import user_folder
from ..errors import UsageError, needs, option_error
from ..extras import named
from ..files import checksum, replacing
from . import model_folder

logger = logging.getLogger(__name__)

#: OWNER/NAME, as the hub allows it, and perhaps @REVISION.
_NAME = re.compile(r"([A-Za-z0-9][A-Za-z0-9._-]{0,95}/[A-Za-z0-9][A-Za-z0-9._-]{0,95})(@.*)?")
#: A branch, tag or commit; without one it is the branch that the hub begins with.
_REVISION, _MAIN = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*(/[A-Za-z0-9][A-Za-z0-9._-]*)*"), "main"
_COMMIT = re.compile(r"[0-9a-f]{40}")
#: So much of a commit names a folder of the cache.
_DIGITS = 12
#: Of a model's files, those that importers read, but weights.
_READ = re.compile(
    r"(generation_|tokenizer_)?config\.json|tokenizer\.json|(special_tokens_map|added_tokens)\.json"
    r"|((target_)?vocab|(shared|source|target)_vocabulary)\.(json|txt)"
    r"|(source|target)\.spm|(sentencepiece(\.bpe)?|spm|spiece)\.model"
)
#: Weights of CTranslate2.
_CTRANSLATE2 = "model.bin"
#: What fetching fails with, beside errors of the package.
_FAILURES = (OSError, ValueError, RuntimeError)
#: Hexadecimal digits of a SHA-256.
_SHA256 = 64
#: Bytes of config.json at most.
_CONFIG = 1 << 20


def is_name(given: str) -> bool:
    """Return whether a text is a name on the hub, perhaps @REVISION, and not a path that is there.

    What follows ``@`` may be no revision; ``folder_of`` and ``fetch`` refuse it.
    """
    parts = _NAME.fullmatch(given)
    fits = parts is not None and not any(two in parts[1] for two in ("..", "--"))
    return fits and not os.path.lexists(given)


def _parted(given: str, flag: str) -> tuple[str, str]:
    """Return the name and the revision of NAME or NAME@REVISION.

    Raises:
        UsageError: it is no revision.
    """
    name, _, revision = given.partition("@")
    revision = revision if "@" in given else _MAIN
    if _REVISION.fullmatch(revision) is None or ".." in revision or len(revision) > 100:
        raise option_error(flag, given, "NAME@REVISION with a branch, tag or commit of the model")
    return name, revision


def folder_of(
    given: str | os.PathLike[str],
    source: str | None = None,
    target: str | None = None,
    flag: str = "--model",
) -> Path:
    """Return a model folder: a path, or the one that is made of a model of the hub.

    Args:
        given: the path, or the name, perhaps @REVISION.
        source: the source language of a model that is fetched; None: what its files say.
        target: its target language.
        flag: what takes it, for errors.

    Raises:
        UsageError: there is no such model, it cannot be fetched or imported, or a language is
            given beside a path.
    """
    text = os.fspath(given)
    if not is_name(text):
        for name, language in (("--source", source), ("--target", target)):
            if language is not None:
                raise needs(name, language, f"{flag} with a model's name on the hub; got {text}")
        return Path(text)
    known = _known(text, flag)
    if known is not None and _is_made(place := _place(text, known.name, source, target, flag)):
        return place
    _place(text, "", source, target, flag)  # a wrong language is refused before the download
    # What was fetched is of the same commit for each pair of languages and each version of ours.
    fetched = known if known is not None and known.is_dir() else fetch(text, flag)
    place = _place(text, fetched.name, source, target, flag)
    if not _is_made(place):
        if sys.stderr.isatty():
            print(f"importing {text} ...", file=sys.stderr)
        try:
            with model_folder.new_folder(place, f"{flag} {text}") as folder:
                _make(folder, fetched, source, target)
        except UsageError:
            if not _is_made(place):  # else another process was faster
                raise
        logger.info("%s: imported into %s", text, place)
    return place


def _is_made(place: Path) -> bool:
    """Return whether a folder of the cache is there."""
    return (place / model_folder.NAME).is_file()


def _cache(given: str, flag: str) -> Path:
    """Return the folder of the cache.

    Raises:
        UsageError: there is none.
    """
    models = user_folder("models")
    if models is None:
        raise option_error(flag, given, "a model folder: there is no home for a cache")
    return models


def _record(given: str, flag: str) -> Path:
    """Return the file that says which commit was fetched of a model's revision, and where to."""
    name, revision = _parted(given, flag)
    stem = f"{name.replace('/', '--')}@{quote(revision, safe='')}"
    return _cache(given, flag) / f"{stem}.fetched"


def _known(given: str, flag: str) -> Path | None:
    """Return huggingface_hub's folder of what was fetched of a model; it may be gone. None: none.

    Its name is the commit.
    """
    try:
        kept = Path(_record(given, flag).read_text(encoding="utf-8").strip())
    except (OSError, ValueError):
        return None
    return kept if _COMMIT.fullmatch(kept.name) else None


def _place(given: str, commit: str, source: str | None, target: str | None, flag: str) -> Path:
    """Return where an imported model is kept, by its commit and by how this version imports.

    Raises:
        UsageError: there is no cache folder, or a language is no word.
    """
    from .importing import VERSION

    name, _ = _parted(given, flag)
    languages = []
    for side, language in (("--source", source), ("--target", target)):
        if language is not None and re.fullmatch(r"[A-Za-z0-9_-]+", language) is None:
            raise option_error(side, language, "a language's name, such as en or eng_Latn")
        languages.append(language or "")
    pair = f"@{'-'.join(languages)}" if any(languages) else ""
    own = f"{name.replace('/', '--')}{pair}@{commit[:_DIGITS]}@{VERSION}"
    return _cache(given, flag) / own


def _make(folder: Path, fetched: Path, source: str | None, target: str | None) -> None:
    """Fill a model folder by what was fetched: one that is ready, or another toolkit's model."""
    if (fetched / model_folder.NAME).is_file():
        for name in model_folder.read(fetched).files:
            try:
                os.link((fetched / name).resolve(), folder / name)
            except OSError:  # another file system, or one without links
                shutil.copyfile(fetched / name, folder / name)
        shutil.copyfile(fetched / model_folder.NAME, folder / model_folder.NAME)  # users change it
        return
    from .importing.opening import format_of, import_into

    for line in import_into(folder, format_of(fetched), fetched, (source, target)).notes:
        logger.info("%s", line)


def fetch(given: str, flag: str) -> Path:
    """Fetch the files of a model that importers read; return the folder that they are in.

    Files that are there are not fetched again. A bar shows the progress in a terminal. The cache
    then knows which commit it is.

    Args:
        given: the name on the hub, perhaps @REVISION.
        flag: what takes it, for errors.

    Raises:
        UsageError: there is no such model, it is of a kind that is not known, or it cannot be
            fetched.
    """
    name, revision = _parted(given, flag)
    with named(f"{flag} {given}"):
        import huggingface_hub
    from huggingface_hub.utils import are_progress_bars_disabled, disable_progress_bars

    if not sys.stderr.isatty() and not are_progress_bars_disabled():
        disable_progress_bars()
    hashes: dict[str, str] = {}  # that the hub states
    with _problems(given, flag):
        try:
            about = huggingface_hub.HfApi().model_info(
                name,
                revision=revision,
                files_metadata=True,
                timeout=huggingface_hub.constants.HF_HUB_ETAG_TIMEOUT,
            )
        except (OSError, huggingface_hub.errors.HTTPError) as error:
            if _status(error) is not None or getattr(error, "filename", None) is not None:
                raise
            # The hub cannot be reached. The model may have been fetched before.
            kept = Path(
                huggingface_hub.snapshot_download(name, revision=revision, local_files_only=True)
            )
            files = sorted(path.name for path in kept.iterdir())

            def place_of(file: str, commit: str) -> Path:
                return kept / file

        else:
            siblings = about.siblings or []
            files = [file.rfilename for file in siblings]
            hashes = {file.rfilename: _stated_hash(file) for file in siblings}

            def place_of(file: str, commit: str) -> Path:
                return Path(huggingface_hub.hf_hub_download(name, file, revision=commit))

        def get(file: str, commit: str) -> Path:
            place = place_of(file, commit)
            _check_content(place, hashes.get(file, ""), f"{flag} {given}")
            return place

        first, *others = _wanted(given, flag, files)
        place = get(first, revision)
        if first == model_folder.NAME:
            _check_small(place, given, flag)
            own = model_folder.described(place, flag)[0].files
            others = [file for file in dict.fromkeys(own) if file in files]
        elif _CTRANSLATE2 not in files:
            _check_kind(place, given, flag)
        commit = place.parent.name  # the others are of the same
        for file in others:
            got = get(file, commit)
            if file.endswith(".index.json"):
                for part in _parts(got, files):
                    get(part, commit)
    with contextlib.suppress(OSError):  # a cache that cannot be written
        record = _record(given, flag)
        record.parent.mkdir(parents=True, exist_ok=True)
        with replacing(record, shared=True) as partial:
            partial.write_text(str(place.parent), encoding="utf-8")
    return place.parent


def _stated_hash(about: Any) -> str:
    """Return the hash that the hub states of a file: SHA-256 in LFS, else git's SHA-1, or none."""
    return str(about.lfs.sha256 if about.lfs else about.blob_id or "")


def _check_content(file: Path, stated: str, what: str) -> None:
    """Refuse a file that is not the hub's, and remove it, so that it is fetched anew.

    Args:
        file: in huggingface_hub's cache, where a link leads to a file that is named by its hash.
        stated: its hash, as the hub states it; empty: as its link says.
        what: the model, for errors.

    Raises:
        UsageError: the file has another hash.
    """
    if not stated and file.is_symlink():
        stated = file.readlink().name
    digest = checksum(file) if len(stated) == _SHA256 else _git_hash(file)
    if digest == stated or re.fullmatch(r"[0-9a-f]{40}|[0-9a-f]{64}", stated) is None:
        return
    with contextlib.suppress(OSError):  # a cache that cannot be written
        for path in (file.resolve(), file):
            path.unlink(missing_ok=True)
    allowed = "the file as the hub has it; it is fetched anew the next time"
    raise option_error(f"{what}: {file.name}", "a damaged file", allowed)


def _git_hash(file: Path) -> str:
    """Return the SHA-1 by which git knows a file's content."""
    digest = hashlib.sha1(b"blob %d\0" % file.stat().st_size, usedforsecurity=False)
    with file.open("rb") as stream:
        while block := stream.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def _wanted(name: str, flag: str, files: Sequence[str]) -> list[str]:
    """Return which of a model's files are needed, config.json first and weights last.

    Raises:
        UsageError: there are none that an importer reads.
    """
    if model_folder.NAME in files:
        return [model_folder.NAME]  # which names the others
    from .importing.files import WEIGHTS

    weights = next((file for file in WEIGHTS if file in files), None)
    if weights is None and _CTRANSLATE2 in files:
        weights = _CTRANSLATE2
    if weights is None or "config.json" not in files:
        allowed = f"a model with config.json and one of {', '.join(WEIGHTS)}, {_CTRANSLATE2}"
        raise option_error(flag, name, allowed)
    read = sorted(file for file in files if _READ.fullmatch(file) and file != "config.json")
    return ["config.json", *read, weights]


def _check_kind(file: Path, name: str, flag: str) -> None:
    """Refuse a model of a kind that is not imported, before its weights are fetched."""
    from .importing import hugging_face, t5
    from .importing.files import read_json

    _check_small(file, name, flag)
    kind = read_json(file).get("model_type")
    families = (*hugging_face.FAMILIES, *t5.FAMILIES)
    if kind not in families:
        allowed = f"a model whose config.json has the model_type {', '.join(families)}"
        raise option_error(f"{flag} {name}: model_type", kind, allowed)


def _check_small(file: Path, name: str, flag: str) -> None:
    """Refuse a description that is larger than any."""
    if file.stat().st_size > _CONFIG:
        raise option_error(flag, name, f"a model whose {file.name} is small")


def _parts(index: Path, files: Sequence[str]) -> list[str]:
    """Return the files that an index of weights names, of those that there are."""
    from .importing.files import known_form, read_json

    with known_form(index, "a weight_map: the file of each weight"):
        named = {*read_json(index)["weight_map"].values()}
    return sorted(file for file in files if file in named and "/" not in file)


def _status(error: BaseException) -> int | None:
    """Return the status of a server's answer, if there was one."""
    return getattr(getattr(error, "response", None), "status_code", None)


@contextlib.contextmanager
def _problems(name: str, flag: str) -> Iterator[None]:
    """Say in one line why a model cannot be fetched."""
    from huggingface_hub import errors

    try:
        yield
    except UsageError:
        raise
    except errors.GatedRepoError as error:
        allowed = "a model that you may read: accept its terms on its page, and give HF_TOKEN"
        raise option_error(flag, name, allowed) from error
    except errors.RevisionNotFoundError as error:
        allowed = "NAME@REVISION with a branch, tag or commit of the model; there is no such one"
        raise option_error(flag, name, allowed) from error
    except (errors.RepositoryNotFoundError, errors.HFValidationError) as error:
        allowed = "a model folder, or the name of a model on the hub; there is neither"
        if _status(error) in (401, 403):
            allowed += ", or HF_TOKEN is wanted"
        raise option_error(flag, name, allowed) from error
    except errors.LocalEntryNotFoundError as error:
        allowed = "a model folder, or a model's name where the hub can be reached; it cannot, and "
        raise option_error(flag, name, f"{allowed}the model was not fetched before") from error
    except (*_FAILURES, errors.HTTPError, errors.EntryNotFoundError) as error:
        why = " ".join(str(error).split())[:200] or type(error).__name__
        raise option_error(flag, name, f"a model that can be fetched ({why})") from error
