package secrets

import (
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"boxgate/policy"
)

// Source says where the value of one secret comes from. Exactly one of Value, File, Env and Command is set.
type Source struct {
	Value   policy.Secret // the value itself
	File    string        // absolute path; the file must belong to root or the gateway's user and not be accessible to others
	Env     string        // variable of the gateway's environment, removed from it when the secrets are opened
	Command []string      // program and arguments, run without a shell; its standard output is the value

	// Refresh is how long a value is used. 0: a minute for a file, five for a command. A literal and a variable cannot
	// change while the gateway runs, so for them it has no effect.
	Refresh time.Duration
	// Timeout is how long a file may take to be read, or a command to run. 0: 10 s.
	Timeout time.Duration
}

// Limits of the configuration.
const (
	minRefresh, maxRefresh = 100 * time.Millisecond, 30 * 24 * time.Hour
	minTimeout, maxTimeout = 100 * time.Millisecond, 5 * time.Minute

	fileRefresh    = time.Minute
	commandRefresh = 5 * time.Minute
	defaultTimeout = 10 * time.Second

	maxArguments = 64
)

// gatewayVariables are used by the gateway or its child processes: removing them from the environment would break
// those.
var gatewayVariables = map[string]bool{"PATH": true, "HOME": true, "TMPDIR": true, "NOTIFY_SOCKET": true, "LANG": true}

// Validate returns all problems of the names and the form of sources; it checks nothing outside of them. Each error
// begins with the configuration key that it is about.
func Validate(sources map[string]Source) error {
	var errs []error
	for _, name := range slices.Sorted(maps.Keys(sources)) {
		if !policy.IsSecretName(name) {
			errs = append(errs, fmt.Errorf("secrets: %q is not a name: 1 to 64 letters, digits, '.', '_' and '-', the first a letter or digit",
				policy.ShownSecretName(name)))
		}
		errs = append(errs, sources[name].validate("secrets."+policy.ShownSecretName(name))...)
	}
	return errors.Join(errs...)
}

func (s Source) validate(at string) (errs []error) {
	fail := func(key, format string, args ...any) {
		errs = append(errs, fmt.Errorf("%s: %s", strings.TrimSuffix(at+"."+key, "."), fmt.Sprintf(format, args...)))
	}
	switch n := s.kinds(); {
	case n == 0:
		fail("", "has no source; give one of value, file, env and command")
	case n > 1:
		fail("", "has several sources; keep one of value, file, env and command")
	}
	if s.Value.Reveal() != "" {
		if err := policy.CheckHeaderValue(s.Value.Reveal()); err != nil {
			fail("value", "%v", err)
		}
	}
	if s.File != "" && !filepath.IsAbs(s.File) {
		fail("file", "%q is not an absolute path", s.File)
	}
	if s.Env != "" {
		s.checkVariable(fail)
	}
	if s.Command != nil {
		s.checkCommand(fail)
	}
	if s.Refresh != 0 && (s.Refresh < minRefresh || s.Refresh > maxRefresh) {
		fail("refresh", "%v is out of range; use 100ms to 720h", s.Refresh)
	}
	if s.Timeout != 0 && (s.Timeout < minTimeout || s.Timeout > maxTimeout) {
		fail("timeout", "%v is out of range; use 100ms to 5m", s.Timeout)
	}
	if s.Timeout != 0 && s.File == "" && s.Command == nil {
		fail("timeout", "is for files and commands; leave it out")
	}
	return errs
}

func (s Source) kinds() (n int) {
	for _, set := range []bool{s.Value.Reveal() != "", s.File != "", s.Env != "", s.Command != nil} {
		if set {
			n++
		}
	}
	return n
}

func (s Source) checkVariable(fail func(key, format string, args ...any)) {
	switch {
	case !isVariable(s.Env):
		fail("env", "%q is not the name of a variable: letters, digits and '_', not beginning with a digit", s.Env)
	case strings.HasPrefix(s.Env, "BOXGATE_"), gatewayVariables[s.Env]:
		fail("env", "%s is used by the gateway itself; choose another variable", s.Env)
	}
}

func (s Source) checkCommand(fail func(key, format string, args ...any)) {
	switch {
	case len(s.Command) == 0 || s.Command[0] == "":
		fail("command", "is empty; give a program and its arguments as a list")
		return
	case len(s.Command) > maxArguments:
		fail("command", "has %d elements; the limit is %d", len(s.Command), maxArguments)
	case strings.Contains(s.Command[0], "/") && !filepath.IsAbs(s.Command[0]):
		fail("command", "%q is neither an absolute path nor the name of a program", s.Command[0])
	case len(s.Command) == 1 && strings.ContainsAny(s.Command[0], " \t|;&$<>"):
		fail("command", "there is no shell: give the program and each argument as an element of a list")
	}
	for _, a := range s.Command {
		if strings.Contains(a, "\x00") {
			fail("command", "has a NUL byte in an argument")
		}
	}
}

func isVariable(s string) bool {
	for i := range len(s) {
		c := s[i]
		letter := 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || c == '_'
		if !letter && (i == 0 || c < '0' || c > '9') {
			return false
		}
	}
	return s != "" && len(s) <= 128
}

// String says what kind of source it is and where: never the value, nor the arguments of a command.
func (s Source) String() string {
	switch {
	case s.File != "":
		return "file " + s.File
	case s.Env != "":
		return "variable " + s.Env
	case len(s.Command) > 0:
		return "command " + s.Command[0]
	default:
		return "value"
	}
}

// refresh returns how long a value is used; 0: for ever.
func (s Source) refresh() time.Duration {
	switch {
	case s.File == "" && s.Command == nil:
		return 0
	case s.Refresh != 0:
		return s.Refresh
	case s.File != "":
		return fileRefresh
	default:
		return commandRefresh
	}
}

func (s Source) timeout() time.Duration {
	if s.Timeout != 0 {
		return s.Timeout
	}
	return defaultTimeout
}
