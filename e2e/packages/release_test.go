package packages

import (
	"bytes"
	"crypto/sha256"
	"debug/buildinfo"
	"debug/elf"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"boxgate/internal/nightly"
)

// The packages of an image that `make runtime-debs` downloads.
const runtimeDebs = "/var/lib/boxgate/runtime-debs"

// clone creates a repository with one commit of this one's present files.
func clone(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	script := `cd ../.. && git ls-files -coz --exclude-standard | xargs -0 sh -c 'for f; do test ! -f "$f" || echo "$f"; done' sh | tar -cf - -T - | tar -xf - -C "$D" &&
cd "$D" && git init -q && git add -A && git -c user.name=t -c user.email=t@localhost commit -qm "all of it"`
	cmd := exec.Command("bash", "-c", script)
	cmd.Env = append(os.Environ(), "D="+dir, "GIT_AUTHOR_DATE=2030-01-02T03:04:05Z", "GIT_COMMITTER_DATE=2030-01-02T03:04:05Z")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	return dir
}

// release builds releases in a repository and returns their directory.
func release(t *testing.T, dir, umask string, env []string, what ...string) string {
	t.Helper()
	out := t.TempDir()
	cmd := exec.Command("bash", append([]string{"-c", "umask " + umask + `; exec go run ./internal/release "$@"`, "release", "-out", out, "-arch", runtime.GOARCH, "-debs", runtimeDebs}, what...)...)
	cmd.Dir, cmd.Env = dir, append(os.Environ(), env...)
	if said, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, said)
	}
	return out
}

// only returns the only file that matches a pattern.
func only(t *testing.T, dir, pattern string) string {
	t.Helper()
	found, err := filepath.Glob(filepath.Join(dir, pattern))
	if err != nil || len(found) != 1 {
		t.Fatalf("%s: %q %v", pattern, found, err)
	}
	return found[0]
}

// TestReleasedBinary: a binary built from a commit runs anywhere and reports its version.
func TestReleasedBinary(t *testing.T) {
	t.Parallel()
	made := release(t, clone(t), "022", nil, "-unprofiled", "binaries") // compiling with the profile takes minutes: TestReleases does
	for _, program := range []string{"gateway", "gateway-demo"} {
		binary := filepath.Join(made, program+"-linux-"+runtime.GOARCH)
		checkBinary(t, program, binary)
		checkBill(t, binary)
	}
}

// TestReleases: two machines build the same bytes from a commit. The results report their version, can be installed,
// run and removed without a trace, and loaded into Docker and run there.
func TestReleases(t *testing.T) {
	nightly.Only(t) // it compiles everything twice
	t.Parallel()
	one := clone(t)
	other := filepath.Join(t.TempDir(), "some", "where", "else")
	if out, err := exec.Command("git", "clone", "-q", one, other).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	first := release(t, one, "022", nil, "binaries", "deb", "rpm", "oci")
	second := release(t, other, "077", []string{"TZ=Asia/Kathmandu", "LC_ALL=C"}, "binaries", "deb", "rpm", "oci")
	files, err := os.ReadDir(first)
	if err != nil || len(files) < 5 {
		t.Fatal(files, err)
	}
	for _, f := range files {
		a, errA := os.ReadFile(filepath.Join(first, f.Name()))
		b, errB := os.ReadFile(filepath.Join(second, f.Name()))
		if errA != nil || errB != nil || sha256.Sum256(a) != sha256.Sum256(b) {
			t.Errorf("%s differs: %v %v, %d and %d bytes", f.Name(), errA, errB, len(a), len(b))
		}
	}
	for _, program := range []string{"gateway", "gateway-demo"} {
		binary := filepath.Join(first, program+"-linux-"+runtime.GOARCH)
		t.Run("binary of "+program, func(t *testing.T) { checkBinary(t, program, binary) })
		if got := profileOf(t, binary); (got == "release.pgo") != (program == "gateway") {
			t.Errorf("%s was compiled with the profile %q", program, got)
		}
		t.Run("bill of "+program, func(t *testing.T) { checkBill(t, binary) })
	}
	t.Run("package", func(t *testing.T) {
		checkPackage(t, only(t, first, "boxgate_*.deb"), only(t, first, "boxgate-demo_*.deb"))
	})
	t.Run("service", func(t *testing.T) { checkService(t, service, "DEB="+only(t, first, "boxgate_*.deb")) })
	rpm := only(t, first, "boxgate-0*."+rpmArchitecture()+".rpm")
	t.Run("RPM package", func(t *testing.T) { checkRPM(t, rpm) })
	t.Run("service of the RPM package", func(t *testing.T) { checkService(t, rpmService, "RPM="+rpm) })
	t.Run("installer", func(t *testing.T) {
		to := t.TempDir()
		if out, err := exec.Command("../../dist/install.sh", "--download", to, first).CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		only(t, to, "boxgate_*_"+runtime.GOARCH+".deb")
	})
	t.Run("image", func(t *testing.T) { checkImage(t, only(t, first, "*.oci.tar")) })
}

// checkBinary: the binary runs anywhere, and reports the sources it was built from.
func checkBinary(t *testing.T, program, path string) {
	f, err := elf.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for _, p := range f.Progs {
		if p.Type == elf.PT_INTERP || p.Type == elf.PT_DYNAMIC {
			t.Errorf("it is linked with libraries: %v", p.Type)
		}
	}
	out, err := exec.Command(path, "--version").CombinedOutput()
	if said := string(out); err != nil || !strings.Contains(said, "of 2030-01-02T03:04:05Z") || strings.Contains(said, "modified") || !strings.HasPrefix(said, program+" v0.0.0-20300102030405-") {
		t.Errorf("--version says %q, %v", said, err)
	}
}

// profileOf returns the name of the profile with which a program was compiled, "" if there was none.
func profileOf(t *testing.T, path string) string {
	info, err := buildinfo.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range info.Settings {
		if s.Key == "-pgo" {
			return filepath.Base(s.Value)
		}
	}
	return ""
}

// checkBill: the bill of materials lists every module of the binary, with the checksum that Go verified.
func checkBill(t *testing.T, path string) {
	var bill struct {
		Format, SpecVersion, SerialNumber string
		BOMFormat                         string `json:"bomFormat"`
		Metadata                          struct{ Timestamp time.Time }
		Components                        []struct {
			Name, Version, PURL string
			Properties          []struct{ Name, Value string }
		}
	}
	data, err := os.ReadFile(path + ".cdx.json")
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(data, &bill); err != nil || bill.BOMFormat != "CycloneDX" || bill.SpecVersion != "1.6" || bill.Metadata.Timestamp.Year() != 2030 {
		t.Errorf("%+v %v", bill, err)
	}
	info, err := buildinfo.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	listed := map[string]bool{}
	for _, c := range bill.Components {
		listed[c.PURL] = true
		if c.Name != "std" && (len(c.Properties) != 1 || !strings.HasPrefix(c.Properties[0].Value, "h1:")) {
			t.Errorf("%s has %v", c.Name, c.Properties)
		}
	}
	for _, m := range info.Deps {
		if purl := "pkg:golang/" + m.Path + "@" + strings.ReplaceAll(m.Version, "+", "%2B"); !listed[purl] {
			t.Errorf("it lacks %s", purl)
		}
	}
	if len(listed) != len(info.Deps)+1 {
		t.Errorf("%d components of %d modules and the standard library", len(listed), len(info.Deps))
	}
}

// bring copies packages to the machine.
const bring = `[ -z "${DEB-}" ] || cp "$DEB" "$D/root/tmp/boxgate.deb"
[ -z "${DEMO-}" ] || cp "$DEMO" "$D/root/tmp/boxgate-demo.deb"
[ -z "${RPM-}" ] || cp "$RPM" "$D/root/tmp/boxgate.rpm"`

// machine is this machine with an overlay root, whose changes can be listed, and separate processes, mounts and
// network, without a service manager. The state directory is on the disk.
const machine = `set -e
mount -t tmpfs none "$D/up"; mkdir "$D/up/upper" "$D/up/work"
mount -t overlay -o "lowerdir=/,upperdir=$D/up/upper,workdir=$D/up/work" none "$D/root"
for fs in /dev /sys; do mount --rbind $fs "$D/root$fs"; done
mount -t proc none "$D/root/proc"; mount -t tmpfs none "$D/root/run"; mount -t tmpfs none "$D/root/tmp"; mount --bind "$D/state" "$D/root/var/lib"
mkdir -p "$D/root/var/lib/dpkg"; cp -a /var/lib/dpkg/. "$D/root/var/lib/dpkg/"
` + bring + `
if [ -n "${FRESH-}" ]; then # another root file system, with changes in memory
  mkdir "$D/up/fresh" "$D/up/fresh-work" "$D/root/tmp/fresh"
  mount -t overlay -o "lowerdir=$FRESH,upperdir=$D/up/fresh,workdir=$D/up/fresh-work" none "$D/root/tmp/fresh"
fi
ip link set lo up
cd "$D/root"; mkdir -p old; pivot_root . old; umount -l /old # and not chroot, in which there are no user namespaces
exec bash -ec "$SCRIPT"
`

// life installs, runs and removes the package, and prints the state before and after.
const life = `
traces() { ip rule; ip -6 rule; ip route show table all; ip -6 route show table all; ip -br addr; nft list ruleset; ls /run | grep -v "^systemd$"; }
traces > /tmp/before
dpkg -i /tmp/boxgate.deb
echo "== installed"
dpkg --contents /tmp/boxgate.deb >/tmp/contents; for f in README.md SECURITY.md docs/reasons.md docs/pictures/gateway.svg; do grep -q "/usr/share/doc/boxgate/$f$" /tmp/contents; done
test ! -e /var/lib/boxgate; test ! -e /etc/systemd/system/multi-user.target.wants/boxgate.service
dpkg-query -W -f '${Conffiles}\n' boxgate
gateway --version; test -s /usr/share/man/man8/gateway-box-create.8.gz; bash -n /usr/share/bash-completion/completions/gateway
man -l /usr/share/man/man8/gateway-uninstall.8.gz 2>/dev/null | grep -c purge || true
systemd-analyze verify --man=no /usr/lib/systemd/system/boxgate.service
test ! -e /usr/bin/gateway-demo; ! gateway demo 2>/tmp/refused; grep "install the package boxgate-demo" /tmp/refused
dpkg -i --force-depends /tmp/boxgate-demo.deb # without what its boxes are made with
gateway-demo --version | grep "^gateway-demo v"; gateway demo --image-dir=/dev/null/none >/tmp/shown 2>&1 || true; grep "in network namespaces made for this run" /tmp/shown
dpkg -r boxgate-demo; test ! -e /usr/bin/gateway-demo; test ! -e /usr/share/doc/boxgate-demo
set -a; . /etc/boxgate/environment; set +a
export BOXGATE_DNS_UPSTREAMS=192.0.2.53
gateway serve 2>/tmp/log & gateway=$!
for i in $(seq 600); do gateway status >/dev/null 2>&1 && break; kill -0 $gateway || break; sleep 0.1; done
gateway status >/dev/null || { cat /tmp/log; exit 1; }
unshare --net sleep 1000 & sleeper=$!
for i in $(seq 100); do [ "$(readlink /proc/$sleeper/ns/net)" != "$(readlink /proc/self/ns/net)" ] && break; sleep 0.1; done
gateway box attach --pid $sleeper --name other --policy deny-all >/dev/null
traces > /tmp/during; ! cmp -s /tmp/before /tmp/during
echo "== running"
! dpkg -r boxgate
echo "== not removed while it runs without a service manager"
gateway box list | grep -q other
kill $gateway; wait $gateway || true
# Values are not the shell's to run, and nothing is lost by one.
printf '%s\n' 'BOXGATE_STORE_PASSPHRASE=a b $(touch /tmp/ran) $HOME' >>/etc/boxgate/environment
dpkg -r boxgate
test ! -e /tmp/ran
traces > /tmp/after; diff /tmp/before /tmp/after
test -e /var/lib/boxgate/api-key; test ! -e /usr/bin/gateway; test -e /etc/boxgate/boxgate.yaml
echo "== removed"
dpkg -i /tmp/boxgate.deb
echo BOXGATE_STATE_DIR=/var/lib/elsewhere >>/etc/boxgate/environment
mkdir -m 700 /var/lib/elsewhere; touch /var/lib/elsewhere/boxgate.db
dpkg -r boxgate
dpkg -P boxgate 2>&1 | grep "and stays: /var/lib/elsewhere$"
test -e /var/lib/elsewhere/boxgate.db; test ! -e /var/lib/boxgate.kept
test ! -e /var/lib/boxgate; test ! -e /etc/boxgate
echo "== purged"
kill $sleeper
`

// checkPackage: the package is installed, does not start, runs, and is removed without a trace.
func checkPackage(t *testing.T, deb, demo string) {
	said := onMachine(t, life, "DEB="+deb, "DEMO="+demo)
	if !strings.Contains(said, "== purged") {
		t.Fatal(said)
	}
	for _, want := range []string{"installed and not started", "/etc/boxgate/boxgate.yaml", "/etc/boxgate/environment", "a gateway is running here", "What is removed:"} {
		if !strings.Contains(said, want) {
			t.Errorf("nothing says %q:\n%s", want, said)
		}
	}
}

// onMachine runs a script on a machine with these packages and returns its output.
func onMachine(t *testing.T, script string, packages ...string) string {
	t.Helper()
	dir := t.TempDir()
	for _, sub := range []string{"up", "root", "state"} {
		if err := os.Mkdir(filepath.Join(dir, sub), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	cmd := exec.CommandContext(t.Context(), "unshare", "--mount", "--pid", "--fork", "--kill-child", "--net", "--ipc", "--uts", "sh", "-c", machine)
	cmd.Env = append([]string{"D=" + dir, "SCRIPT=" + script, "PATH=" + os.Getenv("PATH") + ":/usr/sbin:/sbin", "LC_ALL=C.UTF-8", "DEBIAN_FRONTEND=noninteractive"}, packages...)
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v:\n%s", err, out)
	}
	return string(out)
}

// docker is a Docker daemon with separate network, mounts and processes, and a container of the image in it.
const docker = `set -e
mount -t tmpfs none /run; mount -t overlay -o "lowerdir=/etc,upperdir=$D/etc,workdir=$D/work" none /etc
ip link set lo up
dockerd --host unix://$D/sock --data-root $D/data --exec-root $D/exec --pidfile $D/pid --storage-driver vfs --bridge none >$D/log 2>&1 &
docker() { command docker --host unix://$D/sock "$@"; }
for i in $(seq 600); do docker version >/dev/null 2>&1 && break; sleep 0.1; done
docker load -i "$IMAGE"
image=$(docker images --format '{{.Repository}}:{{.Tag}}')
docker run --rm "$image" --version
# What --privileged gives, but for CAP_SYS_RESOURCE, which the machine of a test may not have.
privileges="--cap-drop ALL $(for c in NET_ADMIN NET_RAW NET_BIND_SERVICE SYS_ADMIN SYS_PTRACE SYS_CHROOT SYS_NICE CHOWN DAC_OVERRIDE FOWNER FSETID KILL MKNOD SETUID SETGID SETPCAP SETFCAP AUDIT_WRITE; do echo --cap-add $c; done)
  --security-opt seccomp=unconfined --security-opt systempaths=unconfined --network host --cgroupns host -v /sys/fs/cgroup:/sys/fs/cgroup"
docker run -d --name boxgate $privileges -e BOXGATE_DNS_UPSTREAMS=192.0.2.53 "$image" >/dev/null
for i in $(seq 600); do docker exec boxgate gateway status >/dev/null 2>&1 && break; [ "$(docker inspect -f '{{.State.Running}}' boxgate)" = true ] || break; sleep 0.1; done
docker exec boxgate gateway status || { docker logs boxgate; exit 1; }
docker exec boxgate gateway box list --json
nft list tables
! docker exec boxgate sh -c true 2>/dev/null
docker stop --time 60 boxgate >/dev/null
docker run --rm $privileges --volumes-from boxgate "$image" uninstall --purge --yes
echo "left: $(nft list tables)"
docker rm -v boxgate >/dev/null
kill $!; wait $! || true
`

// checkImage: Docker loads the image, and its gateway serves on the host's network.
func checkImage(t *testing.T, archive string) {
	dir := t.TempDir()
	for _, sub := range []string{"data", "exec", "etc", "work"} {
		if err := os.Mkdir(filepath.Join(dir, sub), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	cmd := exec.Command("unshare", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc", "--net", "bash", "-c", docker)
	const root = "/var/lib/boxgate/docker"
	cmd.Env = []string{"D=" + dir, "IMAGE=" + archive, "HOME=" + dir, "PATH=" + root + "/usr/sbin:" + root + "/usr/bin:" + os.Getenv("PATH")}
	out, err := cmd.CombinedOutput()
	if log, _ := os.ReadFile(filepath.Join(dir, "log")); err != nil {
		t.Fatalf("%v:\n%s\n%s", err, out, bytes.TrimSpace(log[max(0, len(log)-3000):]))
	}
	if said := string(out); strings.Count(said, "table inet boxgate") != 1 || !strings.Contains(said, "gateway v0.0.0-") {
		t.Errorf("it says\n%s", said)
	}
}
