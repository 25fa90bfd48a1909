"""The launch form: what it suggests, what it draws, and what it sends."""

import re

from django.utils import timezone
from playwright.sync_api import expect

from tests.support import rows
from tests.support.answers import answering
from tests.support.eventually import until
from tests.support.site import person
from web.models import Allowance, Claim, Command, Container, Node, Preset


def start(command: Command) -> str:
    """As the scheduler: a launch is started, a question answered."""
    if command.kind == Command.Kind.FORECAST:
        command.result = {"fits": False, "message": "GPU GPU-sim-0 lacks 1 GiB; it fits in 90 s at the latest."}
        command.save(update_fields=["result"])
        return ""
    Container.objects.filter(pk=command.container_id).update(started_at=timezone.now())
    return "It is started."


def quota(page):
    return page.locator("#f-gpu_memory")


def verdict(page, index=0):
    return page.locator(".preview").nth(index).locator(".verdict")


def test_a_quota_is_suggested_from_what_earlier_runs_took(site, open_as, shot):
    card, ann = rows.gpu(), person("ann")
    for number in range(3):
        rows.container(f"run-{number}", ann, card, quota=4, peak=2 - number / 10, image="pytorch/pytorch:2.4",
                       finished_at=rows.ago(60), exit_code=0)  # fmt: skip
    page = open_as("ann", "/launch/")
    expect(page.locator("#suggestion")).to_be_hidden()
    page.locator("#f-image").fill("pytorch/pytorch:2.4")
    expect(page.locator("#suggestion")).to_contain_text("3 runs of it took up to 2 GiB.")
    shot(page, "launch-suggestion", whole=False)
    page.locator("#suggestion").get_by_role("button").click()
    expect(quota(page)).to_have_value(re.compile(r"^2\.1\d*GiB$|^2176MiB$"))
    page.locator("#f-image").fill("never/run")
    expect(page.locator("#suggestion")).to_be_hidden()


def test_the_picture_says_whether_it_fits_waits_or_never_will(site, open_as):
    full = rows.gpu(0)
    free = rows.gpu(1)
    ann = person("ann")
    holder = rows.container("holder", ann, full, quota=4, used=4)
    page = open_as("ann", "/launch/")
    quota(page).fill("2GiB")
    expect(verdict(page, 0)).to_have_text("would wait: 1 GiB free")
    expect(verdict(page, 1)).to_have_text("fits: 5 GiB free")
    expect(page.locator(".preview").nth(0).locator(".bar .new.short")).to_have_count(1)
    expect(page.locator(".preview").nth(1).locator(".bar .new:not(.short)")).to_have_count(1)
    for number in range(2):
        rows.container(f"waits-{number}", ann, full, quota=3, suspended_since=rows.ago(3))
    expect(verdict(page, 0)).to_have_text("would wait behind 2 others; 1 GiB free")
    both = rows.container("waits-on-the-first", ann, full, quota=3, suspended_since=rows.ago(3))
    Claim.objects.create(container=both, gpu=free, quota=rows.GIB)
    expect(verdict(page, 0)).to_have_text("would wait behind 3 others; 1 GiB free")
    expect(verdict(page, 1)).to_have_text("fits: 5 GiB free")
    quota(page).fill("6GiB")
    expect(verdict(page, 0)).to_have_text("never: the GPU has 5 GiB at most")
    quota(page).fill("plenty")
    expect(verdict(page, 0)).to_have_text("")
    quota(page).fill("512m")
    Container.objects.exclude(pk=holder.pk).update(finished_at=rows.ago(0), exit_code=0)
    expect(verdict(page, 0)).to_have_text("fits: 1 GiB free")
    type(free).objects.filter(pk=free.pk).update(drained_at=rows.ago(9), drain_reason="New fans.")
    expect(verdict(page, 1)).to_have_text("out of service: takes no new containers. New fans.")
    expect(page.locator(".preview input").nth(1)).to_be_disabled()
    page.reload()
    expect(page.locator(".preview input").nth(1)).to_be_disabled()


def test_a_scheduler_that_takes_its_time_is_asked_again(site, open_as):
    rows.gpu()
    page = open_as("ann", "/login/", role="user")
    with page.expect_response("**/launch/forecast/") as first:
        page.goto("/launch/")
    assert first.value.json() == {"again": True}
    with answering(start):
        expect(page.locator("#forecast")).to_have_text("GPU 0 lacks 1 GiB; it fits in 90 s at the latest.")
        until(lambda: not Command.objects.exists())  # a question leaves no trace


def test_everything_that_was_filled_in_is_launched(site, open_as):
    rows.gpu(0)
    rows.gpu(1)
    page = open_as("ann", "/launch/", role="user")
    page.locator("#f-image").fill("local")
    page.get_by_role("textbox", name="Command").fill("python train.py --name 'two words'")
    quota(page).fill("1.5GiB")
    page.get_by_label("Name", exact=True).fill("train-7")
    page.get_by_label("Fail: the program gets").check()
    page.locator("#f-env").fill("MODE=fast\nEMPTY=\nTWO=a=b")
    page.get_by_text("Limits, volumes, ports, time").click()
    page.locator("#f-ttl_seconds").fill("3600")
    page.get_by_label("Longest single wait").fill("60")
    page.get_by_label("Priority").fill("0")
    page.get_by_label("Remove when it ends").check()
    page.locator(".preview").nth(1).click()
    with answering(start):
        page.get_by_role("button", name="Launch", exact=True).click()
        expect(page.get_by_role("heading", name="train-7")).to_be_visible()
    made = Container.objects.get()
    assert made.command == ["python", "train.py", "--name", "two words"]
    assert made.gpu_memory == 1.5 * rows.GIB
    assert made.gpu_uuids == ["GPU-sim-1"]
    assert made.environment == {"MODE": "fast", "EMPTY": "", "TWO": "a=b"}
    assert (made.ttl_seconds, made.max_wait_seconds, made.on_shortage) == (3600, 60, "fail")
    assert made.remove_when_done


def test_only_allowed_images_are_offered_and_launched(site, open_as):
    rows.gpu()
    Allowance.objects.create(user=person("ann"), images=["pytorch/*", "local"], gpu_memory=2 * rows.GIB)
    page = open_as("ann", "/launch/")
    expect(page.get_by_text("You may launch: pytorch/*, local")).to_be_visible()
    assert page.locator("#images option").evaluate_all("all => all.map(one => one.value)") == ["local"]
    page.locator("#f-image").fill("somebody/else")
    page.get_by_role("button", name="Launch", exact=True).click()
    expect(page.locator("#h-image")).to_contain_text("pytorch/*")
    page.locator("#f-image").fill("local")
    quota(page).fill("3GiB")
    page.get_by_role("button", name="Launch", exact=True).click()
    expect(page.locator("#h-gpu_memory")).to_contain_text("2 GiB")


def test_a_preset_is_one_click_and_its_page_says_how_it_is_opened(site, open_as, shot):
    rows.gpu()
    Node.objects.update(engine="docker")
    person("ann")
    for name in ("JupyterLab", "llama.cpp server"):
        spec = {"image": "lab/pytorch-notebook", "command": ["start"], "app": "8888/lab"}
        Preset.objects.update_or_create(
            name=name, defaults={"icon": "📓", "text": "Notebooks.", "spec": spec, "changes": ["gpu_memory"]}
        )
    page = open_as("ann", "/launch/")
    expect(page.get_by_role("listitem").filter(has_text="llama.cpp server")).to_be_visible()
    shot(page, "presets", whole=False)
    page.get_by_role("link", name="Change JupyterLab, then launch it").click()
    expect(page.locator("#f-image")).to_have_value(re.compile("pytorch-notebook"))
    expect(page.get_by_role("textbox", name="Command")).not_to_be_editable()
    quota(page).fill("2GiB")
    page.get_by_label("Name", exact=True).fill("book")
    with answering(start):
        page.get_by_role("button", name="Launch", exact=True).click()
        expect(page.get_by_role("heading", name="book")).to_be_visible()
    expect(page.locator("#open-it")).to_have_text("gpushare open book")
    assert Container.objects.get().app == "8888/lab"
