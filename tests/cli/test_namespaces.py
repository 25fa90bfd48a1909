"""Containers of a Kubernetes cluster in `ps` and `top`: with their namespace, by which they are found."""

from datetime import UTC, datetime
from typing import Any

from appliance.cli.rows import container_rows
from appliance.cli.text import table
from appliance.cli.top.drawing import drawn
from appliance.cli.top.model import Model
from tests.cli.support import gpushare

NOW = datetime(2026, 11, 23, 12, tzinfo=UTC)


def container(name: str, **fields: Any) -> dict[str, Any]:
    return {
        "id": f"{name:0<8}", "name": name, "owner": "ada", "image": "local", "state": "paused", "gpus": [],
        "exit_code": None, "created_at": NOW.isoformat(), "node": "gpu1", "node_reason": "", "namespace": "", **fields,
    }  # fmt: skip


def test_ps_has_a_column_for_them_where_there_are_any() -> None:
    heads, rows = container_rows([container("train", namespace="team-a"), container("other")], NOW, [])
    assert (heads[-1], [row[-1] for row in rows]) == ("NAMESPACE", ["team-a", "-"])
    assert container_rows([container("other")], NOW, [])[0][-1] == "AGE"
    heads, rows = container_rows([container("train", namespace="team-a", node="gpu2"), container("other")], NOW, [])
    assert heads[-2:] == ("NAMESPACE", "NODE")
    assert table(heads, rows).splitlines()[1].endswith("team-a     gpu2")


def test_top_shows_and_finds_them() -> None:
    seen = {"gpus": [], "containers": [container("train", namespace="team-a"), container("other")], "queue": []}
    model = Model(seen, NOW, pattern="team-")
    assert [each["name"] for each in model.containers()] == ["train"]
    lines = ["".join(text for text, _ in line) for line in drawn(model, 24, 120)]
    assert any(line.rstrip().endswith("NAMESPACE") for line in lines)
    assert any(line.startswith("train of ada") and line.endswith("team-a") for line in lines)


def test_ps_filters_by_namespace(appliance: Any) -> None:
    appliance.launch("sleep", "600", name="one")
    done = gpushare("ps", "-q", "-f", "namespace=team-a", environ=appliance.environ)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
