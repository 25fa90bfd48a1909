"""The documentation of the REST API in a browser: complete, from this server alone, under the pages' own policy."""

from playwright.sync_api import expect


def test_the_documentation_lists_every_call_and_loads_nothing_from_elsewhere(site, open_as):
    asked: list[str] = []
    page = open_as("", "/healthz")
    page.on("request", lambda request: asked.append(request.url))
    page.goto("/api/v1/docs/")
    expect(page.locator("#operations-containers-containers_create")).to_contain_text("/api/v1/containers/")
    expect(page.locator(".opblock")).to_have_count(page.evaluate(_OPERATIONS))
    page.locator("#operations-containers-containers_create").click()
    expect(page.get_by_text("gpu_memory").first).to_be_visible()
    assert asked
    assert all(url.startswith((site.url, "data:")) for url in asked)


_OPERATIONS = """
async () => {
  const document = await (await fetch("/api/v1/schema/")).json();
  return Object.values(document.paths).flatMap(Object.keys).filter(name => name !== "parameters").length;
}
"""
