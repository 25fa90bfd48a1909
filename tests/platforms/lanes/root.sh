#!/usr/bin/env bash
# root.sh FOLDER: an archive of a Debian 12 with what .ci/run installs and this checkout, made ready, as FOLDER/root.tar.xz (some 600 MB).
# For a machine that reaches no mirror. Root, debootstrap, a mirror of Debian, a registry of Python's and npm's packages; 25 minutes.
set -euo pipefail
cd "$(dirname "$0")/../../.."
checkout=$PWD folder=$(realpath -m "$1") root=$(realpath -m "$1")/root
mkdir -p "$folder"
debootstrap --variant=minbase bookworm "$root"
cp -L /etc/resolv.conf "$root/etc/resolv.conf"
for it in proc sys dev; do mount --rbind "/$it" "$root/$it" && mount --make-rslave "$root/$it"; done
trap 'for it in proc sys dev; do umount -l "$root/$it"; done' EXIT
packages=$(sed -n '/^declare -A packages/,/^)/p' .ci/run | grep -o '=[a-z0-9.+-]*' | tr -d = | sort -u)
export DEBIAN_FRONTEND=noninteractive
chroot "$root" apt-get update -qq
# shellcheck disable=SC2086
chroot "$root" apt-get install -y -qq --no-install-recommends $packages ca-certificates git postgresql python3-venv python3-dev \
    libclang-rt-14-dev musl libldap2-dev libsasl2-dev fonts-dejavu-core fontconfig procps >/dev/null
cp -L /etc/ssl/certs/ca-certificates.crt "$root/etc/ssl/certs/"
git clone -q --depth 1 "file://$checkout" "$root/work"
chroot "$root" sh -ec 'cd /work; HOME=/root make dev; .venv/bin/python -m pip install -q --require-hashes -r requirements/signin.txt'
cd "$root"
rm -rf var/cache/apt/* var/lib/apt/lists/* usr/share/{doc,man,locale,icons,i18n,javascript} usr/lib/x86_64-linux-gnu/dri root/.cache root/.npm
find . -xdev -name __pycache__ -prune -exec rm -rf {} +
tar --one-file-system --numeric-owner -c . | xz -T0 -5 >"$folder/root.tar.xz"
