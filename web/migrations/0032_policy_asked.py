# Made by hand of what makemigrations wrote: the policy that an admin has chosen, for the next scheduler.

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("web", "0031_which_node")]

    operations = [
        migrations.AddField(
            model_name="node",
            name="policy_asked",
            field=models.CharField(
                blank=True,
                db_default="",
                default="",
                help_text="What an admin chose; empty: as GPUSHARE_POLICY says.",
                max_length=32,
            ),
        ),
    ]
