"""Breaks chosen lines, one in each module that acts, and says which tests notice: `python -m tests.mutants [WORD]`.

Each line is broken in a copy of the committed tree, in which the tests beside it run. All of those are of `make test`
(tests/test_mutants.py): what they do not notice, `make test` does not. WORD takes only the lines whose file has it in
its path. The exit code is how many were not noticed.
"""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

ROOT = Path(__file__).resolve().parents[1]
LINKED = (".venv", ".build")  # what is built, which no mutant changes
SOME_FAILED = 1


@dataclass(frozen=True, slots=True)
class Mutant:
    file: str
    line: str  # stands there once
    broken: str
    tests: str  # files, or tests of a file, that are to notice


CORE, WEB = "scheduler/core", "web"
MUTANTS = tuple(
    Mutant(*words)
    for words in (
        (f"{CORE}/safety.py", "if leased >= quota:", "if leased >= 0:", "tests/core/test_every_state.py"),
        (f"{CORE}/admission.py", "if quota > most and not running:", "if False:", "tests/core/test_bad_input.py"),
        (f"{CORE}/handlers/containers.py", "not known.killed:  # a kill", "known.killed:  # a kill",
         "tests/core/test_reasons.py tests/core/test_swapping.py"),
        (f"{CORE}/fair.py", "container.began >= STARTING or", "container.began >= 0 or", "tests/core/test_starting.py"),
        (f"{CORE}/policies.py", "key=lambda request: request.since, reverse=True", "key=lambda request: request.since",
         "tests/core/test_policies.py"),
        (f"{CORE}/moves/preemption.py", "container.idle_since >= state.preemption.idle", "container.idle_since >= 0",
         "tests/core/test_preemption.py"),
        (f"{CORE}/forecast.py", "if not short and not behind:", "if not short:", "tests/core/test_forecast.py"),
        (f"{CORE}/moves/__init__.py", "return container if stage is container.stage else",
         "return container if True else", "tests/core/test_swapping.py"),
        (f"{CORE}/expected.py", "request.since < state.expected.began or", "request.since > state.expected.began or",
         "tests/core/test_after_a_restart.py"),
        (f"{CORE}/packing.py", "if item.size <= room:", "if item.size < room:", "tests/core/test_policies.py"),
        (f"{CORE}/turns/dealing.py", "if taker.limit is None:", "if taker.limit is not None:",
         "tests/core/test_turns.py"),
        (f"{CORE}/turns/table.py", "share = self.part(gpu, member) if ring is ROOT", "share = 0.5 if ring is ROOT",
         "tests/core/test_turns_of_people.py"),
        (f"{CORE}/turns/books.py", "return self.active and not self.beside", "return self.active",
         "tests/core/test_turns.py"),
        ("scheduler/sessions/lease_pages.py", "return max(0, self._charged - self.out)", "return max(0, self._charged)",
         "tests/scheduler/test_lease_pages.py"),
        ("scheduler/sessions/grants.py", "if pid and _lives(pid, started):", "if pid:",
         "tests/scheduler/test_claims.py"),
        ("scheduler/store/journal.py", "if over > LAST_RESORT:", "if False:", "tests/scheduler/test_journal.py"),
        ("scheduler/containers/host_memory_budget.py", "if needed > (there := available()):", "if False:",
         "tests/scheduler/test_swapping.py::test_what_the_host_has_not_left_is_no_place_for_an_image"),
        ("scheduler/engines/docker/errors.py", "if isinstance(error, requests.exceptions.Timeout):", "if False:",
         "tests/engines/test_docker_errors.py"),
        (f"{WEB}/sizes.py", "if size > LARGEST:", "if size > 2 * LARGEST:", "tests/web/test_sizes.py"),
        (f"{WEB}/services/admission.py", "self.gib_hours >= self.limits.gib_hours", "False",
         "tests/web/test_allowances.py"),
        (f"{WEB}/services/issuing.py", "SIGN_OF_LIFE).exists():", "SIGN_OF_LIFE).exists() or True:",
         "tests/web/test_steering.py"),
        (f"{WEB}/services/placement/policies.py", "if len(found) < count:", "if False:",
         "tests/web/test_placement_policies.py"),
        (f"{WEB}/people/tokens.py", "if token.expires_at is not None and token.expires_at <= now:", "if False:",
         "tests/web/test_tokens.py"),
        (f"{WEB}/people/links.py", "elif not good.delete()[0]:", "elif not good:", "tests/web/test_links.py"),
        (f"{WEB}/people/roles.py", "return max(held,", "return min(held,", "tests/web/test_people.py"),
        (f"{WEB}/history/spans.py", "if event.kind == EventKind.ENDED:", "if False:", "tests/web/test_reports.py"),
        (f"{WEB}/spec/quotas.py", "if asked and most and asked > most:", "if False:",
         "tests/web/test_hostile_launches.py"),
        ("appliance/proxies.py", "_is_this_host(host) or ", "", "tests/cli/test_proxies.py"),
        ("appliance/cli/client.py", 'if "command" not in answer or "url" not in answer:', "if True:",
         "tests/demo/test_story.py"),
        ("static/gpushare/parts/format.js", "indexOf(Math.max(...hundredths))] += left",
         "indexOf(Math.max(...hundredths))] -= left", "tests/web/test_scripts.py"),
    )
)  # fmt: skip


@contextmanager
def copied() -> Iterator[Path]:
    with TemporaryDirectory(prefix="mutants-") as folder:
        archive = subprocess.run(["git", "archive", "HEAD"], cwd=ROOT, check=True, capture_output=True).stdout
        subprocess.run(["tar", "-x", "-C", folder], input=archive, check=True)
        for name in LINKED:
            Path(folder, name).symlink_to(ROOT / name)
        yield Path(folder)


def is_noticed(mutant: Mutant, tree: Path) -> bool:
    file = tree / mutant.file
    whole = file.read_text()
    file.write_text(whole.replace(mutant.line, mutant.broken))
    try:
        words = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *mutant.tests.split()]
        return subprocess.run(words, cwd=tree, stdout=subprocess.DEVNULL).returncode == SOME_FAILED
    finally:
        file.write_text(whole)


def main(word: str = "") -> int:
    missed = 0
    with copied() as tree:
        for mutant in (each for each in MUTANTS if word in each.file):
            noticed = is_noticed(mutant, tree)
            missed += not noticed
            print(f"{'noticed' if noticed else 'MISSED':8} {mutant.file}: {mutant.line} → {mutant.broken}", flush=True)
    return missed


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:2]))
