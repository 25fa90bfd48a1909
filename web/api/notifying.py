"""notifying/: who gets which notification. me/notifications/, me/notices/: about one's own containers."""

from typing import Any

from django.conf import settings
from drf_spectacular.utils import extend_schema
from rest_framework import serializers, status
from rest_framework.decorators import action
from rest_framework.generics import GenericAPIView
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView
from rest_framework.viewsets import GenericViewSet

from web.api.protocol.access import body, person, who_may
from web.api.protocol.answer import Answer
from web.api.protocol.outcome import ERRORS
from web.api.protocol.queries import PageQuery, Query
from web.models import Delivery, Happening, Notice, Receiver, Rule, Silence
from web.people.roles import Deed
from web.services import notifying
from web.spec.notifying import NotificationsSpec, ReceiverSpec, RuleSpec, SilenceSpec


class ReceiverAnswer(Answer[Receiver]):
    """A receiver without its secret. `failures`: times in a row that it could not be reached."""

    secret_set = serializers.SerializerMethodField()
    waiting = serializers.SerializerMethodField(help_text="Messages that are not sent yet.")

    class Meta:
        model = Receiver
        fields = [
            "id",
            "name",
            "kind",
            "url",
            "secret_set",
            "addresses",
            "monthly",
            "enabled",
            "failures",
            "retry_at",
            "waiting",
        ]

    def get_secret_set(self, receiver: Receiver) -> bool:
        return bool(receiver.secret)

    def get_waiting(self, receiver: Receiver) -> int:
        return receiver.deliveries.filter(done_at=None).count()


class RuleAnswer(Answer[Rule]):
    receiver = serializers.CharField(source="receiver.name")
    kinds = serializers.ListField(child=serializers.CharField())

    class Meta:
        model = Rule
        fields = ["id", "receiver", "kinds", "severity", "minutes", "repeat_minutes", "resolved", "enabled"]


class SilenceAnswer(Answer[Silence]):
    class Meta:
        model = Silence
        fields = ["id", "until", "kind", "person", "container", "note", "made_by", "made_at"]


class DeliveryAnswer(Answer[Delivery]):
    """A message and what became of it. `id` goes with each try of it. `outcome`: empty while it is tried."""

    receiver = serializers.CharField(
        source="receiver.name", default=None, allow_null=True, help_text="null: a person's own mail."
    )
    person = serializers.CharField(
        source="notice.user.username", default=None, allow_null=True, help_text="Whose mail; else null."
    )
    message = serializers.CharField(source="text")
    kind = serializers.CharField(source="episode.kind", default=None, allow_null=True)

    class Meta:
        model = Delivery
        fields = ["id", "receiver", "person", "kind", "message", "phase", "round", "made_at", "due_at", "tries",
                  "tried_at", "error", "done_at", "outcome"]  # fmt: skip


class _Edited(GenericViewSet[Any]):
    """Lists, shows, makes and removes rows of one model, by the functions of the service."""

    permission_classes = who_may(Deed.NOTIFY)
    lookup_value_converter = "int"

    def _listed(self, request: Request) -> Response:
        PageQuery.of(request)
        page = self.paginate_queryset(self.get_queryset())
        return self.get_paginated_response(self.get_serializer(page, many=True).data)

    def _answer(self, row: Any, code: int = status.HTTP_200_OK) -> Response:
        return Response(self.get_serializer(row).data, code)

    def _removed(self, request: Request, pk: int) -> Response:
        notifying.remove(person(request), self.get_queryset().model, pk)
        return Response(status=status.HTTP_204_NO_CONTENT)


class Receivers(_Edited):
    """Where messages go: webhooks, Alertmanagers, addresses of e-mail. For admins."""

    queryset = Receiver.objects.all()
    serializer_class = ReceiverAnswer

    @extend_schema(parameters=[PageQuery], responses={200: ReceiverAnswer(many=True), **ERRORS})
    def list(self, request: Request) -> Response:
        """All receivers, without their secrets, with how many messages wait for each."""
        return self._listed(request)

    @extend_schema(request=ReceiverSpec, responses={201: ReceiverAnswer, **ERRORS})
    def create(self, request: Request) -> Response:
        """Makes a receiver. A webhook needs `url` and `secret`, an Alertmanager `url`, mail `addresses`."""
        return self._answer(notifying.add_receiver(person(request), body(request)), status.HTTP_201_CREATED)

    @extend_schema(responses={200: ReceiverAnswer, **ERRORS})
    def retrieve(self, request: Request, pk: int) -> Response:
        """One of the receivers: how often it was not reached lately, and how many messages wait for it."""
        Query.of(request)
        return self._answer(notifying.find(person(request), Receiver, pk))

    @extend_schema(request=ReceiverSpec, responses={200: ReceiverAnswer, **ERRORS})
    def partial_update(self, request: Request, pk: int) -> Response:
        """Changes the fields of a receiver that are given. What could not be reached is tried again at once."""
        return self._answer(notifying.change_receiver(person(request), pk, body(request)))

    @extend_schema(request=None, responses={204: None, **ERRORS})
    def destroy(self, request: Request, pk: int) -> Response:
        """Removes a receiver with its rules and messages."""
        return self._removed(request, pk)

    @extend_schema(request=None, responses={202: DeliveryAnswer, **ERRORS})
    @action(detail=True, methods=["post"])
    def test(self, request: Request, pk: int) -> Response:
        """Has a message sent that says that it is a test. What becomes of it stands in notifying/deliveries/."""
        delivery = notifying.test_receiver(person(request), pk)
        return Response(DeliveryAnswer(delivery).data, status.HTTP_202_ACCEPTED)


class Rules(_Edited):
    """Which notifications each receiver gets. For admins."""

    queryset = Rule.objects.select_related("receiver")
    serializer_class = RuleAnswer

    @extend_schema(parameters=[PageQuery], responses={200: RuleAnswer(many=True), **ERRORS})
    def list(self, request: Request) -> Response:
        """All rules, switched on or not, the oldest first."""
        return self._listed(request)

    @extend_schema(request=RuleSpec, responses={201: RuleAnswer, **ERRORS})
    def create(self, request: Request) -> Response:
        """Makes a rule: from now on the receiver gets what it is about, also what has begun before."""
        return self._answer(notifying.add_rule(person(request), body(request)), status.HTTP_201_CREATED)

    @extend_schema(request=RuleSpec, responses={200: RuleAnswer, **ERRORS})
    def partial_update(self, request: Request, pk: int) -> Response:
        """Changes the fields of a rule that are given."""
        return self._answer(notifying.change_rule(person(request), pk, body(request)))

    @extend_schema(request=None, responses={204: None, **ERRORS})
    def destroy(self, request: Request, pk: int) -> Response:
        """Removes a rule. What it has asked for already is still sent."""
        return self._removed(request, pk)


class Silences(_Edited):
    """Notifications that are not sent for a while. What goes on when a silence ends is sent then. For admins."""

    queryset = Silence.objects.all()
    serializer_class = SilenceAnswer

    @extend_schema(parameters=[PageQuery], responses={200: SilenceAnswer(many=True), **ERRORS})
    def list(self, request: Request) -> Response:
        """All silences, also those of the last week that are over."""
        return self._listed(request)

    @extend_schema(request=SilenceSpec, responses={201: SilenceAnswer, **ERRORS})
    def create(self, request: Request) -> Response:
        """Makes a silence, by kind, person and container's name; an empty field is any."""
        return self._answer(notifying.add_silence(person(request), body(request)), status.HTTP_201_CREATED)

    @extend_schema(request=None, responses={204: None, **ERRORS})
    def destroy(self, request: Request, pk: int) -> Response:
        """Ends a silence: what goes on is sent again from now on."""
        return self._removed(request, pk)


class DeliveryQuery(PageQuery):
    receiver = serializers.CharField(required=False, help_text="Its name.")
    open = serializers.BooleanField(required=False, help_text="true: only those that are still tried; false: the rest.")


class Deliveries(GenericAPIView[Delivery]):
    """Messages of the last week, the newest first: when each was tried last, what went wrong, when it is tried next."""

    permission_classes = who_may(Deed.NOTIFY)
    serializer_class = DeliveryAnswer

    @extend_schema(parameters=[DeliveryQuery], responses={200: DeliveryAnswer(many=True), **ERRORS})
    def get(self, request: Request) -> Response:
        asked = DeliveryQuery.of(request)
        page = self.paginate_queryset(notifying.deliveries(asked.get("receiver"), asked.get("open")))
        return self.get_paginated_response(self.get_serializer(page, many=True).data)


class NotificationsAnswer(serializers.Serializer[Any]):
    """Your notifications about your containers, and how they reach you."""

    mail = serializers.BooleanField()
    browser = serializers.BooleanField()
    happenings = serializers.ListField(child=serializers.ChoiceField(Happening.choices))
    goes_on_minutes = serializers.FloatField(help_text="Shorter waits send no notification.")
    address = serializers.CharField(source="user.email", help_text="Where mail goes; an admin or a directory sets it.")
    can_mail = serializers.SerializerMethodField(help_text="Whether mail is set up here and you have an address.")

    def get_can_mail(self, wish: Any) -> bool:
        return bool(settings.EMAIL_HOST and wish.user.email)


class Notifications(APIView):
    @extend_schema(responses={200: NotificationsAnswer, **ERRORS})
    def get(self, request: Request) -> Response:
        """Your notifications about your containers; a launch may say otherwise (`notify`)."""
        Query.of(request)
        return Response(NotificationsAnswer(notifying.wish_of(person(request))).data)

    @extend_schema(request=NotificationsSpec, responses={200: NotificationsAnswer, **ERRORS})
    def patch(self, request: Request) -> Response:
        """Changes your notifications, of the fields that are given; the others stay."""
        return Response(NotificationsAnswer(notifying.set_wish(person(request), body(request))).data)


class NoticeAnswer(Answer[Notice]):
    """Something that happened to a container of yours."""

    class Meta:
        model = Notice
        fields = ["id", "kind", "container", "message", "at"]


class NoticeQuery(PageQuery):
    after = serializers.IntegerField(required=False, min_value=0, help_text="Only those with a greater id.")


class Notices(GenericAPIView[Notice]):
    """Your notifications in the browser of the last week, the oldest first."""

    serializer_class = NoticeAnswer

    @extend_schema(parameters=[NoticeQuery], responses={200: NoticeAnswer(many=True), **ERRORS})
    def get(self, request: Request) -> Response:
        after = NoticeQuery.of(request).get("after", 0)
        found = Notice.objects.filter(user=person(request), browser=True, pk__gt=after)
        return self.get_paginated_response(self.get_serializer(self.paginate_queryset(found), many=True).data)
