"""Who imports whom in Python.

Every import statement counts, wherever it stands: one inside a function hides a circle from the interpreter, not from
the reader, and so does one under `if TYPE_CHECKING`. A package is its `__init__`; that Python runs `a/__init__.py`
before `a.b` is not counted, as nobody would gain anything by an empty file that says otherwise.
"""

from __future__ import annotations

import ast
from pathlib import Path

from tests.tree.sources import files, module


def graph(root: Path) -> dict[str, set[str]]:
    """Module (its path without the ending) → the modules below `root` that it imports."""
    paths = {_dotted(root, path): module(root, path) for path in files(root, ".py")}
    found: dict[str, set[str]] = {}
    for path in files(root, ".py"):
        name = module(root, path)
        tree = ast.parse(path.read_text(), filename=str(path))
        package = _dotted(root, path.parent / "__init__.py")
        found[name] = {paths[each] for each in _imported(tree, package, paths)} - {name}
    return found


def _dotted(root: Path, path: Path) -> str:
    parts = path.relative_to(root).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _imported(tree: ast.AST, package: str, known: dict[str, str]) -> set[str]:
    """Dotted names of the known modules that are imported. `from a import b` is `a.b` where that is a module."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            parents = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
            base = ".".join([*parents, node.module] if node.module else parents)
            for alias in node.names:
                inner = f"{base}.{alias.name}"
                found.add(inner if inner in known else base)
    return found & set(known)
