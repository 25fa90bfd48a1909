# Made by hand of what makemigrations wrote: the pods of a Kubernetes cluster that a container stands for.

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("web", "0025_relay")]

    operations = [
        migrations.AddField(
            model_name="container",
            name="namespace",
            field=models.CharField(
                blank=True,
                db_default="",
                default="",
                help_text="Of a Kubernetes cluster, of whose pods it is; else empty.",
                max_length=63,
            ),
        ),
        migrations.AddField(
            model_name="container",
            name="pods",
            field=models.JSONField(
                db_default=models.Value([], models.JSONField()),
                default=list,
                help_text="That cluster's pods with its claim, as last seen.",
            ),
        ),
    ]
