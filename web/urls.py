"""The addresses of the pages."""

from __future__ import annotations

from django.contrib.auth.views import LoginView, LogoutView
from django.urls import path

from web import pages

urlpatterns = [
    path("", pages.dashboard, name="dashboard"),
    path("login/", LoginView.as_view(redirect_authenticated_user=True), name="login"),
    path("logout/", LogoutView.as_view(), name="logout"),
    path("containers/rows/", pages.container_rows, name="container_rows"),
    path("containers/act/", pages.act_on_many, name="act_on_many"),
    path("containers/<uuid:pk>/<slug:action>/", pages.act, name="act"),
]
