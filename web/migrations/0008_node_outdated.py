from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("web", "0007_node_late"),
    ]

    operations = [
        migrations.AddField(
            model_name="node",
            name="outdated",
            field=models.JSONField(default=list, help_text="What of the engine is older than it should be: sentences."),
        ),
    ]
