package command

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"boxgate/cmd/gateway/command/cli"
)

// goText is what only a programmer of Go would understand.
var goText = regexp.MustCompile("strconv|unmarshal|Unmarshal|!!|dial |json:|(^|[^.])yaml:|open /|read /|lookup |invalid syntax|syscall|0x[0-9a-f]|runtime error|parse \"|x509: |&\\{|%!|\\*[a-z]+\\.[A-Z]")

// TestMistakesAreExplained: whatever a person gets wrong, the message is in the words of the command line, says what would be
// right, and has no text of Go's own in it.
func TestMistakesAreExplained(t *testing.T) {
	dir := t.TempDir()
	file := func(name, text string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "<html>") }))
	t.Cleanup(srv.Close)
	t.Setenv("BOXGATE_API_KEY", "key")
	t.Setenv("BOXGATE_ADMIN", filepath.Join(dir, "none.sock"))
	for _, c := range []struct {
		args, want string
		status     int
	}{
		{"policy explain demo a.example --port 70000", `--port: "70000" is not a number from 0 to 65535`, cli.ExitUsage},
		{"policy explain demo a.example --port https", `--port: "https" is not a number`, cli.ExitUsage},
		{"box attach --pid init", `--pid: "init" is not a whole number`, cli.ExitUsage},
		{"box rm --all=perhaps", `--all: "perhaps" is not true or false`, cli.ExitUsage},
		{"box rm", "arguments missing", cli.ExitUsage},
		{"box rm demo --all", "not both", cli.ExitUsage},
		{"log --since yesterday", `--since: "yesterday" is not a duration such as 10m`, cli.ExitUsage},
		{"policy allow demo a.example --for -1h", `--for: "-1h" is not a duration such as 10m, or 7d`, cli.ExitUsage},
		{"log --reason because", `no reason "because"`, cli.ExitUsage},
		{"log --denyed", "unknown flag --denyed; did you mean --denied?", cli.ExitUsage},
		{"log -q", "-q", cli.ExitUsage},
		{"polic get demo", `unknown command "polic" for "gateway"; did you mean policy?`, cli.ExitUsage},
		{"policy alow demo a.example", `"alow" for "gateway policy"; did you mean allow?`, cli.ExitUsage},
		{"policy set demo {", "a policy is JSON, @FILE", cli.ExitUsage},
		{"policy set demo @" + dir + "/none.json", "there is no file " + dir + "/none.json", cli.ExitFailed},
		{"policy set demo preset:npn", `no preset "npn"`, cli.ExitUsage},
		{"policy set demo @" + dir, "is a directory", cli.ExitFailed},
		{"policy convert --from vercel " + dir + "/none.json", "there is no file", cli.ExitFailed},
		{"headers set {", "JSON or YAML", cli.ExitUsage},
		{"headers set a.example --header X-Key=@" + dir + "/none", "there is no file", cli.ExitFailed},
		{"box create --env X", "NAME=VALUE", cli.ExitUsage},
		{"box list", dir + "/none.sock: nothing listens there", cli.ExitFailed},
		{"box list --admin http://127.0.0.1:1", "nothing listens there", cli.ExitFailed},
		{"box list --admin http://[::1", "neither the URL nor the socket", cli.ExitFailed},
		{"box list --admin " + srv.URL, "not that of a gateway", cli.ExitFailed},
		{"box get demo --admin " + srv.URL, "not that of a gateway", cli.ExitFailed},
		{"status --admin " + srv.URL, "not that of a gateway", cli.ExitFailed},
		{"policy get demo --admin " + srv.URL, "not that of a gateway", cli.ExitFailed},
		{"serve --config " + dir + "/none.yaml", "there is no file", cli.ExitFailed},
		{"serve --config " + file("type.yaml", "limits: {connections: many}"), "line 1: text is given where a whole number belongs", cli.ExitFailed},
		{"serve --config " + file("list.yaml", "dns:\n  upstreams: 5"), "line 2: a number is given where a list belongs", cli.ExitFailed},
		{"serve --config " + file("duration.yaml", "proxy:\n  idle_timeout: soon"), "a duration such as 30m belongs", cli.ExitFailed},
		{"serve --config " + file("size.yaml", "limits:\n  memory: lots"), "256MiB", cli.ExitFailed},
		{"serve --config " + file("key.yaml", "dsn: {}"), `did you mean "dns"?`, cli.ExitFailed},
		{"serve --config " + file("tab.yaml", "dns:\n\t- x"), "line 2", cli.ExitFailed},
		{"serve --config " + file("section.yaml", "dns: no"), "a section of keys belongs", cli.ExitFailed},
	} {
		out, status := ran(t, strings.Fields(c.args)...)
		if status != c.status || !strings.Contains(out, c.want) || goText.MatchString(out) {
			t.Errorf("%s: exit %d, want %d and %q\n%s", c.args, status, c.status, c.want, out)
		}
	}
}

// TestSocketBehindALinkInACircle: gateway run --socket PATH says what is wrong with such a path, and that at once.
func TestSocketBehindALinkInACircle(t *testing.T) {
	t.Parallel()
	circle := filepath.Join(t.TempDir(), "circle")
	if err := os.Symlink(circle, circle); err != nil {
		t.Fatal(err)
	}
	if _, err := realPaths([]string{circle}); err == nil || err.Error() != circle+" cannot be read: too many levels of symbolic links" {
		t.Error(err)
	}
}

// TestMistakesAsJSON: with --json an error is JSON as well, even one for which the command line was not read to its end.
func TestMistakesAsJSON(t *testing.T) {
	t.Setenv("BOXGATE_API_KEY", "key")
	for _, args := range [][]string{{"--json", "box", "list", "--admin", "/none.sock"}, {"policy", "explain", "--port", "x", "--json"}, {"nothing", "--json"}} {
		r, w, err := os.Pipe()
		if err != nil {
			t.Fatal(err)
		}
		stderr := os.Stderr
		os.Stderr = w
		status := Run(args)
		os.Stderr = stderr
		w.Close()
		var got struct {
			Error      string
			ExitStatus int `json:"exit_status"`
		}
		if err := json.NewDecoder(r).Decode(&got); err != nil || got.Error == "" || got.ExitStatus != status || status == 0 {
			t.Errorf("%v: %+v %v", args, got, err)
		}
		r.Close()
	}
}

// TestRemoveAll: every box, but only if that was meant.
func TestRemoveAll(t *testing.T) {
	var removed []string
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodDelete {
			removed = append(removed, filepath.Base(r.URL.Path))
		}
		if r.Method == http.MethodDelete && strings.HasSuffix(r.URL.Path, "b1") {
			w.WriteHeader(http.StatusServiceUnavailable)
			fmt.Fprint(w, `{"error":"busy"}`)
			return
		}
		fmt.Fprint(w, `[{"id":"b1","name":"one"},{"id":"b2"}]`)
	}))
	t.Cleanup(srv.Close)
	t.Setenv("BOXGATE_API_KEY", "key")
	t.Setenv("BOXGATE_ADMIN", srv.URL)
	if out, code := ran(t, "box", "rm", "--all"); code != cli.ExitUsage || !strings.Contains(out, "--yes") || removed != nil {
		t.Errorf("without a terminal: exit %d, %v: %s", code, removed, out)
	}
	if out, code := ran(t, "box", "rm", "--all", "--yes"); code != cli.ExitFailed || !strings.Contains(out, "b1: busy") || strings.Join(removed, " ") != "b1 b2" {
		t.Errorf("exit %d, %v: %s", code, removed, out)
	}
}
