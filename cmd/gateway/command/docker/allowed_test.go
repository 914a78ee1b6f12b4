package docker

import (
	"errors"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"boxgate/internal/nightly"
)

// Command lines of `docker run` that are accepted, and refused ones with a part of the reason.
func TestFlagsOfDockerRun(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for _, line := range []string{
		"", "-it --rm", "-itd", "-e A=B --env C=D --env-file f", "-v " + dir + ":/data:ro", "-v data:/data", "-v /anonymous", "-itv" + dir + ":/data",
		"--mount type=bind,source=" + dir + ",target=/data,readonly", "--mount type=volume,source=data,target=/data", "--mount type=tmpfs,target=/t,tmpfs-size=1m",
		"--network none", "--net=none", "--privileged=false", "--publish-all=false", "--cap-drop ALL --cap-add NET_RAW --cap-add=CAP_SYS_NICE", "--security-opt no-new-privileges",
		"--security-opt no-new-privileges=true", "--security-opt seccomp=profile.json", "--security-opt label=type:container_t", "--device /dev/fuse", "--device=/dev/kvm:/dev/kvm:rwm",
		"--gpus all", "--device nvidia.com/gpu=0", "--ipc=private --pid private --cgroupns private --uts=", "--memory 1g -m 1g --cpus 2 --pids-limit 99 --ulimit nofile=1", "--log-driver json-file --log-opt max-size=1m",
		"--runtime crun", "--sig-proxy=true", "--init --read-only --tmpfs /tmp --user 1000 -w /data --name n --hostname h --add-host a:1.2.3.4 --dns 9.9.9.9", "--restart always", "--sysctl net.core.somaxconn=9",
	} {
		args := append(strings.Fields(line), "image", "--privileged", "-v", "/:/host")
		got, err := Parse(args, nil, nil)
		if err != nil || got.Image != "image" || len(got.Command) != 3 {
			t.Errorf("%s: %+v %v", line, got, err)
		}
	}
	for line, why := range map[string]string{
		"--device /dev/vda": "reach the host", "--device=/dev/mem": "reach the host", "--device /dev/vhost-vsock": "reach the host", "--device vendor.com/disk=all": "reach the host",
		"--device /dev/fuse/../vda": "reach the host", "--security-opt systempaths=unconfined": "protection", "--security-opt=seccomp=unconfined": "protection",
		"--security-opt seccomp:unconfined": "protection", "--security-opt apparmor=unconfined": "protection", "--security-opt label=disable": "protection", "--security-opt label:disable": "protection",
		"--security-opt no-new-privileges=false": "protection", "--security-opt writable-cgroups=true": "protection",
		"-v /proc/sys:/x": "kernel", "-v /sys:/sys": "kernel", "-v /sys/fs/cgroup:/x:ro": "kernel", "-itv /proc:/x": "kernel", "-v/proc:/x": "kernel", "--volume=/proc/sys:/x": "kernel",
		"--mount type=bind,src=/proc,dst=/x": "kernel", "--mount TYPE=bind,SOURCE=/sys,target=/x": "kernel", `--mount type=bind,"source=/sys",target=/x`: "kernel", "-v /dev/vda:/x": "--device",
		"-dv /proc:/x": "kernel", "-itdv=/proc:/x": "kernel", "-v=/proc:/x": "kernel", "-tP": "gateway url", "-Pv /data:/x": "gateway url", "-Pit": "gateway url", "-tdp 80:80": "gateway url", "-dp80:80": "gateway url",
		"-v /data:/x:ro,rslave": "rprivate", "--mount type=bind,src=/data,dst=/x,bind-propagation=rshared": "rprivate", "-itz": "known", "--detach-keys a": "passed on",
		"--mount type=volume,source=a,target=/a,volume-opt=device=/": "bind mount", "--mount type=npipe,source=a,target=/a": "not known", "--volume-driver other": "local",
		"--cap-add ALL": "leave", "--cap-add SYS_PTRACE": "leave", "--cap-add=CAP_SYS_TIME": "leave", "--cap-add cap_bpf": "leave", "--privileged": "leave", "--privileged=true": "leave",
		"--network host": "only network", "--net=bridge": "only network", "--ip 1.2.3.4": "only network", "--link a": "only network", "-p 80:80": "gateway url", "-P": "gateway url", "-itP": "gateway url",
		"--pid host": "private", "--ipc host": "private", "--ipc=container:x": "private", "--uts host": "private", "--userns host": "private", "--cgroupns host": "private",
		"--log-driver gelf": "past the gateway", "--log-driver=syslog": "past the gateway", "--log-opt gelf-address=udp://1.2.3.4": "max-size",
		"--runtime runsc": "runc", "--use-api-socket": "root", "--device-cgroup-rule a": "devices", "--cgroup-parent /": "known", "--annotation a=b": "known", "--new-flag-of-docker x": "known", "--isolation=x": "known",
	} {
		if got, err := Parse(append(strings.Fields(line), "image"), nil, nil); err == nil || !strings.Contains(err.Error(), why) || !strings.Contains(err.Error(), "cannot be used here") {
			t.Errorf("%s: %+v %v", line, got, err)
		}
	}
}

// Groups of short flags are parsed as Docker parses them, and Docker receives exactly the flags that were checked.
func TestGroupsOfShortFlags(t *testing.T) {
	t.Parallel()
	for line, want := range map[string]string{
		"-dv data:/x":                     "--volume=data:/x",
		"-itv data:/x --rm":               "--interactive=true --tty=true --volume=data:/x --rm=true",
		"-itvdata:/x":                     "--interactive=true --tty=true --volume=data:/x",
		"-it=false":                       "--interactive=true --tty=false",
		"-de K=V":                         "--env=K=V",
		"-e=K=V -eA=B":                    "--env=K=V --env=A=B",
		"-e -d":                           "--env=-d",
		"-h name -w=/data -c 2":           "--hostname=name --workdir=/data --cpu-shares=2",
		"-d=0 --tty=T --privileged=f":     "--tty=true",
		"--disable-content-trust=false":   "--disable-content-trust=false",
		"--name n -itqu 1 --policy x -l=": "--name=n --interactive=true --tty=true --quiet=true --user=1 --label==",
		"--json -v=v -d --policy=":        "--volume=v",
	} {
		l, err := Parse(append(strings.Fields(line), "image", "-v", "/proc:/x"), []string{"--policy"}, []string{"--json"})
		if got := strings.Join(l.Flags, " "); err != nil || got != want || l.Image != "image" || len(l.Command) != 2 {
			t.Errorf("%s: %q, not %q; %v", line, got, want, err)
		}
		if detached := strings.HasPrefix(line, "-d") && !strings.HasPrefix(line, "-d=0") || strings.Contains(line, " -d ") && !strings.HasPrefix(line, "-e"); l.Detach != detached {
			t.Errorf("%s: detached: %v", line, l.Detach)
		}
	}
	for line, why := range map[string]string{"-dv": "needs an argument", "-v": "needs an argument", "--volume": "needs an argument", "--help": "--help", "--rm=perhaps image": "true or false", "---x image": "bad flag"} {
		if l, err := Parse(strings.Fields(line), nil, nil); err == nil || !strings.Contains(err.Error(), why) {
			t.Errorf("%s: %+v %v", line, l, err)
		}
	}
}

// A kernel file system is detected wherever it is mounted, also below a mounted directory, and links are followed.
func TestAttackKernelByAnotherPath(t *testing.T) {
	t.Parallel()
	nightly.Root(t)
	dir := t.TempDir()
	link := filepath.Join(dir, "link")
	if err := os.Symlink("/proc/sys", link); err != nil {
		t.Fatal(err)
	}
	at := filepath.Join(dir, "a", "deep", "at")
	beside := filepath.Join(dir, "a", "deeper")
	if err := errors.Join(os.MkdirAll(at, 0o755), os.Mkdir(beside, 0o755)); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount("proc", at, "proc", 0, ""); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Unmount(at, unix.MNT_DETACH) })
	for _, source := range []string{link, at, filepath.Join(at, "sys"), filepath.Dir(at), filepath.Join(dir, "a"), dir} {
		for _, flags := range [][]string{{"-v", source + ":/x"}, {"-itv", source + ":/x"}, {"--mount", "type=bind,source=" + source + ",target=/x,readonly"}} {
			if _, err := Parse(append(flags, "image"), nil, nil); err == nil {
				t.Errorf("%s may be a volume", source)
			}
		}
		c := container{Mounts: []containerMount{{Type: "volume", Source: source}}}
		v := volume{Driver: "local", Options: map[string]string{"type": "none", "device": source, "o": "bind"}}
		if c.refuse() == nil || v.refuse() == nil {
			t.Errorf("%s may be the source of a volume of Docker's", source)
		}
	}
	if _, err := Parse([]string{"-v", beside + ":/x", "image"}, nil, nil); err != nil {
		t.Errorf("a directory beside it: %v", err)
	}
}

// A directory with the host's /run mounted below it exposes the sockets in /run.
func TestAttackSocketsByAMountBelow(t *testing.T) {
	t.Parallel()
	nightly.Root(t)
	dir := t.TempDir()
	run, at, beside := filepath.Join(dir, "run"), filepath.Join(dir, "v", "below"), filepath.Join(dir, "v", "beside")
	if err := errors.Join(os.Mkdir(run, 0o755), os.MkdirAll(at, 0o755), os.Mkdir(beside, 0o755)); err != nil {
		t.Fatal(err)
	}
	socket := filepath.Join(run, "admin.sock")
	ln, err := net.Listen("unix", socket)
	if err == nil {
		defer ln.Close()
		err = unix.Mount(run, at, "", unix.MS_BIND, "")
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Unmount(at, unix.MNT_DETACH) })
	for source, held := range map[string]bool{filepath.Dir(at): false, at: false, beside: true} {
		c := container{Mounts: []containerMount{{Type: "bind", Source: source}}}
		if err := c.refuse(socket); (err == nil) != held {
			t.Errorf("%s: %v", source, err)
		}
	}
}

// Every flag of this machine's Docker is known, either as allowed or as refused with a reason.
func TestEveryFlagOfDockerIsKnown(t *testing.T) {
	t.Parallel()
	out, err := exec.Command("docker", "run", "--help").Output()
	if err != nil {
		t.Skip("there is no command docker on this machine")
	}
	unknown := map[string]bool{"--help": true, "--annotation": true, "--cgroup-parent": true, "--io-maxbandwidth": true, "--io-maxiops": true, "--isolation": true}
	for _, m := range regexp.MustCompile(`(?m)^ +(?:-(.), )?(--[a-z0-9-]+)( [a-z][a-zA-Z0-9-]*)?  `).FindAllStringSubmatch(string(out), -1) {
		name := m[2]
		if known := freeFlags[name] || checkedFlags[name] != nil || refusedFlags[name] != ""; known && (shortOf[name] != m[1] || switches[name] != (m[3] == "")) {
			t.Errorf("%s: Docker takes it apart in another way: %q", name, m[0])
		}
		if !freeFlags[name] && checkedFlags[name] == nil && refusedFlags[name] == "" && !unknown[name] {
			t.Errorf("%s is new: may a container have it?", name)
		}
	}
}
