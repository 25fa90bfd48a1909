"""The compiled part of gpushare: `ffi` and `lib`, as cffi made them from our C code (binding_build.py)."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

BUILD = Path(__file__).resolve().parent.parent.parent / ".build"


def _load() -> Any:
    for path in BUILD.glob("_gpushare.*.so"):
        spec = importlib.util.spec_from_file_location("_gpushare", path)
        if spec and spec.loader:
            module = importlib.util.module_from_spec(spec)
            spec.loader.exec_module(module)
            return module
    raise ImportError(f"the compiled part of gpushare is not in {BUILD}: run `make native` first")


_module = _load()
ffi: Any = _module.ffi
lib: Any = _module.lib
