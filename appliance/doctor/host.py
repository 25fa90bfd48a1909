"""What the kernel, the folders and this Python have to say. Sizes are bytes."""

import ctypes
import os
import platform
import resource
import socket
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from django.conf import settings
from django.db import DatabaseError
from django.utils import timezone

from appliance import VERSION
from appliance.doctor.finding import Finding, fine, note, wrong
from appliance.running.web_user import PASSES, READS
from scheduler.monitors import health
from web.models import Node
from web.models.hosts import SKEW
from web.sizes import format_size

TOO_LITTLE = 512 << 20  # of a disk that is nearly full
FEW = 16384  # descriptors: four for each of the processes that a host may have, and the engine's
FIRST_PID_NAMESPACE = "pid:[4026531836]"  # PROC_PID_INIT_INO in the kernel's include/linux/proc_ns.h
TIME_ERROR = 5  # of adjtimex(2): the clock is not synchronised
CGROUPS = Path("/sys/fs/cgroup")
EPHEMERAL = Path("/proc/sys/net/ipv4/ip_local_port_range")
HUGE_PAGES = Path("/sys/kernel/mm/transparent_hugepage/enabled")


def versions() -> Iterator[Finding]:
    yield fine(f"gpushare {VERSION}, Python {platform.python_version()}, Linux {platform.release()}")
    shim = settings.GPUSHARE_BUILD / "libgpushare.so"
    if not shim.exists():
        yield wrong(
            f"There is no {shim}.",
            "No container can be started under a quota.",
            "`make native` compiles it.",
        )


def home() -> Iterator[Finding]:
    home = settings.GPUSHARE_HOME
    mode = home.stat().st_mode & 0o777
    if mode & 0o007:
        yield wrong(
            f"GPUSHARE_HOME {home} is open to every user of this host (mode {mode:o}).",
            "Each of them can reach the sockets and the database in it.",
            f"chmod o= {home}",
        )
        return
    try:
        with tempfile.NamedTemporaryFile(dir=home):
            pass
    except OSError as error:
        yield wrong(
            f"GPUSHARE_HOME {home} cannot be written: {error.strerror}.",
            "The scheduler keeps its keys, sockets and grants there, and cannot start.",
            "Run doctor as the scheduler's user. If that fails too, give the folder to that user, and check the disk.",
        )
        return
    yield fine(f"{home} can be written, by this user only.")


def sockets() -> Iterator[Finding]:
    try:
        with tempfile.TemporaryDirectory(dir=settings.GPUSHARE_HOME) as folder, socket.socket(socket.AF_UNIX) as one:
            held = os.open(folder, os.O_PATH)  # an address holds 108 bytes, however deep the folder is
            try:
                one.bind(f"/proc/self/fd/{held}/s")
            finally:
                os.close(held)
    except OSError as error:
        yield wrong(
            f"No socket can be made in GPUSHARE_HOME: {error.strerror}.",
            "No container can reach the scheduler.",
            "Put GPUSHARE_HOME on a local file system (not NFS or a Windows share) that is writable.",
        )
        return
    yield fine(f"UNIX sockets work in {settings.GPUSHARE_HOME}.")


def logs() -> Iterator[Finding]:
    """Can the web side read what containers print?"""
    folder, user = settings.GPUSHARE_HOME / "logs", settings.GPUSHARE_WEB_USER
    if not folder.exists():
        yield fine("no container has printed anything yet")
        return
    bits = {folder: READS | PASSES} | dict.fromkeys(folder.iterdir(), READS)
    may = user.may if user else os.access
    closed = sorted(path for path, needed in bits.items() if not may(path, needed))
    if not closed:
        yield fine(f"The web side can read the output of containers in {folder}.")
        return
    yield wrong(
        f"{user.name if user else 'The web side'} cannot read {closed[0]}"
        + (f" and {len(closed) - 1} more." if closed[1:] else "."),
        "The output of these containers is not shown: REST and pages answer with an error.",
        (f"chgrp -R {user.gid} {folder}; " if user else "") + f"chmod 2750 {folder}; chmod -R g+rX {folder}",
    )


def rights() -> Iterator[Finding]:
    if os.geteuid() == 0:
        yield fine("root")
    else:
        yield note(
            f"This is user {os.geteuid()}, not root.",
            "Docker containers, processes of other users and swapping need a scheduler that runs as root.",
            "Run the scheduler, and this, as root: `sudo gpushare doctor`.",
        )


def disk() -> Iterator[Finding]:
    (place,) = health.disks({"GPUSHARE_HOME": settings.GPUSHARE_HOME})
    found = f"{format_size(place.free)} of {format_size(place.total)} are free at GPUSHARE_HOME"
    do = "Free some space there. GPUSHARE_LOG_BYTES limits the output that is kept of a container."
    if not place.is_short(health.DISK_FREE):
        yield fine(f"{found}.")
    elif place.free < TOO_LITTLE or place.has_few_files:
        files = f", and {place.files} files" if place.has_few_files else ""
        yield wrong(f"{found}{files}.", "Launches will be refused and events not written.", do)
    else:
        yield note(f"{found}.", "Logs and history grow; a full disk refuses launches.", do)


def clock() -> Iterator[Finding]:
    seen, skew = None, 0.0
    with suppress(DatabaseError):  # its own check says so
        own = Node.objects.filter(name=settings.GPUSHARE_NODE)
        seen, skew = own.values_list("seen_at", "skew").first() or (None, 0.0)
    if seen and (ahead := (seen - timezone.now()).total_seconds()) > 5:
        yield wrong(
            f"The scheduler's last sign of life is {ahead:.0f} s in the future.",
            "The clock was set back: events until then have wrong times in the reports.",
            "Correct the clock and synchronise it: `timedatectl set-ntp true`.",
        )
    elif abs(skew) >= SKEW:
        yield wrong(
            f"This host's clock is {abs(skew):.0f} s {'ahead of' if skew > 0 else 'behind'} the database's.",
            "Events of this node have wrong times; their order is right.",
            "Correct both clocks and synchronise them: `timedatectl set-ntp true`.",
        )
    elif ctypes.CDLL(None).adjtimex(ctypes.create_string_buffer(512)) == TIME_ERROR:
        yield note(
            "This host's clock is not synchronised.",
            "Times in reports, tokens and TLS drift away.",
            "`timedatectl set-ntp true`, or install chrony.",
        )
    else:
        yield fine("synchronised")


def descriptors() -> Iterator[Finding]:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < FEW:
        yield note(
            f"A process may open {hard} files.",
            f"Each program takes four of the scheduler's: {hard // 8} programs fit.",
            f"LimitNOFILE={FEW} or more in the unit, or `ulimit -Hn {FEW}` before the start.",
        )
    else:
        yield fine(f"A process may open {hard if hard >= 0 else 'any number of'} files.")


def pid_namespace() -> Iterator[Finding]:
    if os.readlink("/proc/self/ns/pid") == FIRST_PID_NAMESPACE:
        yield fine("This is the host's.")
    else:
        yield note(
            "This process runs in a container, with a PID namespace of its own.",
            "The driver reports process IDs of the host. Elsewhere they cannot be matched to containers.",
            "Run it on the host, or start its container with `--pid=host`.",
        )


def cgroups() -> Iterator[Finding]:
    version = 2 if (CGROUPS / "cgroup.controllers").exists() else 1 if (CGROUPS / "memory").is_dir() else 0
    place = CGROUPS if version == 2 else CGROUPS / "memory"
    if not version:
        yield note(
            f"There are no control groups at {CGROUPS}.",
            "Containers have no limit of host memory.",
            f"Mount them: `mount -t cgroup2 none {CGROUPS}`.",
        )
    elif not os.access(place, os.W_OK):
        yield note(
            f"Control groups (version {version}) cannot be written here.",
            "All containers together have no limit of host memory, each has its own (docs/settings.md).",
            f"Run as root, with a writable {place}.",
        )
    else:
        yield fine(f"version {version}, writable")


def ports() -> Iterator[Finding]:
    """Those that containers may publish."""
    lowest, highest = settings.GPUSHARE_PORTS
    found = f"Containers may publish {lowest} to {highest}"
    if lowest <= settings.PORT <= highest:
        yield wrong(
            f"{found}, and the web side's {settings.PORT} is one of them.",
            "A container can take that port while the web side restarts.",
            "Choose another PORT, or other GPUSHARE_PORTS.",
        )
        return
    try:
        first, last = map(int, EPHEMERAL.read_text().split())
    except (OSError, ValueError):
        first, last = 1, 0
    if lowest <= last and first <= highest:
        yield note(
            f"{found}; this host's own connections use ports {first} to {last}.",
            "Launches fail occasionally because a connection uses their port.",
            f"Choose GPUSHARE_PORTS below {first}, or set net.ipv4.ip_local_reserved_ports={lowest}-{highest}.",
        )
    else:
        yield fine(f"{found}.")


def huge_pages() -> Iterator[Finding]:
    try:
        now = HUGE_PAGES.read_text()
    except OSError:
        now = ""
    if settings.GPUSHARE_SWAP_MEMORY == 0:
        yield fine("not needed: swapping is switched off")
    elif "[always]" in now or "[madvise]" in now:
        yield fine("on")
    else:
        yield note(
            "Transparent huge pages are off.",
            "Moving a container's GPU memory to host memory takes 1.7 times as long (docs/swapping.md).",
            f"echo madvise > {HUGE_PAGES}",
        )
