"""What makes no sense is refused in a sentence that `docker run` shows, and leaves nothing behind."""

import asyncio
import os
from typing import Any

import pytest
from django.contrib.auth.models import Group, User

from tests.plugin.conftest import IMAGE, Lab
from tests.support.dockerd import Dockerd, build_workload
from tests.support.host import GIB, a_host, query
from web.models import Allowance, AuditEntry, Container, Gpu, Volume

pytestmark = pytest.mark.docker

REFUSED = [
    ({"memory": "4GiB"}, '"memory" is no option of these volumes. There are: gpu_memory, gpus, priority,'),
    ({"gpu_memory": "lots"}, 'gpu_memory: "lots" is not a size'),
    ({"gpu_memory": "64GiB"}, "64 GiB is more than it can ever give: the most is "),
    ({"gpus": "2"}, "2 GPUs were asked for; there is 1."),
    ({"gpus": "GPU-0000"}, "There is no GPU GPU-0000."),
    ({"gpus": "0"}, "gpus: This has to be 1 or more"),
    ({"priority": "high"}, "priority: This has to be a whole number."),
    ({"weight": "0"}, "compute_weight: Ensure this value is greater than or equal to 1."),
    ({"weight": "5", "compute_weight": "5"}, '"compute_weight" is given twice, once by its short name.'),
    ({"guaranteed": "perhaps"}, "guaranteed: This has to be yes or no."),
    ({"on_shortage": "cry"}, 'on_shortage: "cry" is not a valid choice.'),
    ({"owner": "eve"}, '"eve" may not be the owner of such containers: GPUSHARE_PLUGIN_PEOPLE names who may.'),
]


async def test_a_volume_is_refused_in_a_sentence_and_is_not_there(lab: Lab) -> None:
    for options, sentence in REFUSED:
        answer = await lab.call("VolumeDriver.Create", Name="odd", Opts=options)
        assert sentence in answer["Err"], (options, answer)
    assert await query(Volume.objects.count) == 0
    noted = await query(lambda: list(AuditEntry.objects.filter(action="volume-refused")))
    assert len(noted) == len(REFUSED)
    assert {entry.actor for entry in noted} == {"docker"}


async def test_docker_run_shows_the_sentence(lab: Lab) -> None:
    output = await lab.run("true", gpu_memory="64GiB", code=125)
    assert "gpushare: 64 GiB is more than it can ever give: the most is" in output
    words = ["--network=none", *lab.volume(target="/data", gpu_memory="1GiB")]
    output = await lab.docker("run", *words, IMAGE, "true", code=125)
    assert "mounts it at /data: its place is /run/gpushare." in output
    assert await query(Container.objects.count) == 0
    await lab.nothing_is_held()


async def test_nobody_passes_the_owners_allowance(lab: Lab) -> None:
    def allow() -> None:
        Allowance.objects.create(user=User.objects.get(username="bob"), gpu_memory=2 * GIB, images=["gpushare/*"])

    await query(allow)
    output = await lab.run("true", owner="bob", gpu_memory="3GiB", code=125)
    assert "This quota is 3 GiB; your other quotas are 0 bytes together, and the limit for all is 2 GiB." in output
    first = await lab.begin("first", "sleep", "600", owner="bob", gpu_memory="1500MiB")
    assert (await query(lambda: Container.objects.get(pk=first.pk).owner.username)) == "bob"
    output = await lab.run("true", owner="bob", gpu_memory="1GiB", code=125)
    assert "This quota is 1 GiB; your other quotas are 1.46 GiB together, and the limit for all is 2 GiB." in output
    (entry,) = await query(lambda: list(AuditEntry.objects.filter(action="mount-refused")))
    assert entry.detail["code"] == "over_allowance"
    await lab.docker("tag", IMAGE, "elsewhere/image:1")
    output = await lab.run("true", owner="bob", gpu_memory="100MiB", image="elsewhere/image:1", code=125)
    assert "You may not launch elsewhere/image:1" in output
    await lab.docker("rmi", "elsewhere/image:1", code=None)
    await lab.docker("rm", "-f", "first")
    await lab.nothing_is_held()


async def test_who_has_no_account_or_may_not_launch_is_nobodys_owner(lab: Lab, settings: Any) -> None:
    def look_only() -> None:
        User.objects.get(username="bob").groups.add(Group.objects.get_or_create(name="viewer")[0])

    await query(look_only)
    answer = await lab.call("VolumeDriver.Create", Name="v", Opts={"owner": "bob"})
    assert '"bob" may not launch containers here' in answer["Err"]
    settings.GPUSHARE_PLUGIN_PEOPLE = ["*"]
    assert (await lab.call("VolumeDriver.Create", Name="v", Opts={}))["Err"].startswith(
        "gpushare: The owner is missing"
    )
    answer = await lab.call("VolumeDriver.Create", Name="v", Opts={"owner": "nobody"})
    assert 'There is no active account "nobody" here' in answer["Err"]
    assert (await lab.call("VolumeDriver.Create", Name="v", Opts={"owner": "eve"}))["Err"] == ""


async def test_a_card_that_has_gone_is_reported(lab: Lab) -> None:
    await query(Gpu.objects.update, present=False)
    answer = await lab.call("VolumeDriver.Create", Name="v", Opts={})
    assert answer["Err"] == "gpushare: This host has no GPU that works: there is nothing to have a quota of."


NO_CALLS = [
    b"GET /VolumeDriver.List HTTP/1.1\r\nHost: x\r\n\r\n",
    b"POST /VolumeDriver.List HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\nhello",
    b"POST /VolumeDriver.List HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n[]",
    b"POST /VolumeDriver.Format HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n",
    b'POST /VolumeDriver.Mount HTTP/1.1\r\nHost: x\r\nContent-Length: 12\r\n\r\n{"Name": []}',
    b'POST /VolumeDriver.Create HTTP/1.1\r\nHost: x\r\nContent-Length: 28\r\n\r\n{"Name":"a","Opts":{"a":[]}}',
]


async def test_what_is_no_call_is_answered_or_cut_off_and_the_next_is_served(lab: Lab) -> None:
    async def say(words: bytes) -> bytes:
        reader, writer = await asyncio.open_unix_connection(str(lab.socket))
        try:
            writer.write(words)
            return await asyncio.wait_for(reader.read(4096), 60)
        except ConnectionError:
            return b""
        finally:
            writer.close()

    for words in NO_CALLS:
        assert b'"Err": "' in await say(words), words
    assert await say(b"\x16\x03\x01 no HTTP at all\r\n\r\n") == b""
    long = b"POST /VolumeDriver.Create HTTP/1.1\r\nHost: x\r\nContent-Length: 999999\r\n\r\n" + b" " * 200_000
    assert await say(long) == b""
    assert await say(b"POST /" + b"x" * 100_000) == b""
    assert await lab.call("Plugin.Activate") == {"Implements": ["VolumeDriver"]}


async def test_it_is_off_unless_somebody_is_named(
    dockerd: Dockerd, transactional_db: None, settings: Any, tmp_path_factory: pytest.TempPathFactory
) -> None:
    socket = settings.GPUSHARE_PLUGIN_SOCKET = f"{tmp_path_factory.mktemp('run')}/plugin.sock"
    build_workload(dockerd.address, IMAGE)
    async with a_host(settings, tmp_path_factory.mktemp("off"), docker=dockerd.address) as host:
        host.image = IMAGE
        await host.launch("true")  # the parts that run in the background have all begun
        assert not os.path.exists(socket)  # noqa: ASYNC240 - a moment
