from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("web", "0013_notifying"),
    ]

    operations = [
        migrations.AddField(
            model_name="container",
            name="expected_at",
            field=models.DateTimeField(blank=True, help_text="When it is expected to go on.", null=True),
        ),
        migrations.AddField(
            model_name="container",
            name="expected_by",
            field=models.CharField(
                blank=True,
                choices=[("limits", "Limits"), ("earlier runs", "Earlier Runs")],
                help_text="What that rests on; empty: nobody can know.",
                max_length=12,
            ),
        ),
        migrations.AddField(
            model_name="gpu",
            name="ecc_errors",
            field=models.BigIntegerField(
                blank=True,
                help_text="Uncorrected memory errors since the driver was loaded; null: not told.",
                null=True,
            ),
        ),
        migrations.AddField(
            model_name="gpu",
            name="hot_since",
            field=models.DateTimeField(blank=True, help_text="Since when it is as hot as its limit.", null=True),
        ),
        migrations.AddField(
            model_name="gpu",
            name="strangers",
            field=models.JSONField(
                default=list,
                help_text="[{pid, bytes, user, command}]: processes on it that are no container's, largest first.",
            ),
        ),
        migrations.AddField(
            model_name="gpu",
            name="xid",
            field=models.PositiveIntegerField(
                blank=True, help_text="The last critical error that it reported.", null=True
            ),
        ),
        migrations.AddField(
            model_name="gpu",
            name="xid_at",
            field=models.DateTimeField(blank=True, null=True),
        ),
        migrations.AddField(
            model_name="node",
            name="audit_error",
            field=models.CharField(
                blank=True, help_text="Why the audit log has no new anchor; empty if it has.", max_length=500
            ),
        ),
        migrations.AddField(
            model_name="node",
            name="nearly_full",
            field=models.JSONField(
                default=list,
                help_text="[{of, free, total, since}]: what is nearly full; bytes, and seconds since 1970.",
            ),
        ),
    ]
