"""Presets: launches that admins write and people click."""

from typing import Any

import pytest
from django.test import Client

from tests.support.machine import make_node
from tests.support.people import client_for, make_user, signed_in
from web.models import AuditEntry, Command, Container, Node, Preset
from web.people.roles import Role
from web.services import presets, steering

pytestmark = pytest.mark.django_db
BODY: dict[str, Any] = {
    "name": "Notebook",
    "icon": "📓",
    "text": "Yours & mine",
    "spec": {"image": "lab/book", "gpu_memory": "2GiB", "volumes": ["work-{user}:/work"], "app": "8888/lab"},
    "changes": ["gpu_memory"],
}


@pytest.fixture(autouse=True)
def not_decided(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(steering, "wait_for", lambda command: command)


def page_of(user: Any) -> Client:
    return signed_in(user)


def test_those_that_come_with_the_product_are_launches(gpu: Any) -> None:
    assert {each.name for each in Preset.objects.all()} == {"JupyterLab", "VS Code", "TensorBoard", "llama.cpp server"}
    admin = make_user("boss", Role.ADMIN)
    for each in Preset.objects.all():
        saved = {name: getattr(each, name) for name in ("name", "icon", "text", "spec", "changes")}
        assert presets.save(admin, saved, each).spec["app"]
        assert "127.0.0.1" in " ".join(each.spec["command"])  # or whoever shares its network reaches it


def test_a_click_launches_it_for_whoever_clicks(gpu: Any) -> None:
    Node.objects.update(engine="docker")
    Preset.objects.all().delete()
    client_for(make_user("boss", Role.ADMIN)).post("/api/v1/presets/", BODY)
    client = page_of(make_user("ada@lab.example"))
    page = client.get("/launch/").content.decode()
    assert "Yours &amp; mine" in page
    assert "Remove the preset" not in page
    preset = Preset.objects.get()
    made = client.post(f"/launch/presets/{preset.pk}/")
    container = Container.objects.get()
    assert made["location"] == f"/containers/{container.pk}/"
    assert (container.image, container.app, container.volumes) == (
        "lab/book",
        "8888/lab",
        ["work-ada-lab.example:/work:rw"],
    )
    assert f"gpushare open {container.name}</code>" in client.get(made["location"]).content.decode()


def test_the_form_offers_what_may_be_changed(gpu: Any) -> None:
    preset = presets.save(make_user("boss", Role.ADMIN), BODY)
    page = page_of(make_user()).get(f"/launch/?preset={preset.pk}").content.decode()
    fields = {
        name: page[page.index(f'id="f-{name}"') :][:200].split(">")[0] for name in ("image", "gpu_memory", "name")
    }
    assert {name: "readonly" in said for name, said in fields.items()} == {
        "image": True,
        "gpu_memory": False,
        "name": False,
    }
    assert 'value="2GiB"' in fields["gpu_memory"]


def test_an_admin_writes_edits_and_removes_them_on_the_page(gpu: Any) -> None:
    Preset.objects.all().delete()
    client = page_of(make_user("boss", Role.ADMIN))
    form = {"image": "lab/book", "name": "mine", "gpu_memory": "1g", "preset_name": "Book", "preset_changes": ["gpus"]}
    assert client.post("/launch/presets/", form)["location"] == "/launch/"
    preset = Preset.objects.get()
    assert (preset.spec, preset.changes) == ({"image": "lab/book", "gpu_memory": "1g"}, ["gpus"])
    assert 'value="Book"' in client.get(f"/launch/?preset={preset.pk}&edit=1").content.decode()
    client.post("/launch/presets/", form | {"preset": preset.pk, "preset_edits": "1", "preset_name": "Books"})
    assert [each.name for each in Preset.objects.all()] == ["Books"]
    wrong = client.post("/launch/presets/", form | {"gpu_memory": "much"})
    assert wrong.status_code == 400
    assert "not a size" in wrong.content.decode()
    assert page_of(make_user()).post("/launch/presets/", form).status_code == 403
    client.post(f"/launch/presets/{preset.pk}/remove/")
    assert not Preset.objects.exists()
    actions = AuditEntry.objects.filter(action__startswith="preset").order_by("pk").values_list("action", flat=True)
    assert list(actions) == ["preset-made", "preset-changed", "preset-removed"]


BAD = [
    ({"spec": {}}, "spec.image"),
    ({"spec": {"image": "x", "nothing": 1}}, "spec.nothing"),
    ({"spec": {"image": "x", "volumes": [1]}}, "spec.volumes"),
    ({"spec": {"image": "x", "volumes": "data:/etc/ld.so.preload"}}, "spec.volumes"),
    ({"spec": {"image": "x", "name": "one"}}, "spec.name"),
    ({"spec": []}, "spec"),
    ({"changes": ["owner"]}, "changes.0"),
    ({"name": ""}, "name"),
]


@pytest.mark.parametrize(("fields", "field"), BAD)
def test_what_is_no_launch_is_no_preset(fields: dict[str, Any], field: str) -> None:
    answer = client_for(make_user("boss", Role.ADMIN)).post("/api/v1/presets/", BODY | fields)
    assert answer.status_code == 400
    assert str(answer.json()["error"]["field"]).startswith(field)


def test_a_name_is_one_presets_and_a_removed_one_launches_nothing(gpu: Any) -> None:
    admin = client_for(make_user("boss", Role.ADMIN))
    made = admin.post("/api/v1/presets/", BODY).json()
    assert admin.post("/api/v1/presets/", BODY).json()["error"]["code"] == "name_taken"
    changed = admin.put(f"/api/v1/presets/{made['id']}/", BODY | {"text": "other"}).json()
    assert (changed["id"], changed["text"]) == (made["id"], "other")
    admin.delete(f"/api/v1/presets/{made['id']}/")
    assert page_of(make_user()).post(f"/launch/presets/{made['id']}/").status_code == 404
    assert not Command.objects.exists()


@pytest.mark.parametrize(("engine", "shown"), [("process", set()), ("docker", {"JupyterLab"}), ("kubernetes", set())])
def test_only_what_can_run_here_is_offered(engine: str, shown: set[str]) -> None:
    make_node(engine=engine)
    assert {each.name for each in presets.offered()} & {"JupyterLab"} == shown
    page = page_of(make_user()).get("/launch/").content.decode()
    assert ("Launch JupyterLab" in page, "need a host with Docker" in page) == (bool(shown), not shown)
