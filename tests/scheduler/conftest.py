from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from tests.support.host import Host, a_host


@pytest.fixture
async def host(transactional_db: None, settings, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Host]:
    """A host with one simulated GPU of 5 GiB."""
    async with a_host(settings, tmp_path_factory.mktemp("host")) as host:
        yield host
