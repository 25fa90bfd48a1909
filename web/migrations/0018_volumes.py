# Made by hand of what makemigrations wrote: volumes of Docker, and what containers come by them.

import django.db.models.deletion
from django.conf import settings
from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("web", "0017_what_a_container_uses"),
        migrations.swappable_dependency(settings.AUTH_USER_MODEL),
    ]

    operations = [
        migrations.CreateModel(
            name="Volume",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("name", models.CharField(max_length=255)),
                ("options", models.JSONField(default=dict, help_text="As Docker has passed them on: name to text.")),
                ("created_at", models.DateTimeField(auto_now_add=True)),
            ],
            options={
                "ordering": ["name"],
            },
        ),
        migrations.AddField(
            model_name="container",
            name="mount",
            field=models.CharField(blank=True, help_text="What Docker calls that volume's mounting.", max_length=255),
        ),
        migrations.AddField(
            model_name="container",
            name="volume",
            field=models.CharField(
                blank=True,
                help_text="The Docker volume that brings its quota; empty: it was launched here.",
                max_length=255,
            ),
        ),
        migrations.AddConstraint(
            model_name="container",
            constraint=models.UniqueConstraint(
                condition=models.Q(("finished_at", None), models.Q(("mount", ""), _negated=True)),
                fields=("node", "mount"),
                name="one_live_container_a_mount",
            ),
        ),
        migrations.AddField(
            model_name="volume",
            name="node",
            field=models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name="volumes", to="web.node"),
        ),
        migrations.AddConstraint(
            model_name="volume",
            constraint=models.UniqueConstraint(fields=("node", "name"), name="one_volume_a_name"),
        ),
    ]
