package sdk

import (
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"boxgate/config"
	"boxgate/e2e/harness"
)

// unusedOptions are options of the SDK that no test passes, with the reason. A row with a * stands for all that begin with it.
var unusedOptions = map[string]string{
	"Box.fromSnapshot(config).git.userEmail":      "the SDK does not send it: the author is the snapshot's",
	"Box.fromSnapshot(config).git.userName":       "the same",
	"Box.fromSnapshot(config).skills":             "the SDK does not send them: they are the snapshot's",
	"Box.fromSnapshot(config).mcpServers*":        "the same",
	"Box.fromSnapshot(config).runtime=*":          "the runtime is the snapshot's; Box.create has each",
	"EphemeralBox.create(config).runtime=*":       "the same body as that of Box.create, which has each",
	"EphemeralBox.fromSnapshot(config).runtime=*": "the runtime is the snapshot's; Box.create has each",
}

// absentFields are fields of the SDK's types that no answer has, with the reason. All of them are optional.
var absentFields = map[string]string{
	"BoxData.agent_id":             "the hosted product's number of an agent",
	"BoxData.clone_repo":           "no option of the SDK clones a repository into a new box",
	"BoxData.use_managed_key":      "of keys that the hosted product sells",
	"BoxRunData.memory_peak_bytes": "memory is measured for each box, not for each run",
	"Schedule.qstash_schedule_id":  "the gateway has schedules of its own",
}

// newWorldOfOptions starts a gateway with agents, all runtimes, servers of models and a GitHub.
func newWorldOfOptions(t *testing.T) *harness.World {
	t.Helper()
	image := agentImage(t)
	remote, _ := harness.Remote(t)
	w := harness.NewWorld(t, func(c *config.Config) {
		c.Remote = remote
		c.Ingress.HTTPS, c.Ingress.HTTP, c.Ingress.Domain = "", "127.0.0.1:80", "localhost"
		c.Launcher.Images["debian-agents"], c.Launcher.Images["ruby"] = image, image
		for _, runtime := range []string{"golang", "rust", "node-alpine", "python-alpine", "golang-alpine", "ruby-alpine", "rust-alpine"} {
			c.Launcher.Images[runtime] = "debian"
		}
	})
	serveModels(t, w)
	serveGitHub(t, w)
	return w
}

var minutes atomic.Int64

// passMinute sets a gateway's clock forward by a minute, so that schedules run within seconds.
func passMinute(w *harness.World) { w.ShiftClock(time.Duration(minutes.Add(1)) * time.Minute) }

// coverage are the options and fields of the SDK's types, and the ones that calls had which succeeded.
type coverage struct{ options, used, fields, seen map[string]bool }

func newCoverage() coverage {
	return coverage{map[string]bool{}, map[string]bool{}, map[string]bool{}, map[string]bool{}}
}

func (c coverage) add(r result) {
	for _, of := range []struct {
		set   map[string]bool
		names []string
	}{{c.options, r.Options}, {c.used, r.Used}, {c.fields, r.Fields}, {c.seen, r.Seen}} {
		for _, name := range of.names {
			of.set[name] = true
		}
	}
}

// check reports options that no call had, and fields that no answer had.
func (c coverage) check(t *testing.T) {
	t.Helper()
	for _, of := range []struct {
		what     string
		all, met map[string]bool
		excepted map[string]string
	}{{"no test passes the option", c.options, c.used, unusedOptions}, {"no answer has the field", c.fields, c.seen, absentFields}} {
		needed := map[string]bool{}
		for _, name := range slices.Sorted(maps.Keys(of.all)) {
			row, excepted := exception(of.excepted, name)
			if needed[row] = needed[row] || excepted && !of.met[name]; !excepted && !of.met[name] {
				t.Errorf("%s %s", of.what, name)
			}
		}
		for row := range of.excepted {
			if !needed[row] {
				t.Errorf("%s is no exception any more", row)
			}
		}
	}
}

func exception(rows map[string]string, name string) (row string, found bool) {
	for row := range rows {
		if prefix, all := strings.CutSuffix(row, "*"); row == name || all && strings.HasPrefix(name, prefix) {
			return row, true
		}
	}
	return "", false
}

// checkShapes: a call or an answer that does not fit the SDK's types is noticed, and so are new options and fields of the types.
func (n node) checkShapes(t *testing.T) {
	if out, err := n.Command(t.Context(), "shapes.test.mjs").CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
	changed := filepath.Join(n.Dir, "changed/@upstash/box")
	if err := os.CopyFS(changed, os.DirFS(filepath.Join(n.Dir, "node_modules/@upstash/box"))); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(changed, "dist/types.d.ts")
	types, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	more := strings.NewReplacer("    initCommand?: string;", "    initCommand?: string;\n    restart?: \"never\" | { after: number };", "    clone_repo?: string;", "    clone_repo?: string;\n    region: string;")
	if err := os.WriteFile(path, []byte(more.Replace(string(types))), 0o600); err != nil {
		t.Fatal(err)
	}
	shapes := string(n.ShapesOf(t, changed))
	for _, want := range []string{`"restart":{"shape":{"any":[{"type":"undefined"},{"value":"never"},{"object":{"after":`, `"region":{"shape":{"type":"string"},"optional":false}`} {
		if !strings.Contains(shapes, want) {
			t.Errorf("the shapes lack %s", want)
		}
	}
}
