"""`gpushare doctor` asks the plugin as Docker does."""

import asyncio
from typing import Any

import pytest

from appliance.doctor.finding import Finding, State
from appliance.doctor.plugin import plugin
from tests.plugin.conftest import Lab

pytestmark = pytest.mark.docker


def found_as(state: State) -> str:
    found: list[Finding] = [each for each in plugin() if each.state is state]
    assert found, list(plugin())
    assert state is State.FINE or all(each.means and each.do for each in found)
    return found[0].found


async def test_it_says_whether_the_plugin_answers(lab: Lab, settings: Any) -> None:
    assert "/plugins/gpushare.sock" in await asyncio.to_thread(found_as, State.FINE)
    settings.GPUSHARE_PLUGIN_PEOPLE = ["ada", "nobody"]
    assert await asyncio.to_thread(found_as, State.NOTE) == "There is no active account nobody."
    settings.GPUSHARE_PLUGIN_SOCKET = f"{lab.home}/none.sock"
    assert "No volume plugin answers at" in await asyncio.to_thread(found_as, State.WRONG)
    settings.GPUSHARE_PLUGIN_SOCKET = lab.dockerd.address.removeprefix("unix://")
    assert await asyncio.to_thread(found_as, State.WRONG)  # Docker itself, which is no plugin
    settings.GPUSHARE_PLUGIN_PEOPLE = []
    assert "not used" in await asyncio.to_thread(found_as, State.FINE)
