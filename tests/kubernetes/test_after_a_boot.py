"""What one driver has left, the next one finds, or makes anew where a boot or an upgrade has changed it."""

from pathlib import Path

from scheduler.engines.runtime_environment import RuntimeEnvironment, keep_text
from scheduler.kubernetes.runtime_environment import RuntimeEnvironments
from tests.kubernetes.conftest import Lab


async def test_specifications_name_what_is_there_now_before_anybody_asks(lab: Lab) -> None:
    """A kubelet that knows a claim to be prepared starts containers of it anew without a word to us."""
    await lab.published()
    changed, lost = await lab.allocator.claim("1Gi"), await lab.allocator.claim("1Gi")
    await lab.kubelet.prepare(changed, lost)
    wanted = [lab.specification(each) for each in (changed, lost)]
    await lab.stop()
    path, other = (lab.cdi / f"gpushare.dev-claim_{each['metadata']['uid']}.json" for each in (changed, lost))
    path.write_text(path.read_text().replace("libgpushare-", "libgpushare-of-an-earlier-release-"))
    other.unlink()  # with a boot, as /var/run is
    await lab.start()
    await lab.published()
    assert [lab.specification(each) for each in (changed, lost)] == wanted


def test_what_containers_have_mounted_is_not_written_anew_under_them(tmp_path: Path) -> None:
    """A program that starts just then would find an empty file, and no shim."""
    found = []
    for _ in range(2):
        RuntimeEnvironments(tmp_path / "cdi", tmp_path, RuntimeEnvironment(tmp_path / "shim.so"), "raw", {})
        found.append((tmp_path / "ld.so.preload").stat())
    first, second = found
    assert (second.st_ino, second.st_mtime_ns) == (first.st_ino, first.st_mtime_ns)
    assert first.st_mode & 0o777 == 0o644


def test_what_is_another_takes_its_place_whole(tmp_path: Path) -> None:
    path = tmp_path / "ld.so.preload"
    keep_text("one\n", path)
    with path.open() as mounted:
        keep_text("two\n", path)
        assert (mounted.read(), path.read_text()) == ("one\n", "two\n")
    assert list(tmp_path.iterdir()) == [path]
