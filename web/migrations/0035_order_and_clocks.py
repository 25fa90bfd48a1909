# Made by hand of what makemigrations wrote: commands have an order of their own, and containers a clock of their own.

from typing import Any

from django.db import migrations, models


def number_open(apps: Any, schema_editor: Any) -> None:
    """Those that are not done, in the order in which they would have been carried out."""
    commands = apps.get_model("web", "Command").objects
    for number, command in enumerate(commands.filter(done_at=None).order_by("created_at"), 1):
        commands.filter(pk=command.pk).update(number=number)


class Migration(migrations.Migration):
    dependencies = [("web", "0034_user_and_init")]

    operations = [
        migrations.AlterModelOptions(name="allocationevent", options={"ordering": ["id"]}),
        migrations.AddField(
            model_name="container",
            name="clock_ahead",
            field=models.FloatField(
                db_default=0.0,
                default=0.0,
                help_text="Seconds by which its clock is ahead of its host's: that was set since.",
            ),
        ),
        migrations.AddField(
            model_name="command",
            name="number",
            field=models.BigIntegerField(
                db_default=0,
                db_index=True,
                default=0,
                editable=False,
                help_text="Their order: a clock may be set back.",
            ),
        ),
        migrations.RemoveIndex(model_name="command", name="web_command_done_at_27a8e1_idx"),
        migrations.AddIndex(
            model_name="command",
            index=models.Index(fields=["done_at", "number"], name="web_command_done_at_6d553a_idx"),
        ),
        migrations.AlterModelOptions(name="command", options={"ordering": ["number", "created_at"]}),
        migrations.RunPython(number_open, migrations.RunPython.noop, elidable=True),
    ]
