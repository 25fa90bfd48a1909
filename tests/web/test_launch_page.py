"""The launch form tells all that is wrong at once, beside each field, and keeps what was typed."""

import pytest

from tests.support.people import signed_in

pytestmark = pytest.mark.django_db


def test_each_field_has_its_own_error_in_one_answer(ada, gpu):
    browser = signed_in(ada)
    typed = {"image": "local", "gpu_memory": "much", "priority": "high", "name": "-x", "env": "A", "cpus": "-1",
             "gpu_count": "two"}  # fmt: skip
    answer = browser.post("/launch/", typed)
    assert answer.status_code == 400
    assert set(answer.context["errors"]) == {"gpu_memory", "priority", "name", "env", "cpus", "gpus"}
    assert all(message.strip() for message in answer.context["errors"].values())
    assert answer.context["values"]["gpu_memory"] == "much"
