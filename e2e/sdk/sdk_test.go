package sdk

import (
	"cmp"
	"encoding/json"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"boxgate/config"
	"boxgate/e2e/harness"
	"boxgate/internal/nightly"
)

// subjects are the files of testdata/subjects that share a gateway.
var subjects = []string{"lifecycle", "exec", "files", "settings", "schedules", "ephemeral", "agents", "urls", "git", "newer", "faults"}

// subjectsOfAllBoxes delete the snapshots of all boxes of a gateway, or change settings of all of them: they have a
// gateway apart, and run one after the other.
var subjectsOfAllBoxes = []string{"snapshots", "account"}

// subjectsOfOptions pass each option that the others do not pass. They have a gateway with agents.
var subjectsOfOptions = []string{"options", "running"}

// methodsOfBox is the number of methods of the class Box in the pinned package, including its namespaces and static
// ones.
const methodsOfBox = 66

// result is a line of testdata/run.mjs: the result of a test with the options that it used, or finally all methods, options and
// fields, the methods that succeeded, and the fields of answers.
type result struct {
	Test, Error                 string
	Table, Worked               []string
	Options, Used, Fields, Seen []string
	Minute                      bool // no result: the clock is to be set forward
}

// TestSDK drives a gateway with the unmodified npm package. Each test of testdata/subjects is a subtest. A method that
// succeeded in none of them fails by name. The table of methods is read from the package's classes.
func TestSDK(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	n.types = n.Shapes(t, "@upstash/box")
	c := newCoverage()
	var mu sync.Mutex
	table, worked := map[string]bool{}, map[string]bool{}
	note := func(r result) {
		mu.Lock()
		defer mu.Unlock()
		for _, m := range r.Table {
			table[m] = true
		}
		for _, m := range r.Worked {
			worked[m] = true
		}
		c.add(r)
	}
	t.Run("subjects", func(t *testing.T) {
		t.Run("types", func(t *testing.T) {
			t.Parallel()
			n.checkShapes(t)
		})
		w, key := newWorld(t)
		serveGitHub(t, w)
		for _, subject := range subjects {
			t.Run(subject, func(t *testing.T) {
				t.Parallel()
				n.drive(t, w, key, subject, note)
			})
		}
		t.Run("of all boxes", func(t *testing.T) {
			t.Parallel()
			w, key := newWorld(t)
			for _, subject := range subjectsOfAllBoxes {
				n.drive(t, w, key, subject, note)
			}
		})
		t.Run("options", func(t *testing.T) {
			t.Parallel()
			w := newWorldOfOptions(t)
			for _, subject := range subjectsOfOptions {
				t.Run(subject, func(t *testing.T) {
					t.Parallel()
					n.drive(t, w, strings.TrimSpace(w.KeyFile("api-key")), subject, note)
				})
			}
		})
	})
	ofBox := 0
	for m := range table {
		if strings.HasPrefix(m, "Box.") || strings.HasPrefix(m, "Box#") && !slices.Contains(properties, m) {
			ofBox++
		}
		if !worked[m] {
			t.Errorf("no test in which %s worked", m)
		}
	}
	if ofBox != methodsOfBox {
		t.Errorf("Box has %d methods, not %d", ofBox, methodsOfBox)
	}
	c.check(t)
}

// TestSDKOfAnotherHost is [TestSDK] by a client of one host of a fleet, whose boxes are on another one. Variables of all boxes, the subject
// account, are settings of each host.
func TestSDKOfAnotherHost(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	n.types = n.Shapes(t, "@upstash/box")
	w, key := newWorlds(t, &n)
	serveGitHub(t, n.apart)
	note := func(result) {}
	t.Run("subjects", func(t *testing.T) {
		for _, subject := range nightly.Size([]string{"lifecycle", "files", "urls", "schedules"}, subjects) {
			t.Run(subject, func(t *testing.T) {
				t.Parallel()
				n.drive(t, w, key, subject, note)
			})
		}
	})
	n.drive(t, w, key, "snapshots", note) // it deletes all
}

// TestSilence drives calls that send nothing for longer than the limits of a client, which are a few seconds here.
func TestSilence(t *testing.T) {
	t.Parallel()
	w, key := newWorld(t, func(c *config.Config) { c.Admin.Silence = time.Second })
	newNode(t).drive(t, w, key, "silence", func(result) {})
}

// TestSilenceOfMinutes drives calls that send nothing for longer than the limit of Node's fetch, which is 300 s.
func TestSilenceOfMinutes(t *testing.T) {
	nightly.Only(t)
	t.Parallel()
	w, key := newWorld(t)
	newNode(t).drive(t, w, key, "minutes", func(result) {})
}

// properties are the getters of Box, which send no request.
var properties = []string{"Box#networkPolicy", "Box#cwd", "Box#modelConfig"}

// environment returns the variables of run.mjs.
func (n node) environment(key string) []string {
	return []string{"UPSTASH_BOX_BASE_URL=" + baseURL, "UPSTASH_BOX_API_KEY=" + key, "UPSTASH_DISABLE_TELEMETRY=1", "SHAPES=" + n.types}
}

// drive runs a subject.
func (n node) drive(t *testing.T, w *harness.World, key, subject string, note func(result)) {
	t.Helper()
	cmd := n.Command(t.Context(), "run.mjs", subject)
	cmd.Env = append(os.Environ(), n.environment(key)...)
	if n.roots != "" {
		cmd.Env = append(cmd.Env, "NODE_EXTRA_CA_CERTS="+n.roots)
	}
	ended := false
	err := lines(w, cmd, func(dec *json.Decoder) error {
		var r result
		if err := dec.Decode(&r); err != nil {
			return err
		}
		if r.Minute {
			passMinute(cmp.Or(n.apart, w))
			return nil
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
