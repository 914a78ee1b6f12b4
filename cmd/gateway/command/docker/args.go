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
