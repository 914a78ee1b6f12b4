package secrets

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"boxgate/policy/match"
	"boxgate/policy/name"
)

func TestEverySourceGivesItsValue(t *testing.T) {
	t.Parallel()
	const variable = "SECRETS_TEST_EVERY_SOURCE"
	if err := os.Setenv(variable, canary); err != nil {
		t.Fatal(err)
	}
	s, _ := opened(t, map[string]Source{
		"literal": {Value: name.NewSecret(canary)},
		"file":    {File: file(t, canary+"\n")},
		"env":     {Env: variable},
		"command": {Command: []string{script(t, `printf '%s\n' "$1"`), canary}},
		"found":   {Command: []string{"printf", "%s", canary}},
	})
	for _, name := range []string{"literal", "file", "env", "command", "found"} {
		wants(t, s, name, canary)
	}
	if _, set := os.LookupEnv(variable); set {
		t.Error("the variable stays in the environment, where every child process inherits it")
	}
	fails(t, s, "other", "no secret")
	if !s.Has("env") || s.Has("other") || s.Has("") {
		t.Error("Has is wrong")
	}
}

// Values that are not valid in a header are refused, and one trailing line break is stripped.
func TestValuesAreHeldToHeaderValues(t *testing.T) {
	t.Parallel()
	for content, want := range map[string]string{
		"v": "v", "v\n": "v", "v\r\n": "v", "a b\tc\n": "a b\tc", strings.Repeat("x", maxValue) + "\r\n": strings.Repeat("x", maxValue),
	} {
		s, _ := single(t, Source{File: file(t, content)})
		wants(t, s, "s", want)
	}
	for content, word := range map[string]string{
		"": "empty", "\n": "empty", "canary\n\n": "line break", "canary\r": "not visible", "\ncanary": "not visible ASCII", "canary\nX-Other: 1\n": "not visible",
		"canary\x00": "not visible", "canar\u00ff": "not visible", " canary": "begins or ends with a space", "canary \n": "begins or ends",
		strings.Repeat("canary", 2000): "longer than 8192", strings.Repeat("x", maxValue+1): "8193 bytes",
	} {
		s, logs := single(t, Source{File: file(t, content)})
		fails(t, s, "s", word)
		c, _ := single(t, Source{Command: []string{"cat", file(t, content)}})
		fails(t, c, "s", word)
		for _, l := range logs.All() {
			if strings.Contains(l.Message, "canary") || strings.Contains(l.ContextMap()["error"].(string), "canary") {
				t.Errorf("the log shows the value: %+v", l)
			}
		}
	}
}

func TestFilesThatAreNotTrusted(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	pipe := filepath.Join(dir, "pipe")
	if err := unix.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	cases := map[string][]string{
		pipe: {"not a regular file"}, dir: {"not a regular file"}, filepath.Join(dir, "none"): {"no such file"},
		filepath.Join(file(t, "x"), "below"): {"not a directory"},
	}
	for mode, words := range map[os.FileMode][]string{
		0o604: {"readable or writable by everybody", "chmod o="}, 0o602: {"everybody"}, 0o644: {"mode 0644"}, 0o620: {"group-writable", "chmod g-w"},
	} {
		path := file(t, canary)
		if err := os.Chmod(path, mode); err != nil {
			t.Fatal(err)
		}
		cases[path] = words
	}
	if os.Geteuid() == 0 {
		path := file(t, canary)
		if err := os.Chown(path, 12345, 0); err != nil {
			t.Fatal(err)
		}
		cases[path] = []string{"belongs to another user", "chown"}
	}
	for path, words := range cases {
		s, _ := single(t, Source{File: path, Timeout: time.Minute})
		fails(t, s, "s", append(words, "file "+path)...)
		if err := Check(t.Context(), map[string]Source{"s": {File: path}}); err == nil || !strings.Contains(err.Error(), "secrets.s: file "+path+": ") {
			t.Errorf("check says %v", err)
		}
	}
	group := file(t, canary)
	if err := os.Chmod(group, 0o640); err != nil {
		t.Fatal(err)
	}
	s, _ := single(t, Source{File: group})
	wants(t, s, "s", canary)
}

// A Secret of Kubernetes is a volume of links to files in a directory that is replaced as a whole.
func TestFilesOfAKubernetesSecret(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	write := func(version, value string) {
		t.Helper()
		err := errors.Join(os.Mkdir(filepath.Join(dir, version), 0o755), os.WriteFile(filepath.Join(dir, version, "openai"), []byte(value), 0o400),
			os.Symlink(version, filepath.Join(dir, "..data.new")), os.Rename(filepath.Join(dir, "..data.new"), filepath.Join(dir, "..data")))
		if err != nil {
			t.Fatal(err)
		}
	}
	write("..1", "one")
	if err := os.Symlink("..data/openai", filepath.Join(dir, "openai")); err != nil {
		t.Fatal(err)
	}
	s, _ := opened(t, map[string]Source{"openai": {File: filepath.Join(dir, "openai"), Refresh: 100 * time.Millisecond}})
	wants(t, s, "openai", "one")
	write("..2", "two")
	eventually(t, "the new value is used", func() bool { v, _ := s.Secret(t.Context(), "openai"); return v.Reveal() == "two" })
}

// A refresh detects every kind of change of a file; while the file is missing there is no value.
func TestFilesAreReadAgain(t *testing.T) {
	t.Parallel()
	path := file(t, "one")
	link := filepath.Join(t.TempDir(), "link")
	if err := os.Symlink(path, link); err != nil {
		t.Fatal(err)
	}
	s, logs := opened(t, map[string]Source{
		"file": {File: path, Refresh: 100 * time.Millisecond}, "link": {File: link, Refresh: 100 * time.Millisecond},
	})
	becomes := func(name, want string) {
		t.Helper()
		eventually(t, name+" is "+want, func() bool { v, _ := s.Secret(t.Context(), name); return v.Reveal() == want })
	}
	becomes("file", "one")
	replace(t, path, "two")
	becomes("file", "two")
	becomes("link", "two")
	if err := os.WriteFile(path, []byte("333"), 0o600); err != nil { // in place, with the same length
		t.Fatal(err)
	}
	becomes("file", "333")
	other := file(t, "four")
	if err := os.Symlink(other, link+".new"); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(link+".new", link); err != nil {
		t.Fatal(err)
	}
	becomes("link", "four")
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	becomes("file", "")
	fails(t, s, "file", "no such file")
	wants(t, s, "link", "four")
	replace(t, path, "five")
	becomes("file", "five")
	if n := logs.FilterMessage("a secret could not be refreshed").Len(); n != 1 {
		t.Errorf("the failure was logged %d times", n)
	}
	if n := logs.FilterMessage("the source of a secret works again").Len(); n != 1 {
		t.Errorf("the repair was logged %d times", n)
	}
}

func TestAMissingVariable(t *testing.T) {
	t.Parallel()
	s, _ := single(t, Source{Env: "SECRETS_TEST_NOT_SET"})
	fails(t, s, "s", "variable SECRETS_TEST_NOT_SET", "not set")
	err := Check(t.Context(), map[string]Source{"s": {Env: "SECRETS_TEST_NOT_SET"}})
	if err == nil || !strings.Contains(err.Error(), "secrets.s: variable SECRETS_TEST_NOT_SET: it is not set") {
		t.Errorf("check says %v", err)
	}
}

// The form of a source is checked before anything is opened, and the error never shows a literal.
func TestMistakesInTheForm(t *testing.T) {
	t.Parallel()
	for want, sources := range map[string]map[string]Source{
		"secrets.s: has no source":                                       {"s": {}},
		"secrets.s: has several":                                         {"s": {File: "/x", Env: "X"}},
		`"a…" is not a name`:                                             {"a b": {File: "/x"}},
		"secrets.s.value: the value ends":                                {"s": {Value: name.NewSecret("canary\n")}},
		"secrets.s.file: \"x\" is not an abs":                            {"s": {File: "x"}},
		"secrets.s.env: \"1X\"":                                          {"s": {Env: "1X"}},
		"secrets.s.env: PATH is used":                                    {"s": {Env: "PATH"}},
		"secrets.s.env: BOXGATE_X is used":                               {"s": {Env: "BOXGATE_X"}},
		"secrets.s.command: is empty":                                    {"s": {Command: []string{}}},
		"secrets.s.command: \"./x\" is neither":                          {"s": {Command: []string{"./x"}}},
		"secrets.s.command: there is no shell":                           {"s": {Command: []string{"vault read x"}}},
		"secrets.s.command: has a NUL":                                   {"s": {Command: []string{"x", "\x00"}}},
		"secrets.s.command: has 65 elements":                             {"s": {Command: make65()}},
		"secrets.s.refresh: 1ms is out of range":                         {"s": {File: "/x", Refresh: time.Millisecond}},
		"secrets.s.refresh: -1s is out of range":                         {"s": {File: "/x", Refresh: -time.Second}},
		"secrets.s.timeout: 1h0m0s is out":                               {"s": {File: "/x", Timeout: time.Hour}},
		"secrets.s.timeout: has no effect on a value that cannot change": {"s": {Env: "X", Timeout: time.Second}},
	} {
		_, err := Open(sources, Options{})
		if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "canary") {
			t.Errorf("error %v, want one with %q", err, want)
		}
	}
}

func make65() []string {
	out := make([]string, 65)
	for i := range out {
		out[i] = "x"
	}
	return out
}

func FuzzValue(f *testing.F) {
	for _, s := range []string{"", "\n", "v\r\n", "a\nb", " v", strings.Repeat("x", form{}.maxRaw())} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, raw []byte) {
		in := string(raw)
		v, err := form{}.valueOf(raw)
		got := v.Reveal()
		if err == nil && (got == "" || len(got) > maxValue || match.CheckHeaderValue(got) != nil || !strings.HasPrefix(in, got) || len(in)-len(got) > 2) {
			t.Fatalf("%q became %q", in, got)
		}
		if err != nil && (got != "" || len(in) > 20 && strings.Contains(err.Error(), in)) {
			t.Fatalf("%q: %q %v", in, got, err)
		}
		for i, b := range raw {
			if b != 0 {
				t.Fatalf("byte %d stays in the buffer", i)
			}
		}
	})
}

// The gateway waits for a file that is missing briefly during its replacement, but not for one that stays missing.
func TestAFileIsMissingForAMoment(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "secret")
	if _, err := awaitFile(t.Context(), path, form{}, 0); !errors.Is(err, fs.ErrNotExist) {
		t.Error(err)
	}
	read := make(chan string)
	go func() {
		v, err := awaitFile(t.Context(), path, form{}, time.Minute)
		if err != nil {
			t.Error(err)
		}
		read <- v.Reveal()
	}()
	replace(t, path, canary)
	if got := <-read; got != canary {
		t.Errorf("it is %q", got)
	}
}
