package packages

import (
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
)

// rpmLife installs, runs, upgrades and removes the RPM package, in a fresh root file system and on this machine. A
// package below another root never touches the host's gateway.
const rpmLife = `
traces() { ip rule; ip -6 rule; ip route show table all; ip -6 route show table all; ip -br addr; nft list ruleset; ls /run | grep -v "^systemd$"; }
traces > /tmp/before
debian() { rpm --force-debian "$@"; } # what Debian's rpm demands; --nodeps, as its database does not list Debian's packages
fresh() { debian --root /tmp/fresh "$@"; }
fresh -i --nodeps /tmp/boxgate.rpm
fresh -V --nodeps boxgate
for f in README.md docs/reasons.md docs/pictures/gateway.svg copyright; do test -s /tmp/fresh/usr/share/doc/boxgate/$f; done
test -s /tmp/fresh/usr/share/man/man8/gateway-box-create.8.gz; test -s /tmp/fresh/usr/share/zsh/site-functions/_gateway
test ! -e /tmp/fresh/etc/systemd/system/multi-user.target.wants/boxgate.service; test ! -e /tmp/fresh/var/lib/boxgate
chroot /tmp/fresh gateway --version; fresh -qc boxgate
echo "== installed in a fresh root"

debian -i --nodeps /tmp/boxgate.rpm
systemd-analyze verify --man=no /usr/lib/systemd/system/boxgate.service
set -a; . /etc/boxgate/environment; set +a
export BOXGATE_DNS_UPSTREAMS=192.0.2.53
gateway serve 2>/tmp/log & gateway=$!
for i in $(seq 600); do gateway status >/dev/null 2>&1 && break; kill -0 $gateway || break; sleep 0.1; done
gateway status >/dev/null || { cat /tmp/log; exit 1; }
unshare --net sleep 1000 & sleeper=$!
for i in $(seq 100); do [ "$(readlink /proc/$sleeper/ns/net)" != "$(readlink /proc/self/ns/net)" ] && break; sleep 0.1; done
gateway box attach --pid $sleeper --name other --policy deny-all >/dev/null
debian -U --replacepkgs --nodeps /tmp/boxgate.rpm
gateway box list | grep -q other
echo "== upgraded while it runs"

mount -t proc none /tmp/fresh/proc
fresh -e boxgate
umount /tmp/fresh/proc
gateway box list | grep -q other; nft list table inet boxgate >/dev/null
for path in usr/bin/gateway usr/share/boxgate usr/share/doc/boxgate usr/lib/systemd/system/boxgate.service etc/boxgate; do test ! -e /tmp/fresh/$path; done
echo "== removed from the fresh root"

! debian -e boxgate
gateway box list | grep -q other
echo "== not removed while it runs without a service manager"

kill $gateway; wait $gateway || true
printf '%s\n' 'BOXGATE_STORE_PASSPHRASE=a b $(touch /tmp/ran) $HOME' >>/etc/boxgate/environment
debian -e boxgate
test ! -e /tmp/ran
traces > /tmp/after; diff /tmp/before /tmp/after
test -e /var/lib/boxgate/api-key; test ! -e /usr/bin/gateway; test ! -e /etc/boxgate/boxgate.yaml; test -s /etc/boxgate/environment.rpmsave
kill $sleeper
echo "== removed"
`

// rpmService: an upgrade restarts the running service, and a removal stops and disables it.
const rpmService = `
set -E; trap 'echo "failed: $BASH_COMMAND"' ERR
rpm --force-debian -i --nodeps /tmp/boxgate.rpm
printf '%s\n' BOXGATE_DNS_UPSTREAMS=192.0.2.53 BOXGATE_LAUNCHER_ENABLED=false >>/etc/boxgate/environment
systemctl enable --now boxgate
of() { systemctl show --value -p "$1" boxgate; }
first=$(of MainPID)
rpm --force-debian -U --replacepkgs --nodeps /tmp/boxgate.rpm
for i in $(seq 600); do [ "$(of MainPID)" != "$first" ] && [ "$(of ActiveState)" = active ] && break; sleep 0.1; done
[ "$(of MainPID)" != "$first" ]; [ "$(of ActiveState)" = active ]; systemctl is-enabled boxgate
echo "== upgraded"
rpm --force-debian -e boxgate
[ "$(of ActiveState)" = inactive ]; test ! -e /etc/systemd/system/multi-user.target.wants/boxgate.service
! nft list table inet boxgate 2>/dev/null
echo "== removed"
`

// checkRPM: the package is installed below any root, does not start, runs, and is removed without a trace.
func checkRPM(t *testing.T, path string) {
	images := os.Getenv("TEST_IMAGE_DIR")
	found, err := filepath.Glob(filepath.Join(images, "debian-min-*", "rootfs"))
	if err != nil || len(found) == 0 {
		t.Fatalf("TEST_IMAGE_DIR=%s has no image debian-min (make image)", images)
	}
	said := onMachine(t, rpmLife, "RPM="+path, "FRESH="+slices.Max(found))
	if !strings.Contains(said, "== removed\n") || strings.Count(said, "installed and not started") != 2 || !strings.Contains(said, "a gateway is running here") {
		t.Errorf("it says:\n%s", said)
	}
}

// rpmArchitecture is this machine's architecture in names of RPM packages.
func rpmArchitecture() string {
	return map[string]string{"amd64": "x86_64", "arm64": "aarch64"}[runtime.GOARCH]
}
