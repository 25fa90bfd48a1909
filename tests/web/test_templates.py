"""Every template can be read: a filter whose library is not loaded shows itself here, and not on somebody's screen."""

from __future__ import annotations

from pathlib import Path

import pytest
from django.conf import settings
from django.template.loader import get_template

FOLDER = Path(settings.BASE_DIR) / "templates"


@pytest.mark.parametrize("name", sorted(str(path.relative_to(FOLDER)) for path in FOLDER.rglob("*.html")))
def test_every_template_can_be_read(name):
    get_template(name)
