from django.apps import AppConfig
from django.db.models.signals import post_migrate


class WebConfig(AppConfig):
    name = "web"
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        from web.people import accounts, signin
        from web.services import issuing
        from web.services.joining import rules

        signin.connect()
        accounts.connect()
        issuing.connect()
        post_migrate.connect(rules.after_migrate, sender=self, dispatch_uid="gpushare")
