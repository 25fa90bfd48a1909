"""What the fields of REST are called on the command line: by their own name, unless docker's people know another.

The command line reads it, and, through the settings, the launch form, which shows the same launch as a command.
"""

_OTHERWISE = {
    "image": "IMAGE",
    "command": "COMMAND",
    "env": "-e",
    "constraints": "--constraint",
    "volumes": "-v",
    "ports": "-p",
    "working_dir": "--workdir",
    "interactive": "-i",
    "tty": "-t",
    "remove_when_done": "--rm",
    "on_shortage": "--wait/--fail",
    "give_way": "--stay",
    "init": "--no-init",
    "max_wait_seconds": "--max-wait",
    "ttl_seconds": "--ttl",
    "username": "--user",
}


def flag(field: str) -> str:
    return _OTHERWISE.get(field) or "--" + field.replace("_", "-")
