"""One word for one idea (docs/glossary.md): no class name twice, and none of the words that were given up."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "pocketbayes"

# What was given up (a pattern), and the word that stands for the idea now.
FORBIDDEN = {
    r"foreign": "OOD",
    r"settl(e|es|ed|ing)(\b|_)": "freeze, fine-tune",
    r"(?<!html\.)\bescape": "outlier",
    r"\bprivate": "mean-field, outlier",
    r"\btrade": "lambda_",
    r"importance": "fisher",
    r"(?<!shape_)(?<!shape )sensitivity": "fisher",
    r"\bbeta\b": "temperature",
    r"\bshares? of\b": "fraction",
    r"in a pocket\b": "compressed",
    r"Laplace widths": "standard deviations",
    r"\bminds\b": "is sensitive to",
}
ALLOWED = {
    r"\bbeta\b": ("noise/quadrature.py", "prediction/fold.py"),  # of orthogonal polynomials, and of a norm
    r"in a pocket\b": ("__init__.py",),  # what the package is called after
    r"(?<!html\.)\bescape": ("report/page.py",),  # of HTML
    r"\bprivate": ("artifact/hub.py",),  # of the Hub: a repository
}


def sources() -> dict[str, str]:
    """The text of every module, by its path in the package."""
    return {str(path.relative_to(SOURCE)): path.read_text() for path in sorted(SOURCE.rglob("*.py"))}


def pages() -> dict[str, str]:
    """The text of documents, report page, experiments and results, by their paths in the repository."""
    found = [ROOT / "README.md", ROOT / "RESULTS.md", *(ROOT / "docs").rglob("*.md")]
    found += [*SOURCE.rglob("*.toml"), *SOURCE.rglob("*.html"), *SOURCE.rglob("*.js")]
    found += [path for kind in ("py", "json") for path in (ROOT / "experiments").rglob(f"*.{kind}")]
    return {str(path.relative_to(ROOT)): path.read_text() for path in found}


def doubles(texts: Mapping[str, str]) -> dict[str, list[str]]:
    """Class names that several modules define, and which."""
    homes = defaultdict(list)
    for name, text in texts.items():
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.ClassDef):
                homes[node.name].append(name)
    return {name: modules for name, modules in homes.items() if len(modules) > 1}


def uses(texts: Mapping[str, str], pattern: str) -> Iterable[str]:
    """Lines that use a forbidden word where it is not allowed."""
    for name, text in texts.items():
        if name not in ALLOWED.get(pattern, ()):
            for number, line in enumerate(text.splitlines(), 1):
                if re.search(pattern, line, re.IGNORECASE):
                    yield f"{name}:{number}: {line.strip()}"


def test_no_class_name_stands_for_two_things() -> None:
    assert doubles(sources()) == {}


@pytest.mark.parametrize("pattern", FORBIDDEN)
def test_a_word_that_was_given_up_is_gone(pattern: str) -> None:
    assert list(uses(sources() | pages(), pattern)) == [], f"say {FORBIDDEN[pattern]}"


def test_the_glossary_has_thirty_words_or_fewer_on_a_line_each() -> None:
    words = re.findall(r"^\| (.+?) \| .+ \|$", (ROOT / "docs" / "glossary.md").read_text(), re.MULTILINE)
    assert words[0] == "word" and len(words) - 1 <= 30


def test_the_check_sees_a_double_and_a_forbidden_word() -> None:
    texts = {
        "a.py": "class Law: ...",
        "b.py": "def f():\n    class Law: ...\n    'a foreign input, html.escape'",
    }
    assert doubles(texts) == {"Law": ["a.py", "b.py"]}
    assert list(uses(texts, "foreign")) == ["b.py:3: 'a foreign input, html.escape'"]
    assert not list(uses(texts, r"(?<!html\.)\bescape"))
    assert list(uses({"c.py": "escape = 1"}, r"(?<!html\.)\bescape"))


def test_every_exception_is_used() -> None:
    for pattern, names in ALLOWED.items():
        assert all(re.search(pattern, (SOURCE / name).read_text(), re.IGNORECASE) for name in names), pattern
