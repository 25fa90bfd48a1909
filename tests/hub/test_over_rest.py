"""What the spawner asks of an appliance, asked of a real one; no hub is needed for that."""

from collections.abc import AsyncIterator

import pytest
from gpushare_jupyterhub.appliance import Appliance as Asker
from gpushare_jupyterhub.appliance import Away, Refused, is_over, ordinal, standing

from tests.support.appliance import WORKLOAD, Appliance
from tests.support.eventually import eventually


@pytest.fixture
async def asker(appliance: Appliance, service_token: str) -> AsyncIterator[Asker]:
    asker = Asker(f"{appliance.url}/", service_token)
    yield asker
    await asker.close()


def body(*command: str, owner: str = "ada", **fields: object) -> dict[str, object]:
    return {"image": "local", "command": list(command), "owner": owner, "gpu_memory": "64MiB", **fields}


async def test_it_launches_for_a_person_looks_and_takes_away(asker: Asker) -> None:
    made = await asker.launch(body("sleep", "600", name="one"), key="k1")
    again = await asker.launch(body("sleep", "600", name="one"), key="k1")
    assert (made["owner"], made["id"]) == ("ada", again["id"])
    found = await asker.named("one")
    assert found is not None
    assert standing(found) == "Its container runs; the notebook server starts."
    assert await asker.engine() == "process"
    await asker.end(made["id"], grace=1)
    assert is_over(await asker.container(made["id"]))
    assert await asker.named("one") is None
    await asker.end(made["id"])  # once more is no failure


async def test_one_that_takes_its_time_to_end_is_waited_for_and_taken_away(asker: Asker, appliance: Appliance) -> None:
    """The appliance answers "not yet" after 5 seconds; what was not removed then would stay for ever."""
    script = "trap 'sleep 6; exit 0' TERM; echo ready; while :; do sleep 0.1; done"
    made = await asker.launch(body("/bin/sh", "-c", script, name="slow"), key="slow")
    await eventually(lambda: "ready" in appliance_output(appliance, made["id"]))
    await asker.end(made["id"], grace=20)
    assert appliance.containers(name="slow") == []


def appliance_output(appliance: Appliance, id_: str) -> str:
    path = appliance.home / "logs" / f"{id_}.log"
    return path.read_text() if path.exists() else ""


async def test_a_suspended_one_says_its_place_and_why(asker: Asker, appliance: Appliance) -> None:
    hog = appliance.launch(WORKLOAD, "--bytes", "800MiB", "--hold", "600", gpu_memory="896MiB", give_way=False)
    await eventually(lambda: appliance.containers()[0]["gpus"][0]["used"] > 700 << 20)
    made = await asker.launch(body(WORKLOAD, "--bytes", "600MiB", gpu_memory="700MiB"), key="waits")

    async def said_place() -> str:
        said = standing(await asker.container(made["id"]))
        return said if "in the queue" in said else ""

    said = await eventually(said_place, every=0.1)  # its place is shown a moment after its state
    assert said.startswith("Suspended, first in the queue: ")
    assert "MiB" in said
    await asker.end(made["id"])
    with pytest.raises(Refused, match="belongs to admin"):
        await asker.end(hog["id"])  # which it has not launched
    appliance.api("POST", f"containers/{hog['id']}/kill/", {})


@pytest.mark.parametrize(
    ("fields", "code", "words"),
    [
        ({"gpu_memory": "64GiB"}, "over_capacity", "64 GiB is more than it can ever give"),
        ({"owner": "bob"}, "over_allowance", "containers"),
        ({"owner": "stranger"}, "unknown_user", "they have to sign in once, or an admin makes the account"),
        ({"image": "lab/none"}, "unknown_image", "There is no image"),
    ],
)
async def test_a_refusal_comes_in_the_appliances_words(asker: Asker, fields, code, words) -> None:
    with pytest.raises(Refused, match=words) as refused:
        await asker.launch({**body("true"), **fields}, key=code)
    assert refused.value.code == code


async def test_an_appliance_that_is_not_there_is_away_and_not_a_refusal() -> None:
    asker = Asker("http://127.0.0.1:9", "gps_x")
    with pytest.raises(Away, match=r"does not answer\. Try again in a minute"):
        await asker.container("x")
    await asker.close()


async def test_a_wrong_token_is_refused(appliance: Appliance) -> None:
    asker = Asker(appliance.url, "gps_wrong")
    with pytest.raises(Refused, match="This token is not known"):
        await asker.engine()
    await asker.close()


def test_places_are_shown_as_people_count() -> None:
    assert [ordinal(n) for n in (1, 3, 10, 11, 21, 22, 23, 112)] == [
        "first", "third", "tenth", "11th", "21st", "22nd", "23rd", "112th",
    ]  # fmt: skip
