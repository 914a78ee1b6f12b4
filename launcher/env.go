package launcher

import (
	"maps"
	"slices"
	"strings"

	"boxgate/launcher/rootfs"
)

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
	env := map[string]string{"PATH": defaultPath}
	for _, kv := range base {
		if k, v, ok := strings.Cut(kv, "="); ok && k != "" {
			env[k] = v
		}
	}
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
