package secrets

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"boxgate/policy/name"
	"boxgate/secrets/remote"
)

// Source is the origin of the value of one secret. Exactly one of Value, File, Env, Command, Credential and Remote is
// set.
type Source struct {
	Value      name.Secret   // the value itself
	File       string        // absolute path; the file must belong to root or the gateway's user and not be accessible to others
	Env        string        // variable of the gateway's environment, removed from it when the secrets are opened
	Command    []string      // program and arguments, run without a shell; its standard output is the value
	Credential string        // name of a credential that systemd passes to the gateway's service
	Remote     remote.Source // fetched over the network
	Kind       string        // of Remote: its key in the configuration

	// Document is set for values that need not be valid in a header, such as a private key: text of up to 64 KiB. A
	// secret that others need is always a document.
	Document bool
	// Refresh is how long a value is used. 0: a minute for a file or a credential, five minutes for a command and for a
	// remote value without expiry. A value with an expiry is never used for longer. Literals and variables cannot
	// change while the gateway runs, so it has no effect on them.
	Refresh time.Duration
	// Timeout bounds reading a file, running a command, or a server's answer. 0: 10 s.
	Timeout time.Duration
}

// Limits of the configuration.
const (
	minRefresh, maxRefresh = 100 * time.Millisecond, 30 * 24 * time.Hour
	minTimeout, maxTimeout = 100 * time.Millisecond, 5 * time.Minute

	fileRefresh    = time.Minute
	commandRefresh = 5 * time.Minute // also for remote sources
	defaultTimeout = 10 * time.Second

	maxArguments = 64
)

// gatewayVariables are used by the gateway or its child processes, so they must not be removed from the environment.
var gatewayVariables = map[string]bool{"PATH": true, "HOME": true, "TMPDIR": true, "NOTIFY_SOCKET": true, "LANG": true}

// Validate returns all problems with the names and the form of sources. It does not access files or servers. Each error
// begins with its configuration key.
func Validate(sources map[string]Source) error {
	var errs []error
	sources = withDocuments(sources)
	for _, n := range slices.Sorted(maps.Keys(sources)) {
		if !name.IsSecretName(n) {
			errs = append(errs, fmt.Errorf("secrets: %q is not a name: 1 to 64 letters, digits, '.', '_' and '-', the first a letter or digit",
				name.ShownSecretName(n)))
		}
		at := "secrets." + name.ShownSecretName(n)
		errs = append(errs, sources[n].validate(at)...)
		if err := checkNeeds(sources, n); err != nil {
			errs = append(errs, fmt.Errorf("%s.%s: %w", at, sources[n].Kind, err))
		}
	}
	return errors.Join(errs...)
}

func (s Source) validate(at string) (errs []error) {
	fail := func(key, format string, args ...any) {
		errs = append(errs, fmt.Errorf("%s: %s", strings.TrimSuffix(at+"."+key, "."), fmt.Sprintf(format, args...)))
	}
	switch n := s.kinds(); {
	case n == 0:
		fail("", "has no source; give one of value, file, env, command, credential and %s", strings.Join(RemoteKinds(), ", "))
	case n > 1:
		fail("", "has several sources; keep one of them")
	}
	if s.Value.Reveal() != "" {
		if err := s.form().check(s.Value.Reveal()); err != nil {
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
	if s.Credential != "" && !isCredential(s.Credential) {
		fail("credential", "%q is not the name of a credential", s.Credential)
	}
	if s.Remote != nil {
		s.Remote.Validate(func(key, format string, args ...any) { fail(s.Kind+"."+key, format, args...) })
	}
	s.checkTimes(fail)
	return errs
}

func (s Source) checkTimes(fail func(key, format string, args ...any)) {
	if s.Refresh != 0 && (s.Refresh < minRefresh || s.Refresh > maxRefresh) {
		fail("refresh", "%v is out of range; use 100ms to 720h", s.Refresh)
	}
	if s.Timeout != 0 && (s.Timeout < minTimeout || s.Timeout > maxTimeout) {
		fail("timeout", "%v is out of range; use 100ms to 5m", s.Timeout)
	}
	if s.Timeout != 0 && s.isStatic() {
		fail("timeout", "has no effect on a value that cannot change; leave it out")
	}
}

// isStatic reports whether the value cannot change while the gateway runs.
func (s Source) isStatic() bool { return s.Value.Reveal() != "" || s.Env != "" }

func (s Source) kinds() (n int) {
	for _, set := range []bool{
		s.Value.Reveal() != "", s.File != "", s.Env != "", s.Command != nil, s.Credential != "", s.Remote != nil,
	} {
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

// isCredential reports whether s is a valid name of a systemd credential: a file name.
func isCredential(s string) bool {
	return len(s) <= 255 && strings.Trim(s, ".") != "" && !strings.ContainsAny(s, "/\x00\n")
}

// String returns the kind and place of the source, but never the value or the arguments of a command.
func (s Source) String() string {
	switch {
	case s.File != "":
		return "file " + s.File
	case s.Env != "":
		return "variable " + s.Env
	case len(s.Command) > 0:
		return "command " + s.Command[0]
	case s.Credential != "":
		return "credential " + s.Credential
	case s.Remote != nil:
		return s.Kind + " " + s.Remote.Place()
	default:
		return "value"
	}
}

// path returns the file to read; "" if the source is not a file.
func (s Source) path() string {
	if dir := os.Getenv("CREDENTIALS_DIRECTORY"); s.Credential != "" && filepath.IsAbs(dir) {
		return filepath.Join(dir, s.Credential)
	}
	return s.File
}

// Files returns the files that sources are read from.
func Files(sources map[string]Source) []string {
	var out []string
	for _, name := range slices.Sorted(maps.Keys(sources)) {
		if path := sources[name].path(); path != "" {
			out = append(out, path)
		}
	}
	return out
}

// errNoCredentials is returned for a credential if systemd did not pass it.
var errNoCredentials = errors.New("the gateway was not started by systemd with credentials; add LoadCredential= to its unit")

func (s Source) form() form { return form{document: s.Document} }

// refresh returns how long a value without expiry is used; 0: forever.
func (s Source) refresh() time.Duration {
	switch {
	case s.isStatic():
		return 0
	case s.Refresh != 0:
		return s.Refresh
	case s.File != "" || s.Credential != "":
		return fileRefresh
	default:
		return commandRefresh
	}
}

// maxMargin is the maximum time before its expiry at which a value is no longer used: the request that carries it must
// arrive in time.
const maxMargin = 30 * time.Second

// usableLifetime returns how long a value that expires after lifetime may be used.
func usableLifetime(lifetime time.Duration) time.Duration {
	return lifetime - min(lifetime/10, maxMargin)
}

// usableFor returns how long a value is used that expires after lifetime (0: no expiry); 0: forever.
func (s Source) usableFor(lifetime time.Duration) time.Duration {
	if lifetime == 0 || s.isStatic() {
		return s.refresh()
	}
	use := usableLifetime(lifetime)
	if s.Refresh != 0 {
		use = min(use, s.Refresh)
	}
	return max(use, 1) // 0 would mean forever
}

func (s Source) timeout() time.Duration {
	if s.Timeout != 0 {
		return s.Timeout
	}
	return defaultTimeout
}
