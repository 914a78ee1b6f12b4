#!/usr/bin/env bash
# Boots Debian's kernel for arm64 under qemu with the gateway: `gateway check`, and `gateway box selftest` for a network
# namespace attached as a box; then `gateway check` under an AppArmor profile (docs/hosts.md). It takes a few minutes.
#
# usage: boot-arm64.sh TOOLS [GATEWAY]
#   TOOLS    directory where qemu-system-arm, cpio and apparmor are unpacked
#   GATEWAY  a gateway for arm64 (default: built)
set -euo pipefail
cd "$(dirname "$0")/.."
tools=$1 gateway=${2:-}
libraries=$(echo "$tools"/usr/lib/*-linux-gnu)
tool() { # the path of an unpacked program, which older packages have in /bin or /sbin
  local found
  found=$(ls "$tools"{/usr,}/{bin,sbin}/"$1" 2>/dev/null | head -n 1)
  echo "$found"
}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
if [ -z "$gateway" ]; then
  gateway=$work/gateway
  GOOS=linux GOARCH=arm64 CGO_ENABLED=0 go build -trimpath -o "$gateway" ./cmd/gateway
fi
mkdir "$work/debs" "$work/kernel" "$work/root"
dist/download.sh "$work/debs" arm64 linux-image-cloud-arm64 busybox-static
# The metapackage names the package of the present kernel.
dist/download.sh "$work/debs" arm64 "$(dpkg-deb -f "$work"/debs/linux-image-cloud-arm64_*.deb Depends | sed 's/[ ,].*//')"
for deb in "$work"/debs/linux-image-[0-9]*.deb "$work"/debs/busybox*.deb; do dpkg -x "$deb" "$work/kernel"; done

root=$work/root
mkdir -p "$root"/{bin,sbin,dev,proc,sys,tmp,run,etc,var}
cp "$work/kernel/bin/busybox" "$root/bin/" 2>/dev/null || cp "$work/kernel/usr/bin/busybox" "$root/bin/"
cp "$gateway" "$root/bin/gateway"
modules=$(cd "$work/kernel" && echo lib/modules/*)
for part in kernel/net kernel/lib kernel/crypto kernel/arch kernel/drivers/net/veth.ko kernel/drivers/net/dummy.ko modules.order modules.builtin; do
  mkdir -p "$root/$modules/$(dirname "$part")"
  cp -r "$work/kernel/$modules/$part" "$root/$modules/$part"
done
cat >"$root/etc/boxgate.yaml" <<'YAML'
state_dir: /var/boxgate
admin: {socket: /run/admin.sock, listen: ""}
dns: {upstreams: ["192.0.2.53"]}
launcher: {enabled: false}
metrics: {listen: ""}
YAML
cat >"$root/init" <<'INIT'
#!/bin/busybox sh
export PATH=/bin:/sbin GATEWAY="gateway --config /etc/boxgate.yaml"
/bin/busybox --install -s /bin
ln -s /bin/busybox /sbin/modprobe
mount -t proc proc /proc; mount -t sysfs sys /sys; mount -t devtmpfs dev /dev
mount -t tmpfs tmp /run; mount -t tmpfs tmp /tmp; mount -t tmpfs tmp /var
mount -t cgroup2 cgroup /sys/fs/cgroup; mount -t securityfs security /sys/kernel/security
mkdir -p /var/boxgate /etc/ssl/certs; chmod 700 /var/boxgate
depmod -a
ip link set lo up
modprobe dummy && ip link add up0 type dummy && ip link set up0 up && ip addr add 192.0.2.1/24 dev up0 && ip route add default dev up0
ip -6 addr add 2001:db8::1/64 dev up0; ip -6 route add default dev up0
finish() { echo "RESULT $*"; poweroff -f; }
uname -m -r
$GATEWAY check || finish check failed
$GATEWAY serve >/tmp/log 2>&1 &
for i in $(seq 600); do [ -S /run/admin.sock ] && $GATEWAY status >/dev/null 2>&1 && break; sleep 1; done
unshare -n sleep 100000 & sleep 2
$GATEWAY box attach --pid $! --name one --policy deny-all || { tail -n 20 /tmp/log; finish attach failed; }
$GATEWAY box selftest one >/tmp/card; status=$?
grep -v '^tight' /tmp/card
[ $status = 0 ] || { tail -n 20 /tmp/log; finish selftest failed; }
$GATEWAY check | grep AppArmor | grep -q warning && finish AppArmor without a profile
cat /etc/profile >/sys/kernel/security/apparmor/.load || finish the profile is not loaded
$GATEWAY check | grep 'AppArmor .*profile gateway confines' || finish AppArmor not found
finish passed
INIT
chmod 755 "$root/init" "$root/bin/gateway"
# A profile that allows everything is enforced all the same.
printf 'abi <abi/3.0>,\nprofile gateway /bin/gateway { file, capability, network, mount, umount, ptrace, signal, unix, }\n' >"$work/profile"
LD_LIBRARY_PATH=$libraries "$(tool apparmor_parser)" --config-file=/dev/null -b "$tools/etc/apparmor.d" -Q -K -T -o "$root/etc/profile" "$work/profile"
cpio=$(realpath "$(tool cpio)")
(cd "$root" && find . | "$cpio" --quiet -o -H newc | gzip -1) >"$work/initrd"

LD_LIBRARY_PATH=$libraries timeout 30m "$(tool qemu-system-aarch64)" -L "$tools/usr/share/qemu" \
  -machine virt -cpu cortex-a57 -smp 2 -m 1536 -nographic -nic none -no-reboot \
  -kernel "$work"/kernel/boot/vmlinuz-* -initrd "$work/initrd" -append "console=ttyAMA0 panic=-1 quiet" </dev/null | tee "$work/console"
grep -q '^RESULT passed' "$work/console"
