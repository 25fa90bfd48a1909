"""A launch that gives every field that there is, in the form in which it is kept: a new field goes here first."""

from __future__ import annotations

from typing import Any

GIVEN: dict[str, Any] = {
    "image": "local",
    "command": ["python", "train.py", "two words", "$HOME"],
    "gpu_memory": 3 * 2**29 + 1,
    "gpus": ["GPU-0"],
    "node": "host",
    "constraints": ["node.labels.disk!=tape", "node!=other"],
    "name": "mine",
    "env": {"MODE": "fast and loose", "EMPTY": "", "TWO": "a=b "},
    "working_dir": "/tmp",
    "user": "1000:users",
    "init": False,
    "on_shortage": "fail",
    "volumes": ["data:/data:rw", "other:/other:ro"],
    "ports": ["20080:80/tcp", "20053:53/udp"],
    "app": "8888/lab",
    "ttl_seconds": 1234567.0,
    "max_wait_seconds": 0.5,
    "memory": 8 * 2**30,
    "shm_size": 2 * 2**30,
    "cpus": 1.5,
    "priority": -3,
    "compute_weight": 300,
    "compute_limit": 30,
    "notify": ["ended", "gives_way"],
    "guaranteed": True,
    "give_way": False,
    "movable": True,
    "remove_when_done": True,
    "restart": "on-failure:3",
    "interactive": True,
    "tty": True,
}
