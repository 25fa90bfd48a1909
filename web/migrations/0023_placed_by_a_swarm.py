"""Which node speaks for a Swarm, and what a host shows that the Swarm has given it a launch."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("web", "0022_several_nodes"),
    ]

    operations = [
        migrations.AddField(
            model_name="container",
            name="handed",
            field=models.CharField(
                blank=True,
                db_default="",
                default="",
                editable=False,
                help_text="What a host shows to which a placer has given it. Of a launch that was handed to one.",
                max_length=64,
            ),
        ),
        migrations.AddField(
            model_name="node",
            name="placer",
            field=models.CharField(
                blank=True,
                help_text="Who chooses the node of what is launched here: swarm; empty: nobody else.",
                max_length=16,
            ),
        ),
    ]
