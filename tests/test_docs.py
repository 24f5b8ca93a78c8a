"""The documents keep their promises: names exist, examples run, results are the ones measured."""

from __future__ import annotations

import ast
import importlib
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
METHOD = (ROOT / "docs" / "method.md").read_text()
README = (ROOT / "README.md").read_text()
NAMES = sorted(set(re.findall(r"`(pocketbayes(?:\.\w+)+)`", METHOD)))
TESTS = sorted(set(re.findall(r"`(tests/[\w/]+\.py)::(test_\w+)`", METHOD)))
BLOCKS = re.findall(r"^```python\n(.*?)^```", README, re.DOTALL | re.MULTILINE)


def resolve(name: str) -> object:
    """The object behind a dotted name: the longest prefix that is a module, then attributes."""
    parts = name.split(".")
    for cut in range(len(parts), 0, -1):
        try:
            found: object = importlib.import_module(".".join(parts[:cut]))
        except ModuleNotFoundError:
            continue
        for attribute in parts[cut:]:
            found = getattr(found, attribute)
        return found
    raise ModuleNotFoundError(name)


@pytest.mark.parametrize("name", NAMES)
def test_every_function_that_the_method_names_exists(name: str) -> None:
    assert callable(resolve(name))


@pytest.mark.parametrize(("file", "test"), TESTS)
def test_every_test_that_the_method_names_exists(file: str, test: str) -> None:
    tree = ast.parse((ROOT / file).read_text())
    assert test in {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}


def test_a_name_that_does_not_exist_is_found_out() -> None:
    with pytest.raises(AttributeError):
        resolve("pocketbayes.metrics.no_such_score")


def test_equations_are_numbered_in_order_and_each_has_a_function_and_a_test() -> None:
    numbers = [int(n) for n in re.findall(r"\\tag\{(\d+)\}", METHOD)]
    assert numbers == list(range(1, len(numbers) + 1))
    for number, explained in enumerate(re.split(r"\\tag\{\d+\}", METHOD)[1:], start=1):
        assert "`pocketbayes." in explained, f"equation ({number}) names no function"
        assert "`tests/" in explained, f"equation ({number}) names no test"


def test_equations_that_docstrings_cite_exist() -> None:
    highest = max(int(n) for n in re.findall(r"\\tag\{(\d+)\}", METHOD))
    cited = {
        int(n)
        for file in (ROOT / "src").rglob("*.py")
        for n in re.findall(r"Eq\. \((\d+)\) of docs/method\.md", file.read_text())
    }
    assert {2, 3, 4, 5} <= cited
    assert max(cited) <= highest


def test_every_python_example_of_the_readme_runs_in_turn(tmp_path: Path) -> None:
    """In one process and an empty folder, as a reader would paste them."""
    assert len(BLOCKS) >= 5
    script = "\n".join(BLOCKS)
    run = subprocess.run(
        [sys.executable, "-W", "error", "-c", script],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert run.returncode == 0, run.stderr


def test_the_first_example_of_the_readme_stands_alone(tmp_path: Path) -> None:
    run = subprocess.run(
        [sys.executable, "-W", "error", "-c", BLOCKS[0]],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert run.returncode == 0, run.stderr


@pytest.mark.parametrize("document", ["README.md", "CONTRIBUTING.md", "RESULTS.md", "docs/method.md"])
def test_links_and_commands_point_to_something(document: str) -> None:
    text, folder = (ROOT / document).read_text(), (ROOT / document).parent
    for target in re.findall(r"\]\((?!https?:)([^)#]+)", text):
        assert (folder / target).exists(), target
    for target in re.findall(r"`(?:make) ([a-z-]+)`", text):
        assert re.search(rf"^{target}:", (ROOT / "Makefile").read_text(), re.MULTILINE), target
    for module in re.findall(r"python -m ([\w.]+)", text):
        assert (ROOT / module.replace(".", "/")).with_suffix(".py").exists() or module == "pytest", module


def test_results_are_written_from_the_result_files(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(ROOT)
    results = importlib.import_module("experiments.results")
    assert (ROOT / "RESULTS.md").read_text() == results.page()
