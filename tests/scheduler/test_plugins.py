"""Engines that come as plug-ins: by name, and a host without one of them has all the others."""

import sys

import pytest

from scheduler.engines.base import EngineError
from scheduler.plugin.plugin import Plugin
from scheduler.plugins import plugin_of


@pytest.mark.parametrize("missing", ["scheduler.kubernetes", "grpc"])
def test_only_who_asks_for_a_plug_in_needs_it(monkeypatch: pytest.MonkeyPatch, missing: str) -> None:
    for name in [name for name in sys.modules if name.startswith(("scheduler.kubernetes", "grpc"))]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, missing, None)
    assert plugin_of("auto") is plugin_of("docker") is Plugin
    with pytest.raises(EngineError, match=r"GPUSHARE_ENGINE=kubernetes.*requirements/kubernetes\.txt"):
        plugin_of("kubernetes")
