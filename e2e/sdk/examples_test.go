package sdk

import (
	"bufio"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"boxgate/e2e/harness"
	"boxgate/internal/lab"
)

// example is a block of commands in docs/api.md.
type example struct {
	line   int
	status int // expected status of its requests; 0: success
	script string
}

var fence = regexp.MustCompile("(?ms)^```sh(?: status=([0-9]+))?\n(.*?)^```$")

// examplesOf finds the blocks of a document.
func examplesOf(t *testing.T, doc string) []example {
	t.Helper()
	var found []example
	for _, m := range fence.FindAllStringSubmatchIndex(doc, -1) {
		e := example{line: 1 + strings.Count(doc[:m[0]], "\n"), script: doc[m[4]:m[5]]}
		if m[2] >= 0 {
			status, err := strconv.Atoi(doc[m[2]:m[3]])
			if err != nil {
				t.Fatal(err)
			}
			e.status = status
		}
		found = append(found, e)
	}
	return found
}

// TestExamplesOfTheAPI runs the examples of docs/api.md in order. An operation of /openapi.json without a working
// example fails by name.
func TestExamplesOfTheAPI(t *testing.T) {
	t.Parallel()
	w, _ := newWorld(t)
	doc, err := os.ReadFile("../../docs/api.md")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = exec.Command("ip", "netns", "del", filepath.Base(w.Dir)).Run() }) // where an example failed
	ops := operations(t, w)
	for _, a := range runExamples(t, w, examplesOf(t, string(doc))) {
		good := a.status >= 200 && a.status < 300
		if a.want != 0 {
			good = a.status == a.want
		}
		if !good {
			t.Errorf("docs/api.md:%d: %s %s: %d", a.line, a.method, a.path, a.status)
		}
		if _, pattern := ops.mux.Handler(&http.Request{Method: a.method, URL: &url.URL{Path: a.path}}); good {
			delete(ops.left, pattern)
		}
	}
	for pattern, id := range ops.left {
		t.Errorf("docs/api.md has no example of %s (%s) that works", pattern, id)
	}
}

// described are the operations of the description.
type described struct {
	mux  *http.ServeMux
	left map[string]string // pattern → operation ID
}

func operations(t *testing.T, w *harness.World) described {
	t.Helper()
	var doc struct {
		Paths map[string]map[string]struct{ OperationID string }
	}
	if err := w.Client.Do(t.Context(), "GET", "/openapi.json", nil, &doc); err != nil {
		t.Fatal(err)
	}
	d := described{http.NewServeMux(), map[string]string{}}
	for path, methods := range doc.Paths {
		for method, op := range methods {
			pattern := strings.ToUpper(method) + " " + path
			d.left[pattern] = op.OperationID
			d.mux.Handle(pattern, http.NotFoundHandler())
		}
	}
	return d
}

// answered is a request made by an example.
type answered struct {
	line, want   int
	method, path string
	status       int
}

// tell makes curl report each request.
const tell = `write-out = "%{stderr}\nanswered %{method} %{url_effective} %{http_code}\n"`

// runExamples runs all blocks in one shell and returns their requests.
func runExamples(t *testing.T, w *harness.World, examples []example) []answered {
	t.Helper()
	home := t.TempDir()
	if err := os.WriteFile(filepath.Join(home, ".curlrc"), []byte(tell), 0o600); err != nil {
		t.Fatal(err)
	}
	var script strings.Builder
	for _, e := range examples {
		fmt.Fprintf(&script, "printf '\\nexample %d %d\\n' >&2\n%s", e.line, e.status, e.script)
	}
	text := strings.NewReplacer("/var/lib/boxgate/", filepath.Join(w.Dir, "state")+"/", "sudo ", "", "boxgate-example", filepath.Base(w.Dir)).Replace(script.String())
	cmd := exec.CommandContext(t.Context(), "bash", "-eu", "-o", "pipefail", "-c", text)
	cmd.Dir, cmd.Env = home, append(os.Environ(), "HOME="+home, "CURL_HOME="+home)
	var out, errout lab.SyncBuffer
	cmd.Stdout, cmd.Stderr = &out, &errout
	if err := w.Net.Gateway().Start(cmd); err != nil {
		t.Fatal(err)
	}
	err := cmd.Wait()
	requests := readAnswered(t, errout.String())
	if err != nil {
		t.Fatalf("after %+v: %v\n%s\n%s", requests[max(0, len(requests)-1):], err, harness.Tail(out.String(), 2000), harness.Tail(errout.String(), 2000))
	}
	if t.Failed() {
		t.Log(out.String())
	}
	return requests
}

// readAnswered parses the shell's report.
func readAnswered(t *testing.T, text string) (all []answered) {
	t.Helper()
	var at answered // the running example
	for lines := bufio.NewScanner(strings.NewReader(text)); lines.Scan(); {
		if n, _ := fmt.Sscanf(lines.Text(), "example %d %d", &at.line, &at.want); n == 2 {
			continue
		}
		a, target := at, ""
		if n, _ := fmt.Sscanf(lines.Text(), "answered %s %s %d", &a.method, &target, &a.status); n != 3 {
			continue
		}
		u, err := url.Parse(target)
		if err != nil {
			t.Fatal(err)
		}
		a.path = u.Path
		all = append(all, a)
	}
	return all
}
