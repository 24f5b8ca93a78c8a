"""The examples in the docstrings of public names do what they say."""

from __future__ import annotations

import doctest
import pathlib
from pathlib import Path

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


@pytest.mark.parametrize("name", [name for name in pb.__all__ if examples(name)])
def test_examples_give_what_they_show(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)
    for test in examples(name):
        assert failures(test) == ""


def test_an_example_that_is_wrong_is_seen() -> None:
    wrong = doctest.DocTestParser().get_doctest(">>> 1 + 1\n3\n", {}, "wrong", None, 0)
    assert "Expected:\n    3\nGot:\n    2" in failures(wrong)
