"""A play of what Docker alone can: folders of the host and named volumes, a keyboard, an image that is nowhere."""

from pathlib import Path
from tempfile import TemporaryDirectory

from tests.faults.plays import _BY_HAND, _LIFE, _NEVER
from tests.faults.scene import Scene
from web.models import Container


class Environments(Scene):
    expected = {
        "folders": (("exited", (0,), "", _LIFE, 1),),
        "typed": (_BY_HAND,),
        "screen": (_BY_HAND,),
        "linked": (_NEVER,),
        "missing": (_NEVER,),
        "nowhere": (_NEVER,),
    }

    def play(self) -> None:
        with TemporaryDirectory(prefix="environments-") as folder:
            self._play(Path(folder))

    def _play(self, folder: Path) -> None:
        world = self.world
        (folder / "given").mkdir()
        (folder / "link").symlink_to("/etc")
        self._launched({
            "folders": self._begin("folders", "echo there >/a/it; echo there >/b/it",
                                   volumes=[f"{folder}/given:/a", "faults-volume:/b"]),
            "linked": self._begin("linked", "true", volumes=[f"{folder}/link:/a"]),
            "missing": self._begin("missing", "true", volumes=[f"{folder}/missing:/a"]),
            "nowhere": self._begin("nowhere", "true", image="127.0.0.1:1/nowhere:latest"),
            # Its input ends with the scheduler (docs/cli.md); it does not.
            "typed": self._begin("typed", "cat; exec sleep 600", interactive=True),
            "screen": self._begin("screen", "cat", interactive=True, tty=True),
        })  # fmt: skip
        world.until_state(self.made["folders"], "exited")
        assert (folder / "given/it").read_text() == "there\n"
        for name in ("typed", "screen"):
            self._says(name, "began")
            self._done(world.do("kill", self.made[name], grace=0.0))
        for container in Container.objects.filter(removed_at=None):
            self._done(world.do("remove", container))
        self._all_over()
