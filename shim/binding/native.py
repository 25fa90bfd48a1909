"""The compiled part of gpushare: `ffi` and `lib`, which cffi makes of our C code (binding_build.py)."""

import importlib.util
from pathlib import Path
from typing import Any

BUILD = Path(__file__).resolve().parent.parent.parent / ".build"


def _load() -> tuple[Any, Any]:
    described, library = BUILD / "_gpushare.py", BUILD / "_gpushare.so"
    spec = importlib.util.spec_from_file_location("_gpushare", described)
    if not (spec and spec.loader and described.exists() and library.exists()):
        raise ImportError(f"the compiled part of gpushare is not in {BUILD}: run `make native` first")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.ffi, module.ffi.dlopen(str(library))


ffi: Any
lib: Any
ffi, lib = _load()
