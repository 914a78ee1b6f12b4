package docker

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// tooMuch are capabilities by which a container leaves its network.
var tooMuch = []string{"ALL", "NET_ADMIN", "SYS_ADMIN", "SYS_MODULE", "SYS_RAWIO", "SYS_PTRACE", "BPF", "DAC_READ_SEARCH"}

// refuse says why the gateway, whose own sockets are given, could not hold a container.
func (c container) refuse(sockets ...string) error {
	switch {
	case c.HostConfig.Privileged:
		return errors.New("a privileged container can leave the gateway: start it without --privileged")
	case c.HostConfig.PidMode != "" && c.HostConfig.PidMode != "private":
		return fmt.Errorf("a container that sees the processes of others can leave the gateway: start it without --pid %s", c.HostConfig.PidMode)
	case len(c.HostConfig.DeviceCgroupRules) > 0:
		return errors.New("a container that makes devices can leave the gateway: start it without --device-cgroup-rule")
	case c.HostConfig.Runtime == "runsc":
		return errors.New("gVisor needs its network before it starts: see docs/attach.md")
	}
	for _, capability := range c.HostConfig.CapAdd {
		if slices.Contains(tooMuch, strings.TrimPrefix(strings.ToUpper(capability), "CAP_")) {
			return fmt.Errorf("a container with %s can leave the gateway: start it without --cap-add %s", capability, capability)
		}
	}
	for _, m := range c.Mounts {
		if socket := leadsTo(m.Source, append(commanding(), sockets...)); socket != "" {
			return fmt.Errorf("a container that reaches %s can leave the gateway: start it without the volume %s", socket, m.Source)
		}
	}
	return nil
}

// commanding are the sockets of those who start containers and services on this host, there or not.
func commanding() []string {
	all := []string{
		"/run/docker.sock", "/var/run/docker.sock", "/run/containerd/containerd.sock", "/run/docker/containerd/containerd.sock",
		"/run/podman/podman.sock", "/run/crio/crio.sock", "/run/dbus/system_bus_socket", "/run/systemd/private",
	}
	for _, pattern := range []string{"/run/user/*/docker.sock", "/run/user/*/podman/podman.sock", "/run/user/*/containerd/containerd.sock"} {
		users, _ := filepath.Glob(pattern)
		all = append(all, users...)
	}
	if path, ok := strings.CutPrefix(os.Getenv("DOCKER_HOST"), "unix://"); ok {
		all = append(all, path)
	}
	return all
}

// leadsTo returns the socket that a mounted file is, under whatever name, or that a mounted directory is above; "" if there is none.
func leadsTo(source string, sockets []string) string {
	if source == "" {
		return ""
	}
	if filepath.Base(source) == "docker.sock" {
		return source
	}
	source = resolved(source)
	mounted, _ := os.Stat(source)
	for _, socket := range sockets {
		if socket == "" {
			continue
		}
		for at := resolved(socket); ; at = filepath.Dir(at) {
			there, err := os.Stat(at)
			if at == source || err == nil && mounted != nil && os.SameFile(there, mounted) {
				return socket
			}
			if at == filepath.Dir(at) {
				break
			}
		}
	}
	return ""
}

// resolved is a path without links, as far as it exists.
func resolved(path string) string {
	path = filepath.Clean(path)
	if to, err := filepath.EvalSymlinks(path); err == nil {
		return to
	}
	if dir := filepath.Dir(path); dir != path {
		return filepath.Join(resolved(dir), filepath.Base(path))
	}
	return path
}
