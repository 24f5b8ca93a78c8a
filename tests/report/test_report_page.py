"""The page and the files of figures: whole, self-contained, and safe with names from hostile files."""

from __future__ import annotations

import base64
import hashlib
import importlib
import json
import re
import sys
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest

import pocketbayes as pb
from pocketbayes import nets
from pocketbayes.report import Story, gather, write_figures, write_page
from pocketbayes.report.charts import THEME, VEGA_LITE, specification
from pocketbayes.report.page import figures, inert
from pocketbayes.report.story import Cloud, Curve, Threshold, TrainingCurve, WeightPlane
from pocketbayes.report.words import plain_words
from report_models import Case

CLASSIFICATION = [
    "reliability",
    "risk_coverage",
    "confidence_by_class",
    "out_of_distribution",
    "plane",
    "weights",
    "sections",
    "layers",
    "training",
    "training_kl",
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
HOSTILE = "</script><script>alert(1)</script><img src=x onerror=alert(2)>\"'&$\x1b[31m\u2028\u2029\ud800<a href='http://x'>"


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
    return json.loads(found.group(1))["figures"]


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
        assert figure.look in texts and figure.spoken in texts
        assert figure.spoken.endswith(".") and figure.look.endswith(".")
    assert list(embedded(page)) == CLASSIFICATION


def test_the_page_loads_nothing(page: Path) -> None:
    for tag, attrs in read(page).elements:
        assert tag not in ("link", "iframe", "object", "embed", "base", "form")
        for name in ("src", "href", "action", "srcset", "poster"):
            value = attrs.get(name)
            assert value is None or value.startswith("data:image/png;base64,")
    style = re.search(r"<style>(.*?)</style>", page.read_text(), re.DOTALL).group(1)
    assert "url(" not in style and "@import" not in style


def test_the_policy_lets_only_the_one_script_of_the_page_run(page: Path) -> None:
    scripts = re.findall(r'<script type="module">(.*?)</script>', page.read_text(), re.DOTALL)
    hashes = {base64.b64encode(hashlib.sha256(s.encode()).digest()).decode() for s in scripts}
    policy = next(a["content"] for _, a in read(page).elements if a.get("http-equiv"))
    allowed = re.search(r"script-src ([^;]*);", policy).group(1)
    assert len(scripts) == 1 and set(re.findall(r"'sha256-([^']*)'", allowed)) == hashes
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
    after = {"reliability": {"after": story.reliability["after"]}, "risk": {"after": story.risk["after"]}}
    bare = replace(story, **after, runs=(), gallery=None, entropies=None, stages=())
    assert list(embedded(write_page(tmp_path / "a.html", bare))) == [
        name for name in CLASSIFICATION if name not in ("out_of_distribution", "training", "training_kl")
    ]


def test_a_page_of_a_large_network_stays_light(fitted: Case, story: Story, tmp_path: Path) -> None:
    wide = pb.bayesianize(nets.mlp([10, 20_000, 1]))
    pb.save(wide, tmp_path / "wide.pocket")
    likelihood = pb.likelihood.Homoscedastic(1.0)
    large = gather(wide, tmp_path / "wide.pocket", fitted.test, samples=2, likelihood=likelihood)
    assert large.plane.unshared.total == 220_000
    page = write_page(
        tmp_path / "report.html", replace(large, layers=story.layers * 100, sections=story.sections)
    )
    assert page.stat().st_size < 2_000_000


def test_a_page_of_a_small_network_stays_light(page: Path) -> None:
    assert page.stat().st_size < 2_000_000


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
    assert sum(tag == "script" for tag, _ in reader.elements) == 2
    assert any("alert(1)" in text for tag, text in reader.texts if tag == "dd")  # it is there, as text
    assert "\x1b" not in attacked.read_text()


def test_no_string_of_the_figures_can_end_their_script(hostile: Story, tmp_path: Path) -> None:
    path = write_page(tmp_path / "report.html", hostile)
    raw = re.search(r'id="figures">(.*?)</script>', path.read_text(), re.DOTALL).group(1)
    assert not set("<>&\u2028\u2029") & set(raw) and "alert(1)" in raw
    assert "onerror" in json.dumps(embedded(path))  # whole: no name has ended it


def test_inert_json_is_the_same_data() -> None:
    data = {HOSTILE.replace("\ud800", ""): ["</script>", "<!--", "\u2028\u2029", "&lt;"]}
    text = inert(data)
    assert json.loads(text) == data and text.isascii() and not set("<>&") & set(text)


def test_files_of_figures_survive_hostile_names(hostile: Story, tmp_path: Path) -> None:
    named = Story(confidence=hostile.confidence, layers=hostile.layers, runs=hostile.runs)
    written = write_figures(tmp_path, named, formats=("svg",))
    assert [path.stem for path in written] == ["confidence_by_class", "layers", "training", "training_kl"]
    for path in written:
        ElementTree.parse(path)


# --- figures ---------------------------------------------------------------------------------------------------


def test_vega_draws_something_in_every_figure(story: Story, fitted: Case) -> None:
    import vl_convert

    regression = gather(fitted.model, fitted.file, fitted.test, **fitted.options())
    for figure in [*figures(story), *figures(regression)]:
        compiled = vl_convert.vegalite_to_vega({**specification(figure), "config": THEME}, VEGA_LITE)
        assert compiled["marks"] and any(source.get("values") for source in compiled["data"])


def test_files_have_the_colours_of_the_light_page(story: Story, tmp_path: Path) -> None:
    path = write_figures(tmp_path, Story(risk=story.risk, classes=story.classes), ("svg",))[0]
    svg = path.read_text(encoding="utf-8")
    assert "var(" not in svg and "#0a6c94" in svg and "#8b8f96" in svg


def texts_of(figure: Any) -> str:
    return json.dumps(specification(figure), ensure_ascii=False)


def test_the_threshold_is_marked_on_its_curve() -> None:
    curve = Curve(np.array([0.5, 1.0]), np.array([0.0, 0.1]))
    known = Story(classes=("a", "b"), risk={"after": curve}, threshold=Threshold(0.9, 0.5, 0.0))
    assert "“not sure” below 90.0%" in texts_of(figures(known)[0]) and "50.0%" in figures(known)[0].look
    never = replace(known, threshold=Threshold(0.9, 0.0, float("nan")))
    assert "not sure" not in texts_of(figures(never)[0]) and "No answer reaches" in figures(never)[0].look
    assert "threshold" not in figures(replace(known, threshold=None))[0].look


def test_a_stage_that_begins_late_is_named_before_its_line(tmp_path: Path) -> None:
    runs = tuple(
        TrainingCurve(name, np.ones(epochs), np.ones(epochs), np.ones(epochs))
        for name, epochs in (("sharing-fit", 8), ("sharing-finetune", 1))
    )
    (path, *_) = write_figures(tmp_path, Story(runs=runs), formats=("svg",))
    drawn = ElementTree.parse(path).iter("{http://www.w3.org/2000/svg}text")
    anchors = {text.text: text.get("text-anchor") for text in drawn}
    assert anchors["sharing-fit"] in (None, "start") and anchors["sharing-finetune"] == "end"


def test_no_trend_is_spoken_of_where_there_is_none() -> None:
    def look(validation: list[float]) -> str:
        numbers = np.array(validation)
        return figures(Story(runs=(TrainingCurve("a", numbers, numbers, numbers),)))[0].look

    assert "falls" not in look([0.5]) and "falls" in look([0.5, 0.4, 0.3])


def test_the_plane_speaks_of_what_is_in_it_only() -> None:
    cloud = Cloud(np.array([0.0, 1.0]), np.array([0.1, 0.2]), 7)
    bare = figures(Story(plane=WeightPlane(None, None, None, None, cloud)))[0].look
    assert "Red" not in bare and "Of 7 unshared weights, 2 are shown." in bare
    shared = figures(Story(plane=WeightPlane(cloud, np.array([3, 4]), None, None, None)))[0].look
    assert "Red" not in shared and "Yellow" not in shared and "disc" in shared


def test_a_flat_risk_curve_is_called_flat() -> None:
    flat = Curve(np.array([0.5, 1.0]), np.array([2.0, 2.0]))
    assert "equally certain" in figures(Story(risk={"after": flat}))[0].look


def test_settings_are_in_plain_words_and_those_not_given_are_left_out() -> None:
    found = plain_words(
        {"max_bytes": 9000, "ood": None, "calibrate": True, "batch_size": 128, "lr": 2e-3, "mean": [0.5, 1]}
    )
    assert found == {
        "budget (bytes)": "9000",
        "calibrate σ on validation data": "yes",
        "batch size": "128",
        "learning rate": "0.002",
        "mean of the inputs": "0.5, 1",
    }


def test_figures_are_written_in_every_format_asked_for(story: Story, tmp_path: Path) -> None:
    some = replace(story, runs=(), reliability={}, risk={}, confidence=(), weights=None, layers=())
    written = write_figures(tmp_path / "new", some)
    names = ["out_of_distribution", "plane", "sections"]
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


@pytest.mark.parametrize("module", ["altair", "vl_convert", "jinja2", "PIL"])
def test_a_missing_library_is_named_with_its_extra(module: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.startswith(("pocketbayes.report", module))]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(ImportError, match=rf"{module}.*pocketbayes\[demo\]"):
        importlib.import_module("pocketbayes.report")
