package e2b

import (
	"encoding/json"
	"os"
	"regexp"
	"strings"
	"sync"
	"testing"

	"boxgate/internal/nightly"
)

// subjects are the files of testdata/subjects, which share a gateway.
var subjects = []string{"sandbox", "commands", "files", "git", "network", "catalog", "snapshots", "controls", "beside", "urls"}

// checks is the least number of tests in all subjects.
const checks = 80

// classes are the classes of the SDK with public methods.
var classes = []string{
	"Sandbox", "SandboxPaginator", "SnapshotPaginator", "SecretPaginator", "CommandHandle", "CommandExitError", "WatchHandle", "Secret", "Volume", "TemplateBase", "E2B",
	"ConnectionConfig",
}

// result is a line of testdata/run.mjs: the result of a test, or finally all methods and getters, the ones that succeeded and the
// ones that the gateway refused.
type result struct {
	Test, Error            string
	Table, Worked, Refused []string
}

// coverage are the methods and getters of the SDK, and what the tests saw of them.
type coverage struct {
	mu                     sync.Mutex
	tests                  int
	table, worked, refused map[string]bool
}

func (c *coverage) add(r result) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if r.Test != "" {
		c.tests++
	}
	for _, of := range []struct {
		set   map[string]bool
		names []string
	}{{c.table, r.Table}, {c.worked, r.Worked}, {c.refused, r.Refused}} {
		for _, name := range of.names {
			of.set[name] = true
		}
	}
}

// TestSDK drives a gateway with the unmodified npm package. Each test of testdata/subjects is a subtest. Each public method and
// getter of the package's types must succeed in a test, or be refused in one, and has a row in docs/e2b.md that agrees.
func TestSDK(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.serveGit(t)
	s.install(t)
	shapes := s.scripts.Shapes(t, "e2b", classes...)
	c := &coverage{table: map[string]bool{}, worked: map[string]bool{}, refused: map[string]bool{}}
	t.Run("subjects", func(t *testing.T) {
		for _, subject := range subjects {
			t.Run(subject, func(t *testing.T) {
				t.Parallel()
				s.drive(t, shapes, subject, c.add)
			})
		}
	})
	if c.tests < checks {
		t.Errorf("%d checks, fewer than %d", c.tests, checks)
		return // with -run, only some subjects were driven
	}
	rows := rowsOfMethods(t)
	for name := range c.table {
		row, has := rows[name]
		switch {
		case !has:
			t.Errorf("docs/e2b.md has no row for %s", name)
		case !c.worked[name] && !c.refused[name]:
			t.Errorf("no test in which %s worked or was refused", name)
		case row.refused == c.worked[name]:
			t.Errorf("docs/e2b.md: %s, refused: %v, but worked: %v", name, row.refused, c.worked[name])
		}
	}
	for name := range rows {
		if !c.table[name] {
			t.Errorf("docs/e2b.md has a row for %s, which the SDK does not have", name)
		}
	}
}

// ofOneHost are the tests of objects that each host of a fleet has for itself: the secrets of API keys, and the audit trail.
var ofOneHost = []string{"a header with a secret of the API key", "calls are in the audit trail"}

// TestSDKOfAnotherHost is [TestSDK] by a client of one host of a fleet, whose boxes are on another one.
func TestSDKOfAnotherHost(t *testing.T) {
	t.Parallel()
	s := newSiteApart(t)
	s.without = ofOneHost
	s.serveGit(t)
	s.install(t)
	shapes := s.scripts.Shapes(t, "e2b", classes...)
	for _, subject := range nightly.Size([]string{"sandbox", "beside", "snapshots", "urls"}, subjects) {
		t.Run(subject, func(t *testing.T) {
			t.Parallel()
			s.drive(t, shapes, subject, func(result) {})
		})
	}
}

// drive runs a subject in the gateway's namespace, where its own API is on loopback.
func (s *site) drive(t *testing.T, shapes, subject string, note func(result)) {
	t.Helper()
	cmd := s.tenant(t, "e2b/run.mjs", subject)
	cmd.Env = append(cmd.Env, "BOXGATE_URL=http://127.0.0.1:8600", "SHAPES="+shapes, "GIT_PASSWORD="+gitPassword, "DIGESTS="+digestHost,
		"UPSTASH_DISABLE_TELEMETRY=1", "WITHOUT="+strings.Join(s.without, ";"))
	ended := false
	err := s.lines(cmd, func(dec *json.Decoder) error {
		var r result
		if err := dec.Decode(&r); err != nil {
			return err
		}
		note(r)
		if r.Test == "" {
			ended = true
			return nil
		}
		t.Run(r.Test, func(t *testing.T) {
			if r.Error != "" {
				t.Error(r.Error)
			}
		})
		return nil
	})
	if err != nil || !ended {
		t.Errorf("the subject did not end: %v", err)
	}
}

// row is a row of the tables of methods in docs/e2b.md.
type row struct{ refused bool }

// inRow matches a name in the first cell: `Sandbox.create`, `sandbox.files.read`.
var inRow = regexp.MustCompile("`(\\w+(?:\\.\\w+)+)`")

// rowsOfMethods reads docs/e2b.md. Names of static methods begin with the class, others with a variable of that name.
func rowsOfMethods(t *testing.T) map[string]row {
	t.Helper()
	page, err := os.ReadFile("../../docs/e2b.md")
	if err != nil {
		t.Fatal(err)
	}
	_, tables, found := strings.Cut(string(page), "\n## Methods of the SDK\n")
	if !found {
		t.Fatal("docs/e2b.md has no section with the methods")
	}
	rows := map[string]row{}
	for line := range strings.Lines(tables) {
		if strings.HasPrefix(line, "## ") {
			break
		}
		first, rest, _ := strings.Cut(strings.TrimPrefix(line, "| "), " | ")
		if !strings.HasPrefix(line, "| ") {
			continue
		}
		for _, m := range inRow.FindAllStringSubmatch(first, -1) {
			if _, twice := rows[m[1]]; twice {
				t.Errorf("%s has two rows", m[1])
			}
			rows[m[1]] = row{refused: strings.HasPrefix(rest, "refused")}
		}
	}
	return rows
}
