#!/usr/bin/env bash
# Tries the first minutes of a newcomer on fresh Debian systems, without caches: from the clone to the end of the demo,
# from the package to the first box, the RPM package with rpm --root, one `gateway run`, and the SDK's first example. It
# prints their times and longest silences, and fails if a step fails or is silent for more than five seconds
# (docs/testing.md). The systems are root file systems made by mmdebstrap with a systemd that boots in namespaces of its
# own, behind slirp4netns; they use this machine's mirror, Go, and additional root certificates.
#
# usage: newcomer.sh [SUITE...] (bookworm trixie); NEWCOMER_STEPS names the steps, NEWCOMER_RELEASE a built release
set -euo pipefail
cd "$(dirname "$0")/.."
source=$PWD
[ "$(id -u)" -eq 0 ] || { echo "fresh systems need root: sudo make newcomer" >&2; exit 1; }
for need in mmdebstrap slirp4netns rpm git; do
  command -v "$need" >/dev/null || { echo "$need is missing; install it with: apt-get install $need" >&2; exit 1; }
done
[ $# -gt 0 ] || set -- bookworm trixie
read -ra steps <<<"${NEWCOMER_STEPS:-rpm demo package run sdk}"
work=$(mktemp -d /var/tmp/boxgate-newcomer.XXXXXX)
children=()
# leave: removes the groups that enter made, of which the processes have ended
leave() {
  local mount group
  while read -r mount; do
    for group in "$mount/boxgate-newcomer-$$-"*; do
      [ ! -d "$group" ] || find "$group" -depth -type d -exec rmdir {} \; || true
    done
  done < <(findmnt -nt cgroup,cgroup2 -o TARGET)
}

clean() {
  [ ${#children[@]} -eq 0 ] || kill -KILL "${children[@]}" 2>/dev/null || true # unshare --fork ignores SIGTERM
  wait
  leave
  rm -rf --one-file-system "$work"
}
trap clean EXIT
trap 'exit 130' INT TERM
table=$work/table.tsv
touch "$table"

mkdir "$work/srv"
git clone -q --bare . "$work/srv/boxgate.git"
git clone -q "$work/srv/boxgate.git" "$work/srv/source"
release=${NEWCOMER_RELEASE:-}
if [ -z "$release" ]; then
  release=$work/release
  dist/release.sh "$release" -unprofiled -arch "$(go env GOHOSTARCH)" deb rpm
fi
cp -r "$release" "$work/srv/release"
CGO_ENABLED=0 go build -o "$work/srv/silence" ./internal/silence

# What this machine's apt needs for its mirror, such as a proxy.
options=()
while IFS= read -r option; do options+=(--aptopt "$option"); done < <(
  apt-config dump | grep -E '^Acquire::(Check-Valid-Until|Check-Date|https?::Proxy) '
)

# fresh SUITE: makes a root file system
fresh() {
  mmdebstrap --variant=minbase --include=systemd,systemd-sysv,dbus,iproute2,ca-certificates,sudo "${options[@]}" "$1" "$work/$1"
  cp -r /usr/local/share/ca-certificates "$work/$1/usr/local/share/"
  chroot "$work/$1" update-ca-certificates >/dev/null
  echo nameserver 10.0.2.3 >"$work/$1/etc/resolv.conf" # slirp4netns
  echo "$1" >"$work/$1/etc/hostname"
  mkdir -p "$work/$1/usr/local/go" "$work/$1/srv" "$work/$1/old"
}

# rpm_root SUITE: installs and removes the RPM package below the root file system
rpm_root() {
  local packages=("$work"/srv/release/boxgate-[0-9]*."$(uname -m)".rpm)
  rpm --root "$work/$1" -iv --nodeps "${packages[@]}" && rpm --root "$work/$1" -V --nodeps boxgate &&
    chroot "$work/$1" gateway --version && rpm --root "$work/$1" -ev boxgate && [ ! -e "$work/$1/usr/bin/gateway" ] &&
    [ ! -e "$work/$1/usr/share/doc/boxgate" ] && rm -rf "$work/$1/var/lib/rpm"
}

# machine boots $ROOT and runs $STEPS in it. The exit status is that of the steps.
machine=$(cat <<'END'
set -e
mount --make-rprivate /
mount --bind "$ROOT" "$ROOT"
mount --rbind /dev "$ROOT/dev"; mount -t sysfs none "$ROOT/sys"
[ -z "$HIERARCHIES" ] || mount -t tmpfs none "$ROOT/sys/fs/cgroup"
for h in $HIERARCHIES; do
  mkdir "$ROOT/sys/fs/cgroup/${h%%:*}"
  case ${h#*:} in name=*) options=none,${h#*:} ;; *) options=${h#*:} ;; esac
  mount -t cgroup -o "$options" none "$ROOT/sys/fs/cgroup/${h%%:*}"
done
[ -z "$HIERARCHIES" ] || mkdir "$ROOT/sys/fs/cgroup/unified"
mount -t cgroup2 none "$ROOT/sys/fs/cgroup${HIERARCHIES:+/unified}"
mount -t proc none "$ROOT/proc"; mount -t tmpfs none "$ROOT/run"
mount --bind "$SRV" "$ROOT/srv"; mount -o remount,bind,ro "$ROOT/srv"
mount --bind "$GOROOT" "$ROOT/usr/local/go"; mount -o remount,bind,ro "$ROOT/usr/local/go"
cat >"$ROOT/etc/systemd/system/newcomer.service" <<UNIT
[Unit]
SuccessAction=exit-force
FailureAction=exit-force
Wants=dbus.socket
After=dbus.socket
[Service]
Type=oneshot
ExecStart=/bin/bash /srv/source/dist/newcomer/steps.sh $STEPS
StandardOutput=append:/var/log/newcomer.log
StandardError=append:/var/log/newcomer.log
UNIT
ip link set lo up
for i in $(seq 600); do ip route | grep -q '^default' && break; sleep 0.1; done
hostname "$(cat "$ROOT/etc/hostname")"
cd "$ROOT"; pivot_root . old; umount -l /old
# Only systemd 255 and older use version 1 of control groups unasked.
[ -z "$HIERARCHIES" ] || export SYSTEMD_PROC_CMDLINE="systemd.unified_cgroup_hierarchy=0 SYSTEMD_CGROUP_ENABLE_LEGACY_FORCE=1"
container=other exec /lib/systemd/systemd --unit=newcomer.service --log-target=journal --show-status=no
END
)

# enter GROUP: moves this shell into a group of that name in every hierarchy of control groups
enter() {
  local mount file
  while read -r mount; do
    mkdir "$mount/$1"
    for file in cpuset.cpus cpuset.mems; do # version 1 does not inherit them
      [ ! -e "$mount/$1/$file" ] || cat "$mount/$file" >"$mount/$1/$file"
    done
    echo "$BASHPID" >"$mount/$1/cgroup.procs"
  done < <(findmnt -nt cgroup,cgroup2 -o TARGET)
}

# boot SUITE STEP...: runs the steps in the system, whose systemd sees its control groups as the root
boot() {
  local suite=$1 group=boxgate-newcomer-$$-$1 status=0 pid
  : >"$work/$suite/var/log/newcomer.log"
  # name and options of each hierarchy of version 1, on hosts that have them
  HIERARCHIES=$(findmnt -nt cgroup -o TARGET,FS-OPTIONS | sed -E 's|^.*/([^/ ]+) +|\1:|; s/(:|,)(rw|xattr|noprefix|release_agent=[^,]*)\b/\1/g; s/:,+/:/; s/,+/,/g; s/,$//' | tr '\n' ' ')
  export HIERARCHIES
  (
    enter "$group"
    ROOT=$work/$suite SRV=$work/srv GOROOT=$(go env GOROOT) STEPS="$*" \
      exec unshare --mount --pid --fork --kill-child --net --ipc --uts --cgroup bash -c "$machine"
  ) &
  pid=$!
  children+=("$pid")
  while kill -0 "$pid" 2>/dev/null && [ "$(readlink "/proc/$pid/ns/net")" = "$(readlink /proc/self/ns/net)" ]; do sleep 0.05; done
  slirp4netns --configure --disable-host-loopback --netns-type=path "/proc/$pid/ns/net" tap0 >"$work/slirp.log" 2>&1 &
  children+=("$!")
  tail -f --pid="$pid" "$work/$suite/var/log/newcomer.log" &
  children+=("$!")
  wait "$pid" || status=$?
  kill "${children[1]}" 2>/dev/null || true
  wait "${children[2]}" || true
  children=()
  leave
  return "$status"
}

{ # read as a whole, so that an edit of this file does not disturb a run of half an hour
  for suite; do
    echo "== $suite: making the system"
    fresh "$suite"
    inside=()
    for step in "${steps[@]}"; do
      [ "$step" = rpm ] || { inside+=("$step"); continue; }
      echo "== $suite: rpm"
      export -f rpm_root
      export work
      "$work/srv/silence" "$table" "$suite" rpm bash -c 'rpm_root "$1"' rpm "$suite" || true
    done
    [ ${#inside[@]} -eq 0 ] || boot "$suite" "${inside[@]}" || true
    cat "$work/$suite/var/log/newcomer.tsv" >>"$table" 2>/dev/null || true
    rm -rf --one-file-system "${work:?}/$suite"
  done
  echo
  dist/newcomer/table.sh "$table" "${steps[@]}"
  exit
}
