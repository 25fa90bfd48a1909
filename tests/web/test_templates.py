"""Every template can be read: a filter whose library is not loaded shows itself here, and not on somebody's screen.

And none loads a library that it does not use.
"""

import re
from pathlib import Path

import pytest
from django.conf import settings
from django.template import engines
from django.template.loader import get_template

FOLDER = Path(settings.BASE_DIR) / "templates"


NAMES = sorted(str(path.relative_to(FOLDER)) for path in FOLDER.rglob("*.html"))


@pytest.mark.parametrize("name", NAMES)
def test_every_template_can_be_read(name):
    get_template(name)


def test_no_template_loads_a_library_that_it_does_not_use():
    libraries = engines["django"].engine.template_libraries
    unused = []
    for name in NAMES:
        text = (FOLDER / name).read_text()
        for loaded in " ".join(re.findall(r"{% load ([^%]+) %}", text)).split():
            offered = libraries[loaded]
            words = [rf"{{% {tag}\b" for tag in offered.tags] + [rf"\|{each}\b" for each in offered.filters]
            if not re.search("|".join(words), text):
                unused.append(f"{name}: {loaded}")
    assert unused == []


def test_no_secret_is_sent_in_an_address():
    """Without scripts a form of htmx is an ordinary one, whose fields stand in the address unless it says otherwise."""
    asks = re.compile(r'type="password"|kind="password"|people/secret.html|parts/receiver.html')
    for path in FOLDER.rglob("*.html"):
        for tag, inside in re.findall(r"(<form\b[^>]*>)(.*?)</form>", path.read_text(), re.DOTALL):
            assert 'method="post"' in tag or not asks.search(inside), (path.name, tag)
