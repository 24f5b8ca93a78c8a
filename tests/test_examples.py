"""The examples in the docstrings of public names do what they say."""

from __future__ import annotations

import doctest
import inspect
import pathlib
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import pocketbayes as pb

OPTIONS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE


def examples(name: str) -> list[doctest.DocTest]:
    """Those of a public name itself, not of its methods."""
    names = {"pb": pb, "torch": torch, "nn": nn, "np": np, "pathlib": pathlib}
    found = doctest.DocTestFinder(recurse=False).find(getattr(pb, name), name, globs=names)
    return [test for test in found if test.examples]


def failures(test: doctest.DocTest) -> str:
    report: list[str] = []
    doctest.DocTestRunner(optionflags=OPTIONS).run(test, out=report.append)
    return "".join(report)


@pytest.mark.parametrize("name", pb.__all__)
def test_every_public_name_has_an_example_that_gives_what_it_shows(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)
    assert examples(name)
    for test in examples(name):
        assert failures(test) == ""


@pytest.mark.parametrize(
    "name", [name for name in pb._HOME if inspect.signature(getattr(pb, name)).parameters]
)
def test_every_argument_of_a_public_name_is_explained(name: str) -> None:
    thing = getattr(pb, name)
    assert unexplained(thing) == []
    if not inspect.isclass(thing):
        assert inspect.signature(thing).return_annotation not in ("Any", inspect.Signature.empty)
        assert "Returns:" in thing.__doc__ or "context" in thing.__doc__.lower()


def unexplained(thing: Any) -> list[str]:
    """Parameters that neither the docstring explains nor another one that it names: "arguments are those of `fit`"."""
    text = inspect.getdoc(thing) or ""
    others = re.findall(r"arguments are those of `(\w+)`", text)
    known = " ".join([text, *(inspect.getdoc(getattr(pb, other)) or "" for other in others)])
    lines = re.findall(r"^    ([\w, ]+): ", known, re.MULTILINE)
    listed = {word for line in lines for word in line.split(", ")}
    return [name for name in inspect.signature(thing).parameters if name not in listed]


def test_an_argument_without_a_word_is_seen() -> None:
    def f(x: int, y: int) -> None:
        """Adds.

        Args:
            x: a number.
        """

    assert unexplained(f) == ["y"]


def test_an_example_that_is_wrong_is_seen() -> None:
    wrong = doctest.DocTestParser().get_doctest(">>> 1 + 1\n3\n", {}, "wrong", None, 0)
    assert "Expected:\n    3\nGot:\n    2" in failures(wrong)


@pytest.mark.parametrize("name", pb.__all__)
def test_the_site_shows_examples_as_code(name: str) -> None:
    """A section `Example:` would become a box of text, its prompts quotations."""
    assert re.search(r"^ *Examples:\n *>>> ", getattr(pb, name).__doc__, re.MULTILINE)
