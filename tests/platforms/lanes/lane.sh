#!/usr/bin/env bash
# lane.sh NAME PROCESSORS COMMAND: COMMAND in a machine of its own, as far as tests can see: a root (an overlay of $ROOT, whose checkout is
# /work), processes, network, names and a control group; and only these processors. $LANES/NAME/out is its /out. Root, cgroup v2.
set -euo pipefail
: "${ROOT:?the folder into which the archive of root.sh was unpacked}" "${LANES:=/lanes}"
name=$1 processors=$2
shift 2
again() { STEP=$1 ROOT=$ROOT LANES=$LANES exec "${@:2}" bash "$0" "$name" "$processors" "${words[@]}"; }
words=("$@")
groups=$(findmnt -n -t cgroup2 -o TARGET | head -n 1)
group=$groups/lane-$name
case ${STEP:-1} in
1) again 2 taskset -c "$processors" unshare -m -n -p -u -i -f --kill-child --propagation private ;;
2) # From here on: who waits for us, in the step before, stays outside, or the group could have no controllers for those below it.
    mkdir -p "$group"
    echo 0 >"$group/cgroup.procs"
    again 3 unshare -C ;;
esac
its=$LANES/$name root=$LANES/$name/root
mkdir -p "$its"/{up,work,root,out}
mount -t overlay overlay -o "lowerdir=$ROOT,upperdir=$its/up,workdir=$its/work" "$root"
mount -t proc proc "$root/proc"
mount -t sysfs sysfs "$root/sys"
mount -t cgroup2 cgroup2 "$root/sys/fs/cgroup"
below=$root/sys/fs/cgroup
mkdir "$below/init"
while read -r each; do echo "$each" >"$below/init/cgroup.procs" || true; done < <(cat "$below/cgroup.procs")
read -ra controllers <"$below/cgroup.controllers" || true
for each in "${controllers[@]}"; do echo "+$each" >"$below/cgroup.subtree_control"; done
mount -t tmpfs -o mode=755 tmpfs "$root/dev"
node() { mknod -m "$2" "$root/dev/$1" c "$3" "$4"; }
mkdir "$root"/dev/{pts,shm,mqueue,net}
node null 666 1 3; node zero 666 1 5; node full 666 1 7; node random 666 1 8; node urandom 666 1 9
node tty 666 5 0; node kmsg 644 1 11; node fuse 666 10 229; node net/tun 666 10 200
mount -t devpts -o newinstance,ptmxmode=0666,mode=620,gid=5 devpts "$root/dev/pts"
ln -s pts/ptmx "$root/dev/ptmx"
ln -s /proc/self/fd "$root/dev/fd"
for each in 0:stdin 1:stdout 2:stderr; do ln -s "fd/${each%:*}" "$root/dev/${each#*:}"; done
mount -t tmpfs -o mode=1777 tmpfs "$root/dev/shm"
mount -t mqueue mqueue "$root/dev/mqueue"
mount -t tmpfs -o mode=1777 tmpfs "$root/tmp"
mount -t tmpfs -o mode=755 tmpfs "$root/run"
mkdir -p "$root/out"
mount --bind "$its/out" "$root/out"
chroot "$root" ip link set lo up
hostname "$name"
cd "$root"
pivot_root . .  # no chroot: in one no user namespace can be made, and who enters the lane's mount namespace has another root
umount -l .
exec env -i HOME=/root TERM=xterm LANG=C.UTF-8 PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin \
    bash -c "cd /work && ${words[*]}"
