"""Labels of time are distinct, however long the time. What scripts write: tests/web/test_scripts.py."""

from tests.support import rows
from tests.support.site import person

LABELS = """async (seconds) => {
    const app = document.querySelector('script[type="module"]').src;
    const { chart, timeAxis } = await import(new URL("panels/charts.js", app));
    const place = document.createElement("div");
    place.style.width = "700px";
    document.body.append(place);
    const begun = Date.UTC(2026, 0, 2, 3, 4, 5) / 1000;
    const options = () => ({ axes: [timeAxis(), {}], series: [{}, {}] });
    const { plot } = chart(place, 100, options, [[begun, begun + seconds], [0, 1]]);
    await new Promise(requestAnimationFrame);
    return [plot.axes[0]._values.filter(Boolean), plot.scales.x.max - plot.scales.x.min];
}"""


def test_no_two_labels_of_a_time_axis_are_alike(site, open_as):
    """That of a container of two seconds said "23:37:21" ten times."""
    page = open_as("ann", f"/containers/{rows.container('young', person('ann'), rows.gpu()).pk}/")
    for seconds in (1, 2, 7, 60, 900, 40_000):
        labels, length = page.evaluate(LABELS, seconds)
        assert length == seconds
        assert labels
        assert len(set(labels)) == len(labels)
    assert page.evaluate(LABELS, 0)[1] == 60, "of one moment: not half a year"
