package docker

import (
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/pflag"
)

// Line is a command line of `docker run`, taken apart.
type Line struct {
	// Flags are those that Docker gets, each in one word with its long name: Docker reads exactly what was judged here.
	Flags       []string
	Gateway     map[string]string // the gateway's own flags, by name; a switch has the value "true"
	Entrypoint  *string           // nil: the image's
	Name        string
	Detach      bool
	Remove      bool
	Interactive bool // the container reads the standard input
	OwnDNS      bool
	Image       string
	Command     []string
}

// switches are the flags of `docker run` without a value. Every other flag has one.
var switches = words(`detach disable-content-trust init interactive no-healthcheck oom-kill-disable privileged publish-all quiet read-only rm
	sig-proxy tty use-api-socket`)

// shortOf are the short names of flags.
var shortOf = map[string]string{
	"--attach": "a", "--cpu-shares": "c", "--detach": "d", "--env": "e", "--hostname": "h", "--interactive": "i", "--label": "l", "--memory": "m",
	"--publish": "p", "--publish-all": "P", "--quiet": "q", "--tty": "t", "--user": "u", "--volume": "v", "--workdir": "w",
}

// Parse takes the arguments of `docker run` apart, as Docker does: with the library that Docker uses. Among the flags may be those of the
// gateway, which are named; those in switchesOfGateway have no value.
func Parse(args, gateway, switchesOfGateway []string) (Line, error) {
	l := Line{Gateway: map[string]string{}}
	fs := pflag.NewFlagSet("docker run", pflag.ContinueOnError)
	fs.SetOutput(io.Discard)
	fs.SetInterspersed(false)
	for _, names := range []map[string]bool{free, keysOf(checked), keysOf(refused)} {
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
		return l.take(name, value)
	})
	if err != nil {
		return l, explain(err)
	}
	words := fs.Args()
	if len(words) == 0 {
		return l, errors.New("no image is named: gateway docker run [--policy P] [flags of docker run] IMAGE [COMMAND…]")
	}
	l.Image, l.Command = words[0], words[1:]
	return l, nil
}

// define makes a flag known. Its value is never set: [Line.take] gets it.
func define(fs *pflag.FlagSet, name, short string, isSwitch bool) {
	f := fs.VarPF(new(unset), strings.TrimPrefix(name, "--"), short, "")
	if isSwitch {
		f.NoOptDefVal = "true"
	}
}

// unset is the value of a flag that is only taken apart.
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

// explain says what is wrong with a flag.
func explain(err error) error {
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

// take notes a flag, given by its long name, if a container may have it. What the gateway decides by itself is not passed on.
func (l *Line) take(name, value string) error {
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
	case !on && refused[name] != "", (name == "--network" || name == "--net") && value == "none": // as it is anyway
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
