from __future__ import annotations

import pytest

from mac_runner.environments.discussion import environment


@pytest.fixture(autouse=True)
def rehearsed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The templates of discussions that a second process would render again; test_templates.py has one do so."""
    sources: list[str] = []
    monkeypatch.setattr(environment, "check_reproduced", lambda _kind, _own, source, _found: sources.append(source))
    return sources
