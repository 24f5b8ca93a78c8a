"""What every experiment leaves behind: parts, means with errors, figures."""

from __future__ import annotations

import math
import re
from pathlib import Path

import pytest
from scipy import stats

from experiments.record import kept, save_figure, summary


def test_a_summary_is_over_groups_and_clear_beyond_the_quantile_of_students_t() -> None:
    groups = [[1.0, 3.0], [4.0], [6.0, 6.0, 6.0]]  # means 2, 4, 6
    found = summary(groups)
    assert found.mean == pytest.approx(4.0) and found.error == pytest.approx(2.0 / math.sqrt(3))
    expected = stats.ttest_1samp([2.0, 4.0, 6.0], 0.0).pvalue < 0.05
    assert found.clear == expected
    assert summary([[2.0], [2.1], [1.9]]).clear and not summary([[2.0], [-2.0], [1.9]]).clear


def test_what_was_made_before_is_not_made_again(tmp_path: Path) -> None:
    path = tmp_path / "part.json"
    assert kept(path, lambda: [1, 2])["value"] == [1, 2]
    assert kept(path, lambda: [3])["value"] == [1, 2]


def test_figures_are_the_same_bytes_each_time_with_short_coordinates_and_labels_as_they_are(
    tmp_path: Path,
) -> None:
    plt = pytest.importorskip("matplotlib.pyplot")
    texts = []
    for _ in range(2):
        with plt.rc_context({"svg.fonttype": "none"}):
            figure, ax = plt.subplots()
            ax.plot([0.123456, 1.0], [2.0, 3.14159])
            ax.set_xticks([0.125, 1.375])
            save_figure(figure, tmp_path / "figure.svg")
            plt.close(figure)
        texts.append((tmp_path / "figure.svg").read_text())
    assert texts[0] == texts[1]
    assert ">0.125<" in texts[0] and ">1.375<" in texts[0]
    tags = "".join(re.findall(r"<[^>]+>", texts[0]))
    assert not re.search(r"(?<![\d.])[1-9]\d*\.\d{2}", tags.partition("<defs>")[2])
