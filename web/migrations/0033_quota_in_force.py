# Made by hand of what makemigrations wrote: a container that lives has its quota in its row, whatever its launch named.

from typing import Any

from django.db import migrations, models
from django.db.models import Max, Min


def fill_in(apps: Any, schema_editor: Any) -> None:
    """Not for pods whose cards have different quotas: those stay in their claims."""
    living = apps.get_model("web", "Container").objects.filter(gpu_memory=None, finished_at=None)
    for row in living.annotate(least=Min("claims__quota"), most=Max("claims__quota")):
        if row.least is not None and row.least == row.most:
            living.filter(pk=row.pk).update(gpu_memory=row.least)


class Migration(migrations.Migration):
    dependencies = [("web", "0032_policy_asked")]

    operations = [
        migrations.AlterField(
            model_name="container",
            name="gpu_memory",
            field=models.BigIntegerField(
                help_text="The quota in force on each GPU; empty before a launch takes the image's label.", null=True
            ),
        ),
        migrations.RunPython(fill_in, migrations.RunPython.noop, elidable=True),
    ]
