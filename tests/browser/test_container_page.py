"""The page of one container: what it holds, its life, its output, its settings, and what can be done from there."""

import re

import pytest
from playwright.sync_api import expect

from tests.browser import scenes
from tests.support import rows
from tests.support.answers import Refusal, answering, obey
from tests.support.eventually import until
from tests.support.site import person
from web import audit
from web.models import AllocationEvent, Container, Gpu


@pytest.fixture
def evaluate(site):
    """A container in the middle of its life, suspended for the second time."""
    card, made = scenes.a_busy_card()
    scenes.a_life(made["c"], card)
    return made["c"]


def write_log(site, container, lines):
    (site.home / "logs").mkdir(exist_ok=True)
    with (site.home / "logs" / f"{container.pk}.log").open("a") as file:
        file.writelines(f"{line}\n" for line in lines)


def test_its_life_is_shown_in_states_and_in_events(evaluate, open_as):
    page = open_as("ann", f"/containers/{evaluate.pk}/")
    life = page.locator(".life")
    # The last goes on while the page is opened; the first was written a moment before the others.
    text = "Starting 5 s, Running 20[01] s, Suspended 180 s, Running 220 s, Paused 100 s, Running 125 s, Suspended "
    expect(life).to_have_attribute("aria-label", re.compile(rf"{text}(7[5-9]|[89]\d|1\d\d) s"))
    assert [part.split()[1] for part in _classes(life)] == [
        "created", "running", "suspended", "running", "paused", "running", "suspended",
    ]  # fmt: skip
    events = page.locator("#events tr")
    expect(events).to_have_count(9)
    for kind in ("accepted", "suspended", "resumed", "rejected", "paused"):
        expect(page.locator(f"#events .event.{kind}").first).to_have_text(kind)
    expect(page.locator("#events")).to_contain_text("would pass the quota of 2 GiB")
    expect(page.locator('[data-field="waiting"]')).to_contain_text(re.compile("1 in the queue, waiting [1-3] min"))
    expect(page.locator('[data-field="waiting"]')).to_contain_text("Next when train-7 ends")
    processes = page.get_by_role("group", name="Processes")
    expect(processes).to_contain_text("4711")
    expect(processes).to_contain_text("614.4 MiB")


def _classes(life):
    return life.locator(".stretch").evaluate_all("parts => parts.map(part => part.className)")


def test_events_of_every_kind_are_shown_and_older_ones_come_when_asked_for(site, open_as):
    made = rows.container("busy", person("ann"), rows.gpu())
    kinds = list(AllocationEvent.Kind)
    audit.append(
        events=[
            AllocationEvent(at=rows.ago(200 - n), kind=kinds[n % len(kinds)], container=made, gpu=Gpu.objects.get())
            for n in range(120)
        ]
    )
    page = open_as("ann", f"/containers/{made.pk}/")
    events = page.locator("#events tr")
    expect(events).to_have_count(51)
    page.get_by_role("button", name="Older").click()
    expect(events).to_have_count(101)
    page.get_by_role("button", name="Older").click()
    expect(events).to_have_count(120)
    expect(page.get_by_role("button", name="Older")).to_have_count(0)


def test_reading_further_up_is_not_disturbed_by_what_comes(site, evaluate, open_as):
    write_log(site, evaluate, (f"line {n}" for n in range(300)))
    page = open_as("ann", f"/containers/{evaluate.pk}/")
    log, follow = page.locator("#log"), page.get_by_label("Follow")
    expect(log).to_contain_text("line 299")
    at_end = "log => log.scrollHeight - log.scrollTop - log.clientHeight < 24"
    assert log.evaluate(at_end)
    log.hover()
    page.mouse.wheel(0, -2000)
    expect(follow).not_to_be_checked()
    where = log.evaluate("log => log.scrollTop")
    write_log(site, evaluate, ["something new"])
    expect(log).to_contain_text("something new")
    assert log.evaluate("log => log.scrollTop") == where
    follow.check()
    assert log.evaluate(at_end)
    write_log(site, evaluate, (f"more {n}" for n in range(50)))
    expect(log).to_contain_text("more 49")
    assert log.evaluate(at_end)
    expect(follow).to_be_checked()


def test_all_of_the_output_can_be_downloaded(site, evaluate, open_as):
    write_log(site, evaluate, (f"line {n}" for n in range(5000)))
    page = open_as("ann", f"/containers/{evaluate.pk}/")
    expect(page.locator("#log")).to_contain_text("line 4999")
    assert "line 3999\n" not in page.locator("#log").inner_text()  # the last thousand lines are on the page
    with page.expect_download() as download:
        page.get_by_role("link", name="Download").click()
    assert download.value.suggested_filename == "evaluate.log"
    assert download.value.path().read_text().splitlines() == [f"line {n}" for n in range(5000)]


def test_very_long_lines_of_output_and_environment_stay_inside_the_page(site, open_as):
    made = rows.container("wide", person("ann"), rows.gpu(), environment={"LONG": "x" * 5000, "Y" * 200: "<b>y</b>"})
    write_log(site, made, ["z" * 50_000, "<script>document.title = 1</script>"])
    for size in ("wide", "phone"):
        page = open_as("ann", f"/containers/{made.pk}/", size=size)
        expect(page.locator("#log")).to_contain_text("<script>")
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), size
        assert "wide" in page.title()


def test_a_change_of_state_renews_what_the_server_tells(evaluate, open_as):
    page = open_as("ann", f"/containers/{evaluate.pk}/")
    expect(page.locator("#events tr")).to_have_count(9)
    audit.append(
        events=[
            AllocationEvent(at=rows.ago(0), kind="resumed", container=evaluate, gpu=Gpu.objects.get()),
            AllocationEvent(at=rows.ago(0), kind="ended", container=evaluate),
        ]
    )
    of_living = [
        page.get_by_role("link", name="Shell"),
        *(page.get_by_role("button", name=n) for n in ("Change", "Set")),
    ]
    for each in of_living:
        expect(each).to_be_visible()
    Container.objects.filter(pk=evaluate.pk).update(finished_at=rows.ago(0), exit_code=0, suspended_since=None)
    for each in of_living:
        expect(each).to_be_hidden()
    expect(page.locator("#events tr")).to_have_count(11)
    expect(page.locator("#events tr").first).to_contain_text("ended")
    expect(page.locator(".facts")).to_contain_text(
        re.compile(r"ended \d{4}-\d\d-\d\d \d\d:\d\d:\d\d after \d+ min \d+ s, exit code 0")
    )
    first = page.locator(".life .stretch").nth(1)
    assert first.evaluate("part => part.style.width") not in ("", "0%")


def test_its_first_memory_and_its_last_renew_what_the_server_tells(site, open_as):
    """Its state stays the same; a page that was opened before the program had allocated showed no process for ever."""
    made = rows.container("train-7", person("ann"), rows.gpu())
    page = open_as("ann", f"/containers/{made.pk}/")
    life = page.locator("#life")
    expect(life).to_contain_text("No process of this container uses a GPU now.")
    holder = {"pid": 4711, "used": rows.GIB, "real": rows.GIB, "uncapped": False}
    made.claims.update(used=rows.GIB, processes=[holder])
    expect(life).to_contain_text("4711")
    made.claims.update(overhead=99 * 2**20, processes=[holder, holder | {"pid": 4712}])
    expect(life).to_contain_text("4712")
    made.claims.update(used=0, overhead=0, processes=[])
    expect(life).to_contain_text("No process of this container uses a GPU now.")


def test_quota_and_priority_are_changed_in_place_and_changed_back(evaluate, open_as):
    page = open_as("ann", f"/containers/{evaluate.pk}/")
    with answering(obey):
        page.get_by_label("Priority").fill("7")
        page.get_by_label("Quota", exact=True).fill("2.5GiB")
        page.get_by_role("button", name="Change").click()
        expect(page.locator('[data-field="quota"]')).to_have_text("2.5 GiB")
        expect(page.locator(".toast.good")).to_contain_text("change done")
        evaluate.refresh_from_db()
        assert evaluate.priority == 7
        page.locator(".toast").get_by_role("button", name="Undo").click()
        expect(page.locator('[data-field="quota"]')).to_have_text("2 GiB")
        until(lambda: Container.objects.get(pk=evaluate.pk).priority == 0)
        page.get_by_label("Priority").fill("1000")
        page.get_by_role("button", name="Change").click()
        expect(page.locator(".toast.bad")).to_contain_text("100")


def test_an_ended_container_says_how_it_ended_and_can_be_removed(site, open_as, shot):
    made = rows.container("train-7", person("ann"), rows.gpu(), peak=0.9, finished_at=rows.ago(120), exit_code=137,
                          reason="Its host memory ran out (limit 8 GiB). Launch it with more.")  # fmt: skip
    page = open_as("ann", f"/containers/{made.pk}/")
    expect(page.locator(".facts")).to_contain_text("exit code 137")
    expect(page.get_by_text("Its host memory ran out").last).to_be_visible()
    expect(page.locator("#log")).to_contain_text("No output")
    for gone in ("Pause", "Resume", "Kill", "Change"):
        expect(page.get_by_role("button", name=gone)).to_be_hidden()
    shot(page, "container-ended")

    def cannot(command):
        raise Refusal("The engine is away: no such file /var/run/docker.sock")

    with answering(cannot):
        page.get_by_role("button", name="Remove").click()
        expect(page.get_by_role("dialog")).to_contain_text("Remove train-7?")
        page.get_by_role("dialog").get_by_role("button", name="Remove").click()
        expect(page.locator(".toast.bad")).to_contain_text("The engine is away")
    with answering(obey):
        page.get_by_role("button", name="Remove").click()
        page.get_by_role("dialog").get_by_role("button", name="Remove").click()
        expect(page.locator(".toast.good")).to_contain_text("remove done")
    assert Container.objects.get(pk=made.pk).removed_at is not None


def test_why_a_launch_was_refused_is_shown_with_its_state_and_once(site, open_as):
    made = rows.container("late", person("ann"), rows.gpu(), started_at=None)
    page = open_as("ann", f"/containers/{made.pk}/")
    expect(page.locator('[data-field="state"]').first).to_have_text("Starting")
    held = []
    page.route("**", lambda route: held.append(route) if "hx-request" in route.request.headers else route.continue_())
    Container.objects.filter(pk=made.pk).update(finished_at=rows.ago(0), reason="No such image: nothing:latest.")
    expect(page.locator('[data-field="state"]').first).to_have_text("Failed")
    why = page.get_by_text("No such image: nothing:latest.").filter(visible=True)
    expect(why).to_have_count(1)  # before the server has written how it ended
    until(lambda: (page.wait_for_load_state(), held)[1])
    for route in held:
        route.continue_()
    expect(page.locator("#end")).to_contain_text("No such image")
    expect(why).to_have_count(1)


def test_a_container_of_two_gpus_shows_both(site, open_as, shot):
    first, second = rows.gpu(0), rows.gpu(1, total=8 * rows.GIB)
    made = rows.container("wide", person("ann"), first, quota=2, used=1)
    made.claims.create(gpu=second, quota=2 * rows.GIB, used=rows.GIB // 2, granted=rows.GIB, peak=rows.GIB)
    page = open_as("ann", f"/containers/{made.pk}/")
    expect(page.locator("tr[data-gpu]")).to_have_count(2)
    made.claims.filter(gpu=second).update(used=rows.GIB)
    expect(page.locator('tr[data-gpu="GPU-sim-1"] [data-field="used"]')).to_have_text("1 GiB")
    shot(page, "container-two-gpus")


def test_one_that_failed_at_once_shows_its_last_lines_and_no_empty_chart(site, open_as):
    card = rows.gpu()
    made = rows.container("broke", person("ann"), card, finished_at=rows.ago(60), exit_code=1)
    (site.home / "logs").mkdir(exist_ok=True)
    (site.home / "logs" / f"{made.pk}.log").write_text("ModuleNotFoundError: No module named 'torch'\n")
    page = open_as("ann", f"/containers/{made.pk}/")
    expect(page.locator("#end pre")).to_contain_text("ModuleNotFoundError")
    expect(page.locator("#held")).to_have_count(0)
    expect(page.locator("main")).to_contain_text("No use of GPU memory was recorded.")


LINES_OF_THE_QUOTA = """() => {
  const canvas = document.querySelector("#held canvas");
  const { data } = canvas.getContext("2d").getImageData(canvas.width / 2, 0, 1, canvas.height);
  const red = [...Array(canvas.height).keys()].map((y) => data[4 * y + 3] > 0 && data[4 * y] - data[4 * y + 1] > 60);
  return red.filter((is, y) => is && !red[y - 1]).length;
}"""


def test_only_the_quota_is_red_in_a_chart_that_is_drawn_again(site, open_as):
    """Every line of the grid had the colour of the quota as soon as a container without samples had its first."""
    made = rows.container("young", person("ann"), rows.gpu(), quota=3)
    page = open_as("ann", "/queue/")
    page.clock.install(time=0)
    page.clock.pause_at(1000)
    page.goto(f"/containers/{made.pk}/")
    expect(page.locator("#connection")).to_have_attribute("data-state", "live")
    expect(page.locator("#held canvas")).to_be_visible()
    page.clock.run_for(1000)
    assert page.evaluate(LINES_OF_THE_QUOTA) == 1
