"""Which way imports go, inside the package and between tests; mutants that go with the code."""

import ast
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import mutants
import pytest
from support.commands import PLUGIN, ROOT

from fairseq_paradec.cli.main import parse

#: What lies below all rooms; a module of it may import the others of the ground.
GROUND = {
    "arrival",
    "batch",
    "config",
    "deferred",
    "errors",
    "extras",
    "files",
    "forks",
    "memory",
    "model_checks",
    "model_facts",
    "output",
    "records",
    "registry",
    "row",
    "target_order",
    "threads",
    "token_rules",
    "utf8",
    "variants",
}
SEARCH = {"engine", "decoding", "methods", "model"}
CORE = {*SEARCH, "text", "plugin", "translator", "cli"}

#: room -> the rooms that it may import, besides itself and the ground (docs/design.md).
MAY_IMPORT: dict[str, set[str]] = {
    "model": set(),
    "text": set(),
    "engine": {"model"},
    "decoding": {"engine", "model"},
    "methods": {"engine", "decoding", "model"},
    "plugin": {*SEARCH, "text"},
    "translator": {*SEARCH, "text", "plugin"},
    "serve": {"translator"},
    "compat": {"translator", "model"},
    "cli": {*CORE, "serve"},
    "images": CORE,
    "images/commands": {*CORE, "images", "lab"},
    "training": {*CORE, "images"},
    "lab": {*CORE, "images", "training"},
}
#: room of the core -> its files that import fairseq, in functions; ``plugin`` is the room for that.
KNOWS_FAIRSEQ = {
    "model": set[str](),
    "text": set[str](),
    "engine": {"known.py"},
    "decoding": {"stock_search.py"},
    "methods": set[str](),
    "translator": set[str](),
    "serve": set[str](),
    "compat": set[str](),
    "cli": set[str](),
}
#: What is no room: registration with fairseq, names of earlier versions, ``python -m``.
DOORS = {
    "__init__": {*SEARCH, "images", "plugin", "training", "translator"},
    "__main__": {"cli"},
}


#: The folders of the lab that decode and measure nothing.
PURE = [("lab", "analysis"), ("lab", "show")]
#: What they may import of ``lab/data``.
TYPES = [("lab", "data", "table"), ("lab", "data", "samples")]


def imports(path: Path, package: Path) -> Iterator[tuple[str, ...]]:
    """The modules of the package that a file imports, as parts of their path."""
    here = path.relative_to(package).parts[:-1]
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.ImportFrom):
            module = tuple(node.module.split(".")) if node.module else ()
            if node.level:
                above = here[: len(here) + 1 - node.level]
                yield from ((*above, *module, alias.name) for alias in node.names)
            else:
                assert module[0] != package.name, f"{path}: an import that is not relative"
        elif isinstance(node, ast.Import):
            for alias in node.names:
                assert alias.name.split(".")[0] != package.name, f"{path}: not relative"


def packages(path: Path) -> set[str]:
    """The packages that a file imports, but for its own."""
    return packages_of(ast.parse(path.read_text("utf-8")))


def packages_of(tree: ast.Module) -> set[str]:
    """The packages that code imports, but for its own."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and not node.level:
            found.add((node.module or "").split(".")[0])
        elif isinstance(node, ast.Import):
            found |= {alias.name.split(".")[0] for alias in node.names}
    return found


def at_the_top(path: Path) -> set[str]:
    """The packages that the import of a file imports."""
    tree = ast.parse(path.read_text("utf-8"))
    tree.body = [node for node in tree.body if isinstance(node, (ast.Import, ast.ImportFrom))]
    return packages_of(tree)


def files_of(room: str) -> list[Path]:
    """The files of a room, or of a module; without those of a room inside it."""
    path = PLUGIN / room
    inside = [PLUGIN / other for other in MAY_IMPORT if other.startswith(f"{room}/")]
    files = sorted(path.rglob("*.py")) if path.is_dir() else [path.with_suffix(".py")]
    return [file for file in files if not {*inside} & {*file.parents}]


def rooms_of(room: str) -> set[tuple[str, str]]:
    """The rooms that a room imports, with the file that does."""
    return {
        (str(file.relative_to(PLUGIN)), parts[0])
        for file in files_of(room)
        for parts in imports(file, PLUGIN)
        if parts[0] in {*MAY_IMPORT, *DOORS, *GROUND} - {"__init__"}
    }


@pytest.mark.parametrize("room", MAY_IMPORT)
def test_imports_go_down_only(room: str) -> None:
    allowed = MAY_IMPORT[room] | GROUND | {room}
    assert not {pair for pair in rooms_of(room) if pair[1] not in allowed}


@pytest.mark.parametrize("folder", ["analysis", "show"])
def test_what_is_pure_imports_the_ground_images_and_data_alone(folder: str) -> None:
    for file in files_of(f"lab/{folder}"):
        for parts in imports(file, PLUGIN):
            known = parts[0] in GROUND | {"images"} or parts[:2] in PURE
            assert known or parts[:3] in TYPES, file


@pytest.mark.parametrize("module", sorted(GROUND))
def test_the_ground_imports_no_room(module: str) -> None:
    assert not {pair for pair in rooms_of(module) if pair[1] not in GROUND}


@pytest.mark.parametrize("module", DOORS)
def test_the_doors_import_what_they_open(module: str) -> None:
    assert not {pair for pair in rooms_of(module) if pair[1] not in GROUND | DOORS[module]}


@pytest.mark.parametrize("room", [*KNOWS_FAIRSEQ, *sorted(GROUND)])
def test_fairseq_is_known_in_few_files(room: str) -> None:
    files = {file.name for file in files_of(room) if "fairseq" in packages(file)}
    assert files == KNOWS_FAIRSEQ.get(room, set())
    # Its import registers the plugin, which needs these files whole.
    assert not [file for file in files_of(room) if "fairseq" in at_the_top(file)]


def test_the_core_knows_no_batch_of_fairseqs() -> None:
    """A dict with ``net_input``: the plugin makes a Batch of it; fairseq's own search takes it."""
    files = {
        path.relative_to(PLUGIN).as_posix()
        for room in (*KNOWS_FAIRSEQ, *GROUND)
        for path in files_of(room)
        for node in ast.walk(ast.parse(path.read_text("utf-8")))
        if isinstance(node, ast.Constant) and node.value in ("net_input", "prev_output_tokens")
    }
    assert files == {"decoding/stock_search.py"}


def test_records_need_the_standard_library_alone() -> None:
    assert packages(PLUGIN / "records.py") <= sys.stdlib_module_names


def test_the_model_needs_numpy_alone() -> None:
    for file in files_of("model"):
        assert packages(file) <= {*sys.stdlib_module_names, "numpy"}, file


def test_the_translator_and_what_its_batches_pass_need_no_torch_to_be_imported() -> None:
    files = [file for file in files_of("translator") if "importing" not in file.parts]
    for file in (*files, PLUGIN / "methods" / "each_sentence.py", PLUGIN / "methods" / "stock.py"):
        assert not at_the_top(file) & {"torch", "fairseq"}, file


#: What computes with torch: the audit by fairseq's search, imported where ``--audit`` asks for it,
#: and ``paradec import``.
COMPUTES_WITH_TORCH = ("decoding.audit", "translator.importing.")
#: The commands that begin without fairseq; ``translate`` is that of corpora, too.
BEGIN_WITHOUT_FAIRSEQ = ("translate", "score", "serve", "doctor")
#: Imports modules where neither is; prints each that fails, and the package's file that asks.
ALONE = """
import importlib, json, pathlib, sys, traceback
sys.modules["torch"] = sys.modules["fairseq"] = None
import fairseq_paradec
root, failed = pathlib.Path(fairseq_paradec.__file__).parent, {}
for module in sys.argv[1:]:
    try:
        importlib.import_module(f"fairseq_paradec.{module}")
    except ImportError as error:
        frames = traceback.extract_tb(error.__traceback__)
        files = [pathlib.Path(frame.filename) for frame in frames]
        ours = [file for file in files if file.is_relative_to(root)]
        failed[module] = ours[-1].relative_to(root).as_posix()
print(json.dumps(failed))
"""


def test_the_core_needs_neither_torch_nor_fairseq() -> None:
    rooms = [*sorted(GROUND), "cli", "decoding", "methods", "model", "serve", "text", "translator"]
    files = [file.relative_to(PLUGIN) for room in rooms for file in files_of(room)]
    modules = [".".join(file.with_suffix("").parts).removesuffix(".__init__") for file in files]
    assert len(modules) > 110
    words = [sys.executable, "-c", ALONE, *modules]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60, check=True)
    failed = json.loads(done.stdout)
    wrong = {
        name: file for name, file in failed.items() if not name.startswith(COMPUTES_WITH_TORCH)
    }
    assert not wrong and "decoding.audit" in failed, wrong


@pytest.mark.parametrize("name", BEGIN_WITHOUT_FAIRSEQ)
def test_a_command_begins_without_fairseq(name: str) -> None:
    """Its arguments say so; what it imports at its top does not register the plugin either."""
    words = {
        "doctor": ["doctor", "DIR"],
        "score": ["score", "--model", "DIR", "SOURCE", "TARGET"],
    }.get(name, [name, "--model", "DIR"])
    _, args = parse(words)
    assert args.plugin is False
    calls = [
        file.name
        for file in files_of("cli")
        for node in ast.walk(ast.parse(file.read_text("utf-8")))
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "register"
    ]
    assert calls == ["main.py"]


def test_every_room_is_known() -> None:
    rooms = {path.stem for path in PLUGIN.glob("*.py")}
    rooms |= {path.parent.name for path in PLUGIN.glob("*/__init__.py")}
    assert rooms == {room for room in MAY_IMPORT if "/" not in room} | DOORS.keys() | GROUND


@pytest.mark.parametrize("room", [*sorted(SEARCH), "translator", "serve", "training", "lab"])
def test_below_the_commands_settings_are_typed(room: str) -> None:
    """An argparse.Namespace is read at the edge, in ``commands`` and the lab's ``settings.py``."""
    for path in files_of(room):
        if "commands" in path.parts or path.name == "settings.py":
            continue
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.FunctionDef):
                given = ast.unparse(node.args)
                assert "Namespace" not in given, f"{path}: {node.name}({given})"


#: Files that start processes, and what for (docs/design.md).
STARTS_PROCESSES = {
    "engine/native/building.py": "the compiler",
    "lab/measure/demo.py": "fairseq-generate",
    "lab/measure/generated.py": "fairseq-generate",
    "lab/profile/clients.py": "what it times",
    "lab/profile/installation.py": "pip, and what opens files",
    "lab/profile/start_up.py": "what it times",
    "lab/profile/workers.py": "what it times",
    "training/child.py": "fairseq-train",
}


def test_no_command_calls_another() -> None:
    """Only ``paradec papers ROW`` runs commands, as a user would type them."""
    started = {
        path.relative_to(PLUGIN).as_posix()
        for path in PLUGIN.rglob("*.py")
        if "subprocess" in packages(path)
    }
    assert started == STARTS_PROCESSES.keys()
    callers = {
        path.relative_to(PLUGIN).as_posix()
        for path in PLUGIN.rglob("*.py")
        if ("cli", "main", "main") in imports(path, PLUGIN)
    }
    assert callers == {"__main__.py", "lab/commands/papers.py"}


def test_the_site_imports_the_lab_and_the_ground_and_nothing_imports_it() -> None:
    for path in sorted((ROOT / "tools").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.ImportFrom) and not node.level:
                package, room, *_ = [*(node.module or "").split("."), ""]
                assert package != PLUGIN.name or room in {"lab", *GROUND}, path
    assert [path for path in PLUGIN.rglob("*.py") if "tools" in packages(path)] == []


def test_no_test_imports_another() -> None:
    for path in sorted((ROOT / "tests").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            names = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            names += [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            for name in names:
                assert not name.split(".")[-1].startswith("test_"), f"{path} imports {name}"


def test_no_mutant_survived_its_last_run() -> None:
    outcomes = mutants.read_outcomes()
    survivors = [key for key, (killer, _) in outcomes.items() if killer == mutants.SURVIVED]
    assert survivors == []


def test_every_mutant_has_its_code_and_its_tests() -> None:
    assert [mutant for mutant in mutants.MUTANTS if mutants.find(mutant) is None] == []
    assert len({mutant.key for mutant in mutants.MUTANTS}) == len(mutants.MUTANTS)
    named = {words.split()[0] for mutant in mutants.MUTANTS for words in mutant.tests}
    assert [name for name in sorted(named) if not (ROOT / "tests" / name).exists()] == []
