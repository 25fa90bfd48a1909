# Made by hand of what makemigrations wrote: the node that an episode is about; of which Swarm a node's launches are.

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("web", "0030_pods")]

    operations = [
        migrations.AddField(
            model_name="episode",
            name="node",
            field=models.CharField(
                blank=True,
                db_default="",
                default="",
                help_text="The name of the one it is about; empty: none.",
                max_length=255,
            ),
        ),
        migrations.AlterField(
            model_name="node",
            name="placer",
            field=models.CharField(
                blank=True,
                help_text="Who chooses the node of what is launched here: swarm and its ID; empty: nobody else.",
                max_length=64,
            ),
        ),
    ]
