"""The admission policies of deploy/kubernetes, evaluated as an API server does: whom they keep off what.

One is about the authors of claims, the others are about whoever has stolen the token of a node's driver.
"""

from pathlib import Path
from typing import Any

import cel
import pytest

from tests.kubernetes.cluster.rules import JSON
from tests.kubernetes.test_manifests import HERE, built, of

BASE, EVICT = HERE / "base", HERE / "overlays" / "evict"
DRIVER = "system:serviceaccount:gpushare:gpushare-driver"
OF_NODE_1 = {"authentication.kubernetes.io/node-name": ["node-1"]}


class Policy:
    def __init__(self, name: str, folder: Path = BASE) -> None:
        self._spec = of(built(folder), "ValidatingAdmissionPolicy", name)["spec"]
        self._binding = of(built(folder), "ValidatingAdmissionPolicyBinding", name)["spec"]
        assert self._binding["validationActions"] == ["Deny"]

    def allows(self, operation: str, resource: str, *, pods: list[JSON] | None = None, **given: Any) -> bool:
        """`resource` with its group. `pods`: of the namespace, for a policy whose parameters they are."""
        if not any(
            self._is_meant(rule, operation, resource) for rule in self._spec["matchConstraints"]["resourceRules"]
        ):
            return True
        given = {"object": None, "oldObject": None, "namespaceObject": {"metadata": {}}, "request": {}} | given
        given["request"] |= {"operation": operation}
        if "paramKind" not in self._spec:
            return self._holds(given)
        assert self._spec["paramKind"] == {"apiVersion": "v1", "kind": "Pod"}
        assert self._binding["paramRef"] == {"selector": {}, "parameterNotFoundAction": "Allow"}
        return all(self._holds(given | {"params": pod}) for pod in pods or [])

    def _is_meant(self, rule: JSON, operation: str, resource: str) -> bool:
        group, _, name = resource.rpartition("|")
        return operation in rule["operations"] and group in rule["apiGroups"] and name in rule["resources"]

    def _holds(self, given: JSON) -> bool:
        if not all(cel.evaluate(each["expression"], given) for each in self._spec.get("matchConditions", [])):
            return True
        given = given | {"variables": {}}
        for each in self._spec["variables"]:
            given["variables"][each["name"]] = cel.evaluate(each["expression"], given)
        return all(cel.evaluate(each["expression"], given) for each in self._spec["validations"])


# ---- whoever writes claims ----


def asks(**request: Any) -> JSON:
    return {"spec": {"devices": {"requests": [{"name": "gpu", **request}]}}}


OURS = asks(exactly={"deviceClassName": "gpushare"})
FIRST = asks(firstAvailable=[{"name": "a", "deviceClassName": "other"}, {"name": "b", "deviceClassName": "gpushare"}])
ADMIN = asks(exactly={"deviceClassName": "gpushare", "adminAccess": True})
OTHER = asks(exactly={"deviceClassName": "other"})
YES, NO = {"metadata": {"labels": {"gpushare.dev/allowed": "true"}}}, {"metadata": {"labels": {"a": "b"}}}
CLAIMS, SLICES = "resource.k8s.io|resourceclaims", "resource.k8s.io|resourceslices"


@pytest.mark.parametrize(
    ("asked", "namespace", "allowed"),
    [
        (OURS, YES, True), (OURS, NO, False), (OURS, {"metadata": {}}, False), (FIRST, NO, False), (FIRST, YES, True),
        (ADMIN, YES, False), (OTHER, NO, True), ({"spec": {}}, NO, True), ({"spec": {"devices": {}}}, NO, True),
    ],
)  # fmt: skip
def test_only_namespaces_that_are_allowed_to_may_use_the_class_and_nobody_without_a_quota(
    asked: JSON, namespace: JSON, allowed: bool
) -> None:
    assert Policy("gpushare-claims").allows("CREATE", CLAIMS, object=asked, namespaceObject=namespace) is allowed


def test_claims_of_a_namespace_that_is_not_allowed_any_more_can_end() -> None:
    """The cluster takes away its finalizer by an update; what is asked for, no update changes."""
    assert Policy("gpushare-claims").allows("UPDATE", CLAIMS, object=OURS, oldObject=OURS, namespaceObject=NO)


# ---- whoever has a driver's token ----


def by(who: str = DRIVER, extra: JSON | None = None, **more: Any) -> JSON:
    return {"userInfo": {"username": who, "extra": OF_NODE_1 if extra is None else extra}, **more}


def a_slice(**other: Any) -> JSON:
    pool = {"name": "node-1", "generation": 1, "resourceSliceCount": 1}
    spec = {"nodeName": "node-1", "driver": "gpushare.dev", "pool": pool} | other
    return {"spec": {name: value for name, value in spec.items() if value is not None}}


@pytest.mark.parametrize("operation", ["CREATE", "UPDATE", "DELETE"])
@pytest.mark.parametrize(
    ("found", "request_", "allowed"),
    [
        (a_slice(), by(), True),
        (a_slice(nodeName="node-2"), by(), False),
        (a_slice(nodeName=None, allNodes=True), by(), False),
        (a_slice(pool={"name": "node-2", "generation": 2**62, "resourceSliceCount": 1}), by(), False),
        (a_slice(driver="gpu.nvidia.com"), by(), False),
        (a_slice(), by(extra={}), False),
        (a_slice(nodeName="node-2"), by("admin", {}), True),
    ],
    ids=["its own", "another node's", "all nodes'", "another's pool", "another driver's", "no node", "an admin"],
)
def test_a_driver_changes_what_its_own_node_offers_and_nothing_else(
    operation: str, found: JSON, request_: JSON, allowed: bool
) -> None:
    about = {"oldObject" if operation == "DELETE" else "object": found}
    assert Policy("gpushare-driver-slices").allows(operation, SLICES, request=request_, **about) is allowed


def pod(name: str, node: str | None) -> JSON:
    return {"metadata": {"name": name}, "spec": {"nodeName": node} if node else {}}


MINE, THEIRS, NOWHERE = pod("mine", "node-1"), pod("theirs", "node-2"), pod("pending", None)
WHO_ENDS_WHAT = pytest.mark.parametrize(
    ("meant", "request_", "allowed"),
    [
        (MINE, by(), True), (THEIRS, by(), False), (NOWHERE, by(), False), (MINE, by(extra={}), False),
        (THEIRS, by("admin", {}), True),
    ],
)  # fmt: skip


@WHO_ENDS_WHAT
def test_a_driver_deletes_pods_of_its_own_node_only(meant: JSON, request_: JSON, allowed: bool) -> None:
    assert Policy("gpushare-driver-pods").allows("DELETE", "|pods", request=request_, oldObject=meant) is allowed


@WHO_ENDS_WHAT
def test_a_driver_evicts_pods_of_its_own_node_only(meant: JSON, request_: JSON, allowed: bool) -> None:
    name, policy = meant["metadata"]["name"], Policy("gpushare-driver-evictions", EVICT)
    eviction = {"metadata": {"name": name, "namespace": "team-a"}}
    everybody = [THEIRS, MINE, NOWHERE]
    found = policy.allows(
        "CREATE", "|pods/eviction", pods=everybody, request={**request_, "name": name}, object=eviction
    )
    assert found is allowed
