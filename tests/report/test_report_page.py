"""The page and the files of figures: whole, self-contained, and safe with names from hostile files."""

from __future__ import annotations

import base64
import builtins
import hashlib
import json
import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest

import pocketbayes as pb
from pocketbayes.report import Story, gather, write_figures, write_page
from pocketbayes.report.figures import figures
from pocketbayes.report.interactive import specification
from pocketbayes.report.story import Cloud, Plane
from report_models import Case

CLASSIFICATION = [
    "reliability",
    "risk_coverage",
    "confidence_by_class",
    "foreign_inputs",
    "plane",
    "weights",
    "sections",
    "layers",
    "training",
]
REGRESSION = [
    "predicted_and_true",
    "interval_coverage",
    "risk_coverage",
    "plane",
    "weights",
    "sections",
    "layers",
]
VOID = {"meta", "img", "br"}
HOSTILE = (
    "</script><script>alert(1)</script><img src=x onerror=alert(2)>\"'&$\x1b[31m\ud800<a href='http://x'>"
)


class Reader(HTMLParser):
    """Keeps the open elements, and every element with its attributes; text by the element it stands in."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[tuple[str, str]] = []
        self.feed(html)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.texts.append((self.open[-1] if self.open else "", data))

    def ids(self) -> list[str]:
        return [attrs["id"] for _, attrs in self.elements if attrs.get("id")]


def read(path: Path) -> Reader:
    return Reader(path.read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def page(story: Story, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_page(tmp_path_factory.mktemp("page") / "new" / "report.html", story)


def embedded(path: Path) -> dict[str, Any]:
    """The figures' JSON as the page's script finds it."""
    found = re.search(
        r'<script type="application/json" id="figures">(.*?)</script>', path.read_text(), re.DOTALL
    )
    return json.loads(found.group(1))


# --- the page --------------------------------------------------------------------------------------------------


def test_the_page_is_well_formed_and_every_id_is_one(page: Path) -> None:
    reader = read(page)
    assert reader.open == []
    assert len(reader.ids()) == len(set(reader.ids()))


def test_the_page_has_every_figure_with_a_caption_and_a_spoken_one(page: Path, story: Story) -> None:
    ids, texts = read(page).ids(), [text for _, text in read(page).texts]
    assert [figure.name for figure in figures(story)] == CLASSIFICATION
    for figure in figures(story):
        assert figure.name in ids and f"plot-{figure.name}" in ids
        assert figure.caption in texts and figure.spoken in texts
        assert figure.spoken.endswith(".") and figure.caption.endswith(".")
    assert list(embedded(page)) == CLASSIFICATION


def test_the_page_loads_nothing(page: Path) -> None:
    for tag, attrs in read(page).elements:
        assert tag not in ("link", "iframe", "object", "embed", "base", "form")
        for name in ("src", "href", "action", "srcset", "poster"):
            value = attrs.get(name)
            assert value is None or value.startswith("data:image/png;base64,")
    style = re.search(r"<style>(.*?)</style>", page.read_text(), re.DOTALL).group(1)
    assert "url(" not in style and "@import" not in style


def test_the_policy_lets_only_the_two_scripts_of_the_page_run(page: Path) -> None:
    scripts = re.findall(r"<script>(.*?)</script>", page.read_text(), re.DOTALL)
    hashes = {base64.b64encode(hashlib.sha256(s.encode()).digest()).decode() for s in scripts}
    policy = next(a["content"] for _, a in read(page).elements if a.get("http-equiv"))
    allowed = re.search(r"script-src ([^;]*);", policy).group(1)
    assert len(scripts) == 2 and set(re.findall(r"'sha256-([^']*)'", allowed)) == hashes
    assert "unsafe" not in allowed and "default-src 'none'" in policy


def test_the_table_shows_the_numbers_of_the_story(page: Path, story: Story) -> None:
    cells = [text for tag, text in read(page).texts if tag == "td"]
    rows = {row.key: row for row in story.table}
    assert f"{100 * rows['accuracy'].after:.2f}\N{NO-BREAK SPACE}%" in cells
    for key in ("nll", "ece", "brier", "auroc"):
        assert f"{rows[key].before:.4f}" in cells and f"{rows[key].after:.4f}" in cells
    assert f"{rows['bytes'].after:,.0f}" in cells


def test_settings_seed_versions_and_command_are_on_the_page(page: Path, case: Case) -> None:
    texts = [text for tag, text in read(page).texts if tag == "dd"]
    assert case.record["command"] in texts and "torch 2.13.0" in texts and "9000" in texts


def test_images_are_pngs_of_the_pixels(page: Path, story: Story) -> None:
    from io import BytesIO

    from PIL import Image

    sources = [attrs["src"] for tag, attrs in read(page).elements if tag == "img"]
    pictures = [*story.gallery.least_sure, *story.gallery.sure_and_wrong, *story.gallery.surest]
    assert len(sources) == len(pictures)
    for source, picture in zip(sources, pictures, strict=True):
        image = Image.open(BytesIO(base64.b64decode(source.partition(",")[2])))
        np.testing.assert_array_equal(np.asarray(image), picture.pixels)


def test_a_regression_has_figures_of_its_own(fitted: Case, tmp_path: Path) -> None:
    story = gather(fitted.model, fitted.file, fitted.test, **fitted.options())
    page = write_page(tmp_path / "report.html", story)
    assert sorted(embedded(page)) == sorted(REGRESSION) and read(page).open == []


def test_a_story_of_nothing_is_a_page_too(tmp_path: Path) -> None:
    page = write_page(tmp_path / "report.html", Story())
    assert read(page).open == [] and embedded(page) == {}


def test_a_page_can_be_made_of_what_is_known(story: Story, tmp_path: Path) -> None:
    bare = replace(
        story, reliability_before=None, risk_before=None, runs=(), gallery=None, entropies=None, stages=()
    )
    assert list(embedded(write_page(tmp_path / "a.html", bare))) == [
        name for name in CLASSIFICATION if name not in ("foreign_inputs", "training")
    ]


def test_a_page_of_a_large_network_stays_light(story: Story, tmp_path: Path) -> None:
    from plotly.offline import get_plotlyjs

    rng = np.random.default_rng(0)
    private = Cloud(rng.normal(size=200_000), np.exp(rng.normal(size=200_000)), 86_000_000)
    outliers = Cloud(rng.normal(size=2000), np.exp(rng.normal(size=2000)), 860_000)
    large = replace(story, plane=Plane(None, None, outliers, outliers, private), layers=story.layers * 100)
    page = write_page(tmp_path / "report.html", large)
    assert page.stat().st_size - len(get_plotlyjs().encode()) < 1_500_000


def test_a_page_that_cannot_be_written_leaves_the_old_one(story: Story, tmp_path: Path, monkeypatch) -> None:
    path = tmp_path / "report.html"
    path.write_text("old")
    monkeypatch.setattr("os.replace", _refuse)
    with pytest.raises(OSError, match="full"):
        write_page(path, story)
    assert path.read_text() == "old" and [p.name for p in tmp_path.iterdir()] == ["report.html"]


def _refuse(*_: Any) -> None:
    raise OSError("disk full")


# --- hostile names ---------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def hostile(case: Case, tmp_path_factory: pytest.TempPathFactory) -> Story:
    """Every text that a file can bring is an attack."""
    file = tmp_path_factory.mktemp("hostile") / "a<b>&.pocket"
    saved = HOSTILE.replace("\ud800", "")
    pb.save(case.model, file, metadata={"classes": [saved], saved: saved})
    test = replace(case.test, name=HOSTILE, classes=tuple(f"{HOSTILE}{i}" for i in range(10)))
    epochs = case.record["histories"]["posterior"]
    record = {
        "command": HOSTILE,
        "settings": {HOSTILE: {HOSTILE: HOSTILE}},
        "versions": [HOSTILE],
        "stages": [{"name": HOSTILE, "note": HOSTILE}],
        "histories": {HOSTILE: epochs},
    }
    story = gather(case.model, file, test, record=record, samples=2)
    return replace(story, layers=tuple(layer._replace(name=HOSTILE) for layer in story.layers))


def test_names_from_files_are_text_and_nothing_else(hostile: Story, page: Path, tmp_path: Path) -> None:
    attacked = write_page(tmp_path / "report.html", hostile)
    reader = read(attacked)
    assert reader.open == []
    names = {(tag, name) for tag, attrs in reader.elements for name in attrs}
    assert names <= {
        (tag, name) for tag, attrs in read(page).elements for name in attrs
    }  # no onerror, no new tag
    assert sum(tag == "script" for tag, _ in reader.elements) == 3
    assert any("alert(1)" in text for tag, text in reader.texts if tag == "dd")  # it is there, as text
    assert "\x1b" not in attacked.read_text()


def test_plotly_is_given_no_markup(hostile: Story, tmp_path: Path) -> None:
    figures_of_page = embedded(write_page(tmp_path / "report.html", hostile))
    texts = [text for text in strings(figures_of_page) if "alert" in text or "onerror" in text]
    assert texts
    assert not any("<" in text for text in texts)


def strings(tree: Any) -> list[str]:
    if isinstance(tree, dict):
        return [s for value in tree.values() for s in strings(value)]
    if isinstance(tree, list):
        return [s for value in tree for s in strings(value)]
    return [tree] if isinstance(tree, str) else []


def test_files_of_figures_survive_hostile_names(hostile: Story, tmp_path: Path) -> None:
    named = Story(confidence=hostile.confidence, layers=hostile.layers, runs=hostile.runs)
    written = write_figures(tmp_path, named, formats=("svg",))
    assert [path.stem for path in written] == ["confidence_by_class", "layers", "training"]
    for path in written:
        ElementTree.parse(path)


# --- figures ---------------------------------------------------------------------------------------------------


def test_plotly_knows_every_key_of_the_figures(story: Story, fitted: Case) -> None:
    import plotly.graph_objects as go

    regression = gather(fitted.model, fitted.file, fitted.test, **fitted.options())
    rng = np.random.default_rng(0)
    cloud = Cloud(rng.normal(size=9000), np.exp(rng.normal(size=9000)), 9000)
    heat = Story(plane=Plane(None, None, None, None, cloud))
    for figure in [*figures(story), *figures(regression), *figures(heat)]:
        text = re.sub(r"var\(--[a-z]+\)", "#123456", json.dumps(specification(figure)))
        drawn = go.Figure(json.loads(text))  # refuses unknown keys and values
        assert len(drawn.data) > 0


def test_figures_are_written_in_every_format_asked_for(story: Story, tmp_path: Path) -> None:
    some = replace(story, runs=(), reliability=None, risk=None, confidence=(), weights=None, layers=())
    written = write_figures(tmp_path / "new", some)
    names = ["foreign_inputs", "plane", "sections"]
    assert [path.name for path in written] == [f"{name}.{kind}" for name in names for kind in ("svg", "png")]
    for path in written:
        if path.suffix == ".svg":
            assert ElementTree.parse(path).getroot().tag.endswith("svg")
        else:
            assert path.read_bytes().startswith(b"\x89PNG")
    assert sorted(tmp_path.joinpath("new").iterdir()) == sorted(written)


def test_the_same_story_gives_the_same_bytes(story: Story, tmp_path: Path) -> None:
    some = Story(sections=story.sections)
    first, second = (write_figures(tmp_path / n, some, ("svg",))[0].read_bytes() for n in "ab")
    assert first == second


def test_unknown_formats_are_refused(story: Story, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no format 'bmp'"):
        write_figures(tmp_path / "new", story, ("bmp",))
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize(("module", "write"), [("plotly", write_page), ("matplotlib", write_figures)])
def test_a_missing_library_is_named_with_its_extra(module, write, story, tmp_path, monkeypatch) -> None:
    real = builtins.__import__
    import importlib

    def absent(name: str, *args: Any) -> Any:
        if name.partition(".")[0] == module:
            raise ImportError(name)
        return real(name, *args)

    monkeypatch.setattr(importlib, "import_module", absent)
    with pytest.raises(ImportError, match=rf"{module}.*pocketbayes\[demo\]"):
        write(tmp_path / "out", story)
    assert not (tmp_path / "out").exists()
