"""`make bench`: every benchmark here and in shim/, one after the other. `python -m benchmarks.NAME` runs one.

`python -m benchmarks.before` compares with an earlier commit.
"""

import pkgutil
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
HELPERS = {"__main__", "before", "lateness", "shim.programs", "live", "planned", "web.door_lab"} | {
    f"scale.{name}" for name in ("lab", "schedulers", "writes", "reads", "page")
}  # what the others share, and what `manage.py shell` runs
SIMULATED = "simulation."  # on a clock of their own: run by hand, for docs/deciding.md


def main() -> int:
    failed = []
    found = pkgutil.walk_packages([str(HERE)], "benchmarks.")
    for module in sorted(each.name.removeprefix("benchmarks.") for each in found if not each.ispkg):
        if module in HELPERS or module.startswith(SIMULATED):
            continue
        print(f"\n==== {module} ".ljust(100, "="), flush=True)
        if subprocess.run([sys.executable, "-m", f"benchmarks.{module}"], cwd=HERE.parent, check=False).returncode:
            failed.append(module)
    if failed:
        print(f"\nFailed: {', '.join(failed)}", file=sys.stderr)
    return len(failed)


if __name__ == "__main__":
    sys.exit(main())
