from django.apps import AppConfig


class ApplianceConfig(AppConfig):
    name = "appliance"
