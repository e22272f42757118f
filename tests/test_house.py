"""Which way imports go, inside the package and between tests; mutants that go with the code."""

import ast
from collections.abc import Iterator
from pathlib import Path

import mutants
import pytest
from support.commands import PLUGIN, ROOT

BASE = {"errors", "extras", "images", "records", "target_order"}

#: room -> the rooms of the package that it may import, besides itself. A room is a folder or a
#: module of fairseq_paradec; `__init__` is what fairseq runs on --user-dir.
MAY_IMPORT: dict[str, set[str]] = {
    "errors": set(),
    "extras": {"errors"},
    "output": {"errors"},
    "records": {"errors"},
    "target_order": {"errors"},
    "images": {"errors", "extras"},
    "model_folder": {"errors"},
    "corpus": {"errors", "extras"},
    "forks": set(),
    "options": BASE,
    "compat": {"errors", "forks", "output"},
    "encoders": {"errors", "extras", "images"},
    "importing": {"errors", "extras", "encoders", "models", "model_folder"},
    "analysis": BASE | {"output"},
    "training": BASE | {"compat"},
    "decoding": BASE | {"options", "forks"},
    "models": BASE | {"compat"},
    "criterions": BASE | {"models"},
    "methods": BASE | {"options", "decoding", "output", "forks"},
    "updates": {"errors"},
    "tasks": BASE
    | {"options", "compat", "decoding", "models", "criterions", "methods"}
    | {"encoders", "updates"},
    "measure": BASE
    | {"options", "compat", "decoding", "models", "methods", "tasks", "analysis", "translator"},
    "translator": BASE | {"options", "compat", "methods", "tasks", "model_folder"},
    "cli": BASE
    | {"options", "compat", "decoding", "models", "methods", "tasks", "analysis"}
    | {"measure", "model_folder", "output", "translator", "importing", "corpus", "encoders"}
    | {"training"},
    "__init__": {"compat", "criterions", "encoders", "models", "tasks", "translator"}
    | {"methods", "options"},
    "__main__": {"cli"},
}


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


@pytest.mark.parametrize("room", MAY_IMPORT)
def test_imports_go_one_way(room: str) -> None:
    path = PLUGIN / room
    files = sorted(path.rglob("*.py")) if path.is_dir() else [path.with_suffix(".py")]
    rooms = {one.stem for one in PLUGIN.iterdir()} & MAY_IMPORT.keys()
    found = {
        (str(file.relative_to(PLUGIN)), parts[0])
        for file in files
        for parts in imports(file, PLUGIN)
        if parts[0] in rooms
    }
    assert not {(file, to) for file, to in found if to not in MAY_IMPORT[room] | {room}}


#: What measures, draws and runs experiments; docs/design.md draws the arrows.
LAB = {"analysis", "measure"}
#: The commands of the core, in cli/.
CORE_COMMANDS = {
    "__init__",
    "main",
    "arguments",
    "machines",
    "translate",
    "translate_corpus",
    "doctor",
    "pack",
    "import",
}


def test_the_core_imports_nothing_of_the_lab() -> None:
    core = [
        path
        for path in sorted(PLUGIN.rglob("*.py"))
        if (room := path.relative_to(PLUGIN).parts[0]) not in LAB
        and (room != "cli" or path.parent.name == "cli" and path.stem in CORE_COMMANDS)
    ]
    assert len(core) > 100
    found = {(path.name, parts[:2]) for path in core for parts in imports(path, PLUGIN)}
    assert not {one for one in found if one[1][0] in LAB}


def test_the_search_and_the_engine_know_no_command() -> None:
    for room in ("decoding", "methods"):
        for path in sorted((PLUGIN / room).rglob("*.py")):
            assert not {parts[0] for parts in imports(path, PLUGIN)} & {"cli", "tasks", *LAB}


def test_the_engine_imports_nothing_of_the_search() -> None:
    """But the rules of tokens, which lie below both."""
    engine = PLUGIN / "decoding" / "engine"
    inside = engine.relative_to(PLUGIN).parts
    found = {
        (path.name, ".".join(parts[:2]))
        for path in sorted(engine.rglob("*.py"))
        for parts in imports(path, PLUGIN)
        if parts[:1] == ("decoding",) and parts[:2] != inside
    }
    assert found and {module for _, module in found} == {"decoding.token_rules"}


def test_every_room_is_known() -> None:
    rooms = {path.stem for path in PLUGIN.glob("*.py")}
    rooms |= {path.parent.name for path in PLUGIN.glob("*/__init__.py")}
    assert rooms == MAY_IMPORT.keys()


def test_no_test_imports_another() -> None:
    for path in sorted((ROOT / "tests").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            names = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            names += [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            for name in names:
                assert not name.split(".")[-1].startswith("test_"), f"{path} imports {name}"


def test_every_mutant_has_its_code_and_its_tests() -> None:
    assert [one for one in mutants.MUTANTS if mutants.find(one) is None] == []
    named = {name for one in mutants.MUTANTS for name in one.tests}
    assert [name for name in sorted(named) if not (ROOT / "tests" / name).exists()] == []
