from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("web", "0022_several_nodes"),
    ]

    operations = [
        migrations.AddField(
            model_name="container",
            name="constraints",
            field=models.JSONField(
                default=list, help_text="What the node has to be like (web/spec/where/constraints.py)."
            ),
        ),
    ]
