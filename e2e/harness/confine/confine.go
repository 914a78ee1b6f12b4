// Package confine confines a process like a systemd unit, on machines without systemd too. It does what systemd does
// before it starts the program (systemd.exec(5)): it sets the capability bounding set, no_new_privs, and seccomp
// filters for system calls and address families.
package confine

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"

	seccomp "github.com/elastic/go-seccomp-bpf"
	"github.com/elastic/go-seccomp-bpf/arch"
	"golang.org/x/sys/unix"
)

// Unit is the confinement of a systemd unit.
type Unit struct {
	Capabilities []string // bounding set
	Denied       []string // denied system calls, with groups resolved
	Families     []string // address families of sockets that may be opened
	NoNewPrivs   bool
}

// unhandled are settings that the harness ignores, with the reason why tests do not need them.
var unhandled = map[string]string{
	"SystemCallErrorNumber": "the filter always answers EPERM", "RestrictRealtime": "no program of a test uses it", "KeyringMode": "the session keyring is not used",
}

// confines are the prefixes of settings that restrict the service. The harness must implement each of them.
var confines = []string{"Protect", "Private", "Restrict", "SystemCall", "Capabilit", "Ambient", "NoNew", "LockPers", "MemoryDeny", "KeyringMode", "ReadOnly", "ReadWrite",
	"Inaccessible", "TemporaryFile", "ProcSubset", "DeviceAllow", "DevicePolicy", "IPAddress", "MountFlags", "Root", "User", "Group", "DynamicUser", "Bind", "SecureBits"}

// ReadUnit reads the confinement of a unit. It returns an error for a restricting setting that is not implemented,
// because tests would otherwise run under fewer restrictions than systemd imposes.
func ReadUnit(path string) (u Unit, err error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return u, err
	}
	for line := range strings.Lines(string(text)) {
		key, value, ok := strings.Cut(strings.TrimSpace(line), "=")
		if !ok || strings.HasPrefix(key, "#") || !slices.ContainsFunc(confines, func(p string) bool { return strings.HasPrefix(key, p) }) {
			continue
		}
		if err := u.set(key, value); err != nil {
			return u, fmt.Errorf("%s: %w", path, err)
		}
	}
	return u, nil
}

func (u *Unit) set(key, value string) error {
	switch key {
	case "CapabilityBoundingSet":
		u.Capabilities = append(u.Capabilities, strings.Fields(value)...)
	case "RestrictAddressFamilies":
		u.Families = append(u.Families, strings.Fields(value)...)
	case "NoNewPrivileges":
		u.NoNewPrivs = value == "yes"
	case "SystemCallFilter":
		list, denied := strings.CutPrefix(value, "~")
		if !denied {
			return errors.New("SystemCallFilter is an allow list: only deny lists are supported")
		}
		for _, name := range strings.Fields(list) {
			calls, err := systemCalls(name)
			if err != nil {
				return err
			}
			u.Denied = append(u.Denied, calls...)
		}
	default:
		if unhandled[key] == "" {
			return fmt.Errorf("%s confines the service, and the harness does not carry it out", key)
		}
	}
	return nil
}

// analyze is the path of the program, part of systemd's package, that lists the groups.
const analyze = "/usr/bin/systemd-analyze"

// systemCalls resolves a group of system calls.
func systemCalls(name string) (calls []string, err error) {
	if !strings.HasPrefix(name, "@") {
		return []string{name}, nil
	}
	out, err := exec.Command(analyze, "syscall-filter", name).Output() // by its path, because the environment may have no PATH for it
	if err != nil {
		return nil, fmt.Errorf("systemd-analyze syscall-filter %s: %w", name, err)
	}
	for line := range strings.Lines(string(out)) {
		switch word := strings.TrimSpace(line); {
		case word == "" || strings.HasPrefix(word, "#") || word == name:
		case strings.HasPrefix(word, "@"):
			below, err := systemCalls(word)
			if err != nil {
				return nil, err
			}
			calls = append(calls, below...)
		default:
			calls = append(calls, word)
		}
	}
	return calls, nil
}

// Impose applies the unit's restrictions to the calling thread.
func (u *Unit) Impose() error {
	for number := range unix.CAP_LAST_CAP + 1 {
		if name := CapabilityNames[number]; len(u.Capabilities) > 0 && !slices.Contains(u.Capabilities, name) {
			if err := unix.Prctl(unix.PR_CAPBSET_DROP, uintptr(number), 0, 0, 0); err != nil {
				return fmt.Errorf("dropping capability %d: %w", number, err)
			}
		}
	}
	table, err := arch.GetInfo("")
	if err != nil {
		return err
	}
	var known []string
	for _, call := range u.Denied {
		if _, ok := table.SyscallNames[call]; ok && !slices.Contains(known, call) {
			known = append(known, call)
		}
	}
	groups := []seccomp.SyscallGroup{{Action: seccomp.ActionErrno, Names: known}}
	if len(u.Families) > 0 {
		groups = append(groups, u.sockets())
	}
	return seccomp.LoadFilter(seccomp.Filter{NoNewPrivs: u.NoNewPrivs, Policy: seccomp.Policy{DefaultAction: seccomp.ActionAllow, Syscalls: groups}})
}

// sockets returns a filter that denies sockets of other families.
func (u *Unit) sockets() seccomp.SyscallGroup {
	var other seccomp.ArgumentConditions
	for _, f := range u.Families {
		other = append(other, seccomp.Condition{Argument: 0, Operation: seccomp.NotEqual, Value: families[f]})
	}
	return seccomp.SyscallGroup{
		Action:             seccomp.ActionErrno | seccomp.Action(unix.EAFNOSUPPORT),
		NamesWithCondtions: []seccomp.NameWithConditions{{Name: "socket", Conditions: other}},
	}
}

var families = map[string]uint64{
	"AF_UNIX": unix.AF_UNIX, "AF_INET": unix.AF_INET, "AF_INET6": unix.AF_INET6, "AF_NETLINK": unix.AF_NETLINK, "AF_PACKET": unix.AF_PACKET, "AF_VSOCK": unix.AF_VSOCK,
}

// CapabilityNames maps capability numbers to names (linux/capability.h).
var CapabilityNames = [unix.CAP_LAST_CAP + 1]string{
	"CAP_CHOWN", "CAP_DAC_OVERRIDE", "CAP_DAC_READ_SEARCH", "CAP_FOWNER", "CAP_FSETID", "CAP_KILL", "CAP_SETGID", "CAP_SETUID", "CAP_SETPCAP",
	"CAP_LINUX_IMMUTABLE", "CAP_NET_BIND_SERVICE", "CAP_NET_BROADCAST", "CAP_NET_ADMIN", "CAP_NET_RAW", "CAP_IPC_LOCK", "CAP_IPC_OWNER", "CAP_SYS_MODULE",
	"CAP_SYS_RAWIO", "CAP_SYS_CHROOT", "CAP_SYS_PTRACE", "CAP_SYS_PACCT", "CAP_SYS_ADMIN", "CAP_SYS_BOOT", "CAP_SYS_NICE", "CAP_SYS_RESOURCE", "CAP_SYS_TIME",
	"CAP_SYS_TTY_CONFIG", "CAP_MKNOD", "CAP_LEASE", "CAP_AUDIT_WRITE", "CAP_AUDIT_CONTROL", "CAP_SETFCAP", "CAP_MAC_OVERRIDE", "CAP_MAC_ADMIN", "CAP_SYSLOG",
	"CAP_WAKE_ALARM", "CAP_BLOCK_SUSPEND", "CAP_AUDIT_READ", "CAP_PERFMON", "CAP_BPF", "CAP_CHECKPOINT_RESTORE",
}
