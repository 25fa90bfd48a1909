# Made by hand of what makemigrations wrote: why a container's memory cannot be moved, or did not come back.

from django.db import migrations, models

KINDS = (
    "accepted", "suspended", "resumed", "rejected", "freed", "started", "ended", "paused", "unpaused", "swapped_out",
    "swapped_in", "not_moved", "not_restored", "not_stopped", "killed", "quota", "warned", "idle", "card_full",
    "bypass",
)  # fmt: skip


class Migration(migrations.Migration):
    dependencies = [("web", "0035_order_and_clocks")]

    operations = [
        migrations.AddField(
            model_name="container",
            name="cannot_move",
            field=models.CharField(
                blank=True,
                db_default="",
                default="",
                help_text="Why its VRAM cannot be moved to host memory; empty: nothing is known against it.",
                max_length=500,
            ),
        ),
        migrations.AddField(
            model_name="container",
            name="not_restored",
            field=models.CharField(
                blank=True,
                db_default="",
                default="",
                help_text="Why its VRAM could not be brought back from host memory; empty: that has not failed.",
                max_length=500,
            ),
        ),
        migrations.AlterField(
            model_name="allocationevent",
            name="kind",
            field=models.CharField(choices=[(kind, kind.replace("_", " ").title()) for kind in KINDS], max_length=16),
        ),
    ]
