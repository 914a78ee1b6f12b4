package launcher

import (
	"maps"
	"slices"
	"strings"

	"boxgate/launcher/furnish"
)

// PublicRoots returns the public root certificates of this host, in PEM: those of boxes whose image has none.
func PublicRoots() ([]byte, error) { return furnish.PublicRoots() }

// TrustVariables are the variables by which programs are told where the certificates are that they trust.
func TrustVariables() []string { return slices.Clone(furnish.TrustVariables) }

// KnownHosts returns the lines of ssh_known_hosts by which a box knows its gateway as an SSH server, from its CA in PEM.
func KnownHosts(ca []byte) ([]byte, error) { return furnish.KnownHosts(ca) }

const defaultPath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

// environment is the environment of a command: the image's variables, then the launcher's, then the box's, then the
// command's; later ones win.
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
	for _, k := range furnish.TrustVariables {
		env[k] = furnish.BundlePath
	}
	maps.Copy(env, box)
	maps.Copy(env, command)
	list := make([]string, 0, len(env))
	for _, k := range slices.Sorted(maps.Keys(env)) {
		list = append(list, k+"="+env[k])
	}
	return list
}
