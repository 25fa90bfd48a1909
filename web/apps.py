from django.apps import AppConfig


class WebConfig(AppConfig):
    name = "web"
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        from web.people import accounts, signin

        signin.connect()
        accounts.connect()
