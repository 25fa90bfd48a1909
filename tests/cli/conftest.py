import pytest

from tests.support.appliance import Appliance


@pytest.fixture(scope="session")
def shared_appliance(tmp_path_factory):
    running = Appliance(tmp_path_factory.mktemp("appliance") / "var")
    yield running
    running.close()


@pytest.fixture
def appliance(shared_appliance):
    """One appliance serves all tests; each leaves it without living containers."""
    yield shared_appliance
    for container in shared_appliance.containers():
        shared_appliance.api("POST", f"containers/{container['id']}/kill/", {})
