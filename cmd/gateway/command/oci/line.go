// Package oci implements `gateway oci`: an OCI runtime that starts containers by another one, behind the gateway.
//
// The moment decides. `create` makes a network namespace with a process that only waits in it, attaches it to the gateway, and lets the
// real runtime join it: when the container's first process exists, its namespace has the gateway's closed interface, rules and policy
// already. Everything fails closed: without the gateway's consent the real runtime is not called.
package oci

import (
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
)

// Prefix is how names of this program begin that run it as `gateway oci RUNTIME`: gateway-oci-runc is `gateway oci runc`.
const Prefix = "gateway-oci-"

// Command is the name of the command.
const Command = "oci"

// Arguments returns the arguments of the program, without its name.
func Arguments(argv []string) []string {
	if len(argv) == 0 {
		return nil
	}
	if runtime, ok := strings.CutPrefix(filepath.Base(argv[0]), Prefix); ok && runtime != "" {
		return append([]string{Command, runtime}, argv[1:]...)
	}
	return argv[1:]
}

// Line is a parsed command line of `gateway oci`.
type Line struct {
	Own     map[string]string // the gateway's own flags, by name
	Runtime string            // program that runs the containers
	Globals []string          // its flags before the command
	Command string            // empty for a line without a command
	Args    []string          // arguments of the command

	Root    string // value of --root
	Log     string // value of --log
	LogJSON bool
}

// commands are the commands of runc, crun, runsc and youki.
var commands = strings.Fields(`boot checkpoint create delete do events exec export-metrics features gofer help info init install kill list
	metric-metadata metric-server pause port-forward ps read-control restore resume run spec start state statefile symbolize tar trace umount
	uninstall update usage verity-prepare version wait write-control cpu-features`)

// valued are the flags of runtimes before the command that have a value in the next argument.
var valued = strings.Fields(`--root --log --log-format --log-level --criu --rootless --cgroup-manager --debug-log --platform --network`)

// ParseLine parses the arguments of `gateway oci`. own are the gateway's flags, which all have a value.
func ParseLine(args, own []string) (Line, error) {
	l := Line{Own: map[string]string{}}
	for len(args) > 0 && strings.HasPrefix(args[0], "-") {
		name, value, joined := strings.Cut(args[0], "=")
		switch {
		case !slices.Contains(own, name):
			return l, fmt.Errorf("gateway oci has no flag %s; flags of the runtime follow its name", name)
		case !joined && len(args) < 2:
			return l, fmt.Errorf("%s needs a value", name)
		case !joined:
			value, args = args[1], args[1:]
		}
		l.Own[name] = value
		args = args[1:]
	}
	if len(args) == 0 {
		return l, errors.New("RUNTIME is missing: `gateway oci runc ...`")
	}
	l.Runtime, args = args[0], args[1:]
	l.parseRuntime(args)
	return l, nil
}

// parseRuntime splits the arguments of the runtime at its command. An unknown flag whose next argument is no command has that as its
// value.
func (l *Line) parseRuntime(args []string) {
	for i := 0; i < len(args); i++ {
		if !strings.HasPrefix(args[i], "-") {
			l.Globals, l.Command, l.Args = args[:i], args[i], args[i+1:]
			return
		}
		name, value, joined := strings.Cut(args[i], "=")
		name = "--" + strings.TrimLeft(name, "-") // runsc accepts one dash
		if !joined && i+1 < len(args) && (slices.Contains(valued, name) || !strings.HasPrefix(args[i+1], "-") && !slices.Contains(commands, args[i+1])) {
			i++
			value = args[i]
		}
		switch name {
		case "--root":
			l.Root = value
		case "--log":
			l.Log = value
		case "--log-format":
			l.LogJSON = value == "json"
		}
	}
	l.Globals = args
}

// call is a command that concerns one container.
type call struct {
	ID     string
	Bundle string // value of --bundle; "": the working directory
	Detach bool   // run returns while the container runs
	Force  bool   // delete kills it
	args   []string
	bundle int // index in args of the flag; -1: absent
}

// valuedOfCommand are the flags of create, run and delete with a value in the next argument.
var valuedOfCommand = strings.Fields(`--bundle -b --console-socket --pid-file --pidfd-socket --preserve-fds --config -f --user-log`)

// switchesOfCommand are their other flags. An unknown one is refused: it could be another form of --bundle, and so lead to a configuration
// that was not checked.
var switchesOfCommand = strings.Fields(`--detach -d --keep --no-pivot --no-new-keyring --no-subreaper --systemd-log --help -h`)

// parseCall parses the arguments of create, run, start and delete.
func (l Line) parseCall() (call, error) {
	c := call{args: slices.Clone(l.Args), bundle: -1}
	for i := 0; i < len(c.args); i++ {
		if !strings.HasPrefix(c.args[i], "-") {
			if c.ID != "" {
				return c, fmt.Errorf("gateway oci %s takes one container", l.Command)
			}
			c.ID = c.args[i]
			continue
		}
		name, value, joined := strings.Cut(c.args[i], "=")
		if len(name) > 2 {
			name = "--" + strings.TrimLeft(name, "-")
		}
		force := l.Command == "delete" && (name == "--force" || name == "-f")
		at := i
		if !joined && !force && slices.Contains(valuedOfCommand, name) {
			if i++; i == len(c.args) {
				return c, fmt.Errorf("%.100s of gateway oci %s needs a value", name, l.Command)
			}
			value = c.args[i]
		}
		switch {
		case force:
			c.Force = true
		case name == "--bundle" || name == "-b":
			c.Bundle, c.bundle = value, at
		case name == "--detach" || name == "-d":
			c.Detach = true
		case !slices.Contains(valuedOfCommand, name) && !slices.Contains(switchesOfCommand, name) || name == "--config" || name == "-f":
			return c, fmt.Errorf("gateway oci does not know %.100s of %s", name, l.Command)
		}
	}
	if c.ID == "" || len(c.ID) > 256 || strings.Contains(c.ID, "/") || c.ID == "." || c.ID == ".." {
		return c, fmt.Errorf("gateway oci %s: %.100q is not the ID of a container", l.Command, c.ID)
	}
	return c, nil
}

// withBundle returns the arguments of the runtime with another bundle.
func (l Line) withBundle(c call, dir string) []string {
	args := slices.Clone(c.args)
	switch {
	case c.bundle >= 0 && strings.Contains(args[c.bundle], "="):
		args[c.bundle] = "--bundle=" + dir
	case c.bundle >= 0:
		args[c.bundle+1] = dir
	default:
		args = append([]string{"--bundle", dir}, args...)
	}
	return slices.Concat(l.Globals, []string{l.Command}, args)
}
