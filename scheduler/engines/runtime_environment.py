"""What every container is equipped with: the shim, the simulated card if there is one, and the environment for both.

The environment is the same for every engine; only the paths differ (a container sees them where they are mounted).
"""

import hashlib
import shutil
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from web.spec.inside.reserved import undone_by


@dataclass(frozen=True, slots=True)
class Simulation:
    """The simulated card: the folder of its libcuda.so.1 and libnvidia-ml.so.1, and its shared state file.

    The file lies in a folder of its own, which containers get read-write.
    """

    libraries: Path
    state: Path


@dataclass(frozen=True, slots=True)
class RuntimeEnvironment:
    shim: Path
    simulation: Simulation | None = None


def environment(
    given: Mapping[str, str],
    *,
    gpus: Sequence[str],
    shim: str,
    libraries: Iterable[str],
    state: str | None,
    of_image: Mapping[str, str] = MappingProxyType({}),
    alone: bool = False,
) -> dict[str, str]:
    """`given` with everything that decides about GPUs overridden.

    `given` comes from the scheduler and may hold GPUSHARE_*; other reserved names in it are dropped. `of_image` is what
    programs have without it: where the loader searches, ours comes in front of that and does not replace it. `alone`:
    these GPUs are the only ones that programs see. CUDA counts them from 0 then, and programs often know numbers only.
    """
    result = {name: value for name, value in given.items() if name.startswith("GPUSHARE_") or not undone_by(name)}
    folders, library = list(libraries), shim
    if " " in shim:  # which ends a name in LD_PRELOAD, and none in LD_LIBRARY_PATH
        folder, _, library = shim.rpartition("/")
        folders.append(folder)
    result["LD_PRELOAD"] = _in_front([library], of_image.get("LD_PRELOAD", ""))
    result["NVIDIA_VISIBLE_DEVICES"] = ",".join(gpus)
    result["CUDA_VISIBLE_DEVICES"] = ",".join(map(str, range(len(gpus))) if alone else gpus)
    if folders or "LD_LIBRARY_PATH" in result:
        searched = result.get("LD_LIBRARY_PATH", of_image.get("LD_LIBRARY_PATH", ""))
        result["LD_LIBRARY_PATH"] = _in_front(folders, searched)
    if state is not None:
        result["GPUSHARE_SIM"] = state
    return result


def _in_front(ours: Sequence[str], theirs: str) -> str:
    """One list for the loader. An empty entry would be the working directory, so there is none unless theirs has it."""
    return ":".join([*ours, theirs] if theirs else ours)


def said_of_memory(quota: int, total: int) -> dict[str, str]:
    """What programs read: their quota in bytes, and what part of the card's `total` that is (docs/cli.md)."""
    return {"GPUSHARE_MEMORY_LIMIT": str(quota), "GPUSHARE_MEMORY_FRACTION": f"{quota / total:.6f}"}


# As NCCL comes, the driver takes the memory of its ranks out and cannot bring it back (CUDA error 801; two H100, driver
# 580). With these it came back each time, at 23.3 of 24.2 steps a second of a DDP training.
MOVABLE = {"NCCL_P2P_DISABLE": "1", "NCCL_CUMEM_ENABLE": "0", "NCCL_CUMEM_HOST_ENABLE": "0"}


def keep_copy(library: Path, folder: Path) -> Path:
    """A copy of `library` in `folder`, named by its content, so that a rebuild never changes it under a program."""
    digest = hashlib.sha256(library.read_bytes()).hexdigest()[:16]
    folder.mkdir(mode=0o755, parents=True, exist_ok=True)
    kept = folder / f"{library.stem}-{digest}{library.suffix}"
    if not kept.exists():
        partial = kept.with_suffix(".partial")
        shutil.copyfile(library, partial)
        partial.chmod(0o755)
        partial.replace(kept)
    return kept


def keep_folder(libraries: Path, folder: Path) -> Path:
    """The same for several that lie in one folder: a copy of that, in `folder`."""
    digest = hashlib.sha256(b"".join(path.read_bytes() for path in sorted(libraries.iterdir()))).hexdigest()[:16]
    kept = folder / digest
    if not kept.exists():
        folder.mkdir(mode=0o755, parents=True, exist_ok=True)
        partial = folder / f"{digest}.partial"
        shutil.rmtree(partial, ignore_errors=True)
        shutil.copytree(libraries, partial)
        partial.rename(kept)
    return kept


def keep_text(text: str, path: Path) -> None:
    """What is mounted into containers that run: it is never seen in part, and not at all if it is there already."""
    if path.exists() and path.read_text() == text:
        return
    partial = path.with_name(f"{path.name}.partial")
    partial.write_text(text)
    partial.chmod(0o644)
    partial.replace(path)
