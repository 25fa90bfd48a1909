"""Docker's Swarm as a placer: an order is a service, and where there is room for it Swarm alone decides.

Three things that Docker 20.10 does decide how it is spoken to:

* Removing a job ends nothing: what runs goes on, with its reservation, and nobody can ask for its end any more. So an
  order is taken back by making it a job of no task; and once it has none, by another look, the service is removed.
* Of a kind that no node declares, Swarm says the same as of one that is taken. So the nodes are looked at first.
* Reservations are counted by the leader alone, so two managers never give the same room away twice.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import docker
import docker.errors

from scheduler.engines.base import EngineAway, EngineError
from scheduler.engines.docker.client import Client
from scheduler.engines.docker.options import DefaultLimits
from scheduler.engines.placer import Host, Order, Stage, Standing
from scheduler.engines.runtime_environment import Simulation
from scheduler.engines.swarm import kinds, service
from web.spec import constraints

WAITING = ("new", "allocated", "pending")
ON_A_NODE = ("assigned", "accepted", "preparing", "ready", "starting", "running")  # what they reserved is taken
SPARED = "com.gpushare.drained"  # a label of nodes that we have paused
NO_TASK = {"ReplicatedJob": {"MaxConcurrent": 0, "TotalCompletions": 0}}


def in_swarm(info: Mapping[str, Any]) -> bool:
    """Whether a Swarm may place containers here. `info` is Docker's own (GET /info)."""
    return bool(info.get("Swarm", {}).get("LocalNodeState") == "active")


def require_manager(info: Mapping[str, Any]) -> None:
    """`info` is Docker's own (GET /info). Raises EngineAway."""
    if not info.get("Swarm", {}).get("ControlAvailable"):
        raise EngineAway(
            "GPUSHARE_ENGINE is swarm, and this Docker engine is not a manager of a Swarm. Make it one: "
            "`docker swarm init`, or `docker swarm join` with a manager's token. "
            "On nodes that only run containers, GPUSHARE_ENGINE is docker."
        )


class SwarmManager:
    """`cluster`: the Swarm's ID. `limits`: as the settings name them. `here`: the manager's own host."""

    name = "swarm"

    def __init__(
        self, cluster: str, client: Client, simulation: Simulation | None, log_bytes: int, registries: Path | None,
        limits: DefaultLimits, here: Host,
    ) -> None:  # fmt: skip
        self.whole = f"{self.name} {cluster}"
        self._client, self._simulation, self._log_bytes = client, simulation, log_bytes
        self._registries, self._limits, self._here = registries, limits, here

    async def hosts(self) -> list[Host]:
        return await self._client.call(self._hosts)

    async def submit(self, order: Order) -> None:
        await self._client.call(self._submit, order, image=order.image)

    async def spare(self, hosts: Mapping[str, bool]) -> None:
        await self._client.call(self._spare, hosts)

    async def standing(self) -> dict[str, Standing]:
        return await self._client.call(self._standing)

    async def take_back(self, id_: str) -> None:
        await self._client.call(self._take_back, service.service_name(id_))

    @property
    def _api(self) -> Any:  # what the SDK has of a Swarm has no types
        return self._client.api

    @property
    def _look(self) -> Any:
        return self._client.look

    def _hosts(self) -> list[Host]:
        services = self._look.services(filters={"label": service.LABEL})
        nodes, tasks = self._look.nodes(), self._look.tasks()  # a task after its service: none is overlooked
        reserved = _reserved(tasks)
        hosts = hosts_of(nodes, reserved)
        begun = {task["ServiceID"] for task in tasks if task["Status"]["State"] not in WAITING}
        return with_what_comes(
            hosts,
            [_asked(each["Spec"]["TaskTemplate"]) for each in services if _wanted(each) and each["ID"] not in begun],
        )

    def _spare(self, hosts: Mapping[str, bool]) -> None:
        """Docker calls that "pause"; its "drain" would end what runs. What others have set stays as it is."""
        for node in self._look.nodes():
            spec, name = node["Spec"], node["Description"]["Hostname"]
            if hosts.get(name) and spec["Availability"] == "active":
                changed = {"Availability": "pause", "Labels": {**(spec.get("Labels") or {}), SPARED: ""}}
            elif hosts.get(name) is False and SPARED in (spec.get("Labels") or {}):
                labels = {key: value for key, value in spec["Labels"].items() if key != SPARED}
                changed = {"Availability": "active", "Labels": labels}
            else:
                continue
            self._api.update_node(node["ID"], node["Version"]["Index"], {**spec, **changed})

    def _submit(self, order: Order) -> None:
        limits = limits_for(order, hosts_of(self._look.nodes(), {}), self._here, self._limits)
        asked = service.body(order, self._simulation, self._log_bytes, limits)
        if self._registries is not None:
            self._api.reload_config(str(self._registries))
        try:
            self._api.create_service(
                asked["TaskTemplate"], name=asked["Name"], labels=asked["Labels"], mode=asked["Mode"]
            )
        except docker.errors.APIError as error:
            if error.status_code != 409:  # else it is there: nobody else gives a service this name
                raise

    def _standing(self) -> dict[str, Standing]:
        services = self._look.services(filters={"label": service.LABEL})
        newest: dict[str, Mapping[str, Any]] = {}
        for task in sorted(self._look.tasks() if services else (), key=lambda task: str(task["CreatedAt"])):
            newest[task["ServiceID"]] = task
        ours = {each["ID"]: service.launch_of(each["Spec"]) for each in services}
        return {launch: _stands(newest.get(id_)) for id_, launch in ours.items() if launch}

    def _take_back(self, name: str) -> None:
        api = self._api
        try:
            found = api.inspect_service(name)
            spec, version = found["Spec"], found["Version"]["Index"]
            if "Replicated" in spec["Mode"]:  # its removal ends what runs, which that of a job does not
                api.remove_service(found["ID"])
                return
            if spec["Mode"]["ReplicatedJob"].get("TotalCompletions"):
                template = spec["TaskTemplate"]
                api.update_service(found["ID"], version, template, name=name, labels=spec["Labels"], mode=NO_TASK)
            tasks = [task for task in api.tasks() if task["ServiceID"] == found["ID"]]
            if not any(task["Status"]["State"] in (*WAITING, *ON_A_NODE) for task in tasks):
                api.remove_service(found["ID"])
        except docker.errors.NotFound:
            return  # somebody else has
        except docker.errors.APIError as error:
            if "out of sequence" in str(error.explanation):
                raise EngineError("Another client is changing this service.", code="busy") from error
            raise


def hosts_of(nodes: Iterable[Mapping[str, Any]], reserved: Mapping[str, Mapping[int, int]]) -> list[Host]:
    """As GET /nodes has them. `reserved`: bytes by node and number of the card."""
    found = []
    for node in nodes:
        described, spec = node["Description"], node["Spec"]
        resources = described.get("Resources") or {}
        if described.get("Hostname"):  # one that is joining has not said it yet
            host = Host(
                described["Hostname"],
                kinds.read(resources.get("GenericResources")),
                reserved.get(node["ID"], {}),
                spec.get("Labels") or {},
                there=node["Status"]["State"] == "ready" and spec["Availability"] == "active",
                memory=resources.get("MemoryBytes") or 0,
                cpus=(resources.get("NanoCPUs") or 0) / service.NANO,
            )
            found.append(host)
    return found


def limits_for(order: Order, hosts: Iterable[Host], here: Host, limits: DefaultLimits) -> DefaultLimits:
    """On the smallest of the hosts that it may come to, as only Swarm knows which it will be; else as on this one.

    One without such cards, as a manager may be, is none of them.
    """
    able = [
        host
        for host in hosts
        if host.memory
        and host.there
        and order.host in ("", host.name)
        and constraints.hold(order.constraints, host.name, host.labels)
        and all(host.declared.get(card, 0) >= order.quota for card in order.cards)
    ] or [here]
    return limits.on(min(host.memory for host in able), min(host.cpus for host in able))


def _stands(task: Mapping[str, Any] | None) -> Standing:
    if task is None:
        return Standing(Stage.WAITS)
    status = task["Status"]
    if status["State"] in WAITING:
        return Standing(Stage.WAITS, status.get("Err", ""))
    if status["State"] in ON_A_NODE:
        return Standing(Stage.GIVEN)
    if task["DesiredState"] == "running":  # whether it is begun again Swarm has not decided yet
        return Standing(Stage.GIVEN)
    return Standing(Stage.OVER, status.get("Err", ""))


def with_what_comes(hosts: list[Host], orders: Iterable[Mapping[int, int]]) -> list[Host]:
    """What no host has yet, by number of the card, is reserved where most room for it is: it is there in a moment.

    Of orders that come at once each would else be given the number that the first has taken.
    """
    for order in orders:
        rooms = [
            (
                min(host.declared.get(card, 0) - host.reserved.get(card, 0) - size for card, size in order.items()),
                number,
            )
            for number, host in enumerate(hosts)
            if order and host.there
        ]
        room, number = max(rooms, default=(-1, -1))
        if room >= 0:
            reserved = Counter(hosts[number].reserved)
            reserved.update(order)
            hosts[number] = replace(hosts[number], reserved=reserved)
    return hosts


def _wanted(found: Mapping[str, Any]) -> bool:
    """Whether a service is to have a task: one that was taken back is not."""
    return bool(found["Spec"]["Mode"].get("ReplicatedJob", {"TotalCompletions": 1}).get("TotalCompletions"))


def _asked(task: Mapping[str, Any]) -> dict[int, int]:
    """Bytes by number of the card."""
    return kinds.read(task.get("Resources", {}).get("Reservations", {}).get("GenericResources"))


def _reserved(tasks: list[Mapping[str, Any]]) -> defaultdict[str, Counter[int]]:
    """Bytes by node and number of the card."""
    found: defaultdict[str, Counter[int]] = defaultdict(Counter)
    for task in tasks:
        if task["Status"]["State"] in ON_A_NODE:
            found[task["NodeID"]].update(_asked(task["Spec"]))
    return found
