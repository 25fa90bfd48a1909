"""Which node a command is for and why a container is where it is; who has a node's name, and what people say of it."""

import django.db.models.deletion
from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("web", "0021_sum_of_weights"),
    ]

    operations = [
        migrations.AddField(
            model_name="command",
            name="node",
            field=models.ForeignKey(
                blank=True,
                help_text="Whose it is to do; empty: the only one's.",
                null=True,
                on_delete=django.db.models.deletion.SET_NULL,
                to="web.node",
            ),
        ),
        migrations.AddField(
            model_name="container",
            name="node_asked",
            field=models.CharField(
                blank=True,
                db_default="",
                default="",
                help_text="The name of the one asked for; empty: any.",
                max_length=255,
            ),
        ),
        migrations.AddField(
            model_name="container",
            name="node_reason",
            field=models.CharField(
                blank=True,
                db_default="",
                default="",
                help_text="Why it is there; empty: there was no choice.",
                max_length=500,
            ),
        ),
        migrations.AddField(
            model_name="node",
            name="drained_at",
            field=models.DateTimeField(blank=True, help_text="Since when it takes no new launches.", null=True),
        ),
        migrations.AddField(
            model_name="node",
            name="holder",
            field=models.CharField(
                blank=True,
                help_text="Whose scheduler has this name: a boot and a GPUSHARE_HOME; empty: free.",
                max_length=128,
            ),
        ),
        migrations.AddField(
            model_name="node",
            name="labels",
            field=models.JSONField(blank=True, default=dict, help_text="{name: value}, texts: what people say of it."),
        ),
        migrations.AddField(
            model_name="node",
            name="release",
            field=models.CharField(blank=True, help_text="Of its scheduler.", max_length=32),
        ),
        migrations.AddField(
            model_name="node",
            name="removed_at",
            field=models.DateTimeField(blank=True, help_text="Since when it counts no more; history stays.", null=True),
        ),
    ]
