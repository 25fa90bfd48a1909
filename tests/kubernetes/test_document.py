"""docs/kubernetes.md, followed literally: its commands are what helm, kubectl and the manifests know, as far as that
can be known without a cluster."""

import re
import shlex
import shutil
from pathlib import Path

import kubernetes_validate
import pytest
import typer
import yaml

from appliance.cli.main import app
from scheduler.kubernetes.claims import OPTIONS
from scheduler.kubernetes.names import DRIVER
from tests.kubernetes.test_manifests import HELM, HERE, KUBECTL, built, objects, of, pod_specs, rendered, run
from tests.support.host import ROOT

PAGE = (ROOT / "docs" / "kubernetes.md").read_text()
BLOCKS = re.findall(r"^```(\w*)\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
YAML = [text for kind, text in BLOCKS if kind == "yaml"]
CLUSTERS = (  # own words
    "ErrImagePull", "FailedResourceClaimCreation", "Pending", "cannot allocate all claims", "Terminating",
    "FailedPrepareDynamicResources", "UnexpectedAdmissionError", "unresolvable CDI devices",
)  # fmt: skip
COMMANDS = [shlex.split(line, comments=True) for kind, text in BLOCKS if kind == "sh"
            for line in text.replace("\\\n", " ").splitlines()]  # fmt: skip


def named(*words: str) -> list[list[str]]:
    """The commands that begin so."""
    return [each for each in COMMANDS if each[: len(words)] == list(words)]


def after(words: list[str], flag: str) -> list[str]:
    return [words[at + 1] for at, word in enumerate(words) if word == flag]


def values(words: list[str]) -> list[str]:
    return [word for value in after(words, "--set") for word in ("--set", value)]


def test_the_chart_takes_what_is_given_to_helm() -> None:
    (install,), (upgrade,), (remove,) = named("helm", "install"), named("helm", "upgrade"), named("helm", "uninstall")
    assert install[2:4] == upgrade[2:4] == ["gpushare", "deploy/kubernetes/chart"]
    assert (remove[2], {*map(tuple, (after(each, "-n") for each in (install, upgrade, remove)))}) == (
        "gpushare", {("gpushare",)}
    )  # fmt: skip
    assert "--reset-then-reuse-values" in upgrade
    assert "--reset-then-reuse-values" in run(HELM, "upgrade", "--help")
    found = rendered(*values(install))
    assert of(found, "ConfigMap")["data"]["GPUSHARE_KUBERNETES_PEOPLE"] == "team-a=ada team-b/robot=bob *=lab"
    (spec,) = pod_specs(found)
    (built_as,) = named("docker", "build")
    assert spec["containers"][0]["image"] == after(built_as, "-t")[0] == named("docker", "push")[0][2]
    assert Path(ROOT, after(built_as, "-f")[0]).exists()
    assert rendered(*values(install), *values(upgrade))
    for single in re.findall(r"`--set '?([^`']+)'?`", PAGE):
        rendered("--set", single)


def test_labels_secret_and_names_are_those_of_the_manifests() -> None:
    found = built(HERE / "base")
    (spec,) = pod_specs(found)
    ((label, value),) = spec["nodeSelector"].items()
    assert [each[-1] for each in named("kubectl", "label", "node")] == [f"{label}={value}", f"{label}-"]
    (secret,) = named("kubectl", "-n", "gpushare", "create", "secret", "generic")
    assert {"secretRef": {"name": secret[6], "optional": True}} in spec["containers"][0]["envFrom"]
    keys = [word.partition("=")[2].partition("=")[0] for word in secret if word.startswith("--from-literal")]
    assert keys == ["DATABASE_URL", "REDIS_URL", "GPUSHARE_SECRET_KEY"]
    security, allowed = (each[-1] for each in named("kubectl", "label", "namespace"))
    assert security == "=".join(*of(found, "Namespace")["metadata"]["labels"].items())
    assert f'"{allowed.partition("=")[0]}" in namespaceObject.metadata.labels' in yaml.dump(found, width=10**6)
    for words in named("kubectl", "-n", "gpushare", "rollout"):
        assert words[-1] == f"daemonset/{of(found, 'DaemonSet')['metadata']['name']}"


def test_what_is_applied_is_there() -> None:
    applied = named("kubectl", "apply")
    assert len(applied) == 2
    for words in applied:
        assert [built(ROOT / path) for path in after(words, "-k")] + [
            objects((ROOT / path).read_text()) for path in after(words, "-f")
        ]
    for path in re.findall(r"\]\(\.\./(deploy/[^)#]+)\)", PAGE):
        assert (ROOT / path).exists()


@pytest.mark.parametrize("text", YAML, ids=lambda text: re.search(r"kind: (\w+)", text)[1])  # type: ignore[index]
def test_an_example_is_what_the_published_schemas_say(text: str, tmp_path: Path) -> None:
    found = objects(text)
    if found[0]["kind"] == "Kustomization":
        shutil.copytree(HERE, tmp_path / "gpushare" / "deploy" / "kubernetes")
        (tmp_path / "kustomization.yaml").write_text(text)
        found = objects(run(KUBECTL, "kustomize", tmp_path))
        (spec,) = pod_specs(found)
        assert (spec["containers"][0]["image"], spec["runtimeClassName"]) == (
            "registry.example/gpushare:0.1.0", "nvidia"
        )  # fmt: skip
        assert of(found, "ConfigMap")["data"]["GPUSHARE_KUBERNETES_PEOPLE"] == "team-a=ada *=lab"
    for each in found:
        kubernetes_validate.validate(each, "1.36", strict=True)


def test_the_parameters_of_a_claim_and_the_class_are_those_that_the_driver_knows() -> None:
    (sentence,) = re.findall(r"The parameters are (.*?), by the rules", PAGE, re.DOTALL)
    assert re.findall(r"`(\w+)`", sentence) == list(OPTIONS)
    (selector,) = of(built(HERE / "base"), "DeviceClass")["spec"]["selectors"]
    assert selector["cel"]["expression"] == f'device.driver == "{DRIVER}"'


def test_our_own_commands_exist() -> None:
    known = typer.main.get_command(app).commands  # type: ignore[attr-defined]
    for words in named("gpushare"):
        options = {flag for param in known[words[1]].params for flag in (*param.opts, *param.secondary_opts)}
        assert {word for word in words if word.startswith("-")} <= options
    assert len(named("gpushare")) == 3


def test_every_sentence_that_a_log_or_an_event_is_known_by_is_one_of_ours_or_the_clusters() -> None:
    source = "\n".join(path.read_text() for folder in ("scheduler", "deploy") for path in (ROOT / folder).rglob("*")
                       if path.is_file() and path.suffix in (".py", ".yaml"))  # fmt: skip
    (table,) = re.findall(r"^\| what is seen \|.*?\n\n", PAGE, re.MULTILINE | re.DOTALL)
    seen = [text for row in table.strip().splitlines()[2:] for text in re.findall(r"`([^`]+)`", row.split("|")[1])]
    texts = [text.removesuffix("…").strip() for text in seen if not text.startswith(CLUSTERS)]
    assert len(texts) > 5
    assert [text for text in texts if text not in source] == []
