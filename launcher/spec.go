package launcher

import (
	"errors"
	"fmt"
	"io"
	"maps"
	"net/netip"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"boxgate/internal/lazyregexp"
	"boxgate/launcher/boxfs"
	"boxgate/launcher/container"
	"boxgate/launcher/namespace"
	"boxgate/launcher/rootfs"
	"boxgate/launcher/terminal"
	"boxgate/policy"
)

// Size names a box's share of the host.
type Size string

// The sizes. An empty Size is SizeSmall.
const (
	SizeSmall  Size = "small"  // 2 CPUs, 4 GB
	SizeMedium Size = "medium" // 4 CPUs, 8 GB
	SizeLarge  Size = "large"  // 8 CPUs, 16 GB
)

// limits returns the kernel limits of a size.
func (s Size) limits() (container.Limits, error) {
	const gib = 1 << 30
	switch s {
	case SizeSmall, "":
		return container.Limits{CPUs: 2, Memory: 4 * gib, Pids: 2048}, nil
	case SizeMedium:
		return container.Limits{CPUs: 4, Memory: 8 * gib, Pids: 4096}, nil
	case SizeLarge:
		return container.Limits{CPUs: 8, Memory: 16 * gib, Pids: 8192}, nil
	default:
		return container.Limits{}, fmt.Errorf("box size %q is unknown: use small, medium or large", string(s))
	}
}

// Spec describes a box to be created.
type Spec struct {
	ID       policy.BoxID
	Image    string            // a name of Config.Images or an image itself; empty: the entry "default"
	Layers   []string          // layers of a snapshot, the lowest first, see [Launcher.Capture]; they have their own image
	Size     Size              // empty: small
	Env      map[string]string // set for every command; wins over the launcher's own variables
	Account  Account           // the box's ordinary user; the zero value is boxuser in /workspace/home
	Hostname string            // empty: the ID
	CA       []byte            // PEM certificates of the gateway, trusted in addition to public roots, also for SSH; may be empty
	Roots    []byte            // PEM certificates trusted by the box like public roots; may be empty
	Git      GitIdentity       // written to git's system configuration
	DNS      []netip.Addr      // written to /etc/resolv.conf; empty: the box has no resolver
	Agents   []byte            // introduction for agents, written to /etc/boxgate/AGENTS.md; may be empty
	Files    []HomeFile        // of the box's user, written once when the box is made
}

// Account is the name and the home directory of a box's ordinary user.
type Account = rootfs.Account

// HomeFile is a file of the box's user.
type HomeFile = rootfs.HomeFile

// GitIdentity is the author of commits in a box. With the zero value, git uses its own defaults.
type GitIdentity struct{ Name, Email string }

// ExecSpec describes one command in a box.
type ExecSpec struct {
	Args []string          // program and arguments; the program is looked up in the box's PATH
	Env  map[string]string // added to the box's environment, and wins
	Cwd  string            // relative to the home directory; empty: the home directory
	// User is the box's ordinary user if empty, or "boxuser", or the user's name; else "root", "UID" or "UID:GID" inside the box.
	User string

	// The streams may be nil: standard input is then empty, output discarded. If a Stdin is still being read when the
	// command ends, the data of that pending Read is lost.
	Stdin          io.Reader
	Stdout, Stderr io.Writer

	// Terminal, if not nil, gives the command a terminal of that size instead of the three streams. Its output goes to
	// Stdout.
	Terminal *TerminalSize

	// Bound ends the command and all its descendants when this process restarts, since no client could reach it any longer.
	// Background processes of a command that ended before that are not affected.
	Bound bool

	// Starter is the API key that starts the command and shares its start slots fairly with other keys; "": the box itself
	// is the starter. Commands of the operator need no slot. See [startSlots].
	Starter  string
	Operator bool
}

// TerminalSize is the size of a terminal in characters.
type TerminalSize = terminal.Size

// State is the state of a box.
type State string

// The states of a box.
const (
	StateCreating State = "creating" // its network namespace exists, no process yet
	StateIdle     State = "idle"     // it runs, without a command of this launcher
	StateRunning  State = "running"  // it runs a command
	StatePaused   State = "paused"
	StateError    State = "error"   // its first process is gone, for example killed for memory
	StateStopped  State = "stopped" // it has no kernel state: the host was restarted
)

// Status describes one box.
type Status struct {
	ID    policy.BoxID
	State State
	Image string
	Size  Size
	NetNS string // path of the pinned network namespace
	Pid   int    // host process ID of its first process; 0 if it has ended
	Root  bool   // set-user-ID programs may become its root
}

var (
	validID       = lazyregexp.New(`^[A-Za-z0-9][A-Za-z0-9_-]{0,62}$`)
	validHostname = lazyregexp.New(`^[A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?$`)
)

// checkID refuses IDs that are unsafe as a file name or control group name.
func checkID(id policy.BoxID) error {
	if !validID.MatchString(string(id)) {
		return fmt.Errorf("box ID %q cannot be used: letters, digits, '-' and '_' only, 63 at most", string(id))
	}
	return nil
}

// check returns the first error in a Spec.
func (s Spec) check() error {
	if err := checkID(s.ID); err != nil {
		return err
	}
	if _, err := s.Size.limits(); err != nil {
		return err
	}
	if err := s.Account.Check(); err != nil {
		return err
	}
	if s.Hostname != "" && !validHostname.MatchString(s.Hostname) {
		return fmt.Errorf("hostname %q is not one DNS label", s.Hostname)
	}
	for _, a := range s.DNS {
		if !a.IsValid() || a.Zone() != "" {
			return fmt.Errorf("resolver address %q cannot be written to resolv.conf", a)
		}
	}
	return checkEnv(s.Env)
}

func (s Spec) hostname() string {
	if s.Hostname != "" {
		return s.Hostname
	}
	return strings.Trim(strings.ReplaceAll(string(s.ID), "_", "-"), "-")
}

// checkEnv refuses variables that execve would misread.
func checkEnv(env map[string]string) error {
	for k, v := range env {
		if k == "" || strings.ContainsAny(k, "=\x00") {
			return fmt.Errorf("environment variable name %q is empty or contains '=' or NUL", k)
		}
		if strings.ContainsRune(v, 0) {
			return fmt.Errorf("environment variable %s contains NUL", k)
		}
	}
	return nil
}

// PublicRoots returns the public root certificates of this host in PEM, for boxes whose image lacks them.
func PublicRoots() ([]byte, error) { return rootfs.PublicRoots() }

// TrustVariables returns the environment variables that point programs to their trusted certificates.
func TrustVariables() []string { return slices.Clone(rootfs.TrustVariables) }

// KnownHosts returns the lines of ssh_known_hosts with which a box recognizes its gateway as an SSH server. ca is in PEM.
func KnownHosts(ca []byte) ([]byte, error) { return rootfs.KnownHosts(ca) }

const defaultPath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

// environment returns the environment of a command: the variables of the image, the launcher, the box and the command;
// later ones win.
func environment(base []string, user execUser, box, command map[string]string) []string {
	env := environmentOf(base)
	env["HOME"] = user.home
	env["USER"] = user.name
	env["LOGNAME"] = user.name
	if env["LANG"] == "" {
		env["LANG"] = "C.UTF-8"
	}
	for _, k := range rootfs.TrustVariables {
		env[k] = rootfs.BundlePath
	}
	maps.Copy(env, box)
	maps.Copy(env, command)
	list := make([]string, 0, len(env))
	for _, k := range slices.Sorted(maps.Keys(env)) {
		list = append(list, k+"="+env[k])
	}
	return list
}

// environmentOf returns the variables of an image.
func environmentOf(base []string) map[string]string {
	env := map[string]string{"PATH": defaultPath}
	for _, kv := range base {
		if k, v, ok := strings.Cut(kv, "="); ok && k != "" {
			env[k] = v
		}
	}
	return env
}

// pathOfRoot returns root's PATH: that of the image without the directories where the box's user could put a program that the
// image lacks, and without missing ones. root is that of the running box.
func pathOfRoot(base []string, root *os.File, user int) string {
	dirs := slices.DeleteFunc(filepath.SplitList(environmentOf(base)["PATH"]), func(dir string) bool {
		return !path.IsAbs(dir) || !boxfs.IsFixed(root, dir, user)
	})
	if len(dirs) == 0 {
		return defaultPath // an empty one would be the working directory
	}
	return strings.Join(dirs, ":")
}

// InstallCA makes programs in a root file system trust a CA and further roots, given in PEM, in addition to the public
// roots: in the stores of its distribution and in Java's. owner is the user ID, on the host, of root in there. Links are
// resolved within the root; file systems mounted in it are part of it.
func InstallCA(root string, owner int, ca, extra []byte) error {
	r, err := rootfs.Open(root, namespace.IDsFrom(owner))
	if err != nil {
		return err
	}
	return errors.Join(r.Trust(ca, extra), r.Close())
}

// TrustsCA reports whether [InstallCA] has been called for a root file system with this CA.
func TrustsCA(root string, owner int, ca []byte) (bool, error) {
	r, err := rootfs.Open(root, namespace.IDsFrom(owner))
	if err != nil {
		return false, err
	}
	trusts, err := r.Trusts(ca)
	return trusts, errors.Join(err, r.Close())
}

// PutFile puts an empty file into a root file system as [InstallCA] does. It replaces an existing file without opening it;
// a directory that is not empty is an error.
func PutFile(root string, owner int, name string) error {
	r, err := rootfs.Open(root, namespace.IDsFrom(owner))
	if err != nil {
		return err
	}
	return errors.Join(r.Replace(name, nil, 0o644), r.Close())
}

// BundlePath is where [InstallCA] writes the public roots and the CA.
const BundlePath = rootfs.BundlePath
