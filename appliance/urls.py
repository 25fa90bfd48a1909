from django.conf import settings
from django.contrib import admin
from django.urls import URLPattern, URLResolver, include, path, re_path

from web.api.protocol.errors import unknown_path
from web.http import health, metrics

urlpatterns: list[URLPattern | URLResolver] = [
    path("", include("web.urls")),
    path("admin/", admin.site.urls),
    path("healthz", health.healthz),
    path("readyz", health.readyz),
    path("metrics", metrics.metrics),
    path("api/v1/", include("web.api.urls")),
    re_path(r"^api/", unknown_path),
]
if settings.OIDC:
    urlpatterns.insert(0, path("oidc/", include("mozilla_django_oidc.urls")))
