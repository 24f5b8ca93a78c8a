"""Models made once for all tests of the report."""

from __future__ import annotations

import pytest

from pocketbayes.report import Story, gather
from report_models import Case, classifier, regressor


@pytest.fixture(scope="session")
def case(tmp_path_factory: pytest.TempPathFactory) -> Case:
    return classifier(tmp_path_factory.mktemp("classifier"))


@pytest.fixture(scope="session")
def story(case: Case) -> Story:
    return gather(case.model, case.file, case.test, **case.options())


@pytest.fixture(scope="session")
def fitted(tmp_path_factory: pytest.TempPathFactory) -> Case:
    return regressor(tmp_path_factory.mktemp("regressor"))
