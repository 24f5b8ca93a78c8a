"""The tree is the pipeline: a package imports only from the ones before it."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

SOURCE = Path(__file__).parent.parent / "src" / "pocketbayes"
STAGES = (  # in the order of docs/architecture.md
    "errors",
    "moments",
    "arrays",
    "drawing",
    "runs",
    "noise",
    "likelihood",
    "metrics",
    "nets",
    "data",
    "posterior",
    "structure",
    "sharing",
    "prediction",
    "training",
    "artifact",
    "runtime",
    "compression",
    "report",
    "cli",
)


def imported(tree: ast.AST) -> Iterator[str]:
    """The stages that a module imports from, inside functions and for types too."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module == "pocketbayes":
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("pocketbayes."):
            yield str(node.module).split(".")[1]
        elif isinstance(node, ast.Import):
            yield from (a.name.split(".")[1] for a in node.names if a.name.startswith("pocketbayes."))


def late_imports(stage: str, text: str) -> list[str]:
    """What a module of that stage imports from later stages."""
    known = [name for name in imported(ast.parse(text)) if not name.startswith("__")]
    return [name for name in known if STAGES.index(name) > STAGES.index(stage)]


def test_every_module_has_its_stage() -> None:
    found = {
        path.stem for path in SOURCE.iterdir() if path.suffix == ".py" or (path / "__init__.py").exists()
    }
    assert found - {"__init__", "__main__"} == set(STAGES)


def test_imports_point_to_earlier_stages() -> None:
    late = {
        str(path.relative_to(SOURCE)): found
        for path in sorted(SOURCE.rglob("*.py"))
        if path.parent != SOURCE or not path.stem.startswith("__")
        if (found := late_imports(path.relative_to(SOURCE).parts[0].removesuffix(".py"), path.read_text()))
    }
    assert late == {}


def test_an_import_of_a_later_stage_is_found_wherever_it_stands() -> None:
    text = "def f():\n    from pocketbayes.cli import main\n    import pocketbayes.report.page"
    assert late_imports("sharing", text) == ["cli", "report"]


def test_packages_are_two_levels_deep() -> None:
    assert max(len(path.relative_to(SOURCE).parts) for path in SOURCE.rglob("*.py")) == 2
