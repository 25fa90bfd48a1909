"""The script by which an admin checks a cluster: what it says of one that works, and of ones that do not.

There is no cluster here: a stand-in for kubectl answers as one would, so this shows that the script judges rightly what
it is answered, and not that its questions are what a real API server wants. It refuses any words it does not expect.
"""

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from scheduler.kubernetes.units import RESOURCE, UNIT
from tests.support.host import BUILD, GIB, ROOT

SCRIPT = ROOT / "deploy" / "kubernetes" / "check"
KUBECTL = f"""#!{sys.executable}
import json, os, re, sys
answers = json.loads(os.environ["ANSWERS"])
words = " ".join(sys.argv[1:])
body = sys.stdin.read() if "-f -" in words else ""
with open(os.environ["CALLS"], "a") as calls:
    calls.write(words + "\\n")
if body:
    with open(os.environ["CALLS"] + ".yaml", "a") as bodies:
        bodies.write("---\\n" + body)
for pattern, (code, text) in answers.items():
    if re.search(pattern, words + body):
        sys.stdout.write(text)
        sys.exit(code)
sys.stderr.write("nobody expects this: " + words)
sys.exit(64)
"""
CLAIMS = "5120Mi true\n5120Mi true\n"
WORKS: dict[str, tuple[int, str]] = {
    r"^version": (0, '{"serverVersion": {"gitVersion": "v1.36.2"}}'),
    r"get daemonset gpushare$": (0, ""),
    r"daemonset gpushare .*image": (0, "registry/gpushare:1"),
    r"daemonset gpushare .*desiredNumberScheduled": (0, "2"),
    r"daemonset gpushare .*numberReady": (0, "2"),
    r"get resourceslices": (0, CLAIMS),
    r"get nodes": (0, "\n"),
    r"create namespace|label|delete": (0, ""),
    r"--dry-run=server": (
        1,
        "ValidatingAdmissionPolicy 'gpushare-claims' with binding 'gpushare-claims' denied request",
    ),
    r"apply -f -": (0, ""),
    r"get pods -l app=gpushare": (0, "Pending ImagePullBackOff\n" * 2),
    r"get pod fits .*exitCode": (0, "0"),
    r"get pod over .*exitCode": (0, "2"),
    r"get pod stays .*restartCount": (0, "Running0"),
    r"get pod stays .*phase": (0, "Running"),
    r"get pod stays .*nodeName": (0, "node-1"),
    r"get pods,resourceclaims": (0, ""),
    r"get events": (0, "gpushare: the claim a/b: No account is set for it.\n"),
    r"logs": (0, "the cards are not offered to the cluster\n"),
}  # the first that fits answers


def run(tmp_path: Path, **other: tuple[int, str]) -> tuple[int, str, str]:
    """Exit code, the report, what kubectl was asked. `other`: answers by a part of the pattern."""
    answers = {
        pattern: next((value for part, value in other.items() if part in pattern), usual)
        for pattern, usual in WORKS.items()
    }
    kubectl, calls = tmp_path / "kubectl", tmp_path / "calls"
    kubectl.write_text(KUBECTL)
    kubectl.chmod(0o755)
    environment = {
        **os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}", "ANSWERS": json.dumps(answers), "CALLS": str(calls),
        "GPUSHARE_CHECK_SECONDS": "0",
    }  # fmt: skip
    done = subprocess.run([SCRIPT], cwd=tmp_path, env=environment, capture_output=True, text=True)
    report = (tmp_path / "gpushare-check.txt").read_text()
    assert done.stdout == report
    assert "nobody expects this" not in done.stderr
    return done.returncode, report, calls.read_text()


def applied(tmp_path: Path) -> list[Any]:
    """Each of it is what the published schemas say."""
    found = list(filter(None, yaml.safe_load_all((tmp_path / "calls.yaml").read_text())))
    for each in found:
        kubernetes_validate.validate(each, "1.36", strict=True)
    return found


def kinds(tmp_path: Path) -> list[str]:
    return [each["kind"] for each in applied(tmp_path)]


def test_a_cluster_that_works(tmp_path: Path) -> None:
    code, report, calls = run(tmp_path)
    assert code == 0
    assert "FAILED" not in report
    assert "server  v1.36.2" in report
    assert "cards that are offered to claims: 2" in report
    assert report.endswith("All of it works.\n")
    assert calls.rstrip().endswith("delete namespace gpushare-check --wait=false")
    assert kinds(tmp_path) == ["ResourceClaim", "ResourceClaimTemplate", "Pod", "Pod", "Pod"]


def test_one_that_counts_is_checked_without_claims(tmp_path: Path) -> None:
    code, report, calls = run(tmp_path, resourceslices=(1, ""), nodes=(0, "19\n\n"))
    assert code == 0
    assert "nodes whose kubelets count units of it: 1" in report
    assert "label" not in calls
    assert kinds(tmp_path) == ["Pod"] * 3
    for pod in applied(tmp_path):
        assert pod["spec"]["containers"][0]["resources"] == {"limits": {RESOURCE: GIB // UNIT}}


def test_its_pods_run_what_is_in_the_drivers_image_and_on_its_nodes(tmp_path: Path) -> None:
    """No namespace but the driver's has the secret of a private registry."""
    run(tmp_path)
    (folder,) = re.findall(r"^WORKDIR (.*)$", SCRIPT.with_name("Dockerfile").read_text(), re.MULTILINE)
    for pod in [each for each in applied(tmp_path) if each["kind"] == "Pod"]:
        (container,) = pod["spec"]["containers"]
        assert (container["image"], container["imagePullPolicy"]) == ("registry/gpushare:1", "IfNotPresent")
        assert container["command"][0] == f"{folder}/.build/{(BUILD / 'workload').name}"


@pytest.mark.parametrize(
    ("answer", "value", "line"),
    [
        ("pod over", (0, "0"), "FAILED  a pod with 1 GiB does not get 2 GiB: exit code 0"),
        ("pod fits", (0, ""), "FAILED  a pod with 1 GiB takes 512 MiB\n        gpushare: the claim a/b: No account"),
        ("restartCount", (0, "Running1"), "FAILED  the pod has gone on meanwhile"),
        ("pods,resourceclaims", (0, "pod/stays"), "FAILED  pods that are deleted end"),
        ("numberReady", (0, "1"), "FAILED  the driver is ready on each of them\n        2 Pending ImagePullBackOff"),
        ("daemonset gpushare$", (1, ""), "FAILED  there is a DaemonSet gpushare in the namespace gpushare"),
        ("resourceslices", (0, ""), "FAILED  cards are offered to claims, or units of them counted\n        the cards"),
        ("dry-run", (0, ""), "note    any namespace may use the class"),
        (
            "dry-run",
            (1, "error: the server is away"),
            "FAILED  a namespace without the label may not use the class\n        error: the server is away",
        ),
        ("desiredNumber", (0, "0"), "FAILED  there is a node for the driver: label those with GPUs"),
    ],
)
def test_what_does_not_work_is_reported(tmp_path: Path, answer: str, value: tuple[int, str], line: str) -> None:
    code, report, _ = run(tmp_path, **{answer: value})
    assert line in report
    assert code == (0 if line.startswith("note") else 1)
