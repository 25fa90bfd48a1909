"""Where a launch would go, and why, on the launch form; and on the container's page where it went."""

from playwright.sync_api import expect

from tests.browser.test_nodes import held, node
from tests.support.site import person
from web.models import Container


def test_the_form_asks_for_constraints_with_the_rest_and_refuses_what_is_none(site, open_as):
    ada = person("ada", "user")
    held(node("gpu1"), ada, 10, 2)
    node("gpu2", labels={"disk": "ssd"})
    page = open_as("ada", "/launch/", role="user")
    page.get_by_text("Limits, volumes, ports, time, constraints").click()
    page.locator("#f-constraints").fill("disk=ssd")
    expect(page.locator("#forecast")).to_contain_text("'disk=ssd' is not a constraint: write node==NAME")
    page.locator("#f-constraints").fill("node.labels.disk==tape")
    expect(page.locator("#forecast")).to_contain_text('"node.labels.disk==tape" is so of no node')


def test_what_the_form_shows_is_the_answer_to_what_stands_there_and_not_to_what_stood_there_before(site, open_as):
    person("ada", "user")
    node("gpu1")
    page = open_as("ada", "/launch/", role="user")
    page.get_by_text("Limits, volumes, ports, time, constraints").click()
    with page.expect_request("**/launch/forecast/") as asked:  # no scheduler answers that: it takes its time
        page.locator("[name=gpu_memory]").fill("1GiB")
    page.locator("#f-constraints").fill("disk=ssd")
    expect(page.locator("#forecast")).to_contain_text("is not a constraint")
    asked.value.response()
    page.evaluate("new Promise((done) => setTimeout(done))")  # what came is shown by then
    assert "is not a constraint" in page.locator("#forecast").inner_text()


def test_the_page_of_a_container_says_why_it_is_on_its_node(site, open_as):
    ada = person("ada", "user")
    held(node("gpu1"), ada, 10)
    node("gpu2")
    why = "gpu1 has the most room: 12 GiB is not promised on a GPU; next is gpu2, where 3 GiB is not promised."
    Container.objects.update(node_reason=why)
    page = open_as("ada", f"/containers/{Container.objects.get().pk}/", role="user")
    expect(page.get_by_text(why)).to_be_visible()
