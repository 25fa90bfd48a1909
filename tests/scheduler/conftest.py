from collections.abc import Iterator

import pytest

from tests.support.inprocess.host import InProcess
from tests.support.joined import Site
from tests.support.postgres import running_postgres


@pytest.fixture
def host(inprocess: InProcess) -> InProcess:
    """A host with one card of 5 GiB in this process. Files that need real ones import `tests.support.host.host`."""
    return inprocess


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
