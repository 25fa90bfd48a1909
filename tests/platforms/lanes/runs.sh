#!/usr/bin/env bash
# runs.sh QUIET LOADED: as many whole runs of `make test` at once, each in a lane of two processors, from FIRST on (STRIDE=2: each a core of its
# own, where two in a row are one); of the loaded ones each beside four busy loops on the same two. Returns at once. $LANES/NAME/out has log (pytest's) and, at the end, done: exit code and seconds.
set -euo pipefail
here=$(realpath "$(dirname "$0")")
: "${ROOT:?the folder into which the archive of root.sh was unpacked}" "${LANES:=/lanes}" "${FIRST:=0}" "${STRIDE:=1}"
export ROOT LANES
mkdir -p "$LANES"
mountpoint -q "$LANES" || mount -t tmpfs -o size=85%,nr_inodes=0 tmpfs "$LANES"
# A machine's limits are meant for one such run.
sysctl -qw fs.inotify.max_user_instances=65536 fs.inotify.max_user_watches=4194304 fs.aio-max-nr=4194304 kernel.pid_max=4194304 \
    kernel.keys.maxkeys=20000 kernel.keys.maxbytes=2000000 kernel.keys.root_maxkeys=1000000 kernel.keys.root_maxbytes=25000000
groups=$(findmnt -n -t cgroup2 -o TARGET | head -n 1)
read -ra controllers <"$groups/cgroup.controllers" || true
# Not the processor's: where it divided lanes and their containers, beside busy loops, containers of 2026-11-28 got no processor for minutes,
# and the kernel's own workers with them, which held up every lane.
for each in "${controllers[@]}"; do [ "$each" = cpu ] || echo "+$each" >"$groups/cgroup.subtree_control"; done
sysctl -qw kernel.sched_autogroup_enabled=0
# The kernel's log calls a lane's processes by other numbers, and no registry is within reach. All attacks at once in Docker are not ended in a
# lane, and what goes on of them has twice ended the machine.
without="--deselect tests/attacks/test_program_and_scheduler.py::test_a_bystander_is_answered_during_all_of_them_at_once[docker]"
without="$without --deselect tests/engines/test_process_memory.py::test_process_that_the_kernel_ended_for_lack_of_memory_says_whose"
# Ten lanes pass their limits at about the same time, and the kernel's one log names ten ends in five seconds.
without="$without --deselect tests/engines/test_docker_memory.py::test_container_that_passes_its_memory_limit_says_so"
without="$without --deselect tests/engines/test_docker_memory.py::test_limit_that_was_passed_is_reported_where_docker_never_learns_of_it"
without="$without --ignore tests/installed/test_wheel.py"
# shellcheck disable=SC2016 # it is the lane's shell that reads these
timed='began=$(date +%s); .venv/bin/python -m pytest -n 3 --dist worksteal -v -rfE '$without' tests >/out/log 2>&1
echo "exit code $?, $(($(date +%s) - began)) s" >/out/done'
busy='for _ in 1 2 3 4; do (while :; do :; done) & done
'
begin() {
    setsid bash "$here/lane.sh" "$1" "$FIRST,$((FIRST + STRIDE))" "$2" >"$LANES/$1.log" 2>&1 </dev/null &
    FIRST=$((FIRST + 2 * STRIDE))
}
for number in $(seq "$1"); do begin "quiet-$number" "$timed"; done
for number in $(seq "$2"); do begin "loaded-$number" "$busy$timed"; done
