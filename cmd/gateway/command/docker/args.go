package docker

import (
	"encoding/csv"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/pflag"

	"boxgate/launcher/oci"
)

// Line is a parsed command line of `docker run`.
type Line struct {
	// Flags are passed to Docker, each as a single word with its long name, so that Docker parses exactly the flags that
	// were checked.
	Flags       []string
	Gateway     map[string]string // the gateway's own flags, by name; a switch has the value "true"
	Entrypoint  *string           // nil: that of the image
	Name        string
	Detach      bool
	Remove      bool
	Interactive bool // the container reads standard input
	OwnDNS      bool
	Image       string
	Command     []string
}

// switches lists the flags of `docker run` without a value. All other flags have one.
var switches = words(`detach disable-content-trust init interactive no-healthcheck oom-kill-disable privileged publish-all quiet read-only rm
	sig-proxy tty use-api-socket`)

// shortOf maps flags to their short names.
var shortOf = map[string]string{
	"--attach": "a", "--cpu-shares": "c", "--detach": "d", "--env": "e", "--hostname": "h", "--interactive": "i", "--label": "l", "--memory": "m",
	"--publish": "p", "--publish-all": "P", "--quiet": "q", "--tty": "t", "--user": "u", "--volume": "v", "--workdir": "w",
}

// Parse parses the arguments of `docker run` with the same library as Docker. The flags of the gateway listed in gateway
// and in switchesOfGateway may be mixed in; the latter have no value.
func Parse(args, gateway, switchesOfGateway []string) (Line, error) {
	l := Line{Gateway: map[string]string{}}
	fs := pflag.NewFlagSet("docker run", pflag.ContinueOnError)
	fs.SetOutput(io.Discard)
	fs.SetInterspersed(false)
	for _, names := range []map[string]bool{freeFlags, keysOf(checkedFlags), keysOf(refusedFlags)} {
		for name := range names {
			define(fs, name, shortOf[name], switches[name])
		}
	}
	for _, name := range slices.Concat(gateway, switchesOfGateway) {
		define(fs, name, "", slices.Contains(switchesOfGateway, name))
	}
	err := fs.ParseAll(args, func(f *pflag.Flag, value string) error {
		name := "--" + f.Name
		if slices.Contains(gateway, name) || slices.Contains(switchesOfGateway, name) {
			l.Gateway[name] = value
			return nil
		}
		return l.setFlag(name, value)
	})
	if err != nil {
		return l, flagError(err)
	}
	words := fs.Args()
	if len(words) == 0 {
		return l, errors.New("no image is named: gateway docker run [--policy P] [flags of docker run] IMAGE [COMMAND…]")
	}
	l.Image, l.Command = words[0], words[1:]
	return l, nil
}

// define defines a flag. [Line.take] receives its value instead of [unset.Set].
func define(fs *pflag.FlagSet, name, short string, isSwitch bool) {
	f := fs.VarPF(new(unset), strings.TrimPrefix(name, "--"), short, "")
	if isSwitch {
		f.NoOptDefVal = "true"
	}
}

// unset is the value type of all flags, which ignores values.
type unset struct{}

func (*unset) String() string   { return "" }
func (*unset) Set(string) error { return nil }
func (*unset) Type() string     { return "string" }

func keysOf[T any](m map[string]T) map[string]bool {
	out := map[string]bool{}
	for k := range m {
		out[k] = true
	}
	return out
}

// flagError turns an error of the flag library into a message about the flag.
func flagError(err error) error {
	if unknown, ok := errors.AsType[*pflag.NotExistError](err); ok {
		name := "--" + unknown.GetSpecifiedName()
		if unknown.GetSpecifiedShortnames() != "" {
			name = name[1:]
		}
		return allow(name, "")
	}
	if errors.Is(err, pflag.ErrHelp) {
		return errors.New("for help: gateway docker run --help")
	}
	return err
}

// setFlag checks a flag, given by its long name, and adds it to the line. Flags under the gateway's control are not passed
// to Docker.
func (l *Line) setFlag(name, value string) error {
	on := true
	if switches[name] {
		var err error
		if on, err = strconv.ParseBool(value); err != nil {
			return fmt.Errorf("%s=%s: a switch is true or false", name, value)
		}
		value = strconv.FormatBool(on)
	}
	switch {
	case name == "--sig-proxy": // signals are always passed on
		return nil
	case !on && refusedFlags[name] != "", (name == "--network" || name == "--net") && value == "none": // already the default
		return nil
	}
	if err := allow(name, value); err != nil {
		return err
	}
	switch name {
	case "--detach":
		l.Detach = on
		return nil
	case "--entrypoint":
		l.Entrypoint = &value
		return nil
	case "--interactive":
		l.Interactive = on
	case "--name":
		l.Name = value
	case "--rm":
		l.Remove = on
	case "--dns":
		l.OwnDNS = true
	}
	l.Flags = append(l.Flags, name+"="+value)
	return nil
}

// The flags of `docker run` are checked against an allowlist: an unknown flag, for example of a newer Docker, is refused.
// Afterwards [container.refuse] checks the configuration that Docker derived from the flags, its own defaults and the
// image.

// freeFlags lists the flags that may have any value. They affect only the container itself.
var freeFlags = words(`add-host attach blkio-weight blkio-weight-device cap-drop cidfile cpu-count cpu-percent cpu-period cpu-quota
	cpu-rt-period cpu-rt-runtime cpu-shares cpus cpuset-cpus cpuset-mems detach device-read-bps device-read-iops device-write-bps
	device-write-iops disable-content-trust dns dns-opt dns-option dns-search domainname entrypoint env env-file expose gpus group-add
	health-cmd health-interval health-retries health-start-interval health-start-period health-timeout hostname init interactive
	kernel-memory label label-file memory memory-reservation memory-swap memory-swappiness name no-healthcheck oom-kill-disable
	oom-score-adj pids-limit platform pull quiet read-only restart rm shm-size stop-signal stop-timeout storage-opt sysctl tmpfs tty
	ulimit user volumes-from workdir`)

// checkedFlags maps the flags with restricted values to their checks. An error is the reason for a refusal.
var checkedFlags = map[string]func(value string) error{
	"--cap-add":       checkCapability,
	"--cgroupns":      oneOf("private"),
	"--device":        checkDeviceFlag,
	"--ipc":           oneOf("none", "private", "shareable"),
	"--log-driver":    checkLogDriver,
	"--log-opt":       checkLogOption,
	"--mount":         checkMount,
	"--pid":           oneOf("private"),
	"--runtime":       oneOf(append(oci.HostNetworked(), "io.containerd.runc.v2")...), // Docker's own name for runc
	"--security-opt":  checkSecurity,
	"--userns":        oneOf("private"),
	"--uts":           oneOf("private"),
	"--volume":        checkVolume,
	"--volume-driver": oneOf("local"),
}

// refusedFlags maps refused flags to the reason.
var refusedFlags = map[string]string{
	"--network": onlyNetwork, "--net": onlyNetwork, "--link": onlyNetwork, "--ip": onlyNetwork, "--ip6": onlyNetwork, "--mac-address": onlyNetwork,
	"--link-local-ip": onlyNetwork, "--network-alias": onlyNetwork, "--net-alias": onlyNetwork,
	"--publish": "use `gateway url create`", "--publish-all": "use `gateway url create`", "--privileged": "it could leave the gateway",
	"--use-api-socket": "who commands Docker is root on the host", "--device-cgroup-rule": "a container that makes devices can leave the gateway",
	"--detach-keys": "it cannot be passed on", "--sig-proxy": "signals are always passed on",
}

const onlyNetwork = "the gateway is its only network"

func words(text string) map[string]bool {
	out := map[string]bool{}
	for _, w := range strings.Fields(text) {
		out["--"+w] = true
	}
	return out
}

// allow checks a flag, given by its long name.
func allow(name, value string) error {
	if why := refusedFlags[name]; why != "" {
		return fmt.Errorf("%s cannot be used here: %s", name, why)
	}
	if freeFlags[name] {
		return nil
	}
	check := checkedFlags[name]
	if check == nil {
		return fmt.Errorf("%s cannot be used here: it is not known to keep a container behind the gateway (docs/attach/docker.md); "+
			"to run one with it, start the container with docker run --network none and attach it: gateway box attach --container NAME", name)
	}
	if err := check(value); err != nil {
		return fmt.Errorf("%s %s cannot be used here: %w", name, value, err)
	}
	return nil
}

func oneOf(values ...string) func(string) error {
	return func(value string) error {
		if value == "" || slices.Contains(values, value) {
			return nil
		}
		return fmt.Errorf("use %s, or leave it out", strings.Join(values, " or "))
	}
}

// capabilities lists the capabilities that let a container leave neither its network nor its namespaces: Docker's
// defaults and a few more.
var capabilities = strings.Fields(`AUDIT_WRITE BLOCK_SUSPEND CHOWN DAC_OVERRIDE FOWNER FSETID IPC_LOCK IPC_OWNER KILL LEASE MKNOD
	NET_BIND_SERVICE NET_BROADCAST NET_RAW SETFCAP SETGID SETPCAP SETUID SYS_CHROOT SYS_NICE SYS_RESOURCE WAKE_ALARM`)

func checkCapability(name string) error {
	if slices.Contains(capabilities, strings.TrimPrefix(strings.ToUpper(name), "CAP_")) {
		return nil
	}
	return errors.New("a container with it can leave the gateway; allowed are " + strings.Join(capabilities, " "))
}

// devices lists path prefixes of devices that give no access to a disk, the memory or the network of the host.
var devices = []string{"/dev/dri", "/dev/fuse", "/dev/kfd", "/dev/kvm", "/dev/nvidia", "/dev/snd"}

func checkDeviceFlag(value string) error {
	path, _, _ := strings.Cut(value, ":")
	return checkDevice(path)
}

// checkDevice checks a device of the host, given by its path or by a CDI name.
func checkDevice(path string) error {
	if !filepath.IsAbs(path) {
		vendor, _, cdi := strings.Cut(path, "=")
		if cdi && strings.HasPrefix(vendor, "nvidia.com/") {
			return nil
		}
	}
	at := resolved(path)
	for _, d := range devices {
		rest, ok := strings.CutPrefix(at, d)
		if ok && (rest == "" || rest[0] == '/' || d == "/dev/nvidia") {
			return nil
		}
	}
	return errors.New("the container could reach the host by the device; allowed are " + strings.Join(devices, "*, ") + "*")
}

// checkLogDriver allows only drivers that keep logs on the host. With the others, Docker's daemon would send them past
// the gateway.
func checkLogDriver(value string) error {
	if err := oneOf("json-file", "local", "journald", "none")(value); err != nil {
		return fmt.Errorf("Docker would send the container's output past the gateway: %w", err)
	}
	return nil
}

func checkLogOption(value string) error {
	name, _, _ := strings.Cut(value, "=")
	return oneOf("max-size", "max-file", "compress", "labels", "labels-regex", "env", "env-regex", "tag", "mode", "max-buffer-size")(name)
}

// checkSecurity checks a security option: profiles may be replaced, but not disabled.
func checkSecurity(value string) error {
	name, setting, ok := strings.Cut(value, "=")
	if !ok { // the older syntax
		name, setting, _ = strings.Cut(value, ":")
	}
	switch {
	case name == "no-new-privileges" && (setting == "" || setting == "true"):
		return nil
	case name == "seccomp" && refusesOthers(setting), name == "apparmor" && setting != "" && setting != "unconfined":
		return nil
	case name == "label" && checkLabel(setting):
		return nil
	}
	return errors.New("it takes a protection away; allowed are no-new-privileges, seccomp= with a profile whose defaultAction refuses, apparmor= with a profile, and label= with a level or a type of containers")
}

// refusesOthers reports whether a seccomp profile denies the calls that it does not list. profile is the content or a
// file name; a file is checked later, after Docker has read it.
func refusesOthers(profile string) bool {
	if !strings.HasPrefix(strings.TrimSpace(profile), "{") {
		return profile != "" && profile != "unconfined"
	}
	var p struct{ DefaultAction string }
	err := json.Unmarshal([]byte(profile), &p)
	return err == nil && slices.Contains([]string{"", "SCMP_ACT_ERRNO", "SCMP_ACT_KILL", "SCMP_ACT_KILL_PROCESS", "SCMP_ACT_KILL_THREAD", "SCMP_ACT_TRAP"}, p.DefaultAction)
}

// checkLabel reports whether an SELinux label keeps a container confined. A type such as spc_t does not.
func checkLabel(setting string) bool {
	name, value, _ := strings.Cut(strings.Replace(setting, ":", "=", 1), "=")
	switch name {
	case "level":
		return true
	case "type":
		return slices.Contains([]string{"container_t", "container_init_t", "svirt_lxc_net_t"}, value)
	}
	return false
}

func checkVolume(value string) error {
	source, rest, mounted := strings.Cut(value, ":")
	if !mounted || rest == "" || !strings.HasPrefix(source, "/") && !strings.HasPrefix(source, ".") && !strings.HasPrefix(source, "~") {
		return nil // a Docker volume
	}
	if _, options, _ := strings.Cut(rest, ":"); options != "" {
		for option := range strings.SplitSeq(options, ",") {
			if err := checkPropagation(option); err != nil {
				return err
			}
		}
	}
	return checkSource(source)
}

// checkPropagation checks an option of a bind mount. Later mounts of the host must not appear in a container that was
// already checked.
func checkPropagation(option string) error {
	switch option {
	case "shared", "rshared", "slave", "rslave":
		return errors.New("later mounts of the host would appear in the container: use rprivate, or leave it out")
	}
	return nil
}

// checkMount checks the value of --mount, a line of CSV.
func checkMount(value string) error {
	fields, err := csv.NewReader(strings.NewReader(value)).Read()
	if err != nil {
		return fmt.Errorf("it cannot be read: %w", err)
	}
	kind, source := "volume", ""
	for _, field := range fields {
		name, setting, _ := strings.Cut(field, "=")
		switch strings.ToLower(name) {
		case "type":
			kind = strings.ToLower(setting)
		case "source", "src":
			source = setting
		case "volume-driver":
			err = oneOf("local")(setting)
		case "volume-opt":
			err = errors.New("volume-opt can mount anything of the host: make it a bind mount")
		case "bind-propagation":
			err = checkPropagation(setting)
		case "target", "destination", "dst", "readonly", "ro", "bind-nonrecursive", "bind-recursive", "consistency", "volume-label",
			"volume-nocopy", "volume-subpath", "tmpfs-size", "tmpfs-mode", "image-subpath":
		default:
			err = fmt.Errorf("%s is not known here", name)
		}
		if err != nil {
			return err
		}
	}
	switch kind {
	case "bind":
		return checkSource(source)
	case "volume", "tmpfs", "image":
		return nil
	}
	return fmt.Errorf("the type %s is not known here; allowed are bind, volume, tmpfs and image", kind)
}
