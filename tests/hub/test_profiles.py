"""What people may choose from, and that a choice nobody offered is never passed on."""

from html.parser import HTMLParser

import pytest
from gpushare_jupyterhub.profiles import BadChoice, BadProfiles, check, form, launch_of, options_of

PROFILES = [
    {"name": "Small", "description": "For <looking>", "launch": {"image": "lab", "gpu_memory": "8GiB"}},
    {
        "name": 'Own "choice"',
        "launch": {"gpus": 1},
        "choices": {"image": ["lab", "lab:next"], "compute_weight": [100, 50], "gpu_memory": ["8GiB", "24GiB"]},
    },
]


def test_the_first_is_taken_where_nothing_is_chosen():
    assert launch_of(PROFILES, {}) == {"image": "lab", "gpu_memory": "8GiB"}
    chosen = launch_of(PROFILES, {"profile": 'Own "choice"'})
    assert chosen == {"gpus": 1, "image": "lab", "compute_weight": 100, "gpu_memory": "8GiB"}


def test_a_choice_is_passed_on_as_the_admin_wrote_it_and_not_as_it_was_sent():
    chosen = launch_of(PROFILES, {"profile": 'Own "choice"', "compute_weight": "50", "image": "lab:next"})
    assert (chosen["compute_weight"], chosen["image"]) == (50, "lab:next")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"profile": "Huge"}, "There is no profile"),
        ({"profile": "Small", "image": "evil"}, "lets nobody choose 'image'"),
        ({"profile": 'Own "choice"', "image": "evil"}, "evil is not offered for image. There are: lab, lab:next"),
        ({"profile": 'Own "choice"', "owner": "root"}, "lets nobody choose 'owner'"),
        ({"profile": ["Small"]}, "There is no profile"),
        ({"volumes": "/:/host"}, "lets nobody choose 'volumes'"),
    ],
)
def test_what_nobody_offered_is_refused_in_a_sentence(options, words):
    with pytest.raises(BadChoice, match=words):
        launch_of(PROFILES, options)


class Fields(HTMLParser):
    """The names and values that a browser could send."""

    def __init__(self) -> None:
        super().__init__()
        self.values: dict[str, list[str]] = {}
        self._select, self._option = "", False
        self.tags: set[str] = set()

    def handle_starttag(self, tag, attributes):
        given = dict(attributes)
        self.tags.add(tag)
        self._option = tag == "option"
        if tag == "input":
            self.values.setdefault(given["name"], []).append(given["value"])
        if tag == "select":
            self._select = given["name"]

    def handle_data(self, data):
        if self._option:
            self.values.setdefault(self._select, []).append(data)
            self._option = False


def test_whatever_the_form_can_send_is_understood():
    fields = Fields()
    fields.feed(form(PROFILES))
    assert "looking" not in fields.tags  # a profile's text is text
    assert fields.values["profile"] == ["0", "1"]
    assert options_of(PROFILES, {"profile": ["0"], "1:image": ["lab:next"]}) == {"profile": "Small"}
    last = {name: values[-1:] for name, values in fields.values.items()}
    assert launch_of(PROFILES, options_of(PROFILES, last)) == {
        "gpus": 1, "image": "lab:next", "compute_weight": 50, "gpu_memory": "24GiB",
    }  # fmt: skip


@pytest.mark.parametrize("sent", [{"profile": ["2"]}, {"profile": ["-1"]}, {"profile": ["Small"]},
                                  {"profile": ["1"], "1:image": ["evil"]}])  # fmt: skip
def test_a_forged_form_is_refused(sent):
    with pytest.raises(BadChoice):
        options_of(PROFILES, sent)


@pytest.mark.parametrize(
    ("profiles", "words"),
    [
        ([], "a profile at least"),
        ([{"name": "x", "launch": {}}], "an image"),
        ([{"launch": {"image": "x"}}], "a name"),
        ([{"name": "x", "launch": {"image": "x", "owner": "root"}}], "'owner'"),
        ([{"name": "x", "launch": {"image": "x"}, "choices": {"gpus": []}}], "nothing is offered for 'gpus'"),
        ([{"name": "x", "lanch": {}}], "no 'lanch'"),
        ([{"name": "x", "launch": {"image": "x"}}] * 2, "the same name"),
    ],
)
def test_profiles_that_make_no_sense_stop_the_hubs_start(profiles, words):
    with pytest.raises(BadProfiles, match=words):
        check(profiles)


def test_those_above_make_sense():
    assert check(PROFILES) == PROFILES
