from collections.abc import Iterator

import pytest

from tests.support.cluster import Cluster, running_cluster
from tests.support.postgres import BIN as POSTGRES
from tests.support.redis_server import BIN as REDIS


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    needs = pytest.mark.skipif(
        POSTGRES is None or REDIS is None, reason="needs the distribution's PostgreSQL and Redis (see .ci/run)"
    )
    for item in items:
        if item.path.parent.name == "nodes":
            item.add_marker(pytest.mark.production)
            item.add_marker(pytest.mark.timeout(300))
            item.add_marker(needs)


@pytest.fixture(scope="package")
def _cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Three nodes with cards of different sizes."""
    folder = tmp_path_factory.mktemp("cluster")
    with running_cluster(folder, small="sim:1x1GiB", middle="sim:2x2GiB", large="sim:1x4GiB") as cluster:
        yield cluster


@pytest.fixture
def cluster(_cluster: Cluster) -> Iterator[Cluster]:
    """The same for all tests of this folder; each leaves it whole and without living containers."""
    yield _cluster
    _cluster.make_whole()
