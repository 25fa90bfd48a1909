"""What makes no sense is refused in a sentence that the pod's events show, and leaves nothing behind."""

import re
import time
from email.utils import formatdate
from pathlib import Path
from typing import Any

import pytest
from django.contrib.auth.models import User

from scheduler.kubernetes.api import client, slices
from scheduler.kubernetes.kubelet.server import Asked, KubeletServer
from scheduler.kubernetes.kubelet.sockets import CannotServe
from tests.kubernetes.cluster.api_server import CLAIMS, Refused
from tests.kubernetes.cluster.rules import JSON
from tests.kubernetes.conftest import Lab
from tests.support.eventually import eventually
from tests.support.host import GIB, query
from web.models import Allowance, AuditEntry, Container, Gpu

FORM = {"apiVersion": "gpushare.dev/v1", "kind": "Quota"}


async def refused(lab: Lab, claim: JSON) -> str:
    """The sentence with which it is refused; nothing has come of it."""
    answer = await lab.prepare(claim)
    assert isinstance(answer, str), answer
    named = f"gpushare: the claim {claim['metadata']['namespace']}/{claim['metadata']['name']}: "
    assert answer.startswith(named)
    await lab.unprepare(claim)
    await lab.nothing_is_held()
    return answer.removeprefix(named)


async def test_a_claim_that_cannot_be_is_refused_in_a_sentence(lab: Lab) -> None:
    await lab.published()
    (card,), put, result = lab.up.gpus.cards, lab.allocator.put, lab.allocator.result
    device = card.lower()
    of_another = {**result("gpu-7", None), "driver": "gpu.nvidia.com"}
    odd: list[tuple[list[JSON] | None, str]] = [
        (None, "It is not allocated, or not any more."),
        ([result(device, None)], f"The request gpu0 was given {device} without memory (no consumedCapacity.memory)"),
        ([result(device, "64Gi")], f"64 GiB of {device} were given to it, which has 5 GiB. Delete the pod"),
        ([result(device, "0")], "The request gpu0 has no memory: 0."),
        ([result(device, "lots")], 'The request gpu0: "lots" is not an amount of memory such as 4Gi.'),
        ([of_another], "None of its devices is of gpushare.dev: they are of gpu.nvidia.com. Look at its DeviceClass."),
        ([result("gpu-none", "1Gi")], "This node has no card gpu-none, or not any more."),
        ([result(device, "1Gi", pool="node-2")], f"{device} is of the pool node-2, and this is the node node-1."),
        ([result(device, "1Gi", adminAccess=True)], "The request gpu0 has adminAccess: it would have no quota."),
    ]
    for results, sentence in odd:
        answer = await refused(lab, await put(results))
        assert answer.startswith(sentence), answer
    assert await query(Container.objects.count) == 0


async def test_parameters_that_nobody_knows_are_refused(lab: Lab) -> None:
    await lab.published()
    odd: list[tuple[Any, str]] = [
        ("priority", "Its parameters have to be of apiVersion gpushare.dev/v1 and kind Quota."),
        ({**FORM, "kind": "Share"}, "Its parameters have to be of apiVersion gpushare.dev/v1 and kind Quota."),
        (
            {**FORM, "memory": "4Gi"},
            '"memory" is no parameter of gpushare.dev. There are: priority, weight, on_shortage',
        ),
        ({**FORM, "priority": "high"}, "Its parameter priority: This has to be a whole number."),
        ({**FORM, "weight": 0}, "Its parameter weight: Ensure this value is greater than or equal to 1."),
        ({**FORM, "on_shortage": "cry"}, 'Its parameter on_shortage: "cry" is not a valid choice.'),
        ({**FORM, "max_wait": -1}, "Its parameter max_wait: "),
    ]
    for parameters, sentence in odd:
        claim = await lab.allocator.claim("1Gi", parameters=parameters)
        assert sentence in await refused(lab, claim), parameters
        await lab.allocator.release(claim)


async def test_parameters_that_are_made_to_break_who_reads_them_are_refused_in_words(
    lab: Lab, caplog: pytest.LogCaptureFixture
) -> None:
    """All of it is JSON that an API server takes, of at most 10 KiB."""
    await lab.published()
    held = await lab.allocator.claim("1Gi")
    assert isinstance(await lab.prepare(held), dict)
    for odd in ("[" * 4000 + "]" * 4000, "9" * 9000):
        claim = await lab.allocator.claim("1Gi", parameters={**FORM, "priority": "here"})
        lab.api.texts["here"] = odd
        answer = await lab.prepare(claim)
        assert "cannot be read: " in answer
        await lab.unprepare(claim)
        await lab.allocator.release(claim)
    assert "Traceback" not in caplog.text
    assert len(await lab.living()) == 1


async def test_an_image_and_last_words_that_are_no_text_are_shown_as_such(lab: Lab) -> None:
    await lab.published()
    claim = await lab.allocator.claim("1Gi")
    pod = await lab.pods.make("odd", {"main": claim}, images={"main": "a\0b\x1b[2Jc" + "d" * 100_000})
    await lab.pods.start(pod)
    (container,) = await lab.living()
    assert container.image == "a\ufffdb\ufffd[2Jc" + "d" * 247
    end = {"exitCode": 1, "reason": "Error", "message": "\0\x1b]0;title\x07" + "e" * 9_000}
    await lab.pods._tell(pod, end)
    await lab.unprepare(claim)
    ended = await lab.get(container)
    assert (ended.exit_code, len(ended.reason), ended.reason.isprintable()) == (1, 500, True)


async def test_a_namespace_without_an_account_and_an_allowance_that_is_used_up(lab: Lab) -> None:
    await lab.published()
    shown = await refused(lab, await lab.allocator.claim("1Gi", namespace="strangers"))
    assert shown == (
        'No account is set for the namespace "strangers": an admin sets one with GPUSHARE_KUBERNETES_PEOPLE.'
    )

    def allow() -> None:
        Allowance.objects.create(user=User.objects.get(username="bob"), gpu_memory=2 * GIB)

    await query(allow)
    shown = await refused(lab, await lab.allocator.claim("3Gi", namespace="team-b"))
    assert shown == 'For its owner here, "bob": This quota is 3 GiB; your quotas together may be at most 2 GiB.'
    noted = await query(lambda: list(AuditEntry.objects.filter(action="claim-refused").values_list("actor", flat=True)))
    assert noted == ["kubelet", "kubelet"]


async def test_a_card_is_not_promised_twice_whatever_the_cluster_says(lab: Lab) -> None:
    await lab.published()
    (card,) = lab.up.gpus.cards
    first = await lab.allocator.claim("3Gi")
    await lab.prepare(first)
    second = await lab.allocator.put([lab.allocator.result(card.lower(), "3Gi")])
    answer = await lab.prepare(second)
    assert "3 GiB of" in answer
    assert "are more than is left: 3 GiB of 5 GiB are promised to others." in answer
    await lab.unprepare(first)
    assert isinstance(await lab.prepare(second), dict)
    await lab.unprepare(second)
    await lab.nothing_is_held()
    assert await query(lambda: Gpu.objects.get().uuid) == card


async def test_a_claim_deleted_while_it_is_prepared(lab: Lab) -> None:
    """Between the kubelet's call and ours: it is refused. After ours: it is prepared, and given back as every other."""
    await lab.published()
    claim, other = await lab.allocator.claim("1Gi"), await lab.allocator.claim("1Gi")

    async def delete(verb: str, key: tuple[str, str, str]) -> None:
        if key[0] == CLAIMS and key[2] == claim["metadata"]["name"]:
            await lab.allocator.release(claim)

    lab.api.before = delete
    assert await refused(lab, claim) == "It was deleted while it was to be prepared."
    lab.api.before = None
    assert isinstance(await lab.prepare(other), dict)
    await lab.allocator.release(other)
    await lab.unprepare(other)
    await lab.nothing_is_held()


async def test_another_claim_of_the_same_name(lab: Lab) -> None:
    await lab.published()
    claim = await lab.allocator.claim("1Gi", name="mine")
    await lab.allocator.release(claim)
    await lab.allocator.claim("1Gi", name="mine")
    assert await refused(lab, claim) == "It was deleted, and another of the same name was made meanwhile."


async def test_a_uid_that_is_none_leads_to_no_file(lab: Lab) -> None:
    await lab.published()
    claim = await lab.allocator.put([], name="odd")
    claim["metadata"]["uid"] = "../../../etc/passwd"
    assert "Its uid is no UUID." in await lab.prepare(claim)
    assert "Its uid is no UUID." in next(iter((await lab.kubelet.unprepare(claim)).values()))


async def test_a_cdi_folder_that_cannot_be_written(lab: Lab) -> None:
    await lab.published()
    claim = await lab.allocator.claim("1Gi")
    lab.cdi.write_text("no folder")
    answer = await lab.prepare(claim)
    assert "The host does not let the driver do this: " in answer
    assert str(lab.cdi) in answer
    lab.cdi.unlink()
    assert isinstance(await lab.prepare(claim), dict)
    await lab.unprepare(claim)
    await lab.nothing_is_held()


async def test_a_token_that_is_not_accepted_and_rights_that_are_not_there(lab: Lab) -> None:
    await lab.published()
    claim = await lab.allocator.claim("1Gi")
    lab.api.token = "another"
    answer = await refused(lab, claim)
    assert "with 401: Unauthorized. It does not accept our token: is the service account there" in answer
    (Path(lab.node._api._account) / "token").write_text("another")
    assert isinstance(await lab.prepare(claim), dict)
    with pytest.raises(client.ApiError, match="The role of our service account does not have this"):
        await lab.node._api.delete("/api/v1/nodes/node-1")
    await lab.unprepare(claim)


@pytest.mark.parametrize(
    ("code", "reason"), [(500, "InternalError"), (503, "ServiceUnavailable"), (429, "TooManyRequests")]
)
async def test_an_api_server_that_fails_or_has_too_much_to_do_is_asked_again(
    lab: Lab, code: int, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slices, "TRIES_AGAIN", 0.1)
    await lab.published()
    claim = await lab.allocator.claim("1Gi")

    async def fail(verb: str, key: tuple[str, str, str]) -> None:
        raise Refused(code, reason, "try it later")

    lab.api.before = fail
    assert f"with {code}: try it later" in await refused(lab, claim)
    await lab.kubelet.wipe()
    await eventually(lambda: f"with {code}" in lab.node.slices.problem)
    lab.api.before = None
    await lab.published()
    assert isinstance(await lab.prepare(claim), dict)
    await lab.unprepare(claim)
    await lab.nothing_is_held()


async def test_an_api_server_that_is_away_for_an_hour_is_asked_again_and_again_and_the_log_says_it_once(
    lab: Lab, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As many tries as an hour has, in a moment."""
    hour = int(3600 / slices.TRIES_AGAIN)
    monkeypatch.setattr(slices, "TRIES_AGAIN", 0.0)
    await lab.published()
    held, tries = await lab.allocator.claim("1Gi"), 0
    first = await lab.prepare(held)
    await eventually(lambda: not lab.node.slices.problem)
    publish = lab.node.slices._publish

    async def counted() -> str:
        nonlocal tries
        tries += 1
        found: str = await publish()
        return found

    monkeypatch.setattr(lab.node.slices, "_publish", counted)
    await lab.api.stop()
    lab.node.slices._changed.set()
    await eventually(lambda: tries >= hour, within=60)
    assert caplog.text.count("the cards are not offered to the cluster") <= 3  # it breaks off, then it is not there
    assert await lab.prepare(held) == first
    await lab.kubelet.wipe()
    await lab.api.start()
    await lab.published()
    assert isinstance(await lab.prepare(await lab.allocator.claim("1Gi")), dict)


async def test_what_is_no_api_server_is_reported(lab: Lab) -> None:
    await lab.published()
    claim = await lab.allocator.claim("1Gi")

    async def fail(verb: str, key: tuple[str, str, str]) -> None:
        lab.api.objects[key] = ["no object"]  # type: ignore[assignment]

    kept = lab.api.objects[CLAIMS, "team-a", claim["metadata"]["name"]]
    lab.api.before = fail
    assert "is not a Kubernetes API server" in await refused(lab, claim)
    lab.api.before = None
    lab.api.objects[CLAIMS, "team-a", claim["metadata"]["name"]] = kept
    assert isinstance(await lab.prepare(claim), dict)


async def test_a_node_whose_clock_is_wrong_is_warned_and_works(lab: Lab, caplog: pytest.LogCaptureFixture) -> None:
    await lab.published()
    lab.api.date = formatdate(time.time() + 7200, usegmt=True)
    begun = time.monotonic()
    claim = await lab.allocator.claim("1Gi")
    assert isinstance(await lab.prepare(claim), dict)
    said = re.search(r"This node's clock is (\d+) s behind the API server's\.", caplog.text)
    assert said is not None, caplog.text
    took = time.monotonic() - begun
    assert 7199 - took <= int(said[1]) <= 7200  # the date has no fractions
    await lab.unprepare(claim)
    await lab.nothing_is_held()


async def test_sockets_left_by_a_dead_driver_and_sockets_taken_away(lab: Lab) -> None:
    await lab.published()
    endpoint, registry = lab.node.kubelet.endpoint, lab.node.kubelet.registry
    inodes = endpoint.stat().st_ino, registry.stat().st_ino
    endpoint.unlink()
    registry.unlink()
    await eventually(lambda: endpoint.exists() and registry.exists())
    assert (endpoint.stat().st_ino, registry.stat().st_ino) != inodes
    await eventually(lambda: "gpushare.dev" in lab.kubelet.drivers)
    assert isinstance(await lab.prepare(await lab.allocator.claim("1Gi")), dict)


async def test_a_path_that_is_too_long_for_a_socket(tmp_path: Path) -> None:
    async def nobody(asked: Asked) -> Any: ...

    server = KubeletServer(tmp_path / ("x" * 90), nobody, nobody, lambda asked, error: "")
    with pytest.raises(CannotServe, match="The path of a socket may have 107 bytes"):
        await server.run()
