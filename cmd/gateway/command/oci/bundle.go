package oci

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"boxgate/launcher"
)

// maxConfig bounds the config.json of a bundle: engines write some 50 KB, with hundreds of mounts.
const maxConfig = 4 << 20

// bundle is the configuration of a container, as its engine has written it, and then with the gateway's changes. The engine's own
// file is never changed.
type bundle struct {
	dir  string // absolute
	spec specs.Spec
}

// readBundle reads the config.json of a directory strictly: the runtime gets exactly the fields that were checked, and a field of a later
// version of the specification, which could be a way out, is refused.
func readBundle(dir string) (*bundle, error) {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return nil, err
	}
	fd, err := unix.Open(filepath.Join(dir, "config.json"), unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("the bundle's config.json: %w", err)
	}
	f := os.NewFile(uintptr(fd), "config.json")
	defer f.Close()
	if info, err := f.Stat(); err != nil || !info.Mode().IsRegular() {
		return nil, errors.New("the bundle's config.json is not a file")
	}
	data, err := io.ReadAll(io.LimitReader(f, maxConfig+1))
	if err != nil {
		return nil, fmt.Errorf("the bundle's config.json: %w", err)
	}
	spec, err := parseSpec(data)
	return &bundle{dir: dir, spec: spec}, err
}

// parseSpec parses a config.json. It accepts only containers of Linux with a process, a root file system and namespaces.
func parseSpec(data []byte) (specs.Spec, error) {
	var spec specs.Spec
	if len(data) > maxConfig {
		return spec, fmt.Errorf("the bundle's config.json is larger than %d bytes", maxConfig)
	}
	dec := json.NewDecoder(bytes.NewReader(data))
	dec.DisallowUnknownFields()
	if err := dec.Decode(&spec); err != nil {
		return spec, fmt.Errorf("the bundle's config.json: %w", err)
	}
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		return spec, errors.New("the bundle's config.json: unexpected data after the JSON value")
	}
	if spec.Linux == nil || spec.Process == nil || spec.Root == nil || spec.Root.Path == "" {
		return spec, errors.New("the bundle's config.json has no process, root or linux")
	}
	return spec, nil
}

// absolute makes the paths absolute that are relative to the bundle, which moves.
func (b *bundle) absolute() {
	in := func(path string) string {
		if path == "" || filepath.IsAbs(path) {
			return path
		}
		return filepath.Join(b.dir, path)
	}
	b.spec.Root.Path = in(b.spec.Root.Path)
	for i, m := range b.spec.Mounts {
		if isBind(m) {
			b.spec.Mounts[i].Source = in(m.Source)
		}
	}
}

// isBind reports whether a mount shows files of the host.
func isBind(m specs.Mount) bool {
	return m.Type == "bind" || m.Type == "rbind" || slices.Contains(m.Options, "bind") || slices.Contains(m.Options, "rbind")
}

// joins makes the container join the network namespace at a path.
func (b *bundle) joins(path string) {
	for i, ns := range b.spec.Linux.Namespaces {
		if ns.Type == specs.NetworkNamespace {
			b.spec.Linux.Namespaces[i].Path = path
		}
	}
}

// network returns the path of the network namespace that the engine has made; "" means that the runtime is to make one.
func (b *bundle) network() string {
	for _, ns := range b.spec.Linux.Namespaces {
		if ns.Type == specs.NetworkNamespace {
			return ns.Path
		}
	}
	return ""
}

// mountOver shows a file of the host in the container, instead of the engine's.
func (b *bundle) mountOver(destination, source string) {
	b.spec.Mounts = slices.DeleteFunc(b.spec.Mounts, func(m specs.Mount) bool { return filepath.Clean(m.Destination) == destination })
	b.spec.Mounts = append(b.spec.Mounts, specs.Mount{Destination: destination, Type: "bind", Source: source, Options: []string{"rbind", "rprivate", "ro", "nosuid", "nodev", "noexec"}})
}

// trust sets the variables that name a bundle of certificates, unless the container sets them itself.
func (b *bundle) trust(path string) {
	for _, name := range launcher.TrustVariables() {
		if !slices.ContainsFunc(b.spec.Process.Env, func(e string) bool { return strings.HasPrefix(e, name+"=") }) {
			b.spec.Process.Env = append(b.spec.Process.Env, name+"="+path)
		}
	}
}

// maxResolvConf bounds the resolv.conf of an engine.
const maxResolvConf = 64 << 10

// resolvConf returns the settings of the engine's resolv.conf, without its servers, and its search list. A file that cannot be read
// has neither.
func (b *bundle) resolvConf() (settings, search []string) {
	at := slices.IndexFunc(b.spec.Mounts, func(m specs.Mount) bool { return filepath.Clean(m.Destination) == "/etc/resolv.conf" && isBind(m) })
	if at < 0 {
		return nil, nil
	}
	fd, err := unix.Open(b.spec.Mounts[at].Source, unix.O_RDONLY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, nil
	}
	f := os.NewFile(uintptr(fd), "resolv.conf")
	defer f.Close()
	if info, err := f.Stat(); err != nil || !info.Mode().IsRegular() {
		return nil, nil
	}
	data, _ := io.ReadAll(io.LimitReader(f, maxResolvConf))
	for line := range strings.Lines(string(data)) {
		switch f := strings.Fields(line); {
		case len(f) > 1 && f[0] == "options":
			settings = append(settings, strings.Join(f, " "))
		case len(f) > 1 && (f[0] == "search" || f[0] == "domain"):
			search = f[1:min(len(f), 33)]
		}
	}
	return settings, search
}

// write writes the configuration as the bundle of a directory.
func (b *bundle) write(dir string) error {
	data, err := json.Marshal(b.spec)
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, "config.json"), data, 0o600)
}
