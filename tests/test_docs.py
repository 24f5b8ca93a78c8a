"""The documents keep their promises: names exist, examples run, results are the ones measured."""

from __future__ import annotations

import ast
import importlib
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import pocketbayes as pb

ROOT = Path(__file__).parent.parent
METHOD = (ROOT / "docs" / "method.md").read_text()
README = (ROOT / "README.md").read_text()
NAMES = sorted(set(re.findall(r"`(pocketbayes(?:\.\w+)+)`", METHOD)))
TESTS = sorted(set(re.findall(r"`(tests/[\w/]+\.py)::(test_\w+)`", METHOD)))


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


def test_the_readme_is_read_in_a_minute_and_its_numbers_are_the_measured_ones() -> None:
    assert len(README.splitlines()) <= 125
    frontier = (ROOT / "docs" / "results" / "frontier.md").read_text().replace("**", "")
    measured = {tuple(re.split(r" *\| *", line)[2:-1]) for line in frontier.splitlines() if "|" in line}
    rows = re.findall(r"^\| [^|]+ \| (\d[^|]*) \| (.+) \| (.+) \| (.+) \|$", README, re.MULTILINE)
    assert len(rows) >= 5 and set(rows) <= measured


PAGES = (
    "method",
    "data",
    "guide",
    "findings",
    "peers",
    "how-to-choose",
    "commands",
    "tutorial",
    "analog",
    "deploy",
)
RESULTS = [
    "RESULTS.md",
    *(f"docs/results/{path.name}" for path in sorted((ROOT / "docs/results").glob("*.md"))),
]


@pytest.mark.parametrize(
    "document",
    ["README.md", "CONTRIBUTING.md", "SECURITY.md", *(f"docs/{name}.md" for name in PAGES), *RESULTS],
)
def test_links_and_commands_point_to_something(document: str) -> None:
    text, folder = (ROOT / document).read_text(), (ROOT / document).parent
    for target in re.findall(r"\]\((?!https?:)([^)#]+)", text):
        assert (folder / target).exists(), target
    for target in re.findall(r"`(?:make) ([a-z-]+)`", text):
        assert re.search(rf"^{target}:", (ROOT / "Makefile").read_text(), re.MULTILINE), target
    for module in re.findall(r"python -m ([\w.]+)", text):
        place = ROOT / module.replace(".", "/")
        known = place.with_suffix(".py").exists() or (place / "__main__.py").exists()
        assert known or module == "pytest", module


@pytest.fixture
def pages(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(ROOT)
    return importlib.import_module("experiments.pages")


def test_results_are_written_from_the_result_files(pages: Any) -> None:
    written = pages.pages()
    assert sorted(written) == sorted(RESULTS)
    for path, text in written.items():
        assert (ROOT / path).read_text() == text, path


def test_the_index_of_results_fits_on_a_screen_and_points_to_every_part(pages: Any) -> None:
    index = (ROOT / "RESULTS.md").read_text()
    assert len(index.splitlines()) <= 65 and max(map(len, index.splitlines())) <= 160
    targets = re.findall(r"\]\((docs/results/\w+\.md)#([^)]+)\)", index)
    for path, anchor in targets:
        headings = re.findall(r"^## (.+)$", (ROOT / path).read_text(), re.MULTILINE)
        assert anchor in [pages.anchor(heading) for heading in headings]
    assert len(targets) == sum((ROOT / path).read_text().count("\n## ") for path in RESULTS[1:])


def test_prose_is_wrapped_and_nothing_else(pages: Any) -> None:
    """Numbers keep their errors, code stays whole, no line turns into an item of a list."""
    text = "| a | long row of a table |\n\n- 12 of 34 ± 5 items - with `some code` in them\n- a second one"
    assert pages.wrapped(text, 20).splitlines() == [
        "| a | long row of a table |",
        "",
        "- 12 of 34 ± 5",
        "  items - with",
        "  `some code` in",
        "  them",
        "- a second one",
    ]
    for path in RESULTS:
        for line in re.sub(r"```.*?```", "", (ROOT / path).read_text(), flags=re.DOTALL).splitlines():
            assert len(line) <= 150 or line.startswith(("|", "#", "!", "weight]")), line


def test_the_path_of_one_weight_passes_files_that_exist_and_none_twice() -> None:
    page = (ROOT / "docs" / "architecture.md").read_text()
    path = re.search(r"```\n(.*?)```", page, re.DOTALL)
    assert path is not None
    passed = re.findall(r"\b(\w+/\w+\.py)\b", path[1])
    assert len(passed) >= 20 and len(set(passed)) == len(passed)
    assert [name for name in passed if not (ROOT / "src" / "pocketbayes" / name).exists()] == []


def test_a_weight_takes_the_path_that_is_drawn(tmp_path: Path) -> None:
    """Every file of a part of the drawing is called in the step that it stands for."""
    page = (ROOT / "docs" / "architecture.md").read_text()
    path = re.search(r"```\n(.*?)```", page, re.DOTALL)
    assert path is not None
    parts = [
        re.findall(r"\b(\w+/\w+\.py)\b", part) for part in re.split(r"^   v$", path[1], flags=re.MULTILINE)
    ]
    assert parts.pop() == ["prediction/answer.py"]  # what comes out
    file, x, y = tmp_path / "small.pocket", torch.randn(64, 8), torch.randint(3, (64,))
    model, fresh = pb.nets.mlp([8, 64, 3]), pb.nets.mlp([8, 64, 3])
    steps = (
        lambda: pb.bayesianize(model),
        lambda: pb.fit(model, [(x, y)], epochs=1, progress=False),
        lambda: pb.share(model),
        lambda: pb.save(model, file),
        lambda: pb.load(file, fresh),
        lambda: pb.predict(fresh, x, samples=2),
    )
    for step, part in zip(steps, parts, strict=True):
        assert set(part) <= called_in(step)


def called_in(step: Callable[[], object]) -> set[str]:
    """The modules of the package whose functions a step calls."""
    files: set[str] = set()
    before = sys.getprofile()
    sys.setprofile(lambda frame, event, _: files.add(frame.f_code.co_filename))
    try:
        step()
    finally:
        sys.setprofile(before)
    source = f"{Path(pb.__file__).parent}/"
    return {file.removeprefix(source) for file in files if file.startswith(source)}


def test_the_architecture_names_every_stage_in_order() -> None:
    page = (ROOT / "docs" / "architecture.md").read_text()
    stages = [
        name
        for row in re.findall(r"^\| (`.*?) \|", page, re.MULTILINE)
        for name in re.findall(r"`(\w+)", row)
    ]
    stage_test = (ROOT / "tests" / "test_architecture.py").read_text()
    listed = re.findall(r'^    "(\w+)",$', stage_test, re.MULTILINE)
    assert sorted(stages) == sorted(listed)
