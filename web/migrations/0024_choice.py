from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("web", "0023_placed_by_a_swarm"),
    ]

    operations = [
        migrations.AddField(
            model_name="container",
            name="constraints",
            field=models.JSONField(
                db_default=models.Value([], models.JSONField()),
                default=list,
                help_text="What the node has to be like (web/spec/constraints.py).",
            ),
        ),
        migrations.AddField(
            model_name="container",
            name="restart",
            field=models.CharField(
                blank=True,
                db_default="",
                default="",
                help_text="When a Swarm begins it again (web/spec/restarts.py); empty: never.",
                max_length=16,
            ),
        ),
        migrations.AddField(
            model_name="container",
            name="run_of",
            field=models.ForeignKey(
                blank=True,
                help_text="The first run of what a Swarm has begun again; empty: this is it.",
                null=True,
                on_delete=models.deletion.SET_NULL,
                related_name="runs",
                to="web.container",
            ),
        ),
    ]
