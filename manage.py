#!/usr/bin/env python3
import os
import sys

if __name__ == "__main__":
    from appliance import envfile

    for name, value in envfile.read().items():
        os.environ.setdefault(name, value)
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "appliance.settings")
    from django.conf import settings
    from django.core.exceptions import ImproperlyConfigured
    from django.core.management import execute_from_command_line

    try:
        settings.INSTALLED_APPS  # noqa: B018 - reads the environment
    except ImproperlyConfigured as error:
        sys.exit(f"gpushare: {error}")
    except OSError as error:
        sys.exit(
            f"gpushare: what a start needs in GPUSHARE_HOME cannot be written: {error.filename}: {error.strerror}. "
            "Choose a folder that may be written: GPUSHARE_HOME=FOLDER"
        )
    execute_from_command_line(sys.argv)
