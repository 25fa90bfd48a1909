"""`unconditional.py FILE`: the pins of a file without their conditions, and without what is for Windows alone."""

import re
import sys
from pathlib import Path


def unconditional(pins: str) -> str:
    """Takes and gives what `uv pip compile --generate-hashes` writes: a line each, continued by backslashes."""
    lines = re.split(r"(?<!\\)\n", pins)
    return "\n".join(re.sub(r" ; [^\\\n]*", " ", line) for line in lines if "sys_platform == 'win32'" not in line)


if __name__ == "__main__":
    sys.stdout.write(unconditional(Path(sys.argv[1]).read_text()))
