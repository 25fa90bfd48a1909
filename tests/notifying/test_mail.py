"""E-mail over a real SMTP server: what attention says to receivers, what happened to a container to its owner."""

from datetime import timedelta

import pytest
from django.utils import timezone

from tests.notifying.conftest import turn
from tests.support.events import EventKind, append
from tests.support.machine import make_container
from tests.support.mailbox import open_mailbox
from tests.support.people import make_user
from web.models import Delivery, Notice, Receiver, Rule, Wish
from web.notifying import happenings, outbox

pytestmark = pytest.mark.django_db


@pytest.fixture
def mailbox(settings):
    with open_mailbox() as mailbox:
        settings.EMAIL_BACKEND = "django.core.mail.backends.smtp.EmailBackend"
        settings.EMAIL_HOST, settings.EMAIL_PORT = "127.0.0.1", mailbox.port
        settings.DEFAULT_FROM_EMAIL = "gpushare@lab.example"
        yield mailbox


@pytest.fixture
def reader(ada, mailbox):
    ada.email = "ada@lab.example"
    ada.save()
    Wish.objects.create(user=ada, mail=True)
    happenings.look(timezone.now())
    return ada


def test_a_receiver_gets_one_letter_and_one_when_it_is_over(mailbox, engine, settings):
    settings.GPUSHARE_PUBLIC_URL = "https://gpu1.lab"
    made = Receiver.objects.create(name="ops", kind="mail", addresses=["ops@lab.example", "night@lab.example"])
    Rule.objects.create(receiver=made)
    now = timezone.now()
    engine("Docker does not answer.")
    for seconds in (0, 5, 10):
        turn(now + timedelta(seconds=seconds))
    engine("")
    for seconds in (15, 50, 55):
        turn(now + timedelta(seconds=seconds))
    subjects = [letter.message["Subject"] for letter in mailbox.letters]
    assert subjects == [
        "[gpushare] critical: Docker does not answer.", "[gpushare] Over: critical: Docker does not answer.",
    ]  # fmt: skip
    letter = mailbox.letters[0]
    assert letter.to == ["ops@lab.example", "night@lab.example"]
    assert letter.message["From"] == "gpushare@lab.example"
    assert "https://gpu1.lab/" in letter.message.get_content()


def test_a_line_break_in_a_message_makes_no_header(mailbox, engine):
    Rule.objects.create(receiver=Receiver.objects.create(name="ops", kind="mail", addresses=["ops@lab.example"]))
    engine("away\r\nBcc: everybody@lab.example\r\n\r\nbody")
    turn(timezone.now())
    (letter,) = mailbox.letters
    assert letter.message["Subject"] == "[gpushare] critical: away Bcc: everybody@lab.example body"
    assert letter.message["Bcc"] is None
    assert letter.to == ["ops@lab.example"]


def test_an_address_that_is_two_lines_is_sent_nowhere_and_says_so(mailbox, reader, gpu):
    type(reader).objects.update(email="ada@lab.example\nBcc: x@lab.example")
    append(make_container(reader, "train", gpu), timezone.now(), EventKind.ENDED, detail="exit code 0")
    turn(timezone.now())
    assert mailbox.letters == []
    assert "cannot be sent as a mail" in Delivery.objects.get().error


def test_a_server_that_is_away_or_refuses_is_tried_again_with_the_same_id(mailbox, engine, settings):
    Rule.objects.create(receiver=Receiver.objects.create(name="ops", kind="mail", addresses=["ops@lab.example"]))
    engine("away")
    now = timezone.now()
    mailbox.refuses = "451 greylisted, come again"
    turn(now)
    row = Delivery.objects.get()
    assert "greylisted" in row.error
    settings.EMAIL_PORT = 1
    turn(now + timedelta(minutes=1))
    mailbox.refuses, settings.EMAIL_PORT = "", mailbox.port
    turn(now + timedelta(minutes=20))
    (letter,) = mailbox.letters
    assert letter.message["Message-ID"] == f"<{row.pk}@gpushare>"
    row.refresh_from_db()
    assert (row.tries, row.outcome) == (3, "sent")


def test_an_owner_hears_once_what_became_of_a_container(mailbox, reader, gpu):
    now = timezone.now()
    train = make_container(reader, "train", gpu)
    append(train, now, EventKind.RESUMED, gpu, waited=400.0)
    append(train, now, EventKind.RESUMED, gpu, waited=2.0)
    why = 'It was idle, and gave way to "other". It took 1.00 s.'
    append(train, now, EventKind.SWAPPED_OUT, gpu, detail=why)
    append(train, now, EventKind.SWAPPED_OUT, gpu, detail=why)  # of its second card
    append(train, now, EventKind.SWAPPED_OUT, gpu, detail="It was paused. It took 1.00 s.")
    append(train, now, EventKind.SWAPPED_OUT, gpu, detail="Paused by root: it gave way to nobody. It took 1.00 s.")
    append(train, now, EventKind.ENDED, detail="exit code 3")
    killed = make_container(reader, "killed", gpu, kill_requested_at=now)
    append(killed, now, EventKind.ENDED, detail="Ended by root.")
    for seconds in range(3):
        turn(now + timedelta(seconds=seconds))
    subjects = [letter.message["Subject"] for letter in mailbox.letters]
    assert subjects == [
        '[gpushare] "train" continues: it got its memory after 6 min 40 s.',
        '[gpushare] "train" gives way. It was idle, and gave way to "other". It took 1.00 s.',
        '[gpushare] "train" has ended: exit code 3',
        '[gpushare] "killed" was killed. Ended by root.',
    ]
    assert {letter.to[0] for letter in mailbox.letters} == {"ada@lab.example"}


@pytest.mark.parametrize(
    ("notify", "wish", "expected"),
    [(None, ["ended"], ["ended"]), (None, ["killed"], []), (["ended"], [], ["ended"]), ([], ["ended"], [])],
)
def test_a_launch_may_say_otherwise_than_its_owner_does_for_all(mailbox, reader, gpu, notify, wish, expected):
    Wish.objects.update(happenings=wish)
    append(make_container(reader, "train", gpu, notify=notify), timezone.now(), EventKind.ENDED, detail="exit code 0")
    turn(timezone.now())
    assert list(Notice.objects.values_list("kind", flat=True)) == expected
    assert len(mailbox.letters) == len(expected)


def test_who_wants_no_mail_gets_none_and_the_past_is_nobodys_news(mailbox, ada, gpu):
    train = make_container(ada, "train", gpu)
    append(train, timezone.now(), EventKind.ENDED, detail="before the first look")
    turn(timezone.now())
    append(train, timezone.now(), EventKind.ENDED, detail="exit code 0")
    turn(timezone.now())
    (notice,) = Notice.objects.all()
    assert notice.message == '"train" has ended: exit code 0'
    assert mailbox.letters == []


def test_nobody_is_sent_more_than_so_many_letters_an_hour(mailbox, reader, gpu, monkeypatch):
    monkeypatch.setattr(happenings, "MAILS_AN_HOUR", 3)
    for number in range(5):
        append(make_container(reader, f"train-{number}", gpu), timezone.now(), EventKind.ENDED, detail="exit code 0")
    turn(timezone.now())
    assert (Notice.objects.count(), len(mailbox.letters)) == (5, 3)
    outbox.tidy(timezone.now())
    assert Notice.objects.count() == 5


def test_whose_containers_end_all_the_time_takes_nobody_elses_news_away(reader, gpu, monkeypatch):
    monkeypatch.setattr(outbox, "KEPT_MOST", 6)
    monkeypatch.setattr(happenings, "KEPT_EACH", 3)
    bob, now = make_user("bob"), timezone.now()
    for number in range(2):
        append(make_container(bob, f"bobs-{number}", gpu), now, EventKind.ENDED, detail="exit code 0")
    for number in range(8):
        append(make_container(reader, f"train-{number}", gpu), now, EventKind.ENDED, detail="exit code 0")
    happenings.look(now)
    assert Notice.objects.count() == 10
    happenings.tidy(now)
    assert Notice.objects.filter(user=bob).count() == 2
    kept = Notice.objects.filter(user=reader).values_list("container__name", flat=True)
    assert list(kept) == ["train-5", "train-6", "train-7"]
