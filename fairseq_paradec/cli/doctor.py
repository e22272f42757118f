"""Tell what a checkpoint is, which decoders fit it, what they lack, and how to get that.

Of a model folder it also tells what decodes it on this machine, and translates a sentence. Each
decoder is built for the model, so that a refusal is that of paradec translate. What native passes
know is read without torch and fairseq; fairseq loads the rest, where it is installed.
"""

import argparse
import math
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import chain
from pathlib import Path
from shlex import quote
from typing import Any, NamedTuple

from .. import extras
from ..config import ALL, DecodingConfig, flag
from ..errors import UsageError, excludes, needs, option_error
from ..files import check_inputs, language_pair
from ..model_facts import class_of
from ..registry import BLOCK_NAT, HEADS, METHODS, TRANSFORMER, check_models, own_decoding
from . import arguments

#: The recipe of each kind of drafter.
RECIPES = {
    BLOCK_NAT: (
        "scripts/train_drafter.sh {data} --kind block --fast --verifier {path} --save-dir DIR"
    ),
    TRANSFORMER: "scripts/train_drafter.sh {data} --verifier {path} --save-dir DIR",
    HEADS: "scripts/train_blockwise.sh {data} --base {path} --save-dir DIR",
}

#: The same for a model folder, which holds no data.
_TRAIN = "paradec train-drafter --model {data} --text FILE"
FOLDER_RECIPES = {
    BLOCK_NAT: f"{_TRAIN} --kind block",
    TRANSFORMER: _TRAIN,
    HEADS: RECIPES[HEADS].replace("{data}", "DATA"),
}

#: Names of weights of older versions; fairseq renames them as it loads.
OLD_NAMES = r"in_proj_weight|layer_norms|embed_out"


#: What is translated, unless --text says otherwise.
TEXT = "A dog runs."


class Patient(NamedTuple):
    """A model, and who reads it."""

    models: Sequence[Any]  # one: a ``Model``, or a module that fairseq has loaded
    build: Callable[[DecodingConfig], object]  # builds a decoder
    words: Mapping[str, int]  # the size of each vocabulary, by language
    content: Any  # of its file
    is_core: bool  # whether native passes know it, without torch and fairseq


def declare(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.set_defaults(plugin=False)
    parser.epilog = "example: paradec doctor data-bin/demo.en-de"
    parser.usage = "%(prog)s MODEL DATA [--drafter-path FILE], or %(prog)s DIR"
    add = parser.add_argument
    add("model", metavar="MODEL|DIR", help=f"a checkpoint, or {arguments.MODEL}")
    add("data", metavar="DATA", nargs="?", type=Path, help="the data folder of a checkpoint")
    arguments.declare_languages(parser)
    add("--drafter-path", type=Path, help="a drafter or heads (default: the model folder's)")
    add(
        "--text",
        type=arguments.utf8,
        default=TEXT,
        help=f"a sentence that a model folder translates (default: {TEXT})",
    )


def run(args: argparse.Namespace) -> int:
    """Print the report."""
    from ..translator.hub import folder_of
    from ..translator.translator import Translator
    from .version import engine_of_here

    with arguments.quiet():
        languages = args.source_language, args.target_language
        if args.data:
            args.model = Path(args.model)
            for name, language in zip(("--source", "--target"), languages, strict=True):
                if language is not None:
                    raise excludes(name, language, "DATA")
        else:
            args.model = folder_of(args.model, *languages, flag="MODEL")
        if args.data is None:
            if not args.model.exists():
                raise option_error("MODEL", str(args.model), "a checkpoint; there is none")
            if not args.model.is_dir():
                raise needs("MODEL", str(args.model), "DATA, the data folder of the checkpoint")
            translator = Translator(args.model, flag="DIR")
            data, path = args.model, args.model / translator.folder.model
            patient, own = of_folder(translator, path), translator.folder.drafter
            recipes, here = FOLDER_RECIPES, in_use(translator, args.text)
            drafter = args.drafter_path or (data / own if own else None)
            decode = "paradec translate --model {data}"
        else:
            path, data, drafter = args.model, args.data, args.drafter_path
            recipes, here = RECIPES, iter(())
            check_inputs(str(data), str(path))
            patient = of_checkpoint(path, data)
            decode = "fairseq-generate {data} --user-dir fairseq_paradec --path {path}"
        engine = engine_of_here().items()
        for name, text in chain(
            about_file(path, patient.content), about_model(patient), engine, here
        ):
            print(f"{name:14}{text}")
        print("\n--decoding")
        names = {"data": quote(str(data)), "path": quote(str(path))}
        recipes = {kind: text.format(**names) for kind, text in recipes.items()}
        for name, text in decoders(patient, drafter, recipes):
            print(f"  {name:18}{text}")
        print("\nfairseq_paradec[EXTRA]")
        for name, text in installed():
            print(f"  {name:18}{text}")
        given = f" --drafter-path {quote(str(args.drafter_path))}" if args.drafter_path else ""
        print(f"\n{decode.format(**names)} --decoding NAME{given}")
        if args.data is not None:
            pack = "paradec pack {data} OUT --path {path}".format(**names)
            print(f"{pack}    for plain text, with its BPE's flags")
    return 0


# ---- who reads the model -------------------------------------------------------------------------


def of_folder(translator: Any, path: Path) -> Patient:
    """Return what a translator has loaded; ``path``: its model's file."""
    if translator.core is None:
        return of_fairseq(translator.models, translator.task, path)
    pair = translator.folder.source, translator.folder.target
    return of_core(translator.core, pair, path, lambda: (translator.models, translator.task))


def of_checkpoint(path: Path, data: Path) -> Patient:
    """Read a checkpoint with the dictionaries of its data.

    Raises:
        UsageError: it is damaged, or of a model that needs fairseq, which is not installed.
    """
    from ..model.checkpoint import languages
    from ..model.dictionary import Dictionary
    from ..translator.loading import core_of

    def load() -> tuple[list[Any], Any]:
        from ..plugin.tasks.loading import load

        return load(str(data), str(path))

    try:
        trained, named = languages(content_of(path)), language_pair(str(data))
    except (UsageError, OSError):
        if not extras.is_installed("fairseq"):
            raise
        return of_fairseq(*load(), path)
    source, target = trained[0] or named[0], trained[1] or named[1]
    if source is None or target is None:
        allowed = "a folder whose files name its languages, as test.en-de.en.bin does"
        raise option_error("DATA", str(data), allowed)
    for language in (source, target):
        if not (data / f"dict.{language}.txt").is_file():
            allowed = f"a folder with dict.{language}.txt, a dictionary"
            raise option_error("DATA", str(data), allowed)
    words = (
        Dictionary.read(data / f"dict.{source}.txt"),
        Dictionary.read(data / f"dict.{target}.txt"),
    )
    core = core_of(path, words, (source, target))
    return of_fairseq(*load(), path) if core is None else of_core(core, core.pair, path, load)


def of_core(
    core: Any,
    pair: tuple[str, str],
    path: Path,
    load: Callable[[], tuple[Sequence[Any], Any]],
) -> Patient:
    """Return a model that native passes know.

    Args:
        core: the model.
        pair: its languages.
        path: its file.
        load: has fairseq load it, for a drafter that native passes do not know.
    """

    def build(config: DecodingConfig) -> object:
        native = core.config_of(config)
        if isinstance(native, DecodingConfig):
            return core.build(native)
        models, task = load()
        return task.build_decoder(models, config)

    words = {name: len(own) for name, own in zip(pair, core.words, strict=True)}
    return Patient([core.model], build, words, content_of(path), True)


def of_fairseq(models: Sequence[Any], task: Any, path: Path) -> Patient:
    """Return a model that fairseq has loaded, with its task."""
    from ..plugin.files import read_checkpoint

    pair = (task.cfg.source_lang, task.source_dictionary), (task.cfg.target_lang, task.tgt_dict)
    words = {name: len(own) for name, own in pair}
    build = partial(task.build_decoder, models)
    return Patient(models, build, words, read_checkpoint(str(path)), False)


def content_of(path: Path) -> dict[str, Any]:
    """Return what a checkpoint or a model file holds; its weights under ``model``."""
    from ..model import checkpoint, file

    if not checkpoint.is_archive(path):
        try:
            return {"model": file.read(path)[1]}
        except UsageError as error:
            raise UsageError(f"{path}: {error}") from error
    content = checkpoint.read(path).content
    if not isinstance(content, dict) or not isinstance(content.get("model"), dict):
        raise UsageError(f"{path}: got no model; allowed: a checkpoint of fairseq-train")
    return content


# ---- what there is -------------------------------------------------------------------------------


def about_file(path: Path, content: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield what a file holds: names and texts."""
    from ..model.checkpoint import settings

    kinds = Counter[str]()
    for weight in content["model"].values():
        if hasattr(weight, "dtype"):  # else it is no tensor
            kinds[_dtype_of(weight)] += math.prod(weight.shape)
    dtype = kinds.most_common(1)[0][0] if kinds else "no weights"
    more = "no training state"
    if content.get("last_optimizer_state") is not None:  # or saved without
        more = "with the training's state, which paradec shrink removes"
    yield "checkpoint", f"{path}: {path.stat().st_size / 1e6:.1f} MB, {dtype}, {more}"
    if not {"cfg", "args"} & content.keys():
        yield "written by", "paradec pack, a model file"
        return
    written = "fairseq 0.10 or newer (cfg)" if content.get("args") is None else "up to 0.9 (args)"
    names = [name for name in content["model"] if isinstance(name, str)]
    old = sorted({match[0] for name in names if (match := re.search(OLD_NAMES, name))})
    yield "written by", written + (f", old names: {', '.join(old)}" if old else "")
    own = settings(settings(content.get("cfg")).get("model") or content.get("args"))
    yield "--arch", str(own.get("arch") or own.get("_name"))


def _dtype_of(weight: Any) -> str:
    """Return the name of the dtype of an array or a tensor."""
    from ..model.checkpoint import BFLOAT16

    is_bfloat16 = weight.dtype == BFLOAT16
    return "bfloat16" if is_bfloat16 else str(weight.dtype).removeprefix("torch.")


def about_model(patient: Patient) -> Iterator[tuple[str, str]]:
    """Yield what a model is: names and texts."""
    (model,), read_by = patient.models, _sizes_of_core if patient.is_core else _sizes_of_module
    count, sides = read_by(model)
    yield "model", f"{class_of(model)}, {count:,} parameters"
    for side, (layers, pre_norm, dim, feed_forward, heads) in sides.items():
        norm = "pre-norm" if pre_norm else "post-norm"
        text = f"{layers} layers, {norm}, d = {dim}, feed-forward {feed_forward}, {heads} heads"
        yield side, text
    yield "positions", " source, ".join(map(str, model.max_positions())) + " target"
    yield "dictionaries", ", ".join(f"{name}: {size:,}" for name, size in patient.words.items())


#: Layers, whether norms come first, width, feed-forward width and heads, by side.
Sides = dict[str, tuple[int, bool, int, int, int]]


def _sizes_of_core(model: Any) -> tuple[int, Sides]:
    """Return the number of a model's parameters, and the sizes of its sides."""
    record = model.architecture
    sides = {"encoder": record.encoder, "decoder": record.decoder}
    return sum(map(math.prod, record.shapes().values())), {
        side: (own.count, own.pre_norm, own.dim, own.feed_forward, own.heads)
        for side, own in sides.items()
        if own is not None
    }


def _sizes_of_module(model: Any) -> tuple[int, Sides]:
    """Return the same of a module that fairseq has loaded."""
    sides = Sides()
    for side in ("encoder", "decoder"):
        layers: Any = getattr(getattr(model, side, None), "layers", ())
        if len(layers) and hasattr(layers[0], "fc1"):
            one = layers[0]
            sizes = one.fc1.in_features, one.fc1.out_features, one.self_attn.num_heads
            sides[side] = (len(layers), one.normalize_before, *sizes)
    return sum(weight.numel() for weight in model.parameters()), sides


def in_use(translator: Any, text: str) -> Iterator[tuple[str, str]]:
    """Yield what decodes a model folder on this machine: names and texts; translate a sentence."""
    about = translator.folder
    yield (
        "folder",
        f"{about.source} to {about.target}, {len(about.files)} files as they were packed",
    )
    yield "processing", f"tokenizer {about.tokenizer or 'none'}, BPE {about.bpe or 'none'}"
    rules = [f"{flag(name)} {value!r}" for name, value in about.settings.items() if name in ALL]
    yield "rules", ", ".join(rules) or "none of its own"
    form = about.settings.get("engine_dtype") or "fp32"
    if translator.core is not None:
        yield "packed", f"{form}: {packed(translator, form)}"
    decoding = translator.generator({}).config.decoding
    by = "fairseq and torch" if translator.core is None else "native passes, without torch"
    yield "used", f"{decoding} in {form}, by {by}"
    (result,) = translator.results([text])
    said = f"{result.text!r}, {result.tokens} tokens in {result.passes} passes"
    yield "translation", f"{text!r}: {result.problem or said}"


def packed(translator: Any, form: str) -> str:
    """Say where the packed weights of a folder's model are, in a form."""
    from ..engine.native import kept

    if form in translator.folder.packed:
        return f"in the folder, {translator.folder.packed[form]}"
    model = translator.core.model
    place = kept.place(model, form)
    if place is None:
        return f"in each process anew: {kept.why_not(model)}"
    return f"in the cache, {place}" if place.is_file() else f"to be kept in the cache, {place}"


def installed() -> Iterator[tuple[str, str]]:
    """Yield the package's extras, and what each lacks and adds."""
    for extra, adds in extras.ADDS.items():
        lacks = ", ".join(extras.lacking(extra))
        yield extra, f"{f'lacks {lacks}' if lacks else 'installed'}: {adds}"


# ---- what fits -----------------------------------------------------------------------------------


def decoders(
    patient: Patient, drafter: Path | None, recipes: Mapping[str, str]
) -> Iterator[tuple[str, str]]:
    """Yield what each decoder says to the model: names and texts.

    Args:
        patient: the model.
        drafter: a drafter or heads to try; None: none.
        recipes: the command that trains each kind of drafter.
    """
    engine = {} if patient.is_core else {"engine": "torch"}
    wrong = refusal(patient, "greedy", **engine)
    for name, method in METHODS.items():
        more = {"drafter_path": str(drafter)} if drafter and "drafter_path" in method.reads else {}
        problem = refusal(patient, name, **engine, **more)
        if problem is None:
            yield name, f"fits; greedy's output: {method.exact.words}"
        elif drafter is None and (recipe := recipes.get(str(method.drafter))):
            yield name, f"needs {recipe}" if wrong is None else f"no: {wrong}"
        else:
            yield name, f"no: {problem}"
    yield "beam", stock(patient)
    own = own_decoding(patient.models) or "greedy"
    problem = None if patient.is_core else refusal(patient, own, engine="native")
    yield "--engine native", "fits" if problem is None else f"no: {problem}"


def stock(patient: Patient) -> str:
    """Say whether fairseq's own search decodes a model."""
    try:
        check_models("beam", patient.models, None)
    except UsageError as error:
        return f"no: {error}"
    native = "; of a model folder the same by native passes" if patient.is_core else ""
    return f"fits; fairseq's own search{native}"


def refusal(patient: Patient, name: str, **options: str) -> str | None:
    """Return why a decoder with these options refuses a model; None: it does not."""
    from ..methods.configure import configure

    try:
        patient.build(configure(decoding=name, **options))
    except UsageError as error:
        return str(error)
    return None
