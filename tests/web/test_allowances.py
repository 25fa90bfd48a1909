"""What people may use at once, a week, and with which images, GPUs and priorities."""

from datetime import timedelta

import pytest
from django.contrib.auth.models import Group, User
from django.db import IntegrityError, transaction
from django.utils import timezone

from tests.support.events import EventKind, append
from tests.support.machine import GIB, make_container, make_gpu
from tests.support.people import client_for, make_user
from web.errors import Problem
from web.models import Allowance, Container
from web.people.allowances import Allowed, limits_of
from web.people.roles import Role
from web.services import steering

pytestmark = pytest.mark.django_db


def allow(who, **fields) -> None:
    Allowance.objects.update_or_create(**({"group": who} if isinstance(who, Group) else {"user": who}), defaults=fields)


def refused(user, **spec) -> tuple[int, str, str]:
    with pytest.raises(Problem) as problem:
        steering.launch(user, {"image": "local", **spec})
    return problem.value.status, problem.value.code, problem.value.field


def test_without_an_allowance_there_is_no_limit(ada, gpu):
    assert limits_of(ada) == Allowed()
    for _ in range(5):
        steering.launch(ada, {"image": "local", "gpu_memory": "5g", "priority": 100})


def test_vram_at_once(ada, gpu, node):
    make_gpu(node, 1)
    allow(ada, gpu_memory=4 * GIB)
    steering.launch(ada, {"image": "local", "gpu_memory": "2g"})
    steering.launch(ada, {"image": "local"})  # 1 GiB where nothing is said
    assert refused(ada, gpu_memory="2g") == (403, "over_allowance", "gpu_memory")
    assert refused(ada, gpu_memory="1g", gpus=2) == (403, "over_allowance", "gpu_memory")
    steering.launch(ada, {"image": "local", "gpu_memory": "1g"})
    Container.objects.update(finished_at=timezone.now())
    steering.launch(ada, {"image": "local", "gpu_memory": "4g"})


def test_a_quota_that_was_promised_counts_instead_of_what_was_asked_for(ada, gpu):
    allow(ada, gpu_memory=4 * GIB)
    make_container(ada, "labelled", gpu, quota=3 * GIB)  # by its image's label
    assert refused(ada, gpu_memory="2g")[1] == "over_allowance"


def test_raising_a_quota_is_held_to_the_same_limit(ada, gpu):
    allow(ada, gpu_memory=4 * GIB)
    container = make_container(ada, "a", gpu, quota=2 * GIB)
    make_container(ada, "b", gpu, quota=GIB)
    steering.change(ada, container, gpu_memory="3g")
    with pytest.raises(Problem, match="the limit for all"):
        steering.change(ada, container, gpu_memory="4g")


def test_priorities(ada, gpu):
    allow(ada, priority_lowest=-5, priority_highest=0)
    assert refused(ada, priority=1) == (403, "over_allowance", "priority")
    assert refused(ada, priority=-6) == (403, "over_allowance", "priority")
    steering.launch(ada, {"image": "local", "priority": -5})
    with pytest.raises(Problem, match="at most 0"):
        steering.change(ada, make_container(ada, "x", gpu), priority=3)


def test_weight_and_limit_of_each_container(ada, gpu):
    allow(ada, compute_weight=50, compute_limit=40)
    plain = steering.launch(ada, {"image": "local"}).container  # who says nothing gets what there is
    assert (plain.compute_weight, plain.compute_limit) == (50, 40)
    assert refused(ada, compute_weight=51) == (403, "over_allowance", "compute_weight")
    assert refused(ada, compute_limit=41) == (403, "over_allowance", "compute_limit")
    steering.launch(ada, {"image": "local", "compute_weight": 1, "compute_limit": 40})
    made = make_container(ada, "x", gpu)
    for more in ({"compute_weight": 60}, {"compute_limit": 41}, {"compute_limit": None}):
        with pytest.raises(Problem, match="at most"):
            steering.change(ada, made, **more)
    steering.change(ada, made, compute_weight=50, compute_limit=1)
    allow(ada, compute_weight=500, compute_limit=None)
    usual = steering.launch(ada, {"image": "local"}).container
    assert (usual.compute_weight, usual.compute_limit) == (100, None)


def test_images_by_pattern(ada, gpu):
    allow(ada, images=["lab/*", "local"])
    assert refused(ada, image="docker.io/miner:latest") == (403, "over_allowance", "image")
    steering.launch(ada, {"image": "lab/torch:2"})
    allow(ada, images=[])
    assert refused(ada) == (403, "over_allowance", "image")


def test_gpus(ada, gpu, node):
    make_gpu(node, 1)
    make_gpu(node, 2)
    allow(ada, gpus=["GPU-1", "GPU-2"])
    assert refused(ada, gpus=["GPU-0"]) == (403, "over_allowance", "gpus")
    assert refused(ada, gpus=3) == (400, "too_few_gpus", "gpus")
    assert steering.launch(ada, {"image": "local", "gpus": ["GPU-2"]}).container.gpu_uuids == ["GPU-2"]


def test_where_gpus_are_limited_the_least_promised_of_them_is_taken(ada, gpu, node):
    first, second = make_gpu(node, 1), make_gpu(node, 2)
    make_container(ada, "a", first, quota=2 * GIB)
    allow(ada, gpus=["GPU-1", "GPU-2"])
    assert steering.launch(ada, {"image": "local"}).container.gpu_uuids == [second.uuid]


def test_vram_hours_a_week(ada, gpu):
    container = make_container(ada, "a", gpu)
    long_ago, now = timezone.now() - timedelta(days=20), timezone.now()
    Container.objects.update(created_at=long_ago)
    allow(ada, gib_hours=2)
    append(container, long_ago, EventKind.ACCEPTED, gpu, used_after=GIB)
    append(container, long_ago + timedelta(days=5), EventKind.FREED, gpu, used_after=0)
    steering.launch(ada, {"image": "local"})  # long ago does not count
    append(container, now - timedelta(hours=3), EventKind.ACCEPTED, gpu, used_after=GIB)
    assert refused(ada) == (403, "over_allowance", "")


def test_nobody_raises_a_quota_whose_owner_has_used_up_the_week(ada, gpu):
    operator = make_user("oscar", Role.OPERATOR)
    container = make_container(ada, "a", gpu)
    Container.objects.update(created_at=timezone.now() - timedelta(days=2))
    allow(ada, gib_hours=2)
    append(container, timezone.now() - timedelta(hours=3), EventKind.ACCEPTED, gpu, used_after=GIB)
    for user in (ada, operator):
        with pytest.raises(Problem) as caught:
            steering.change(user, container, gpu_memory=2 * GIB)
        assert (caught.value.status, caught.value.code) == (403, "over_allowance")
    assert steering.change(operator, container, gpu_memory=GIB // 2).arguments == {"gpu_memory": GIB // 2}


def test_ones_own_allowance_goes_before_the_groups_and_the_most_generous_group_counts(ada):
    small, large = Group.objects.create(name="small"), Group.objects.create(name="large")
    ada.groups.add(small, large)
    allow(small, gpu_memory=GIB, containers=1, priority_lowest=-1, images=["a"])
    allow(large, gpu_memory=4 * GIB, containers=3, priority_lowest=-9, images=["b"], gib_hours=5)
    assert limits_of(ada) == Allowed(
        gpu_memory=4 * GIB, containers=3, priority_lowest=-9, images=("a", "b"), gib_hours=None
    )
    allow(ada, containers=2)
    assert (limits_of(ada).containers, limits_of(ada).gpu_memory) == (2, 4 * GIB)


def test_an_allowance_is_somebodys(ada):
    with pytest.raises(IntegrityError), transaction.atomic():
        Allowance.objects.create(containers=1)


def test_one_sees_what_one_may_and_does_use(client, ada, gpu):
    allow(ada, gpu_memory=4 * GIB, images=["local"])
    steering.launch(ada, {"image": "local", "gpu_memory": "3g"})
    body = client.get("/api/v1/me/").json()
    assert (body["username"], body["role"]) == ("ada", "user")
    assert (body["limits"]["gpu_memory"], body["limits"]["images"]) == (4 * GIB, ["local"])
    assert body["limits"]["containers"] is None
    assert body["usage"] == {"gpu_memory": 3 * GIB, "containers": 1, "gib_hours": 0.0}


def test_the_allowance_of_a_role_binds_those_who_have_the_role_by_default(client, gpu, settings):
    allow(Group.objects.get_or_create(name="viewer")[0], images=["nothing"])
    allow(Group.objects.get_or_create(name="user")[0], images=["lab/*"], containers=1)
    eve = User.objects.create_user("eve")
    vision = Group.objects.create(name="vision")
    eve.groups.add(vision)  # a group that is no role takes nobody's role away
    assert limits_of(eve) == Allowed(images=("lab/*",), containers=1)
    assert refused(eve) == (403, "over_allowance", "image")
    assert client_for(eve).get("/api/v1/me/").json()["limits"]["images"] == ["lab/*"]
    allow(vision, images=["local"])
    assert set(limits_of(eve).images) == {"lab/*", "local"}
    settings.GPUSHARE_DEFAULT_ROLE = "viewer"
    assert set(limits_of(eve).images) == {"nothing", "local"}


def test_the_allowance_of_the_admins_binds_a_superuser_and_that_of_the_default_role_nobody_else(gpu):
    allow(Group.objects.get_or_create(name="admin")[0], containers=7)
    allow(Group.objects.get_or_create(name="user")[0], containers=1)
    assert limits_of(User.objects.create_superuser("root")).containers == 7
    assert limits_of(make_user("olga", Role.OPERATOR)) == Allowed()
    assert limits_of(make_user("boss", Role.ADMIN)).containers == 7


def test_limits_take_one_query(ada, django_assert_num_queries):
    with django_assert_num_queries(1):
        limits_of(ada)
