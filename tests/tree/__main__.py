"""What `make check` asks of the tree's form: `python -m tests.tree [ROOT]`.

No module may depend on itself by way of others, in Python or in C, and no folder may hold more modules than one takes
in at a glance. Names and phrases that were given up stay so (words.py). Says each fault in a line; the exit code is 1
if there is any.
"""

import sys
from pathlib import Path

from tests.tree import c, clocks, python, words
from tests.tree.circles import circles
from tests.tree.sources import crowded

MOST = 16  # modules in a folder: about fifteen


def faults(root: Path) -> list[str]:
    found = [
        f"a circle in {language}: {' → '.join(circle)}"
        for language, graph in (("Python", python.graph(root)), ("C", c.graph(root)))
        for circle in circles(graph)
    ]
    found += [f"{folder or '.'} has {count} modules, more than {MOST}" for folder, count in crowded(root, MOST).items()]
    found += words.given_up(root)
    return found


if __name__ == "__main__":
    root = Path(sys.argv[1] if len(sys.argv) > 1 else ".").resolve()
    said = [*faults(root), *clocks.faults(root)]
    print(
        "\n".join(said) if said else "no circles, no crowded folders, no words that were given up, no sleep in a test"
    )
    sys.exit(bool(said))
