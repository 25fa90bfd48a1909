"""The browser names its zone: charts, scripts and what the server writes agree."""

from datetime import UTC, datetime

from playwright.sync_api import expect

from tests.support import rows
from tests.support.site import person


def test_a_page_is_written_in_the_zone_of_its_reader(site, open_as):
    ended = datetime(2026, 1, 15, 22, 30, tzinfo=UTC)
    made = rows.container("done", person("ann"), rows.gpu(), started_at=ended, finished_at=ended, exit_code=0)
    page = open_as("ann", "/nowhere/")
    page.context.new_cdp_session(page).send("Emulation.setTimezoneOverride", {"timezoneId": "Asia/Tokyo"})
    page.goto(f"/containers/{made.pk}/")
    expect(page.locator("footer.zone")).to_have_text("Times: Asia/Tokyo (UTC+09:00)")
    expect(page.locator("[data-field=ended]")).to_contain_text("2026-01-16 07:30:00")
