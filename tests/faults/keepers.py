"""Every keeper dies at one line: a launch may be refused; what was started can be ended, and is accounted for."""

from tests.faults.world import World


def play(world: World) -> list[str]:
    script = f"echo began; exec {world.workload} --bytes 512MiB --check 1MiB --hold 1"
    launched = world.outcome(world.begin_launch("kept", "sh", "-c", script))
    assert launched.container is not None
    container = launched.container
    if launched.outcome == "done":
        world.do("kill", container)
    ended = world.until(lambda: world.get(container).finished_at, "it does not end")
    left = world.left_of(container)
    world.stop()
    world.start()  # what is asked next needs keepers that live
    return [f"ended at {ended}, and processes of it live: {left}"] * bool(left)
