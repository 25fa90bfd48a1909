from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("web", "0018_volumes"),
    ]

    operations = [
        migrations.CreateModel(
            name="Invitation",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("name", models.CharField(help_text="Of the node.", max_length=255, unique=True)),
                ("digest", models.CharField(editable=False, max_length=64, unique=True)),
                ("expires_at", models.DateTimeField()),
            ],
        ),
        migrations.AddField(
            model_name="node",
            name="outbox",
            field=models.CharField(blank=True, help_text="Which outbox of its host gave the numbers.", max_length=36),
        ),
        migrations.AddField(
            model_name="node",
            name="role",
            field=models.CharField(blank=True, help_text="Its own PostgreSQL role; empty: it has none.", max_length=63),
        ),
        migrations.AddField(
            model_name="node",
            name="skew",
            field=models.FloatField(default=0, help_text="Seconds by which its clock is ahead of the database's."),
        ),
        migrations.AddField(
            model_name="node",
            name="told",
            field=models.BigIntegerField(
                default=0, help_text="The number of the last of its events that is written here."
            ),
        ),
        migrations.AddField(
            model_name="seal",
            name="node",
            field=models.CharField(blank=True, help_text="By whose key, if it is a node's own.", max_length=255),
        ),
    ]
