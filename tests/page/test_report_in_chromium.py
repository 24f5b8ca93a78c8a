"""The report page as people see it: opened in headless Chromium, on a phone and on a desk, by day and by night."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pocketbayes.report import gather, write_page
from report_models import classifier, regressor

sync_api = pytest.importorskip("playwright.sync_api", reason="run `make check-page`, which installs it")

pytestmark = pytest.mark.page

FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
WIDTHS = (390, 1440)
PATIENCE = 300.0  # seconds; a busy machine takes long to start a page of five megabytes
FIGURES = {
    "classifier": {
        "reliability",
        "risk_coverage",
        "confidence_by_class",
        "foreign_inputs",
        "plane",
        "weights",
        "sections",
        "layers",
        "training",
    },
    "regressor": {
        "predicted_and_true",
        "interval_coverage",
        "risk_coverage",
        "plane",
        "weights",
        "sections",
        "layers",
    },
}


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("pages")
    cases = {"classifier": classifier(folder), "regressor": regressor(folder)}
    return {
        name: write_page(folder / f"{name}.html", gather(c.model, c.file, c.test, **c.options()))
        for name, c in cases.items()
    }


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    names = ("chromium", "chromium-browser", "google-chrome")
    path = os.environ.get("CHROMIUM") or next(filter(None, map(shutil.which, names)), None)
    assert path, "no Chromium: run `make check-page`, which installs it, or name one in CHROMIUM"
    with sync_api.sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=path, args=FLAGS)
        yield chromium
        chromium.close()


class Visit:
    """A page opened at a width, what it complained of and what it asked the network for."""

    def __init__(self, browser: Any, file: Path, width: int, scheme: str = "light") -> None:
        phone = width < 800
        size = {"width": width, "height": 900}
        self.context = browser.new_context(
            viewport=size, color_scheme=scheme, is_mobile=phone, has_touch=phone
        )
        self.context.set_default_timeout(1000 * PATIENCE)
        self.page = self.context.new_page()
        self.complaints: list[str] = []
        self.requests: list[str] = []
        self.page.on("console", lambda m: self.complaints.append(m.text) if m.type == "error" else None)
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.page.goto(file.as_uri(), wait_until="commit")
        self.wait_until("document.readyState === 'complete'")
        self.wait_until(
            "[...document.querySelectorAll('.plot')].every(plot => plot.querySelector('.main-svg'))"
        )

    def __enter__(self) -> Visit:
        return self

    def __exit__(self, *_: object) -> None:
        self.context.close()

    def wait_until(self, condition: str, seconds: float = PATIENCE) -> None:
        """Poll from outside: the page's policy forbids the eval that playwright's own waiting needs."""
        end = time.monotonic() + seconds
        while not self.page.evaluate(condition):
            assert time.monotonic() < end, f"never true: {condition}"
            self.page.wait_for_timeout(50)

    def background(self, element: str = "body") -> str:
        colour: str = self.page.eval_on_selector(element, "e => getComputedStyle(e).backgroundColor")
        return colour


@pytest.mark.parametrize("name", FIGURES)
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", WIDTHS)
def test_the_page_draws_every_figure_and_stays_within_its_width(browser, pages, name, scheme, width) -> None:
    with Visit(browser, pages[name], width, scheme) as visit:
        drawn = visit.page.eval_on_selector_all(
            ".plot",
            "plots => plots.map(p => [p.id, p.querySelectorAll('.main-svg path, .main-svg image').length])",
        )
        assert {plot.removeprefix("plot-") for plot, _ in drawn} == FIGURES[name]
        assert all(shapes > 3 for _, shapes in drawn)
        assert visit.page.evaluate("document.documentElement.scrollWidth") <= width
        outside = """width => [...document.querySelectorAll('main *')].filter(
            e => !e.closest('svg, .scroll, .spoken') && e.getBoundingClientRect().right > width + 0.5).length"""
        assert visit.page.evaluate(outside, width) == 0
        assert visit.complaints == []
        assert all(url.startswith(("file:", "data:", "blob:")) for url in visit.requests)


def test_figures_are_as_wide_as_their_cards(browser, pages) -> None:
    for width in WIDTHS:
        with Visit(browser, pages["classifier"], width) as visit:
            ratios = visit.page.eval_on_selector_all(
                ".plot", "plots => plots.map(p => p.querySelector('.main-svg').clientWidth / p.clientWidth)"
            )
            assert ratios == pytest.approx([1.0] * len(ratios), abs=0.02)


@pytest.mark.parametrize(
    ("figure", "target", "said"),
    [
        ("reliability", ".scatterlayer .trace:last-child .point:last-child", "predictions"),
        ("plane", ".scatterlayer .trace:first-child .point:first-child", "component"),
        ("sections", ".barlayer .point:first-child path", "bytes, "),
    ],
)
def test_hovering_says_what_a_mark_is(browser, pages, figure, target, said) -> None:
    with Visit(browser, pages["classifier"], 1440) as visit:
        plot = visit.page.locator(f"#plot-{figure}")
        plot.scroll_into_view_if_needed()
        box = plot.locator(target).first.bounding_box()
        visit.page.mouse.move(box["x"] + box["width"] / 2 - 3, box["y"] + box["height"] / 2)
        visit.page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
        label = plot.locator(".hoverlayer .hovertext").first
        label.wait_for()
        assert said in label.text_content()


def test_dragging_zooms_into_the_plane(browser, pages) -> None:
    with Visit(browser, pages["classifier"], 1440) as visit:
        ends = "document.getElementById('plot-plane')._fullLayout.xaxis.range"
        span = f"({ends}[1] - {ends}[0])"
        before = visit.page.evaluate(span)
        plot = visit.page.locator("#plot-plane")
        plot.scroll_into_view_if_needed()
        box = plot.locator(".nsewdrag").first.bounding_box()
        x, y = box["x"] + 0.4 * box["width"], box["y"] + 0.3 * box["height"]
        visit.page.mouse.move(x, y)
        visit.page.mouse.down()
        visit.page.mouse.move(x + 0.2 * box["width"], y + 0.3 * box["height"], steps=4)
        visit.page.mouse.up()
        visit.wait_until(f"{span} < {before / 2}")


def test_dark_is_another_page_and_its_figures_follow(browser, pages) -> None:
    ink = "document.querySelector('#plot-reliability .xtick text').style.fill"
    with Visit(browser, pages["classifier"], 1440, "dark") as night:
        dark = night.background(), night.background(".card"), night.page.evaluate(ink)
    with Visit(browser, pages["classifier"], 1440, "light") as day:
        light = day.background(), day.background(".card"), day.page.evaluate(ink)
        assert all(a != b for a, b in zip(light, dark, strict=True))
        day.page.click("#theme")
        day.wait_until(f"{ink} === {dark[2]!r}")
        assert (day.background(), day.background(".card")) == dark[:2]
        day.page.click("#theme")
        day.wait_until(f"{ink} === {light[2]!r}")
        assert day.background() == light[0] and day.complaints == []
