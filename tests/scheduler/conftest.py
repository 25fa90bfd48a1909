from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import pytest

from tests.support.host import Host, a_host
from tests.support.joined import Site
from tests.support.postgres import running_postgres


@pytest.fixture
async def host(transactional_db: None, settings, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Host]:
    """A host with one simulated GPU of 5 GiB."""
    async with a_host(settings, tmp_path_factory.mktemp("host")) as host:
        yield host


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    with running_postgres() as postgres:
        site = Site(tmp_path_factory.mktemp("site"), postgres)
        try:
            yield site
        finally:
            site.close()


@pytest.fixture(scope="module")
def gpu2(site: Site) -> dict[str, str]:
    """A node that runs."""
    settings = site.joined("gpu2")
    site.start("gpu2")
    return settings
