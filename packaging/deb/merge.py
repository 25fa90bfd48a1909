"""`merge.py TARGET FOLDER...`: one folder of libraries for several Pythons, made of one folder for each.

What is compiled carries its Python's name (`x.cpython-311-….so`), or is of the stable ABI; all else must be the same
byte for byte, or the package would be right for one of them only. Of what tells how a wheel came to be, only what it is
and its licence stay.
"""

import filecmp
import shutil
import sys
from pathlib import Path


def _is_wanted(path: Path) -> bool:
    if path.parts[0].endswith(".dist-info"):
        return path.parts[1] in ("METADATA", "licenses") or "LICENSE" in path.name.upper()
    return path.parts[0] != "bin"


def merge(target: Path, folders: list[Path]) -> None:
    """Ends the program with a sentence if two folders disagree about a file."""
    for folder in folders:
        for source in sorted(folder.rglob("*")):
            path = source.relative_to(folder)
            if source.is_dir() or not _is_wanted(path):
                continue
            to = target / path
            if to.exists():
                if not filecmp.cmp(source, to, shallow=False):
                    sys.exit(f"{path} is another in {folder.name}: it cannot serve all Pythons.")
                continue
            to.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source, to)


if __name__ == "__main__":
    merge(Path(sys.argv[1]), [Path(folder) for folder in sys.argv[2:]])
