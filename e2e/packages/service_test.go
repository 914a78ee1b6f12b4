package packages

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// serviceMachine is machine with a systemd that has booted it. It runs the script and exits with its status. The
// script's output is in the state directory.
const serviceMachine = `set -e
mount --make-rprivate /
mount -t tmpfs none "$D/up"; mkdir "$D/up/upper" "$D/up/work"
mount -t overlay -o "lowerdir=/,upperdir=$D/up/upper,workdir=$D/up/work" none "$D/root"
mount --rbind /dev "$D/root/dev"; mount -t sysfs none "$D/root/sys"; mount -t cgroup2 none "$D/root/sys/fs/cgroup"
mount -t proc none "$D/root/proc"; mount -t tmpfs none "$D/root/run"; mount -t tmpfs none "$D/root/tmp"; mount --bind "$D/state" "$D/root/var/lib"
mkdir -p "$D/root/var/lib/dpkg"; cp -a /var/lib/dpkg/. "$D/root/var/lib/dpkg/"
` + bring + `
printf '%s\n' "$SCRIPT" > "$D/root/tmp/script"
# Nothing else is started: what the machine has enabled is not the test's.
cd "$D/root"
rm -rf usr/sbin/policy-rc.d etc/systemd/system/*.wants lib/systemd/system/{sysinit,basic,sockets,timers,local-fs,multi-user,graphical}.target.wants
mkdir -p lib/systemd/system/sysinit.target.wants; ln -s ../systemd-journald.service lib/systemd/system/sysinit.target.wants/
cat > etc/systemd/system/script.service <<UNIT
[Unit]
SuccessAction=exit-force
FailureAction=exit-force
[Service]
Type=oneshot
Environment=LC_ALL=C.UTF-8 DEBIAN_FRONTEND=noninteractive PATH=$PATH
ExecStart=/bin/bash -e /tmp/script
StandardOutput=append:/var/lib/said
StandardError=append:/var/lib/said
UNIT
ip link set lo up
mkdir -p old; pivot_root . old; umount -l /old
container=other exec /lib/systemd/systemd --unit=script.service --log-target=journal --show-status=no
`

// inGroup runs the machine in a separate control group, which systemd sees as the root group.
const inGroup = `set -e
group=$(findmnt -nt cgroup2 -o TARGET | head -1)/boxgate-test-$$
mkdir "$group"
trap 'find "$group" -depth -type d -exec rmdir {} \;' EXIT
sh -c 'echo $$ >"$0/cgroup.procs"; exec unshare --mount --pid --fork --kill-child --net --ipc --uts --cgroup bash -c "$MACHINE"' "$group" || status=$?
exit $status
`

// service operates the service like an administrator. Clients connect while it is down, and none is refused.
const service = `
set -E; trap 'echo "failed: $BASH_COMMAND"' ERR
dpkg -i /tmp/boxgate.deb
echo BOXGATE_DNS_UPSTREAMS=192.0.2.53 >>/etc/boxgate/environment
echo BOXGATE_LAUNCHER_ENABLED=false >>/etc/boxgate/environment
mkdir -p /etc/systemd/system/boxgate.service.d
printf '[Unit]\nStartLimitIntervalSec=0\n[Service]\nRestartSec=3\n' >/etc/systemd/system/boxgate.service.d/test.conf
systemctl daemon-reload
systemctl start boxgate
of() { systemctl show --value -p "$1" boxgate; }
other() { # another process than $1 serves
  for i in $(seq 600); do [ "$(of MainPID)" != "$1" ] && [ "$(of ActiveState)" = active ] && return; sleep 0.1; done
  systemctl status boxgate --no-pager || true; return 1
}
unshare --net sleep 1000 & sleeper=$!
for i in $(seq 100); do [ "$(readlink /proc/$sleeper/ns/net)" != "$(readlink /proc/self/ns/net)" ] && break; sleep 0.1; done
gateway box attach --pid $sleeper --name other --policy deny-all >/dev/null
cat >/tmp/look-up <<'LOOKUP' # one query of the box, by UDP
exec 4<>/dev/udp/10.200.0.1/53
printf '\x12\x34\x01\x00\x00\x01\x00\x00\x00\x00\x00\x00\x07example\x03com\x00\x00\x01\x00\x01' >&4
answer=$(timeout 60 head -c 2 <&4 | od -An -tx1)
[ "$answer" = " 12 34" ] || { echo "DNS answers '$answer'"; exit 1; }
LOOKUP
cat >/tmp/call <<'CALL' # one request to the admin API
exec 3<>/dev/tcp/127.0.0.1/8600
printf 'GET /healthz HTTP/1.0\r\n\r\n' >&3
answer=$(timeout 60 head -1 <&3) || true
case $answer in *' 200 '*) ;; *) echo "the API answers '$answer'"; exit 1;; esac
CALL
ask() { nsenter --target $sleeper --net bash /tmp/look-up && bash /tmp/call; }
ports() { ss -Hlntu | awk '{print $1, $5}' | sort; }
ask; ports >/tmp/ports; nft list chain inet boxgate dns_box >/tmp/led
echo "== serves, and keeps $(of NFileDescriptorStore) sockets"

first=$(of MainPID); kill -9 $first
while kill -0 $first 2>/dev/null; do :; done
ask
[ "$(of MainPID)" != $first ]
ports | diff /tmp/ports -; nft list chain inet boxgate dns_box | diff /tmp/led -
echo "== killed, and all that asked meanwhile are answered"

first=$(of MainPID); systemctl restart boxgate & restart=$!
for i in $(seq 30); do ask; done
wait $restart; other $first; ask
ports | diff /tmp/ports -; nft list chain inet boxgate dns_box | diff /tmp/led -
echo "== restarted, and nobody was refused"

first=$(of MainPID)
echo 'nonsense: 1' >>/etc/boxgate/boxgate.yaml
if systemctl reload boxgate; then echo "a wrong configuration was loaded"; exit 1; fi
[ "$(of MainPID)" = $first ]; [ "$(of ActiveState)" = active ]
sed -i '/^nonsense/d' /etc/boxgate/boxgate.yaml
echo 'metrics: {listen: "127.0.0.1:9777"}' >>/etc/boxgate/boxgate.yaml
systemctl reload boxgate
other $first; ask
ss -Hlnt | grep -q 127.0.0.1:9777
! ss -Hlnt | grep -q 127.0.0.1:9600
first=$(of MainPID); kill -9 $first # which the one before has started, and not systemd
while kill -0 $first 2>/dev/null; do :; done # what it has read is lost with it
ask; other $first
echo "== reloaded, without the socket that is not asked for any more"

first=$(of MainPID)
sed -i 's/127.0.0.1:9777/0.0.0.0:9777/' /etc/boxgate/boxgate.yaml
ports | grep -v :9777 >/tmp/ports
systemctl restart boxgate
other $first; ask
ss -Hlnt | grep -Fq '*:9777' || ss -Hlnt | grep -Fq '0.0.0.0:9777'
! ss -Hlnt | grep -q 127.0.0.1:9777
ports | grep -v :9777 | diff /tmp/ports -
echo "== restarted, with a socket at an address that takes in that of an earlier one"

first=$(of MainPID)
dpkg -i /tmp/boxgate.deb
other $first; ask
gateway box list | grep -q other
echo "== upgraded, and its box is there"

systemctl stop boxgate
[ "$(of NFileDescriptorStore)" = 0 ]
[ -z "$(ports)" ]
! bash /tmp/call >/dev/null 2>&1
nft list table inet boxgate >/dev/null
echo "== stopped: closed, and the rules of its box stay"

kill $sleeper
dpkg -P boxgate
! nft list table inet boxgate 2>/dev/null
echo "== purged"
`

// checkService: systemd starts, restarts, reloads, upgrades and stops the installed service.
func checkService(t *testing.T, script, pkg string) {
	dir := t.TempDir()
	for _, sub := range []string{"up", "root", "state"} {
		if err := os.Mkdir(filepath.Join(dir, sub), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	cmd := exec.CommandContext(t.Context(), "bash", "-c", inGroup)
	cmd.Env = []string{"D=" + dir, pkg, "MACHINE=" + serviceMachine, "SCRIPT=" + script, "PATH=" + os.Getenv("PATH") + ":/usr/sbin:/sbin"}
	out, err := cmd.CombinedOutput()
	said, _ := os.ReadFile(filepath.Join(dir, "state", "said"))
	if err != nil {
		t.Fatalf("%v: %s\n%s", err, out, said)
	}
	t.Logf("%s", said)
}
