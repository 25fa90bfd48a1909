from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("web", "0011_turns"),
    ]

    operations = [
        migrations.AddField(
            model_name="node",
            name="figures",
            field=models.JSONField(default=dict, help_text="Counts of the scheduler's own work since its start."),
        ),
    ]
