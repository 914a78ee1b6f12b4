package docker

import (
	"encoding/json"
	"net"
	"os"
	"path/filepath"
	"testing"
)

// Containers that could leave the gateway, as `docker inspect` describes them.
func TestRefusedContainers(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	socket, volume := filepath.Join(dir, "run", "admin.sock"), filepath.Join(dir, "volume")
	for _, sub := range []string{filepath.Dir(socket), volume} {
		if err := os.Mkdir(sub, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	ln, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	link, hard := filepath.Join(dir, "link"), filepath.Join(volume, "other")
	if err := os.Symlink("run", link); err != nil {
		t.Fatal(err)
	}
	if err := os.Link(socket, hard); err != nil {
		t.Fatal(err)
	}
	mount := func(source string) string { return `{"Mounts":[{"Source":"` + source + `"}]}` }
	for text, held := range map[string]bool{
		`{}`:                                                   true,
		`{"HostConfig":{"PidMode":"private"}}`:                 true,
		`{"HostConfig":{"CapAdd":["NET_RAW"]}}`:                true,
		mount(volume):                                          true,
		mount("/run/some-service"):                             true,
		`{"HostConfig":{"Privileged":true}}`:                   false,
		`{"HostConfig":{"PidMode":"host"}}`:                    false,
		`{"HostConfig":{"PidMode":"container:other"}}`:         false,
		`{"HostConfig":{"Runtime":"crun"}}`:                    true,
		`{"HostConfig":{"Runtime":"io.containerd.runc.v2"}}`:   true,
		`{"HostConfig":{"Runtime":"runsc"}}`:                   false,
		`{"HostConfig":{"Runtime":"/usr/local/bin/runsc"}}`:    false,
		`{"HostConfig":{"CapAdd":["NET_ADMIN"]}}`:              false,
		`{"HostConfig":{"CapAdd":["CAP_DAC_READ_SEARCH"]}}`:    false,
		`{"HostConfig":{"DeviceCgroupRules":["b 8:* rwm"]}}`:   false,
		`{"HostConfig":{"CapAdd":["CAP_SYS_TIME"]}}`:           false,
		`{"HostConfig":{"CapAdd":["PERFMON"]}}`:                false,
		`{"HostConfig":{"CapAdd":["NET_RAW","CAP_SYS_NICE"]}}`: true,
		`{"HostConfig":{"IpcMode":"private","UTSMode":"","MaskedPaths":["/proc/kcore"],"SecurityOpt":["no-new-privileges","seccomp={}"]}}`: true,
		`{"HostConfig":{"IpcMode":"host"}}`:                                                                 false,
		`{"HostConfig":{"IpcMode":"container:x"}}`:                                                          false,
		`{"HostConfig":{"UTSMode":"host"}}`:                                                                 false,
		`{"HostConfig":{"UsernsMode":"host"}}`:                                                              false,
		`{"HostConfig":{"MaskedPaths":[]}}`:                                                                 false,
		`{"HostConfig":{"SecurityOpt":["seccomp=unconfined"]}}`:                                             false,
		`{"HostConfig":{"SecurityOpt":["seccomp={\"defaultAction\":\"SCMP_ACT_ALLOW\"}"]}}`:                 false,
		`{"HostConfig":{"SecurityOpt":["seccomp= {\"defaultAction\":\"SCMP_ACT_LOG\"}"]}}`:                  false,
		`{"HostConfig":{"SecurityOpt":["seccomp={\"defaultAction\":\"SCMP_ACT_ERRNO\",\"syscalls\":[]}"]}}`: true,
		`{"HostConfig":{"SecurityOpt":["seccomp=builtin"]}}`:                                                true,
		`{"HostConfig":{"SecurityOpt":["label=disable"]}}`:                                                  false,
		`{"HostConfig":{"Devices":[{"PathOnHost":"/dev/fuse"}]}}`:                                           true,
		`{"HostConfig":{"Devices":[{"PathOnHost":"/dev/vda"}]}}`:                                            false,
		`{"HostConfig":{"Devices":[{"PathOnHost":"/dev/vhost-vsock"}]}}`:                                    false,
		`{"HostConfig":{"DeviceRequests":[{"Driver":"nvidia","DeviceIDs":["0"]}]}}`:                         true,
		`{"HostConfig":{"DeviceRequests":[{"Driver":"cdi","DeviceIDs":["vendor.com/disk=all"]}]}}`:          false,
		`{"Mounts":[{"Type":"bind","Source":"/proc/sys"}]}`:                                                 false,
		`{"Mounts":[{"Type":"bind","Source":"/sys"}]}`:                                                      false,
		`{"Mounts":[{"Type":"bind","Source":"/dev/null"}]}`:                                                 false,
		mount("/"):                       false,
		mount("/run"):                    false,
		mount("/var/run"):                false,
		mount("/var/run/"):               false,
		mount("/run/containerd"):         false,
		mount("/run/podman/podman.sock"): false,
		mount("/somewhere/docker.sock"):  false,
		mount(socket):                    false,
		mount(filepath.Dir(socket)):      false,
		mount(dir):                       false,
		mount(link):                      false,
		mount(hard):                      false,
	} {
		var c container
		if err := json.Unmarshal([]byte(text), &c); err != nil {
			t.Fatal(err)
		}
		if err := c.refuse(socket); (err == nil) != held {
			t.Errorf("%s: %v", text, err)
		}
	}
}

// TestVolumesThatAreHeld: the check considers a volume's device and options, not its name.
func TestVolumesThatAreHeld(t *testing.T) {
	t.Parallel()
	for text, held := range map[string]bool{
		`{"Driver":"local"}`: true,
		`{"Driver":"local","Options":{"type":"tmpfs","device":"tmpfs","o":"size=10m"}}`:            true,
		`{"Driver":"local","Options":{"type":"none","device":"/var/empty-of-boxgate","o":"bind"}}`: true,
		`{"Driver":"local","Options":{"type":"none","device":"/","o":"ro,bind"}}`:                  false,
		`{"Driver":"local","Options":{"type":"none","device":"/var/run","o":"rbind"}}`:             false,
		`{"Driver":"local","Options":{"type":"none","device":"/proc/sys","o":"bind"}}`:             false,
		`{"Driver":"local","Options":{"type":"nfs","device":":/export","o":"addr=203.0.113.1"}}`:   false,
		`{"Driver":"local","Options":{"type":"ext4","device":"/dev/vda"}}`:                         false,
		`{"Driver":"local","Options":{"type":"tmpfs","device":"/var/run","o":"bind"}}`:             false, // a bind mount for mount(2)
		`{"Driver":"local","Options":{"type":"tmpfs","device":"/proc","o":"ro,rbind"}}`:            false,
		`{"Driver":"local","Options":{"type":"none","device":"run","o":"bind"}}`:                   false, // relative to the daemon's own directory
		`{"Driver":"local","Options":{"type":"none","device":"/var/link/../empty","o":"bind"}}`:    false,
		`{"Driver":"vieux/sshfs"}`: false,
	} {
		var v volume
		if err := json.Unmarshal([]byte(text), &v); err != nil {
			t.Fatal(err)
		}
		if err := v.refuse(); (err == nil) != held {
			t.Errorf("%s: %v", text, err)
		}
	}
}

// TestAttackSourceThatTheContainerExchanges: a container can replace entries of a directory it may write to, for example
// by a link, and Docker follows that link when it restarts the container.
func TestAttackSourceThatTheContainerExchanges(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	work, other := filepath.Join(dir, "work"), filepath.Join(dir, "other")
	for _, d := range []string{filepath.Join(work, "cache", "deep"), other} {
		if err := os.MkdirAll(d, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	for name, to := range map[string]string{filepath.Join(work, "link"): other, filepath.Join(dir, "first"): filepath.Join("work", "second"), filepath.Join(work, "second"): "../other", filepath.Join(dir, "circle"): "circle", filepath.Join(dir, "alias"): "work"} {
		if err := os.Symlink(to, name); err != nil {
			t.Fatal(err)
		}
	}
	for _, tt := range []struct {
		writable bool
		source   string
		held     bool
	}{
		{true, "work/cache", false}, {true, "work/cache/deep", false}, {true, "work/none", false}, {true, "work/link", false}, {true, "first", false}, {true, "alias/cache", false},
		{true, "work", true}, {true, "other", true}, {true, "alias", true}, {true, "workshop", true}, {false, "work/cache", true}, {false, "first", true}, {true, "circle", false},
	} {
		for _, kind := range []string{"bind", "volume"} {
			c := container{Mounts: []containerMount{{Type: kind, Source: work, RW: tt.writable}, {Type: "bind", Source: filepath.Join(dir, tt.source)}}}
			if err := c.refuse(); (err == nil) != tt.held {
				t.Errorf("%s beside a %s (writable: %v): %v", tt.source, kind, tt.writable, err)
			}
		}
	}
}
