"""Docker's errors, turned into ours: one table from what Docker says to what users read.

Docker has few error codes and many sentences; the sentences below have been the same from 20.10 on.
"""

import re
from dataclasses import dataclass

import docker.errors
import requests.exceptions

from scheduler.engines.base import DISK_FULL, EngineAway, EngineError


@dataclass(frozen=True, slots=True)
class Rule:
    pattern: str
    code: str
    status: int
    message: str
    field: str = ""


NOT_ACCEPTED = (
    "The registry of {image!r} asks for credentials, and has rejected ours: an admin sets them with "
    "GPUSHARE_REGISTRY_CONFIG."
)
RULES = (
    Rule(r"invalid reference format|invalid repository name", "invalid_image", 400,
         "{image!r} is not the name of an image.", "image"),
    Rule(r"(error mounting|mountpoint).*(?P<what>/run/gpushare[^\s:\"]*|/etc/ld\.so\.preload)",
         "volume_in_the_way", 400,
         "gpushare must mount its own at {what}, and cannot: a link or a file of the image {image!r}, or a volume, is "
         "in the way.", "image"),
    # Of containerd's image store.
    Rule(r"authorization failed: no basic auth", "registry_refused", 409, NOT_ACCEPTED, "image"),
    Rule(r"no such image|manifest .*unknown|manifest for .* not found|repository does not exist|pull access denied"
         r"|name unknown|failed to resolve (reference|image).*: not found", "unknown_image", 404,
         "There is no image {image!r}, here or at its registry, or its registry refuses access: for a private one "
         "an admin sets credentials with GPUSHARE_REGISTRY_CONFIG.", "image"),
    Rule(r"unauthorized|authentication required|no basic auth", "registry_refused", 409, NOT_ACCEPTED, "image"),
    # Errors of a start, which runc reports, have such words of their own.
    Rule(r"^(?!.*(OCI runtime|runc |create task|mount))"
         r".*(lookup|dial tcp|tls handshake|connection refused|i/o timeout)", "registry_away", 503,
         "The image {image!r} is not here, and its registry does not answer.", "image"),
    Rule(r"container name .* is already in use", "name_taken", 409,
         "Docker already has a container with this name.", "name"),
    Rule(r"port is already allocated|address already in use|bind.*address", "port_taken", 409,
         "One of the host's ports {ports} is taken.", "ports"),
    Rule(r"bind source path does not exist: \S*/mounts/[0-9a-f-]{36}/", "mounts_unseen", 503,
         "Docker does not see what this scheduler mounts: both must be in one mount namespace (a unit with "
         "PrivateTmp or PrivateMounts has one of its own)."),
    Rule(r"bind source path does not exist: (?P<what>\S+)", "volume_missing", 400,
         "{what} does not exist on the host.", "volumes"),
    Rule(r"type .bind.: stat (?P<what>\S+): permission denied", "folder_closed", 503,
         "Docker may not enter {what}: a rootless engine must run as the same user as this scheduler."),
    # The second where Docker's own processes are in a control group below the root's, as a user's are under systemd.
    Rule(r"cgroups not configured for container|freezer not supported", "not_supported", 409,
         "This Docker engine runs without root, and has no control groups by which programs could be stopped."),
    Rule(r"no space left on device|disk quota exceeded", "disk_full", 503, DISK_FULL),
    Rule(r"cannot mkdir|chdir to cwd|^(?!.*mounting).*(mkdir|lstat) .*: (not a directory|read-only file system)",
         "cannot_begin", 400,
         "The command cannot begin in its working directory: it is not a folder, and none can be created there.",
         "working_dir"),
    Rule(r'exec: "/sbin/docker-init"', "volume_in_the_way", 400,
         "A volume covers /sbin, where Docker puts the init that is the first process: give the volume another place, "
         "or launch without init (--no-init).", "volumes"),
    Rule(r"exec format error", "cannot_execute", 400,
         "The image {image!r} cannot run {command!r}: it is not a program for this kind of machine.", "command"),
    Rule(r'exec: ("(?P<command>[^"]+)": )?.*(permission denied|is a directory)', "cannot_execute", 400,
         "The image {image!r} cannot run {command!r}: that is not executable.", "command"),
    Rule(r'(exec: "(?P<command>[^"]+)": )?executable file not found|exec: .*no such file or directory',
         "cannot_start", 400,
         "The image {image!r} cannot run {command!r}: there is no such program in it.", "command"),
    Rule(r"unable to find (?P<what>(user|group) [^:]+)", "user_not_in_image", 400,
         "The image {image!r} has no {what}: give a number, such as 1000.", "user"),
    Rule(r"no command specified", "no_command", 400,
         "Say what to run: the image {image!r} has no command of its own.", "command"),
    Rule(r"could not select device driver|nvidia-container-cli|unresolvable CDI devices", "gpu_unreachable", 503,
         "Docker cannot give its containers a GPU: {said}"),
    Rule(r"read-only file system", "volume_in_the_way", 400,
         "A volume covers a place where gpushare must put its library.", "volumes"),
    Rule(r"minimum memory limit", "memory_too_small", 400, "So little host memory is not enough for a container: "
         "{said}", "memory"),
)  # fmt: skip


def explain(error: Exception, *, address: str, image: str = "", command: str = "", ports: str = "") -> EngineError:
    """What to tell a person. `address` is where Docker was expected."""
    if isinstance(error, EngineError):
        return error
    if isinstance(error, requests.exceptions.Timeout):
        return EngineAway(f"Docker at {address} is too slow: it has not answered in time. Try again in a minute.")
    if not isinstance(error, docker.errors.APIError):
        return EngineAway(
            f"Docker does not answer at {address}. Is it running, and may the scheduler reach it? ({_short(error)})"
        )
    said = str(error.explanation or error)
    for rule in RULES:
        if found := re.search(rule.pattern, said, re.IGNORECASE | re.DOTALL):
            words = {"image": image, "command": command, "ports": ports, "said": said}
            words |= {name: value for name, value in found.groupdict().items() if value}
            return EngineError(rule.message.format(**words), code=rule.code, status=rule.status, field=rule.field)
    status = 503 if error.is_server_error() else 409
    return EngineError(f"Docker says: {said}", status=status)


def _short(error: Exception) -> str:
    return str(error).splitlines()[0][:200] if str(error) else type(error).__name__
