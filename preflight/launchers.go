package preflight

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// launcher is a part of a host that sandboxes of others come from.
type launcher struct {
	what  string   // name of the finding
	paths []string // of files; it is on the host if one of them exists
	page  string   // documents how to attach its sandboxes
	// device is opened for reading and writing: a file that exists may still be unusable, as without nested virtualization.
	device bool
}

var launchers = []launcher{
	{what: "Docker", paths: []string{"/run/docker.sock", "/var/run/docker.sock"}, page: "docs/attach/docker.md"},
	{what: "containerd", paths: []string{"/run/containerd/containerd.sock"}, page: "docs/attach/containerd.md"},
	{what: "Podman", paths: []string{"/usr/bin/podman", "/usr/local/bin/podman"}, page: "docs/attach/podman.md"},
	{what: "CNI", paths: []string{"/etc/cni/net.d"}, page: "docs/attach.md"},
	{what: "KVM", paths: []string{"/dev/kvm"}, page: "docs/attach.md", device: true},
	{what: "vhost-net", paths: []string{"/dev/vhost-net"}, page: "docs/attach.md", device: true},
}

// Launchers returns findings about programs and devices of the host, below root, whose sandboxes can be attached. Absent ones have no
// finding.
func Launchers(root string) (found []Finding) {
	for _, l := range launchers {
		for _, path := range l.paths {
			at := filepath.Join(root, path)
			_, err := os.Stat(at)
			if errors.Is(err, os.ErrNotExist) || errors.Is(err, unix.ENOTDIR) {
				continue
			}
			if err == nil && l.device {
				err = usable(at)
			}
			if err != nil {
				err = Warnf("%s cannot be used: %w (%s)", path, err, l.page)
			}
			found = append(found, Finding{fmt.Sprintf("%s (%s)", l.what, path), err})
			break
		}
	}
	return found
}

// usable opens a device, without another effect.
func usable(path string) error {
	fd, err := unix.Open(path, unix.O_RDWR|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err != nil {
		return err
	}
	return unix.Close(fd)
}
