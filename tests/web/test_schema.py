"""The OpenAPI document is valid, complete, and true: schemathesis asks every operation what the document allows."""

import re
from datetime import timedelta

import pytest
import schemathesis
from django.core.wsgi import get_wsgi_application
from django.urls import get_resolver
from django.utils import timezone
from drf_spectacular.generators import SchemaGenerator
from drf_spectacular.validation import validate_schema
from hypothesis import HealthCheck, settings
from rest_framework.test import APIClient

from appliance.budgets import Budgets
from tests.support.machine import commands_answered, make_container, make_gpu, make_node
from tests.support.people import make_user
from web.models import Container
from web.people import tokens
from web.people.roles import Role

URL = "/api/v1/schema/"


def test_the_document_is_valid_openapi():
    document = APIClient().get(URL).json()
    validate_schema(document)
    assert document["openapi"].startswith("3.")


def test_a_stranger_costs_no_second_document(monkeypatch):
    first = APIClient().get(URL).content
    monkeypatch.setattr(SchemaGenerator, "get_schema", lambda *_, **__: pytest.fail("it is made anew"))
    assert APIClient().get(URL).content == first


def test_every_path_is_in_the_document():
    document = APIClient().get(URL).json()
    (api,) = [entry for entry in get_resolver().url_patterns if str(entry.pattern) == "api/v1/"]
    undocumented = {"schema", "docs", None}
    named = [entry for group in api.url_patterns for entry in getattr(group, "url_patterns", [group])]
    paths = {f"/api/v1/{entry.pattern}" for entry in named if entry.name not in undocumented}
    named = {re.sub(r"<\w+:(\w+)>", r"{\1}", path).replace("{pk}", "{id}") for path in paths}
    assert named == set(document["paths"])


def test_the_document_says_that_unknown_fields_are_refused():
    launch = APIClient().get(URL).json()["components"]["schemas"]["LaunchSpec"]
    assert launch["additionalProperties"] is False
    assert launch["required"] == ["image"]


def test_every_operation_says_what_it_answers_and_what_its_errors_mean():
    meanings = {}
    for path, operations in APIClient().get(URL).json()["paths"].items():
        for method, operation in operations.items():
            description = operation.get("description", "")
            assert len(description) > 20, f"{method} {path} says nothing"
            assert description not in meanings, f"{method} {path} says the same as {meanings[description]}"
            meanings[description] = f"{method} {path}"
            mute = [code for code, answer in operation["responses"].items() if code > "3" and not answer["description"]]
            assert not mute, f"{method} {path} does not say what {mute} mean"


def test_the_pages_of_the_documentation_come_from_here(client):
    page = APIClient().get("/api/v1/docs/").content.decode()
    assert re.search(r"/static/\w+/drf_spectacular_sidecar/swagger-ui-dist/swagger-ui-bundle.js", page)
    assert "cdn" not in page
    assert "https://" not in page


@pytest.fixture
def appliance(transactional_db, settings):
    """An admin's key, a machine with things on it, and a scheduler that does what it is asked to."""
    settings.GPUSHARE_BUDGETS = Budgets(requests_a_second=1_000_000, sign_ins_a_minute=1_000_000)
    gpu = make_gpu(make_node(seen_at=timezone.now() + timedelta(hours=1)))  # it lives through all of this
    admin = make_user("root", Role.ADMIN)
    make_container(admin, "a", gpu)
    _, key = tokens.make(admin)
    forecast = {"fits": True, "behind": [], "earliest": None, "message": "It fits."}
    with commands_answered(message="Done.", result=forecast):
        yield key
    assert Container.objects.filter(name="a").exists()


schema = schemathesis.openapi.from_wsgi(URL, get_wsgi_application())


# A body that the document allows may still be refused with 400 by what no document can tell: a card's size, a name in
# use, a folder that may not be mounted. All other checks hold: no server error, and every status, header, content type
# and body as the document says; what the document does not allow is refused.
EXCLUDED = [schemathesis.checks.positive_data_acceptance]


HEALTH = [HealthCheck.function_scoped_fixture, HealthCheck.too_slow, HealthCheck.filter_too_much]
# Each run asks the same: what it finds can be repeated.
asked = settings(derandomize=True, deadline=None, suppress_health_check=HEALTH)
# The one answer that streams is made for ASGI, and is read through WSGI here.
streams = pytest.mark.filterwarnings("ignore:StreamingHttpResponse must consume asynchronous iterators:Warning")


@schema.parametrize()
@streams
@settings(asked, max_examples=5)
def test_every_operation_does_what_the_document_says(case, appliance):
    case.call_and_validate(headers={"Authorization": f"Token {appliance}"}, excluded_checks=EXCLUDED)


@pytest.mark.long
@schema.parametrize()
@streams
@settings(asked, max_examples=50)
def test_every_operation_does_what_the_document_says_asked_more_often(case, appliance):
    case.call_and_validate(headers={"Authorization": f"Token {appliance}"}, excluded_checks=EXCLUDED)
