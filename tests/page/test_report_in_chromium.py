"""The report page as people see it: opened in headless Chromium, on a phone and on a desk, by day and by night."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pocketbayes.artifact import TensorSummary
from pocketbayes.report import Story, gather, write_page
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
PATIENCE = 300.0  # seconds; a busy machine takes long to start a page
FIGURES = {
    "classifier": {
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
            "[...document.querySelectorAll('.plot')].every(plot => plot.querySelector('svg.marks'))"
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
            "plots => plots.map(p => [p.id, p.querySelectorAll('svg.marks path').length])",
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
                ".plot", "plots => plots.map(p => p.querySelector('svg.marks').clientWidth / p.clientWidth)"
            )
            assert ratios == pytest.approx([1.0] * len(ratios), abs=0.02)


def test_no_legend_lies_on_a_figure_or_leaves_it(browser, pages) -> None:
    clear = """plots => plots.map(plot => {
        const svg = plot.querySelector('svg.marks').getBoundingClientRect();
        const frame = plot.querySelector('.root > g > path.background').getBoundingClientRect();
        return [...plot.querySelectorAll('.role-legend')].every(legend => {
            const box = legend.getBoundingClientRect();
            return box.top >= frame.bottom && box.right <= svg.right + 1 && box.bottom <= svg.bottom + 1;
        });
    })"""
    for width in WIDTHS:
        for name in FIGURES:
            with Visit(browser, pages[name], width) as visit:
                assert all(visit.page.eval_on_selector_all(".plot", clear))
                assert (
                    visit.page.locator(".plot button, .plot summary").count() == 0
                )  # no toolbar to lie under


@pytest.mark.parametrize(
    ("figure", "target", "said"),
    [
        ("reliability", ".mark-symbol.layer_1_marks path:last-child", "predictions"),
        ("plane", ".mark-symbol.role-mark path:last-child", "components"),
        ("sections", ".mark-rect.role-mark path:first-child", "% of the file"),
    ],
)
def test_hovering_says_what_a_mark_is(browser, pages, figure, target, said) -> None:
    with Visit(browser, pages["classifier"], 1440) as visit:
        hover(visit, figure, target)
        label = visit.page.locator("#vg-tooltip-element.visible")
        label.wait_for()
        assert said in label.text_content()


def hover(visit: Visit, figure: str, target: str) -> None:
    plot = visit.page.locator(f"#plot-{figure}")
    plot.scroll_into_view_if_needed()
    box = plot.locator(target).first.bounding_box()
    x, y = box["x"] + box["width"] / 2, box["y"] + box["height"] / 2
    visit.page.mouse.move(x - 2, y)
    visit.page.mouse.move(x, y)


def test_hostile_names_are_text_in_figures_and_in_what_hovering_says(browser, tmp_path) -> None:
    attack = "<img src=x onerror=document.title='taken'><script>document.title='taken'</script>"
    layer = TensorSummary(attack, "shared", (3, 3), "float32", 20.0, 0, 0, 0)
    page = write_page(
        tmp_path / "hostile.html", Story(name=attack, layers=(layer,), settings={attack: attack})
    )
    with Visit(browser, page, 1440) as visit:
        hover(visit, "layers", ".mark-rect.role-mark path:first-child")
        label = visit.page.locator("#vg-tooltip-element.visible")
        label.wait_for()
        assert "onerror=document.title" in label.text_content()
        assert visit.page.locator("img, main script, #vg-tooltip-element script").count() == 0
        assert visit.page.title() == f"{attack} · pocketbayes" and visit.complaints == []


def test_dragging_moves_the_plane_and_control_with_the_wheel_zooms(browser, pages) -> None:
    with Visit(browser, pages["classifier"], 1440) as visit:
        plot = visit.page.locator("#plot-plane")
        plot.scroll_into_view_if_needed()
        labels = "[...document.querySelectorAll('#plot-plane .role-axis-label text')].map(t => t.textContent).join()"
        place = "document.querySelector('#plot-plane .mark-symbol.role-mark path').getAttribute('transform')"
        before, box = visit.page.evaluate(place), plot.bounding_box()
        x, y = box["x"] + box["width"] / 2, box["y"] + box["height"] / 3
        visit.page.mouse.move(x, y)
        visit.page.mouse.down()
        visit.page.mouse.move(x + 80, y + 40, steps=4)
        visit.page.mouse.up()
        visit.wait_until(f"{place} !== {before!r}")
        shown, scrolled = visit.page.evaluate(labels), visit.page.evaluate("scrollY")
        visit.page.keyboard.down("Control")
        visit.page.mouse.wheel(0, -400)
        visit.page.keyboard.up("Control")
        visit.wait_until(f"{labels} !== {shown!r}")
        assert visit.page.evaluate("scrollY") == scrolled


def test_the_wheel_alone_scrolls_past_the_plane(browser, pages) -> None:
    with Visit(browser, pages["classifier"], 1440) as visit:
        plot = visit.page.locator("#plot-plane")
        plot.scroll_into_view_if_needed()
        box, scrolled = plot.bounding_box(), visit.page.evaluate("scrollY")
        visit.page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
        visit.page.mouse.wheel(0, 300)
        visit.wait_until(f"scrollY > {scrolled}")


def test_dark_is_another_page_and_its_figures_follow(browser, pages) -> None:
    ink = "getComputedStyle(document.querySelector('#plot-reliability .role-axis-label text')).fill"
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
