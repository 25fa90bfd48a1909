"""The appliance goes away and comes back while somebody follows a container: the program goes on, and so do we."""

import pytest

from tests.support.appliance import Appliance


@pytest.fixture
def own(tmp_path):
    running = Appliance(tmp_path / "var")
    yield running
    running.close()


def test_an_attached_run_outlives_the_appliance_and_repeats_no_output(own, start):
    counting = "i=0; while [ $i -lt 100 ]; do i=$((i+1)); echo $i; sleep .1; done; exit 9"
    process = start("run", "--name", "counter", "local", "sh", "-c", counting, environ=own.environ)
    assert process.stdout.readline() == "1\n"
    own.crash()
    assert process.stderr.readline() == "gpushare: the appliance does not answer; counter keeps running. Trying again\n"
    own.start()
    assert process.stderr.readline() == "gpushare: the appliance answers again\n"
    out, err = process.stdout.read(), process.stderr.read()
    assert (process.wait(60), err) == (9, "")
    assert out == "".join(f"{number}\n" for number in range(2, 101))
