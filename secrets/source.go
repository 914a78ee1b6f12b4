package secrets

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"boxgate/policy/match"
	"boxgate/policy/name"
	"boxgate/secrets/aws"
	"boxgate/secrets/github"
	"boxgate/secrets/manager"
	"boxgate/secrets/oauth"
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

// kinds has a constructor for each kind of remote source, by its key in the configuration.
var kinds = map[string]func() remote.Source{
	"github_app": func() remote.Source { return &github.App{} },
	"oauth2":     func() remote.Source { return &oauth.OAuth2{} },
	"google":     func() remote.Source { return &oauth.Google{} },
	"azure":      func() remote.Source { return &oauth.Azure{} },
	"aws_role":   func() remote.Source { return &aws.Role{} },
	"aws_secret": func() remote.Source { return &aws.Secret{} },
	"gcp_secret": func() remote.Source { return &manager.GCP{} },
	"vault":      func() remote.Source { return &manager.Vault{} },

	"onepassword": func() remote.Source { return &manager.OnePassword{} },
}

// RemoteKinds returns the configuration keys of the remote sources.
func RemoteKinds() []string { return slices.Sorted(maps.Keys(kinds)) }

// NewRemote returns an empty remote source of a kind, to be filled in from the configuration; nil if the kind is
// unknown.
func NewRemote(kind string) remote.Source {
	if make := kinds[kind]; make != nil {
		return make()
	}
	return nil
}

// withDocuments returns the sources, and marks the ones that others need as documents: a private key is not valid in a
// header.
func withDocuments(sources map[string]Source) map[string]Source {
	out := maps.Clone(sources)
	for _, source := range sources {
		for _, need := range source.needs() {
			if s, ok := out[need]; ok {
				s.Document = true
				out[need] = s
			}
		}
	}
	return out
}

// needs returns the names of the secrets that a source needs.
func (s Source) needs() []string {
	if s.Remote == nil {
		return nil
	}
	return s.Remote.Needs()
}

// checkNeeds returns an error if a source needs an unknown secret, or directly or indirectly itself. It does not quote
// an unknown name, which may be a value given by mistake.
func checkNeeds(sources map[string]Source, name string) error {
	for _, need := range sources[name].needs() {
		if _, ok := sources[need]; need != "" && !ok {
			return errors.New("names a secret that is not an entry of secrets: other secrets are given by their name")
		}
	}
	if allNeeded(sources, name)[name] {
		return errors.New("depends on itself through the secrets that it names")
	}
	return nil
}

// allNeeded returns the names of all secrets that a secret needs, directly or indirectly.
func allNeeded(sources map[string]Source, name string) map[string]bool {
	all := map[string]bool{}
	for open := []string{name}; len(open) > 0; {
		at := open[len(open)-1]
		open = open[:len(open)-1]
		for _, need := range sources[at].needs() {
			if !all[need] {
				all[need] = true
				open = append(open, need)
			}
		}
	}
	return all
}

// Check checks each source and returns all problems: a file that is unreadable or has no valid value, a variable that
// is not set, a program that is missing or that other users can change. It neither runs commands nor contacts servers,
// because both may have side effects.
func Check(ctx context.Context, sources map[string]Source) error {
	var errs []error
	sources = withDocuments(sources)
	for _, name := range slices.Sorted(maps.Keys(sources)) {
		source := sources[name]
		if len(source.validate(name)) > 0 {
			continue // already reported
		}
		if err := source.check(ctx); err != nil {
			errs = append(errs, fmt.Errorf("secrets.%s: %s: %w", name, source, err))
		}
	}
	return errors.Join(errs...)
}

func (s Source) check(ctx context.Context) error {
	switch {
	case len(s.Command) > 0:
		_, err := findProgram(s.Command[0])
		return err
	case s.Env != "":
		_, err := readVariable(s.Env, s.form())
		return err
	case s.Credential != "" && s.path() == "":
		return nil // only the service receives credentials
	case s.path() != "":
		done := make(chan error, 1)
		go func() {
			_, err := readFile(ctx, s.path(), s.form())
			done <- err
		}()
		select {
		case err := <-done:
			return err
		case <-time.After(s.timeout()):
			return errTimeout
		}
	default:
		return nil
	}
}

// maxValue is the maximum length of a header value, maxDocument that of a document, in bytes.
const (
	maxValue    = 8 << 10
	maxDocument = 64 << 10
)

// form is the form of a value: valid in a header, or a document.
type form struct{ document bool }

var (
	errEmpty = errors.New("it is empty")
	errText  = errors.New("it is not text in UTF-8")
)

// max is the maximum length in bytes.
func (f form) max() int {
	if f.document {
		return maxDocument
	}
	return maxValue
}

// maxRaw is max plus a trailing line break.
func (f form) maxRaw() int { return f.max() + len("\r\n") }

func (f form) errTooLong() error { return fmt.Errorf("it is longer than %d bytes", f.max()) }

// valueOf makes a secret from the content of a file or the output of a command, without one trailing line break. It
// clears raw.
func (f form) valueOf(raw []byte) (name.Secret, error) {
	defer clear(raw)
	if len(raw) > f.maxRaw() {
		return name.Secret{}, f.errTooLong()
	}
	text, cut := bytes.CutSuffix(raw, []byte("\n"))
	if cut {
		text = bytes.TrimSuffix(text, []byte("\r"))
	}
	return f.checked(string(text))
}

// checked makes a secret of a value if it has the form.
func (f form) checked(v string) (name.Secret, error) {
	if v == "" {
		return name.Secret{}, errEmpty
	}
	if err := f.check(v); err != nil {
		return name.Secret{}, err
	}
	return name.NewSecret(v), nil
}

func (f form) check(v string) error {
	switch {
	case !f.document:
		return match.CheckHeaderValue(v)
	case len(v) > maxDocument:
		return f.errTooLong()
	case !utf8.ValidString(v) || strings.Contains(v, "\x00"):
		return errText
	}
	return nil
}
