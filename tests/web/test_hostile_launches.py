"""Launch bodies that nobody should send. Each is refused by code, field and sentence, and nothing is written."""

import shlex
import time
from html import unescape

import pytest

from tests.support.people import signed_in
from web.errors import Problem
from web.models import AuditEntry, Command, Container
from web.services import steering
from web.sizes import parse_size
from web.spec.fields import words_of

pytestmark = pytest.mark.django_db

BIG = "x" * 200_000
V, U, F = "invalid", "unknown_field", "forbidden"

# what is sent besides `image` (or instead of it) → code, field, words of the message
HOSTILE = [
    # the image
    ({"image": None}, V, "image", "null"),
    ({"image": ""}, V, "image", "blank"),
    ({"image": 3}, V, "image", "text"),
    ({"image": ["local"]}, V, "image", "text"),
    ({"image": {"name": "local"}}, V, "image", "text"),
    ({"image": "-v"}, V, "image", "name of an image"),
    ({"image": "--privileged"}, V, "image", "name of an image"),
    ({"image": "local; rm -rf /"}, V, "image", "name of an image"),
    ({"image": "local\n"}, V, "image", "name of an image"),
    ({"image": "../../etc/passwd"}, V, "image", "name of an image"),
    ({"image": "a" * 256}, V, "image", "255"),
    # fields that the product does not have, and Docker does
    ({"privileged": True}, U, "privileged", "no field"),
    ({"Privileged": True}, U, "Privileged", "no field"),
    ({"network_mode": "host"}, U, "network_mode", "no field"),
    ({"pid_mode": "host"}, U, "pid_mode", "no field"),
    ({"ipc_mode": "host"}, U, "ipc_mode", "no field"),
    ({"userns_mode": "host"}, U, "userns_mode", "no field"),
    ({"cap_add": ["SYS_ADMIN"]}, U, "cap_add", "no field"),
    ({"devices": ["/dev/mem"]}, U, "devices", "no field"),
    ({"security_opt": ["seccomp=unconfined"]}, U, "security_opt", "no field"),
    ({"HostConfig": {"Privileged": True}}, U, "HostConfig", "no field"),
    ({"labels": {"gpushare.owner": "root"}}, U, "labels", "no field"),
    ({"entrypoint": "/bin/sh"}, U, "entrypoint", "no field"),
    ({"id": "00000000-0000-0000-0000-000000000000"}, U, "id", "no field"),
    ({"gpu_memroy": "2g"}, U, "gpu_memroy", "gpu_memory"),
    ({"x" * 5000: 1}, U, "x" * 64, "no field"),
    # the quota
    ({"gpu_memory": 0}, V, "gpu_memory", "at least 1 MiB."),
    ({"gpu_memory": 4}, V, "gpu_memory", 'did you mean "4GiB"?'),
    ({"gpu_memory": "512"}, V, "gpu_memory", 'did you mean "512MiB"?'),
    ({"gpu_memory": "1023k"}, V, "gpu_memory", "at least 1 MiB."),
    ({"memory": "4"}, V, "memory", 'did you mean "4GiB"?'),
    ({"gpu_memory": -1}, V, "gpu_memory", "negative"),
    ({"gpu_memory": "-2g"}, V, "gpu_memory", "not a size"),
    ({"gpu_memory": "lots"}, V, "gpu_memory", "not a size"),
    ({"gpu_memory": 1.5}, V, "gpu_memory", "size"),
    ({"gpu_memory": True}, V, "gpu_memory", "size"),
    ({"gpu_memory": []}, V, "gpu_memory", "size"),
    ({"gpu_memory": 2**63}, V, "gpu_memory", "any machine"),
    ({"gpu_memory": "9999999999999999t"}, V, "gpu_memory", "any machine"),
    ({"gpu_memory": BIG}, V, "gpu_memory", "not a size"),
    ({"gpu_memory": "1e9"}, V, "gpu_memory", "not a size"),
    ({"gpu_memory": "6GiB"}, "over_capacity", "gpu_memory", "5 GiB"),
    # GPUs
    ({"gpus": 0}, V, "gpus", "1 or more"),
    ({"gpus": -1}, V, "gpus", "1 or more"),
    ({"gpus": 17}, V, "gpus", "16"),
    ({"gpus": "all"}, V, "gpus", "list of their UUIDs"),
    ({"gpus": True}, V, "gpus", "list of their UUIDs"),
    ({"gpus": []}, V, "gpus", "1 to 16"),
    ({"gpus": [0]}, V, "gpus", "UUIDs"),
    ({"gpus": ["GPU-0", "GPU-0"]}, V, "gpus", "once"),
    ({"gpus": ["GPU-unknown"]}, "unknown_gpu", "gpus", "GPU-unknown"),
    ({"gpus": 2}, "too_few_gpus", "gpus", "there is 1"),
    # what the node has to be like
    ({"constraints": "node!=a"}, V, "constraints", "list of at most 64"),
    ({"constraints": ["node.labels.disk=ssd"]}, V, "constraints", "not a constraint: write node==NAME"),
    ({"constraints": ["node.labels.=="]}, V, "constraints", "not a constraint"),
    ({"constraints": ["node.labels.-x==y"]}, V, "constraints", "not a constraint"),
    ({"constraints": ["node=="]}, V, "constraints", "not a constraint"),
    ({"constraints": ["node.role==manager"]}, V, "constraints", "not a constraint"),
    ({"constraints": ["node!=a\nnode==b"]}, V, "constraints", "not a constraint"),
    ({"constraints": ["node==a,b"]}, V, "constraints", "cannot be asked for"),
    ({"constraints": ["node==" + "x" * 256]}, V, "constraints", "cannot be asked for"),
    ({"constraints": ["node!=a"] * 65}, V, "constraints", "list of at most 64"),
    ({"constraints": ["node==nowhere"]}, "no_such_node", "constraints", "is so not of"),
    # whether it is begun again
    ({"restart": "sometimes"}, V, "restart", "none of no, on-failure"),
    ({"restart": "on-failure:0"}, V, "restart", "none of no"),
    ({"restart": "on-failure:-1"}, V, "restart", "none of no"),
    ({"restart": "on-failure:99999"}, V, "restart", "none of no"),
    ({"restart": "always:3"}, V, "restart", "none of no"),
    ({"restart": True}, V, "restart", "text"),
    ({"restart": "always" * 9}, V, "restart", "16"),
    # the name
    ({"name": "../x"}, V, "name", "letters"),
    ({"name": "-rm"}, V, "name", "letters"),
    ({"name": "a b"}, V, "name", "letters"),
    ({"name": "a\n"}, V, "name", "letters"),
    ({"name": "<script>"}, V, "name", "letters"),
    ({"name": "ä"}, V, "name", "letters"),
    ({"name": "a" * 64}, V, "name", "63"),
    ({"name": 7}, V, "name", "text"),
    # the command
    ({"command": 3}, V, "command", "list of words"),
    ({"command": {"sh": "-c"}}, V, "command", "list of words"),
    ({"command": ["sh", 3]}, V, "command", "list of words"),
    ({"command": "echo 'unclosed"}, V, "command", "split"),
    ({"command": ["x" * 40_000]}, V, "command", "32768"),
    # the environment
    ({"env": ["A=1"]}, V, "env", "object"),
    ({"env": {"A": 1}}, V, "env.A", "text"),
    ({"env": {"A": None}}, V, "env.A", "text"),
    ({"env": {"": "x"}}, V, "env.", "name"),
    ({"env": {"A=B": "x"}}, V, "env.A=B", "name"),
    ({"env": {"A B": "x"}}, V, "env.A B", "name"),
    ({"env": {"LD_PRELOAD": ""}}, F, "env.LD_PRELOAD", "loader"),
    ({"env": {"ld_preload": "x"}}, F, "env.ld_preload", "loader"),
    ({"env": {"LD_AUDIT": "/tmp/a.so"}}, F, "env.LD_AUDIT", "loader"),
    ({"env": {"GLIBC_TUNABLES": "x"}}, F, "env.GLIBC_TUNABLES", "loader"),
    ({"env": {"LD_DEBUG": "all"}}, F, "env.LD_DEBUG", "loader"),
    ({"env": {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}}, F, "env.CUDA_DEVICE_ORDER", "GPUs"),
    ({"env": {"NVIDIA_VISIBLE_DEVICES": "all"}}, F, "env.NVIDIA_VISIBLE_DEVICES", "GPUs"),
    ({"env": {"NVIDIA_DRIVER_CAPABILITIES": "all"}}, F, "env.NVIDIA_DRIVER_CAPABILITIES", "GPUs"),
    ({"env": {"CUDA_VISIBLE_DEVICES": "0"}}, F, "env.CUDA_VISIBLE_DEVICES", "GPUs"),
    ({"env": {"CUDA_MPS_PIPE_DIRECTORY": "/tmp"}}, F, "env.CUDA_MPS_PIPE_DIRECTORY", "daemon"),
    ({"env": {"CUDA_INJECTION64_PATH": "/tmp/a.so"}}, F, "env.CUDA_INJECTION64_PATH", "library"),
    ({"env": {"GPUSHARE_SOCKET": "/tmp/s"}}, F, "env.GPUSHARE_SOCKET", "appliance"),
    ({"env": {"A": BIG}}, V, "env.A", "too long"),
    # the working directory
    ({"working_dir": "work"}, V, "working_dir", "full path"),
    ({"working_dir": "./work"}, V, "working_dir", "full path"),
    ({"working_dir": "~"}, V, "working_dir", "full path"),
    ({"working_dir": 3}, V, "working_dir", "text"),
    ({"working_dir": None}, V, "working_dir", "null"),
    ({"working_dir": "/" + "x" * 4095}, V, "working_dir", "4095"),
    ({"working_dir": "/proc/self/fd/8"}, F, "working_dir", "/proc"),
    ({"working_dir": "/a/../dev//fd/8"}, F, "working_dir", "/dev"),
    # mounts
    ({"volumes": "/:/host"}, V, "volumes", "list"),
    ({"volumes": [3]}, V, "volumes", "list"),
    ({"volumes": ["/:/host"]}, F, "volumes", "An admin allows folders with GPUSHARE_VOLUME_ROOTS and a restart."),
    ({"volumes": ["/srv/data/../../etc:/etc2"]}, F, "volumes", "/etc may not be mounted"),
    ({"volumes": ["/srv/database:/d"]}, F, "volumes", "may not be mounted"),
    ({"volumes": ["/var/run/docker.sock:/docker.sock"]}, F, "volumes", "docker.sock may not"),
    ({"volumes": ["//etc:/d"]}, F, "volumes", "may not be mounted"),
    ({"volumes": ["/srv/data"]}, V, "volumes", "source:target"),
    ({"volumes": ["/srv/data:/d:rshared"]}, V, "volumes", "read-only"),
    ({"volumes": ["/srv/data:relative"]}, V, "volumes", "target"),
    ({"volumes": ["/srv/data:/"]}, V, "volumes", "target"),
    ({"volumes": ["/srv/data:/x/.."]}, V, "volumes", "target"),
    ({"volumes": ["/srv/data:/proc"]}, F, "volumes", "/proc"),
    ({"volumes": ["/srv/data:/etc/ld.so.preload"]}, F, "volumes", "ld.so.preload"),
    ({"volumes": ["/srv/data:/x/../etc/ld.so.preload"]}, F, "volumes", "ld.so.preload"),
    ({"volumes": ["/srv/data:/run/gpushare"]}, F, "volumes", "/run/gpushare"),
    ({"volumes": ["/srv/data:/run/gpushare-lib/sim"]}, F, "volumes", "/run/gpushare-lib"),
    ({"volumes": ["/srv/data:/run/gpushare-card"]}, F, "volumes", "/run/gpushare-card"),
    ({"volumes": ["/srv/data:/etc"]}, F, "volumes", "would cover /etc/ld.so.preload"),
    ({"volumes": ["/srv/data:/usr"]}, F, "volumes", "would cover /usr/lib"),
    ({"volumes": ["../up:/d"]}, V, "volumes", "source"),
    ({"volumes": ["v" + str(i) + ":/d" for i in range(65)]}, V, "volumes", "64"),
    # ports
    ({"ports": {"80": 80}}, V, "ports", "list"),
    ({"ports": ["80:80"]}, F, "ports", "20000"),
    ({"ports": ["0.0.0.0:20000:80"]}, V, "ports", "host:container"),
    ({"ports": ["80"]}, V, "ports", "host:container"),
    ({"ports": ["20000:0"]}, V, "ports", "65535"),
    ({"ports": ["20000:65536"]}, V, "ports", "65535"),
    ({"ports": ["20000:80/sctp"]}, V, "ports", "host:container"),
    ({"ports": ["20000:80", "20000:81"]}, V, "ports", "twice"),
    # the rest
    ({"priority": 101}, V, "priority", "100"),
    ({"priority": -101}, V, "priority", "-100"),
    ({"priority": "high"}, V, "priority", "whole number"),
    ({"priority": True}, V, "priority", "whole number"),
    ({"compute_weight": 0}, V, "compute_weight", "1"),
    ({"compute_weight": 1001}, V, "compute_weight", "1000"),
    ({"compute_weight": 1.5}, V, "compute_weight", "whole number"),
    ({"compute_limit": 0}, V, "compute_limit", "1"),
    ({"compute_limit": 101}, V, "compute_limit", "100"),
    ({"compute_limit": "30%"}, V, "compute_limit", "whole number"),
    ({"compute_limit": True}, V, "compute_limit", "whole number"),
    ({"priority": 10**400}, V, "priority", "100"),
    ({"on_shortage": "crash"}, V, "on_shortage", "crash"),
    ({"on_shortage": None}, V, "on_shortage", "null"),
    ({"on_shortage": ["wait"]}, V, "on_shortage", "choice"),
    ({"max_wait_seconds": 0}, V, "max_wait_seconds", "0.001"),
    ({"max_wait_seconds": -5}, V, "max_wait_seconds", "0.001"),
    ({"max_wait_seconds": 10**400}, V, "max_wait_seconds", "number"),
    ({"ttl_seconds": "1h"}, V, "ttl_seconds", "number"),
    ({"ttl_seconds": 1e12}, V, "ttl_seconds", "less than"),
    ({"guaranteed": "yes"}, V, "guaranteed", "true or false"),
    ({"guaranteed": 1}, V, "guaranteed", "true or false"),
    ({"guaranteed": None}, V, "guaranteed", "null"),
    ({"movable": "yes"}, V, "movable", "true or false"),
    ({"app": "lab"}, V, "app", "not a port"),
    ({"app": "0"}, V, "app", "1 to 65535"),
    ({"app": "65536/"}, V, "app", "1 to 65535"),
    ({"app": "8888/lab?token=x"}, V, "app", "not a port"),
    ({"app": "8888//elsewhere.example"}, V, "app", "not a port"),
    ({"remove_when_done": "false"}, V, "remove_when_done", "true or false"),
    ({"interactive": 1}, V, "interactive", "true or false"),
    ({"tty": "yes"}, V, "tty", "true or false"),
    ({"stdin_open": True}, U, "stdin_open", "no field"),
    ({"memory": "1m"}, V, "memory", "6 MiB"),
    ({"memory": "-1"}, V, "memory", "not a size"),
    ({"user": "-1"}, V, "user", "number"),
    ({"user": 1000}, V, "user", "text"),
    ({"user": "2147483648"}, V, "user", "2147483647"),
    ({"user": "1000:2147483648"}, V, "user", "2147483647"),
    ({"user": "99999999999999999999"}, V, "user", "number"),
    ({"user": "1000:"}, V, "user", "number"),
    ({"user": ":1000"}, V, "user", "number"),
    ({"user": "1:2:3"}, V, "user", "number"),
    ({"user": "ada lovelace"}, V, "user", "number"),
    ({"user": "../etc"}, V, "user", "number"),
    ({"user": "1000\n0"}, V, "user", ""),
    ({"user": "١٠٠٠"}, V, "user", "number"),
    ({"user": "12ab"}, V, "user", "number"),
    ({"user": "x" * 33}, V, "user", "number"),
    ({"user": "--privileged"}, V, "user", "number"),
    ({"user": None}, V, "user", "null"),
    ({"init": "no"}, V, "init", "true or false"),
    ({"init": None}, V, "init", "null"),
    ({"shm_size": 0}, V, "shm_size", "at least 1 MiB"),
    ({"shm_size": -1}, V, "shm_size", "negative"),
    ({"shm_size": "64k"}, V, "shm_size", "at least 1 MiB"),
    ({"shm_size": "half"}, V, "shm_size", "not a size"),
    ({"shm_size": "99999999t"}, V, "shm_size", "any machine"),
    ({"cpus": 0}, V, "cpus", "0.01"),
    ({"cpus": -1}, V, "cpus", "0.01"),
    ({"cpus": "2"}, V, "cpus", "number"),
    ({"cpus": 1e9}, V, "cpus", "4096"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("asked", "code", "field", "words"),
    HOSTILE,
    ids=[f"{index}-{str(row[0])[:40]}" for index, row in enumerate(HOSTILE)],
)
def test_a_hostile_launch_is_refused(client, gpu, settings, asked, code, field, words):
    settings.GPUSHARE_VOLUME_ROOTS = ["/srv/data", "/home/{user}"]
    answer = client.post("/api/v1/containers/", {"image": "local", **asked})
    error = answer.json()["error"]
    assert (answer.status_code, error["code"], error["field"]) == (400, code, field), error
    assert words in error["message"]
    assert len(error["message"]) < 600
    assert not Container.objects.exists()
    assert not Command.objects.exists()


def test_an_image_is_required(client, gpu):
    error = client.post("/api/v1/containers/", {}).json()["error"]
    assert (error["code"], error["field"]) == ("required", "image")


@pytest.mark.parametrize("send", ["rest", "form"])
def test_a_command_of_a_megabyte_is_refused_without_being_split(client, ada, gpu, send):
    """To split it took 20 s of a processor, and one of 3 MiB minutes, while everybody else waited."""
    browser = signed_in(ada)
    began = time.thread_time()
    if send == "rest":
        answer = client.post("/api/v1/containers/", {"image": "local", "command": "x" * 1_000_000})
    else:
        answer = browser.post("/launch/", {"image": "local", "command": "x" * 1_000_000})
    assert time.thread_time() - began < 5
    assert (answer.status_code, "longer than 32768" in answer.content.decode()) == (400, True)
    assert not Container.objects.exists()


def test_a_command_that_is_mostly_quotation_marks_is_split_however_a_shell_writes_it():
    words = ["'" * 32_000, "x"]
    assert words_of(shlex.join(words)) == words


@pytest.mark.parametrize(
    ("asked", "stored"),
    [
        ({"volumes": ["data:/data"]}, {"volumes": ["data:/data:rw"]}),
        ({"volumes": ["/srv/data/a/../b:/b/:ro"]}, {"volumes": ["/srv/data/b:/b:ro"]}),
        ({"volumes": ["/home/ada/x:/x"]}, {"volumes": ["/home/ada/x:/x:rw"]}),
        ({"ports": ["20080:80", "20053:53/udp"]}, {"ports": ["20080:80/tcp", "20053:53/udp"]}),
        ({"command": "sh -c 'echo hello'"}, {"command": ["sh", "-c", "echo hello"]}),
        ({"env": {"NVIDIA_REQUIRE_CUDA": "cuda>=12"}}, {"environment": {"NVIDIA_REQUIRE_CUDA": "cuda>=12"}}),
        ({"env": {"CUDA_LAUNCH_BLOCKING": "1"}}, {"environment": {"CUDA_LAUNCH_BLOCKING": "1"}}),
        ({"gpu_memory": None, "ttl_seconds": None}, {"gpu_memory": None, "ttl_seconds": None}),
        ({"working_dir": "/srv/../home/"}, {"working_dir": "/home"}),
        ({"working_dir": "//"}, {"working_dir": "/"}),
        ({"cpus": 1.5, "memory": "1g"}, {"cpus": 1.5, "memory": 2**30}),
    ],
)
def test_what_is_right_is_stored_in_one_normal_form(client, gpu, settings, monkeypatch, asked, stored):
    settings.GPUSHARE_VOLUME_ROOTS = ["/srv/data", "/home/{user}"]
    settings.GPUSHARE_PORTS_WITHOUT_TLS = True
    monkeypatch.setattr("web.services.steering.wait_for", lambda command: command)
    assert client.post("/api/v1/containers/", {"image": "local", **asked}).status_code == 202
    container = Container.objects.get()
    assert {name: getattr(container, name) for name in stored} == stored


@pytest.mark.parametrize("way", ["rest", "form"])
def test_a_port_is_published_only_where_a_browser_sends_it_no_session(client, ada, gpu, settings, monkeypatch, way):
    """Cookies know no ports: that of a container is of the same host name as the dashboard."""
    monkeypatch.setattr("web.services.steering.wait_for", lambda command: command)

    def launch(port):
        if way == "rest":
            answer = client.post("/api/v1/containers/", {"image": "local", "ports": [port]})
            return answer.json()["error"]["message"] if answer.status_code == 400 else ""
        page = signed_in(ada).post("/launch/", {"image": "local", "ports": port, "gpu_count": "1"})
        return "" if page.status_code == 302 else unescape(page.content.decode())

    refusal = launch("20080:80")
    assert "Port 20080 cannot be published: the dashboard is served without TLS" in refusal
    assert "GPUSHARE_PORTS_WITHOUT_TLS=1" in refusal
    assert not Container.objects.exists()
    assert launch("20053:53/udp") == ""
    settings.GPUSHARE_TLS = True
    assert launch("20080:80") == ""
    settings.GPUSHARE_TLS, settings.GPUSHARE_PORTS_WITHOUT_TLS = False, True
    assert launch("20081:80") == ""
    assert Container.objects.count() == 3


def test_nobody_mounts_somebody_elses_home(client, gpu, settings):
    settings.GPUSHARE_VOLUME_ROOTS = ["/home/{user}"]
    error = client.post("/api/v1/containers/", {"image": "local", "volumes": ["/home/bob/x:/x"]}).json()["error"]
    assert (error["code"], error["field"]) == (F, "volumes")


@pytest.mark.parametrize(
    ("one", "together", "most"), [("4GiB", None, "4 GiB"), ("4GiB", "2GiB", "2 GiB"), (None, "8GiB", "8 GiB")]
)
def test_more_host_memory_than_an_admin_lets_a_container_take_is_refused_with_the_figures(
    client, gpu, settings, one, together, most
):
    settings.GPUSHARE_CONTAINER_MEMORY, settings.GPUSHARE_HOST_MEMORY = (
        size and parse_size(size) for size in (one, together)
    )
    answer = client.post("/api/v1/containers/", {"image": "local", "memory": "100TiB"})
    error = answer.json()["error"]
    assert (answer.status_code, error["code"], error["field"]) == (400, "memory_too_large", "memory")
    assert error["message"] == f"100 TiB of host memory is more than a container may take: the most is {most}."
    assert not Container.objects.exists()


@pytest.mark.parametrize(
    "asked",
    [{"image": "a\0"}, {"name": "a\0"}, {"gpu_memory": "1g\0"}, {"gpus": ["GPU-0\0"]}, {"command": "echo \0"},
     {"command": ["a", "\0"]}, {"env": {"A": "b\0"}}, {"env": {"A\0": "b"}}, {"volumes": ["data:/a\0"]},
     {"ports": ["20080:80\0"]}, {"working_dir": "/a\0"}],
    ids=str,
)  # fmt: skip
def test_a_nul_character_is_refused_by_its_field_and_the_refusal_is_recorded(ada, gpu, asked):
    with pytest.raises(Problem) as caught:
        steering.launch(ada, {"image": "local", **asked})
    assert (caught.value.status, caught.value.field) == (400, next(iter(asked)))
    assert "NUL" in caught.value.message
    assert AuditEntry.objects.get().action == "launch-refused"
    assert not Container.objects.exists()
