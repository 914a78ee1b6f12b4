package docker

import (
	"errors"
	"fmt"
	"slices"
	"strings"
)

// Line is a command line of `docker run`, taken apart.
type Line struct {
	Flags      []string // as given, without those below
	Entrypoint *string  // nil: the image's
	Name       string
	Detach     bool
	Remove     bool
	OwnDNS     bool
	Image      string
	Command    []string
}

// switches are the flags of `docker run` without a value. Every other flag has one, with "=" or as the next argument.
var switches = []string{
	"--detach", "--disable-content-trust", "--init", "--interactive", "--no-healthcheck", "--oom-kill-disable", "--privileged",
	"--publish-all", "--quiet", "--read-only", "--rm", "--sig-proxy", "--tty", "--use-api-socket",
}

// short are the short ones.
const short = "ditPq"

// errNoImage says that a command line has none.
var errNoImage = errors.New("no image is named: gateway docker run [--policy P] [flags of docker run] IMAGE [COMMAND…]")

// Parse takes the arguments of `docker run` apart.
func Parse(args []string) (Line, error) {
	var l Line
	for len(args) > 0 {
		arg := args[0]
		switch {
		case arg == "--":
			return l.rest(args[1:])
		case !strings.HasPrefix(arg, "-") || arg == "-":
			return l.rest(args)
		}
		name, value, used, err := flag(args)
		if err != nil {
			return l, err
		}
		if err := l.take(name, value, args[:used]); err != nil {
			return l, err
		}
		args = args[used:]
	}
	return l, errNoImage
}

func (l Line) rest(args []string) (Line, error) {
	if len(args) == 0 {
		return l, errNoImage
	}
	l.Image, l.Command = args[0], args[1:]
	return l, nil
}

// flag reads one flag, or a group of short ones, and says how many arguments that were. The value of a switch is "true" or "false".
func flag(args []string) (name, value string, used int, err error) {
	name, value, given := strings.Cut(args[0], "=")
	if !strings.HasPrefix(name, "--") {
		return shortFlag(args)
	}
	switch {
	case slices.Contains(switches, name) && !given:
		return name, "true", 1, nil
	case given:
		return name, value, 1, nil
	case len(args) < 2:
		return "", "", 0, fmt.Errorf("%s needs a value", name)
	}
	return name, args[1], 2, nil
}

func shortFlag(args []string) (name, value string, used int, err error) {
	group := args[0][1:]
	at := strings.IndexFunc(group, func(r rune) bool { return !strings.ContainsRune(short, r) })
	switch {
	case at < 0 && len(group) > 1:
		return "-" + group, "true", 1, nil
	case at < 0:
		return args[0], "true", 1, nil
	case at+1 < len(group):
		return "-" + group[at:at+1], strings.TrimPrefix(group[at+1:], "="), 1, nil
	case len(args) < 2:
		return "", "", 0, fmt.Errorf("-%s needs a value", group)
	}
	return "-" + group[at:], args[1], 2, nil
}

// take notes a flag, if a container may have it. What the gateway decides by itself is not passed on.
func (l *Line) take(name, value string, words []string) error {
	if len(name) > 1 && name[1] != '-' && !isValued(name) {
		return l.takeGroup(name)
	}
	if full := shortOf[name]; full != "" {
		name = full
	}
	if slices.Contains(switches, name) && value == "false" || strings.HasPrefix(name, "--net") && value == "none" {
		return nil // as it is anyway
	}
	if name == "--sig-proxy" {
		return nil // signals are always passed on
	}
	if err := allow(name, value); err != nil {
		return err
	}
	switch name {
	case "--detach":
		l.Detach = true
		return nil
	case "--entrypoint":
		l.Entrypoint = &value
		return nil
	case "--name":
		l.Name = value
	case "--rm":
		l.Remove = true
	case "--dns":
		l.OwnDNS = true
	}
	l.Flags = append(l.Flags, words...)
	return nil
}

func isValued(name string) bool { return !strings.ContainsAny(name[len(name)-1:], short) }

// takeGroup notes short switches.
func (l *Line) takeGroup(name string) error {
	for _, c := range name[1:] {
		switch c {
		case 'd':
			l.Detach = true
		case 'P':
			return fmt.Errorf("-P cannot be used here: %s", refused["--publish-all"])
		default:
			l.Flags = append(l.Flags, "-"+string(c))
		}
	}
	return nil
}

// interactive reports whether the container reads the standard input.
func (l Line) interactive() bool {
	return slices.Contains(l.Flags, "-i") || slices.Contains(l.Flags, "--interactive") || slices.Contains(l.Flags, "--interactive=true")
}

// FlagLength is how many arguments the flag at the beginning of a command line of `docker run` takes up.
func FlagLength(args []string) (int, error) {
	if args[0] == "--" || args[0] == "-" {
		return len(args), nil
	}
	_, _, n, err := flag(args)
	return n, err
}
