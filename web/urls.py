"""The addresses of the pages."""

from django.contrib.auth.views import LoginView, LogoutView
from django.urls import path

from web.pages import (
    actions,
    booked,
    detail,
    enter,
    fair,
    launch,
    nodes,
    notifications,
    overview,
    past,
    queue,
    reporting,
)
from web.pages.people import log, me, people
from web.people import bootstrap
from web.people.signin import SignInForm

sign_in = LoginView.as_view(
    form_class=SignInForm, redirect_authenticated_user=True, extra_context={"is_new": bootstrap.is_new}
)

urlpatterns = [
    path("", overview.dashboard, name="dashboard"),
    path("login/", sign_in, name="login"),
    path("enter/", enter.enter, name="enter"),
    path("join/", enter.join, name="join"),
    path("logout/", LogoutView.as_view(), name="logout"),
    path("gpus/<str:uuid>/last-hour/", overview.last_hour, name="last_hour"),
    path("gpus/<str:uuid>/compute/", overview.compute, name="compute"),
    path("apps/open/", enter.open_app, name="open_app"),
    path("queue/", queue.queue, name="queue_page"),
    path("queue/reorder/", queue.reorder, name="queue_reorder"),
    path("queue/planned/<uuid:pk>/<slug:action>/", queue.steer, name="planned_act"),
    path("queue/policy/", queue.policy, name="queue_policy"),
    path("deciding/", queue.deciding, name="deciding"),
    path("incidents/", past.incidents_of, name="incidents"),
    path("history/", past.replay, name="history"),
    path("history/<str:uuid>/day/", past.day, name="history_day"),
    path("history/<str:uuid>/moment/", past.moment, name="history_moment"),
    path("calendar/", booked.page, name="calendar"),
    path("calendar/<str:key>.ics", booked.feed, name="calendar_feed"),
    path("reports/", reporting.page, name="reports"),
    path("fairness/", fair.page, name="fairness"),
    path("me/", me.page, name="me"),
    path("me/tokens/", me.make_token, name="make_token"),
    path("me/tokens/<int:pk>/end/", me.end_token, name="end_token"),
    path("launch/presets/", launch.save_preset, name="save_preset"),
    path("launch/presets/<int:pk>/", launch.launch_preset, name="launch_preset"),
    path("launch/presets/<int:pk>/remove/", launch.remove_preset, name="remove_preset"),
    path("me/keys/", me.add_key, name="add_ssh_key"),
    path("me/keys/<int:pk>/remove/", me.remove_key, name="remove_ssh_key"),
    path("me/password/", me.password, name="my_password"),
    path("people/", people.people, name="people"),
    path("people/<str:username>/", people.one, name="person"),
    path("groups/<str:name>/", people.group, name="group"),
    path("audit/", log.page, name="audit"),
    path("audit/verify/", log.verify, name="audit_verify"),
    path("nodes/", nodes.nodes, name="nodes_page"),
    path("nodes/<str:name>/", nodes.one, name="node_page"),
    path("notifications/", notifications.page, name="notifications_page"),
    path("notifications/mine/", notifications.mine, name="notifications_mine"),
    path("notifications/<slug:what>/", notifications.act, name="notifications_add"),
    path("notifications/<slug:what>/<int:pk>/<slug:action>/", notifications.act, name="notifications_act"),
    path("launch/", launch.launch, name="launch"),
    path("launch/suggestion/", launch.suggestion, name="launch_suggestion"),
    path("launch/cards/", launch.cards, name="launch_cards"),
    path("launch/forecast/", launch.forecast, name="launch_forecast"),
    path("launch/body/", launch.body, name="launch_body"),
    path("containers/rows/", overview.rows, name="container_rows"),
    path("containers/act/", actions.act_on_many, name="act_on_many"),
    path("containers/<uuid:pk>/", detail.container, name="container"),
    path("containers/<uuid:pk>/held/", detail.held, name="container_held"),
    path("containers/<uuid:pk>/events/", detail.events, name="container_events"),
    path("containers/<uuid:pk>/log/", detail.log, name="container_log"),
    path("containers/<uuid:pk>/console/", detail.console, name="console"),
    path("containers/<uuid:pk>/shell/", detail.shell, name="shell"),
    path("containers/<uuid:pk>/guests/", detail.share, name="share"),
    path("containers/<uuid:pk>/warn/", fair.warn, name="warn"),
    path("containers/<uuid:pk>/<slug:action>/", actions.act, name="act"),
]
