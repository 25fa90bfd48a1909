import contextlib
import logging
import os
import sys
import time
from datetime import datetime
from typing import Any

from django.conf import settings
from django.contrib.auth.models import User
from django.core.management.base import BaseCommand, CommandError
from django.utils import timezone

from appliance.cli.client import Client
from appliance.cli.errors import Problem
from appliance.cli.login import Login
from appliance.demo import image, story
from appliance.demo.story import NotObserved, Story
from appliance.running.ground import described
from appliance.running.parts import Stopped
from appliance.running.serve import Address, Appliance


class Command(BaseCommand):
    help = "Starts the appliance and a demo: four containers share one GPU of 5 GiB."

    def handle(self, *args: Any, **options: Any) -> None:
        try:
            self.play_and_stay()
        except Stopped:
            if settings.DEMO_EXIT:
                raise CommandError("The demo was stopped before its end.") from None
            self.say("\n  Stopped. Running containers continue; the next start finds them, and ends those of the demo.")

    def play_and_stay(self) -> None:
        # On a machine that is busy with other things its lines would stand between those of the story.
        logging.getLogger("scheduler.watchdog").setLevel(logging.ERROR)
        with Appliance(settings.HOST, settings.PORT, link=not settings.DEMO_EXIT) as appliance:
            observed = appliance.parts.run("demo", lambda: self.run_show(appliance.address))
            if not settings.DEMO_EXIT:
                self.say(f"\n  The dashboard stays available: {appliance.address.url}   Ctrl-C ends it.")
                appliance.parts.wait()
            elif not observed:
                raise CommandError("A step of the demo failed.")

    def run_show(self, address: Address) -> None:
        with contextlib.suppress(KeyboardInterrupt):  # the parent ends everything
            self.show(address)

    def show(self, address: Address) -> None:
        """Raises SystemExit if a step was not observed."""
        with contextlib.closing(Client(Login(address.url, address.token))) as client:
            self.say(self.style.MIGRATE_HEADING("gpushare: containers share one GPU under quotas"))
            engine = client.get("nodes/")["results"][0]["engine"]
            self.say(described(client.get("gpus/")["results"], engine))
            if not settings.DEMO_EXIT:
                self.say(
                    f"  Watch it: {address.link}\n"
                    "  (it signs you in as 'admin', once, within ten minutes; after that, the password is in "
                    f"{settings.GPUSHARE_HOME / 'admin-token'})\n\n"
                    f"  The demo begins when you sign in, or in {story.SIGN_IN_WITHIN} seconds."
                )
                wait_for_sign_in(timezone.now())
            observed = self.play(client, engine)
            while not settings.DEMO_EXIT and sys.stdin.isatty():
                self.say("\n  Enter plays it again. Ctrl-C stops the appliance.")
                if not os.read(sys.stdin.fileno(), 4096):
                    break
                observed = self.play(client, engine)
            if not observed:
                raise SystemExit(1)

    def play(self, client: Client, engine: str) -> bool:
        # The workload is among the image's programs.
        named = image.build() if engine == "docker" else "local"
        try:
            Story(client, named, self.say, pause=0.0 if settings.DEMO_EXIT else story.PAUSE).play()
        except NotObserved as error:
            self.stderr.write(self.style.ERROR(f"  Not observed: {error}"))
            return False
        except Problem as problem:
            self.stderr.write(self.style.ERROR(f"  The appliance refused: {problem.line()}"))
            return False
        self.say(self.style.SUCCESS("  Every step was observed: no program crashed, none deadlocked."))
        return True

    def say(self, line: str) -> None:
        self.stdout.write(line)
        self.stdout.flush()


def wait_for_sign_in(since: datetime) -> None:
    """Returns when somebody has signed in, by the link or otherwise, and sees the page; or after a while."""
    deadline = time.monotonic() + story.SIGN_IN_WITHIN
    while time.monotonic() < deadline:
        if User.objects.filter(last_login__gte=since).exists():
            time.sleep(min(story.PAUSE, 2.0))
            return
        time.sleep(0.2)
