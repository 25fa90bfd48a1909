"""What deploy/kubernetes has: rendered by kubectl and helm themselves, judged by the published schemas and by us.

The examples' claims are read as the driver reads them, and the role has what the fake API server grants in all other
tests: the least that they run with.
"""

import json
import subprocess
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path

import kubernetes_validate
import pytest
import yaml

from scheduler.kubernetes import claims
from scheduler.kubernetes.api import quantity
from scheduler.kubernetes.kubelet import plugin
from scheduler.kubernetes.kubelet.server import KubeletServer
from scheduler.kubernetes.units import RESOURCE, UNIT
from tests.kubernetes.cluster.api_server import EVICTING, RIGHTS
from tests.kubernetes.cluster.rules import JSON
from tests.support.host import BUILD, GIB, ROOT

HERE = ROOT / "deploy" / "kubernetes"
KUBECTL, HELM = BUILD / "kubernetes" / "kubectl" / "kubectl", BUILD / "kubernetes" / "helm" / "helm"
BUILT = [HERE / "base", *sorted((HERE / "overlays").iterdir()), HERE / "claims"]
EXAMPLES = sorted((HERE / "examples").glob("*.yaml"))
RELEASES = ("1.34", "1.35", "1.36", "1.37")
OLDEST = ("1.30", "1.33")  # where what is about claims is not there yet


@cache
def run(*words: str | Path) -> str:
    done = subprocess.run(words, capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    return done.stdout


def objects(text: str) -> list[JSON]:
    return [found for found in yaml.safe_load_all(text) if found]


def built(folder: Path) -> list[JSON]:
    return objects(run(KUBECTL, "kustomize", folder))


def rendered(*words: str) -> list[JSON]:
    return objects(run(HELM, "template", "gpushare", HERE / "chart", "-n", "gpushare", *words))


def of(found: Sequence[JSON], kind: str, name: str = "gpushare") -> JSON:
    (one,) = [each for each in found if (each["kind"], each["metadata"]["name"]) == (kind, name)]
    return one


def pod_specs(found: Sequence[JSON]) -> Iterator[JSON]:
    for each in found:
        if each["kind"] == "Pod":
            yield each["spec"]
        elif "template" in each.get("spec", {}):
            yield each["spec"]["template"]["spec"]


@pytest.mark.parametrize("release", RELEASES)
def test_everything_is_what_the_published_schemas_say(release: str) -> None:
    everything = [each for folder in BUILT for each in built(folder)] + rendered("--set", "runtimeClassName=nvidia")
    everything += [each for path in EXAMPLES for each in objects(path.read_text())]
    kinds = {each["kind"] for each in everything}
    assert {"DaemonSet", "DeviceClass", "ResourceClaimTemplate", "ValidatingAdmissionPolicy", "ClusterRole"} <= kinds
    for each in everything:
        kubernetes_validate.validate(each, release, strict=True)


@pytest.mark.parametrize("release", OLDEST)
def test_what_counts_units_needs_nothing_that_older_releases_do_not_have(release: str) -> None:
    counted = built(HERE / "overlays" / "counted")
    for each in (
        *rendered("--set", "claims=false"),
        *counted,
        *objects((HERE / "examples" / "counted.yaml").read_text()),
    ):
        kubernetes_validate.validate(each, release, strict=True)


def test_a_schema_does_find_what_is_wrong() -> None:
    daemons = of(built(HERE / "base"), "DaemonSet")
    daemons["spec"]["template"]["spec"]["hostPid"] = True
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(daemons, RELEASES[-1], strict=True)


def test_the_chart_renders_what_the_plain_manifests_are() -> None:
    plain = [each for each in built(HERE / "base") if each["kind"] != "Namespace"]
    chart = rendered()
    assert {(each["kind"], each["metadata"]["name"]) for each in chart} == {
        (each["kind"], each["metadata"]["name"]) for each in plain
    }
    for each in plain:
        assert of(chart, each["kind"], each["metadata"]["name"]) == each


def test_the_charts_values_come_to_where_they_belong() -> None:
    found = rendered(
        "--set", "people=*=admin", "--set", "kill=evict", "--set", "kubelet=/k", "--set", "settings.GPUSHARE_LOG=DEBUG",
        "--set", "image.tag=v7", "--set", "policies=false", "--set", "nodeSelector=null",
    )  # fmt: skip
    data = of(found, "ConfigMap")["data"]
    assert (data["GPUSHARE_KUBERNETES_PEOPLE"], data["GPUSHARE_KUBERNETES_KILL"]) == ("*=admin", "evict")
    assert (data["GPUSHARE_KUBELET"], data["GPUSHARE_LOG"]) == ("/k", "DEBUG")
    (spec,) = pod_specs(found)
    assert spec["containers"][0]["image"] == "gpushare:v7"
    assert {"hostPath": {"path": "/k/plugins", "type": "DirectoryOrCreate"}, "name": "plugins"} in spec["volumes"]
    assert "ValidatingAdmissionPolicy" not in {each["kind"] for each in found}


EVIL = [
    'home="/h\\n              subPath: x"', 'kubelet="/k, x"', 'cdi="/c: x"', 'secret="s\\n              name: other"',
    'runtimeClassName="r\\n      hostNetwork: true"', 'image={"repository": "a\\"\\n          x: \\"b"}',
    'image={"tag": "1\\"\\n          x: \\"b"}', 'settings={"A: b\\n  GPUSHARE_KUBERNETES_PEOPLE": "*=admin"}',
]  # fmt: skip


@pytest.mark.parametrize("value", EVIL)
def test_a_value_is_a_value_and_no_more_of_the_manifest(value: str) -> None:
    words = [HELM, "template", "gpushare", HERE / "chart", "--set-json", value]
    done = subprocess.run(words, capture_output=True, text=True)
    assert done.returncode != 0
    assert "values don't meet the specifications of the schema" in done.stderr


def test_people_and_settings_may_be_any_text() -> None:
    odd = '*=lab"\n  x: y # {{ .Values.secret }}'
    said = [f"people={json.dumps(odd)}", f"settings={json.dumps({'GPUSHARE_LOG': odd})}"]
    data = of(rendered(*(word for each in said for word in ("--set-json", each))), "ConfigMap")["data"]
    assert (data["GPUSHARE_KUBERNETES_PEOPLE"], data["GPUSHARE_LOG"]) == (odd, odd)


@pytest.mark.parametrize("value", ["kill=no", "pepole=*=admin", "kubelet=var/lib/kubelet", "image.tag="])
def test_a_value_that_makes_no_sense_is_refused(value: str) -> None:
    words = [HELM, "template", "gpushare", HERE / "chart", "--set", value]
    done = subprocess.run(words, capture_output=True, text=True)
    assert done.returncode != 0
    assert value.partition("=")[0].partition(".")[0] in done.stderr


@pytest.mark.parametrize("overlay", ["nvidia", "simulated"])
def test_an_overlay_changes_what_it_is_for_and_nothing_else(overlay: str) -> None:
    plain, found = built(HERE / "base"), built(HERE / "overlays" / overlay)
    changed = [(new["kind"], new["metadata"]["name"]) for old, new in zip(plain, found, strict=True) if old != new]
    assert (
        changed
        == {
            "nvidia": [("DaemonSet", "gpushare")],
            "simulated": [("ConfigMap", "gpushare"), ("DaemonSet", "gpushare")],
        }[overlay]
    )


def granted(found: Sequence[JSON]) -> JSON:
    rules = of(found, "ClusterRole", "gpushare-driver")["rules"]
    return {resource: set(rule["verbs"]) for rule in rules for resource in rule["resources"]}


@pytest.mark.parametrize(
    ("overlay", "values"),
    [
        ("evict", ["kill=evict"]), ("nvidia", ["runtimeClassName=nvidia"]), ("counted", ["claims=false"]),
        ("simulated", ["gpus=sim:1x8GiB", "people=*=admin", "nodeSelector=null"]),
    ],
)  # fmt: skip
def test_what_an_overlay_is_for_the_charts_values_do_too(overlay: str, values: list[str]) -> None:
    plain = [each for each in built(HERE / "overlays" / overlay) if each["kind"] != "Namespace"]
    chart = rendered(*(word for value in values for word in ("--set", value)))
    assert len(chart) == len(plain)
    for each in plain:
        assert of(chart, each["kind"], each["metadata"]["name"]) == each


def test_no_simulated_card_is_offered_where_a_real_one_is_not_found() -> None:
    for found, gpus in ((built(HERE / "base"), "nvidia"), (built(HERE / "overlays" / "simulated"), "sim:1x8GiB")):
        assert of(found, "ConfigMap")["data"]["GPUSHARE_GPUS"] == gpus


def test_a_driver_is_ready_when_its_kubelet_can_reach_it() -> None:
    for found, kubelet in ((built(HERE / "base"), "/var/lib/kubelet"), (rendered("--set", "kubelet=/k"), "/k")):
        (spec,) = pod_specs(found)
        server = KubeletServer(Path(kubelet), None, None, None)  # type: ignore[arg-type]
        assert spec["containers"][0]["readinessProbe"]["exec"]["command"] == ["test", "-S", str(server.endpoint)]


def test_what_the_manifests_set_stands_among_the_settings() -> None:
    document = (ROOT / "docs" / "settings.md").read_text()
    data = of(built(HERE / "base"), "ConfigMap")["data"]
    assert [name for name in data if f"`{name}`" not in document] == []


def test_the_role_has_the_rights_of_the_tests_and_no_more() -> None:
    assert granted(built(HERE / "base")) == RIGHTS


def test_where_a_kill_is_an_eviction_the_driver_may_evict_and_not_delete() -> None:
    overlay, chart = built(HERE / "overlays" / "evict"), rendered("--set", "kill=evict")
    assert granted(overlay) == EVICTING
    assert of(overlay, "ConfigMap")["data"]["GPUSHARE_KUBERNETES_KILL"] == "evict"
    names = {(each["kind"], each["metadata"]["name"]) for each in overlay if each["kind"] != "Namespace"}
    assert names == {(each["kind"], each["metadata"]["name"]) for each in chart}
    for each in overlay:
        if each["kind"] != "Namespace":
            assert of(chart, each["kind"], each["metadata"]["name"]) == each


def test_where_units_are_counted_a_driver_is_held_to_its_own_node_all_the_same() -> None:
    for found in (built(HERE / "overlays" / "counted"), rendered("--set", "claims=false")):
        policies = [each["metadata"]["name"] for each in found if each["kind"] == "ValidatingAdmissionPolicy"]
        assert policies == ["gpushare-driver-pods"]


def test_the_folders_of_the_host_are_at_the_same_path_and_where_the_settings_say() -> None:
    found = built(HERE / "base")
    (spec,) = pod_specs(found)
    paths = {volume["name"]: volume["hostPath"]["path"] for volume in spec["volumes"]}
    mounts = spec["containers"][0]["volumeMounts"]
    assert {mount["name"]: mount["mountPath"] for mount in mounts} == paths
    data = of(found, "ConfigMap")["data"]
    server = plugin.DevicePlugin(Path(data["GPUSHARE_KUBELET"]), "a/b", dict, lambda *_: [], None, str)  # type: ignore[arg-type]
    needed = [data["GPUSHARE_HOME"], data["GPUSHARE_CDI_FOLDER"], server.endpoint.parent, server._pods.parent]
    assert {str(path) for path in needed} <= set(paths.values())
    assert spec["hostPID"] is True


def request_of(template: JSON) -> JSON:
    (request,) = template["spec"]["spec"]["devices"]["requests"]
    found: JSON = request["exactly"]
    return found


def test_the_sizes_to_choose_from_are_what_their_names_say() -> None:
    templates = built(HERE / "claims")
    sizes = {each["metadata"]["name"]: request_of(each)["capacity"]["requests"]["memory"] for each in templates}
    assert {name: quantity.read(size) for name, size in sizes.items()} == {f"gpu-{n}gi": n * GIB for n in (2, 4, 8)}
    classes = of(built(HERE / "base"), "DeviceClass")["metadata"]["name"]
    assert {request_of(each)["deviceClassName"] for each in templates} == {classes}


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_names_what_is_there_and_its_parameters_are_understood(path: Path) -> None:
    found = objects(path.read_text())
    own = [each for each in found if each["kind"] == "ResourceClaimTemplate"]
    names = {each["metadata"]["name"] for each in (*own, *built(HERE / "claims"))}
    for spec in pod_specs(found):
        words = {each["name"] for each in spec.get("resourceClaims", [])}
        assert {each["resourceClaimTemplateName"] for each in spec.get("resourceClaims", [])} <= names
        for container in spec["containers"]:
            assert {each["name"] for each in container["resources"].get("claims", [])} <= words
            for resource, count in container["resources"].get("limits", {}).items():
                assert (resource, int(count) * UNIT) == (RESOURCE, 4 * GIB)
    for template in own:
        config = template["spec"]["spec"]["devices"]["config"]
        spec = claims._spec(config, {"gpu"})
        assert (spec["priority"], spec["compute_weight"], spec["max_wait_seconds"]) == (10, 200, 600)
