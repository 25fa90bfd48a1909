"""Containers that nobody launches here: a Kubernetes cluster allocates, and each claim on our cards is one of ours.

The cluster's scheduler has decided how much of which card it gets; whose it is follows from its namespace and its
pod's service account, by the setting GPUSHARE_KUBERNETES_PEOPLE, and up to that account's allowance. Asked by the
scheduler, which the kubelet talks to.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from django.conf import settings
from django.contrib.auth.models import User
from django.utils import timezone

from web.audit import seals
from web.errors import Problem, forbidden
from web.models import Container, Node
from web.people.roles import account_that_launches
from web.services import admission
from web.services.admission import free_name
from web.services.placement.place import Place

ACTOR = seals.KUBELET
ANY_NAMESPACE = "*"
GROUP = "@"  # before the name of a group, where a person's could be
ANEW = "Its claim was prepared again: the result of this attempt was not known."


@dataclass(frozen=True, slots=True)
class Claimed:
    """A claim that is to become a container. `id` is ours, `uid` the cluster's; `quotas`: bytes by GPU.

    `spec`: all fields of a launch.
    """

    id: UUID
    uid: str
    namespace: str
    name: str
    quotas: Mapping[str, int]
    spec: Mapping[str, Any]
    title: str = ""  # what people may call it; else the claim's name
    account: str = ""  # the service account of its pod; empty where that is not known
    images: Sequence[str] = ()
    pods: Sequence[Mapping[str, Any]] = ()


def claim(node: int, claimed: Claimed, ours: Callable[[], None] = lambda: None) -> Container:
    """A container's record and its claims, in one transaction. Raises Problem, and has written only that in the audit.

    Nothing that this claim was promised before lives any more: whoever asks does not know it. `ours` is called within
    the transaction, and raises if this node's name is another's.
    """
    named = f"{claimed.namespace}/{claimed.name}"
    with admission.refusals_recorded(ACTOR, "claim-refused", claimed.uid, name=named):
        owner = owner_of(claimed.namespace, claimed.account)
        try:
            return _claim(node, owner, claimed, ours)
        except Problem as problem:
            if problem.code != "over_allowance":
                raise
            # It stands in the pod's events, which others read than who is meant by "you".
            message = f'For its owner here, "{owner.get_username()}": {problem.message}'
            raise Problem(problem.code, message, problem.status, problem.field) from None


def _claim(node: int, owner: User, claimed: Claimed, ours: Callable[[], None]) -> Container:
    with admission.held(owner, ours) as account:
        call_off(node, claimed.uid, ANEW)
        volume, quotas = f"{claimed.namespace}/{claimed.name}"[:255], dict(claimed.quotas)
        container = admission.admit(
            account,
            Place(Node.objects.get(pk=node), list(quotas), sum(quotas.values()), claims=quotas),
            claimed.spec,
            images=claimed.images,
            by=ACTOR,
            action="claim",
            detail={"claim": volume, "quotas": quotas},
            pk=claimed.id,
            name=free_name(claimed.title or claimed.name, claimed.id),
            namespace=claimed.namespace,
            pods=list(claimed.pods),
            volume=volume,
            mount=claimed.uid,
            gpu_uuids=list(quotas),
            image=claimed.images[0][:255] if claimed.images else "",
            gpu_memory=None,
            give_way=False,  # in host memory it would count as the pod's own
        )
    return Container.objects.whole().get(pk=container.pk)


def call_off(node: int, uid: str, reason: str) -> None:
    """What this claim was promised has come to nothing. What has ended stays as it is."""
    now = timezone.now()
    living = Container.objects.live().filter(node=node, mount=uid)
    living.update(finished_at=now, removed_at=now, reason=reason[:500])


def seen(id_: str, namespace: str, pods: Sequence[Mapping[str, Any]], name: str, image: str) -> None:
    """What is known of it a moment after it was made."""
    fields = {"namespace": namespace, "pods": list(pods), "image": image[:255], "name": free_name(name, UUID(id_))}
    Container.objects.filter(pk=id_).update(**fields)


def owner_of(namespace: str, account: str = "") -> User:
    """Whose the claims of a namespace's service account are: GPUSHARE_KUBERNETES_PEOPLE says it. Raises Problem.

    It names a person, or a group: then it is the member of that group who has the service account's name.
    """
    people: Mapping[str, str] = settings.GPUSHARE_KUBERNETES_PEOPLE
    name = people.get(f"{namespace}/{account}") or people.get(namespace) or people.get(ANY_NAMESPACE)
    if not name:
        whom = f'the namespace "{namespace}"' if namespace else "pods whose names are not known yet (*)"
        raise forbidden(f"No account is set for {whom}: an admin sets one with GPUSHARE_KUBERNETES_PEOPLE.")
    if not name.startswith(GROUP):
        return account_that_launches(name)
    owner = account_that_launches(account)
    if not owner.groups.filter(name=name.removeprefix(GROUP)).exists():
        raise forbidden(
            f'"{account}", the service account of its pod, is no member of the group "{name.removeprefix(GROUP)}", to '
            f'which the namespace "{namespace}" belongs here.'
        )
    return owner
