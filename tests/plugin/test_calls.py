"""Docker repeats calls, makes them for copies, and makes them in no order that anybody promises."""

import asyncio
import errno
import os
import stat
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from scheduler.engines.docker.watch import Watch
from scheduler.plugin import driver
from tests.plugin.conftest import IMAGE, Lab
from tests.support.eventually import eventually
from tests.support.host import query
from web.models import Container, Volume

pytestmark = pytest.mark.docker
FINE = {"Err": ""}


async def created(lab: Lab, name: str, volume: str = "one") -> None:
    """A container that Docker has made, and not started: to mount its volume by hand."""
    await lab.docker("create", "--name", name, "--network=none", *lab.volume(volume, gpu_memory="1GiB"), IMAGE, "true")


async def test_every_call_can_be_repeated(lab: Lab) -> None:
    assert await lab.call("VolumeDriver.Capabilities") == {"Capabilities": {"Scope": "local"}, "Err": ""}
    for _ in range(2):
        assert await lab.call("VolumeDriver.Create", Name="one", Opts={"gpu_memory": "1GiB"}) == FINE
    answer = await lab.call("VolumeDriver.Create", Name="one", Opts={"gpu_memory": "2GiB"})
    assert "already exists, with other options" in answer["Err"]
    known = {"Name": "one", "Mountpoint": "", "Status": {"gpu_memory": "1GiB"}}
    assert await lab.call("VolumeDriver.Get", Name="one") == {"Volume": known, "Err": ""}
    assert known in (await lab.call("VolumeDriver.List"))["Volumes"]
    await created(lab, "maker")
    first = await lab.call("VolumeDriver.Mount", Name="one", ID="m1")
    again = await asyncio.gather(*(lab.call("VolumeDriver.Mount", Name="one", ID="m1") for _ in range(5)))
    assert again == [first] * 5
    assert (await lab.call("VolumeDriver.Path", Name="one"))["Mountpoint"] == first["Mountpoint"]
    assert await query(Container.objects.live().count) == 1
    answer = await lab.call("VolumeDriver.Remove", Name="one")
    assert answer["Err"] == 'gpushare: The volume "one" is mounted by the container "maker".'
    for _ in range(2):
        assert await lab.call("VolumeDriver.Unmount", Name="one", ID="m1") == FINE
    await lab.nothing_is_held()
    assert await lab.call("VolumeDriver.Unmount", Name="one", ID="m1") == FINE
    for _ in range(2):
        assert await lab.call("VolumeDriver.Remove", Name="one") == FINE
    assert await query(Volume.objects.count) == 0


async def test_what_is_mounted_again_at_once_is_kept(lab: Lab) -> None:
    """As after `docker cp` into one that is about to be started: that it was unmounted is no end of it."""
    await created(lab, "mine")
    first = await lab.call("VolumeDriver.Mount", Name="one", ID="m1")
    assert await lab.call("VolumeDriver.Unmount", Name="one", ID="m1") == FINE
    assert await lab.call("VolumeDriver.Mount", Name="one", ID="m1") == first
    await eventually(lambda: not lab.up.plugin.mounts._tasks)  # it has been looked at
    assert [live.name for live in lab.up.broker.live_containers.values()] == ["mine"]
    assert await lab.call("VolumeDriver.Unmount", Name="one", ID="m1") == FINE
    await lab.nothing_is_held()


async def test_unmount_without_mount_and_calls_about_what_is_not_there(lab: Lab) -> None:
    assert await lab.call("VolumeDriver.Unmount", Name="none", ID="m") == FINE
    assert await lab.call("VolumeDriver.Remove", Name="none") == FINE
    for call in ("Get", "Path", "Mount"):
        answer = await lab.call(f"VolumeDriver.{call}", Name="none", ID="m")
        assert answer["Err"] == 'gpushare: There is no volume "none" here.'


async def test_what_is_mounted_and_never_started_is_given_back_and_says_so(lab: Lab) -> None:
    output = await lab.run("no-such-program", gpu_memory="1GiB", code=127)
    assert "no-such-program" in output
    await lab.nothing_is_held()
    (container,) = await query(lambda: list(Container.objects.all()))
    assert container.started_at is None
    assert container.reason == "Docker has mounted its volume, and did not start it."


async def test_a_copy_out_of_a_container_that_runs_ends_nothing(lab: Lab) -> None:
    made = await lab.begin("copied", "sleep", "600", gpu_memory="1GiB")
    await lab.docker("cp", "copied:/bin/busybox", f"{lab.home}/copy")
    await asyncio.sleep(0.5)  # longer than an Unmount is given to be seen as an end
    assert (await lab.get(made)).state == "running"
    assert await query(Container.objects.count) == 1
    assert await lab.docker("exec", "copied", "ls", "/run/gpushare") == "gpushare.sock\nlibgpushare.so\n"


async def test_a_container_started_again_is_a_new_one_under_its_own_name(lab: Lab) -> None:
    first = await lab.begin("again", "sleep", "600", gpu_memory="3GiB")
    await lab.docker("restart", "-t", "0", "again")
    await lab.until(first, "failed")  # else it may be taken for the second, while its end is being written
    second = await lab.running("again")
    assert second.pk != first.pk
    await lab.docker("kill", "again")
    await lab.nothing_is_held()


@asynccontextmanager
async def no_look(watch: Watch) -> AsyncIterator[None]:
    """None has its turn meanwhile."""
    look, over = watch.look, asyncio.Event()

    async def later(engine_id: str) -> Any:
        await over.wait()
        return await look(engine_id)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(watch, "look", later)
        await eventually(lambda: not watch._looking)
        try:
            yield
        finally:
            over.set()


async def test_one_that_nobody_could_look_at_before_it_was_started_again_has_ended(lab: Lab) -> None:
    """On a busy host Docker begins it again before an inspection has had its answer: its list and its event say it."""
    first = await lab.begin("again", "sleep", "600", gpu_memory="3GiB")
    watch = lab.up.engine._watch
    async with no_look(watch):
        await lab.docker("restart", "-t", "0", "again")
    ended = await lab.until(first, "failed")
    assert ended.exit_code == 137
    second = await lab.running("again")
    assert second.pk != first.pk
    assert await query(Container.objects.live().count) == 1
    await lab.docker("kill", "again")
    await lab.nothing_is_held()


async def test_a_run_that_nobody_saw_before_it_was_started_again_has_begun_and_ended(lab: Lab) -> None:
    watch = lab.up.engine._watch
    async with no_look(watch):
        words = ["-d", "--name", "quick", "--network=none", *lab.volume(gpu_memory="3GiB")]
        await lab.docker("run", *words, IMAGE, "sh", "-c", "exit 5")
        await lab.docker("wait", "quick")
        await lab.docker("start", "quick")
    await lab.docker("wait", "quick")
    await lab.nothing_is_held()
    runs = await query(lambda: list(Container.objects.order_by("created_at")))
    assert [(run.name, run.exit_code, run.reason) for run in runs] == [("quick", 5, "")] * 2
    assert all(run.started_at for run in runs)


async def test_a_run_whose_end_no_list_had_shown_either_ends_with_the_next_one(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = await lab.begin("again", "sleep", "600", gpu_memory="3GiB")
    watch = lab.up.engine._watch
    monkeypatch.setattr(lab.up.plugin.mounts._mountings, "stopped", lambda id_: None)
    async with no_look(watch):
        await lab.docker("restart", "-t", "0", "again")
    ended = await lab.until(first, "failed")
    assert ended.exit_code == 137
    (second,) = await query(lambda: list(Container.objects.live()))  # under another name: that was taken still
    assert second.pk != first.pk
    await lab.docker("kill", "again")
    await lab.nothing_is_held()


async def test_what_the_image_has_there_already_is_copied_nowhere(lab: Lab) -> None:
    script = "busybox mkdir -p /run/gpushare; echo old > /run/gpushare/old"
    await lab.docker("run", "--name", "grown", "--network=none", IMAGE, "sh", "-c", script)
    await lab.docker("commit", "grown", "gpushare/grown:latest")
    words = ["--rm", "--name", "mine", "--network=none", *lab.volume(gpu_memory="1GiB")]
    output = await lab.docker("run", *words, "gpushare/grown:latest", "ls", "/run/gpushare")
    assert output == "gpushare.sock\nlibgpushare.so\n"
    # Docker has mounted it for the copy as well, and not started it then; newer ones list it only after that.
    *copies, made = await query(lambda: list(Container.objects.order_by("created_at")))
    assert made.name == "mine"
    assert [(copy.name, copy.started_at) for copy in copies] in ([], [("mine", None)])


async def test_a_mount_that_takes_too_long_is_refused_with_a_sentence_and_goes_on(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    await created(lab, "mine")
    with monkeypatch.context() as patched:
        patched.setattr(driver, "ANSWERS_WITHIN", 0.0)
        answer = await lab.call("VolumeDriver.Mount", Name="one", ID="m1")
    assert "was not able to do this in time" in answer["Err"]
    assert (await lab.call("VolumeDriver.Mount", Name="one", ID="m1"))["Err"] == ""
    await lab.call("VolumeDriver.Unmount", Name="one", ID="m1")
    await lab.nothing_is_held()


async def test_a_mount_that_the_hosts_disk_does_not_take_holds_nothing(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> Path:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    await created(lab, "mine")
    with monkeypatch.context() as patched:
        patched.setattr(lab.up.plugin._folders, "give", full)
        answer = await lab.call("VolumeDriver.Mount", Name="one", ID="m1")
    assert "No space left on device" in answer["Err"]
    await lab.nothing_is_held()
    assert (await lab.call("VolumeDriver.Mount", Name="one", ID="m1"))["Err"] == ""
    assert await lab.call("VolumeDriver.Unmount", Name="one", ID="m1") == FINE
    await lab.nothing_is_held()


async def test_a_mount_for_no_container_has_a_folder_of_its_own_until_it_ends(lab: Lab) -> None:
    await lab.call("VolumeDriver.Create", Name="one", Opts={"gpu_memory": "1GiB"})
    place = (await lab.call("VolumeDriver.Mount", Name="one", ID="m"))["Mountpoint"]
    os.mkdir(f"{place}/old")  # as Docker does that copies there what an image has
    assert await query(Container.objects.count) == 0
    assert await lab.call("VolumeDriver.Unmount", Name="one", ID="m") == FINE
    assert not os.path.exists(place)  # noqa: ASYNC240 - a moment


async def test_only_root_reaches_the_socket_and_the_folders(lab: Lab) -> None:
    assert stat.filemode(lab.socket.stat().st_mode) == "srw-------"
    assert stat.filemode((lab.home / "mounted").stat().st_mode) == "drwx------"
    await lab.begin("seen", "sleep", "600", gpu_memory="1GiB")
    (folder,) = (lab.home / "mounted").iterdir()
    assert folder.name == str((await lab.running("seen")).pk)
    words = ["--rm", "--user=1234", "--network=none", *lab.card, *lab.volume(gpu_memory="1GiB"), IMAGE]
    output = await lab.docker("run", *words, "workload", "--bytes", "100MiB")
    assert "done" in output


async def test_who_is_root_inside_leads_the_scheduler_nowhere(lab: Lab, tmp_path: Path) -> None:
    """It puts links where its socket and the shim were; the scheduler is restarted, and follows none."""
    precious = tmp_path / "precious"
    precious.write_text("kept")
    precious.chmod(0o600)
    script = (
        f"cd /run/gpushare; rm *; ln -s {precious} gpushare.sock; ln -s {precious} gpushare.sock.new; "
        f"ln -s {tmp_path}/made libgpushare.so; ln -s {tmp_path}/made passes-no-descriptors; sleep 600"
    )
    made = await lab.begin("evil", "sh", "-c", script, gpu_memory="1GiB")
    (folder,) = (lab.home / "mounted").iterdir()
    await eventually((folder / "passes-no-descriptors").is_symlink)
    await lab.stop()
    await lab.start()
    assert (precious.read_text(), stat.filemode(precious.stat().st_mode)) == ("kept", "-rw-------")
    assert not (tmp_path / "made").exists()
    assert (folder / "gpushare.sock").is_socket()
    assert (await lab.get(made)).state == "running"
    await lab.docker("rm", "-f", "evil")
    await lab.nothing_is_held()
    assert precious.read_text() == "kept"
