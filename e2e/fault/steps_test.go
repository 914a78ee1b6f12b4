package fault

import (
	"bytes"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"boxgate/api"
	"boxgate/config"
	"boxgate/e2e/harness"
	"boxgate/internal/lab"
	"boxgate/internal/nightly"
	"boxgate/policy"
	"boxgate/store"
)

// The steps at which the gateway is made to fail, by operation.
var (
	stepsOfCreate = []string{
		"create: record stored", "create: policy staged", "create: authority stored", "launch: directory made",
		"launch: namespaces pinned", "link: box registered", "link: pair made", "link: box's end up", "link: host's end up",
		"connect: known to DNS and proxy", "plan: to be written", "plan: built", "plan: written", "connect: policy in force",
		"launch: root built", "launch: container made", "launch: first process started", "create: box runs", "create: name claimed",
	}
	stepsOfAttach = []string{
		"create: policy staged", "attach: namespace pinned", "link: box registered", "link: box's end up", "link: host's end up",
		"plan: written", "connect: policy in force", "create: name claimed",
	}
	stepsOfReattach = []string{
		"disconnect: off the network", "leave: off the network", "leave: namespace released", "leave: stored",
		"attach: namespace pinned", "link: box registered", "link: box's end up", "link: host's end up", "plan: written",
		"connect: policy in force",
	}
	stepsOfDelete = []string{
		"delete: begun", "remove: begun", "remove: link deleted", "disconnect: off the network", "delete: deletion stored",
		"remove: processes ended", "remove: namespaces gone", "remove: files in the trash", "delete: nothing runs", "delete: record gone",
	}
	stepsOfChange = []string{
		"change: staged", "plan: to be written", "plan: built", "plan: written", "enforce: kernel and pointer changed",
		"enforce: connections asked again", "change: in force", "change: committed",
	}
	stepsOfPause   = []string{"pause: box frozen", "resume: box thawed"}
	stepsOfRestart = []string{
		"remove: namespaces gone", "restart: namespaces pinned", "connect: policy in force", "launch: root built",
		"launch: first process started", "restart: box runs",
	}
	stepsOfSnapshot = []string{
		"snapshot: record stored", "snapshot: box frozen", "snapshot: files copied", "snapshot: layer complete", "snapshot: ready stored",
		"delete snapshots: records gone",
	}
	stepsOfSharing = []string{"snapshot: layers uploaded", "snapshot: manifest uploaded"}
	stepsOfGlobal  = append([]string{"all boxes: next one"}, stepsOfChange...)          // of a change of all boxes
	stepsOfNamed   = append([]string{"named policy: one box has it"}, stepsOfChange...) // of a change of a named policy
	stepsOfStart   = []string{
		"start: store open", "start: DNS and proxy made", "start: launcher open", "open: table written", "open: addresses set",
		"open: routing set", "open: forwarding on", "start: kernel rules in force", "recover: containers known",
		"link: box registered", "link: box's end up", "connect: known to DNS and proxy", "plan: built", "plan: written",
		"recover: boxes picked up", "start: boxes known",
	}
	stepsOfStop    = []string{"stop: begun", "stop: no more changes", "stop: drained", "stop: kernel rules let go"}
	stepsOfReplace = []string{
		"replace: begun", "replace: successor prepared", "replace: nothing changes", "replace: let go", "replace: retired",
		"start: store open", "start: kernel rules in force", "recover: boxes picked up", "start: boxes known", "start: serving",
	}
	stepsOfSchedule = []string{"schedule: claimed", "schedule: run ended"}
	stepsOfRotation = []string{"secrets: refresh token presented", "secrets: refresh tokens kept"}
	// The steps of the data path have their own tests.
	stepsOfTraffic = []string{"proxy: first bytes read", "proxy: request read", "dns: query read"}
)

// operations are all of these steps.
var operations = [][]string{stepsOfCreate, stepsOfAttach, stepsOfReattach, stepsOfDelete, stepsOfPause, stepsOfRestart, stepsOfSnapshot, stepsOfSharing, stepsOfChange, stepsOfGlobal, stepsOfNamed, stepsOfStart, stepsOfStop, stepsOfReplace, stepsOfSchedule, stepsOfRotation, stepsOfTraffic}

// isMark reports whether the operation cannot fail after the step, so that only death and panic are tested.
func isMark(step string) bool { return slices.Contains(marks, step) }

var marks = []string{
	"proxy: first bytes read", "proxy: request read", "dns: query read",
	"replace: retired", "start: serving",
	"change: committed", "delete: record gone", "delete snapshots: records gone", "disconnect: off the network",
}

// Every step named in the sources is tested, and every tested step is named in the sources.
func TestFaultsAreTriedAtEveryStep(t *testing.T) {
	t.Parallel()
	tried := map[string]bool{}
	for _, steps := range operations {
		for _, s := range steps {
			tried[s] = true
		}
	}
	named := stepsInSources(t)
	for step, kind := range named {
		if !tried[step] {
			t.Errorf("no test makes the gateway fail at %q", step)
		}
		if (kind == "Mark") != isMark(step) {
			t.Errorf("%q is a fault.%s", step, kind)
		}
	}
	for step := range tried {
		if named[step] == "" {
			t.Errorf("there is no step %q", step)
		}
	}
}

// stepsInSources maps each step to the function that marks it, At or Mark.
func stepsInSources(t *testing.T) map[string]string {
	t.Helper()
	named := map[string]string{}
	err := filepath.WalkDir("../..", func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
			return err
		}
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, 0)
		if err != nil {
			return err
		}
		ast.Inspect(file, func(n ast.Node) bool {
			call, ok := n.(*ast.CallExpr)
			if !ok || len(call.Args) != 2 {
				return true
			}
			f, ok := call.Fun.(*ast.SelectorExpr)
			if !ok || fmt.Sprint(f.X) != "fault" || f.Sel.Name == "Inject" {
				return true
			}
			literal, ok := call.Args[1].(*ast.BasicLit)
			if !ok {
				t.Errorf("%s: the name of a step is not a literal", path)
				return true
			}
			step, _ := strconv.Unquote(literal.Value)
			if named[step] != "" {
				t.Errorf("%s: the step %q is named twice", path, step)
			}
			named[step] = f.Sel.Name
			return true
		})
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return named
}

// faultWorld returns a world that obeys [harness.World.Arm], with boxes that attack the whole time.
func faultWorld(t *testing.T, env ...string) (*harness.World, *siege) {
	t.Helper()
	w := harness.NewCapturedStopped(t, func(c *config.Config) { c.Limits.NewConnections = 10000 })
	w.Env = append(env, harness.FaultsFile+"="+w.FaultsPath())
	w.StartIfStopped()
	return w, besiege(w, harness.AttackerAt(101))
}

// assertHolds ends a siege and fails the test if anything has reached the targets.
func (s *siege) assertHolds() {
	s.w.T.Helper()
	s.w.Until("the boxes have tried often enough", func() bool { return s.stopped() || s.sent.Load() >= 200 })
	if sent := s.stop(); sent < 200 {
		s.w.T.Errorf("the boxes have tried only %d times", sent)
	}
	s.w.Untouched(s.targets[0], s.targets[1])
	s.w.NothingReached("evil.example.net")
}

// narrow and wide are the policies between which tests change: wide also allows extra.
var (
	extra  = harness.AttackerAt(102)
	narrow = map[string]any{"mode": "custom", "allowed_domains": []string{"api.example.com"}}
	wide   = map[string]any{"mode": "custom", "allowed_domains": []string{"api.example.com"},
		"allowed_cidrs": []string{extra[0].String() + "/32", extra[1].String() + "/128"}}
)

// policyNow returns which of the two policies the API reports.
func policyNow(w *harness.World, box string) (isWide bool, version uint64) {
	w.T.Helper()
	type boxView struct {
		NetworkPolicy struct {
			AllowedCIDRs []string `json:"allowed_cidrs"`
		} `json:"network_policy"`
		PolicyVersion uint64 `json:"policy_version"`
		Status, Error string
	}
	var view boxView
	w.Until("the gateway has done its own work in the box", func() bool {
		view = boxView{}
		if err := w.Client.Get(w.T.Context(), api.BoxPath(box), &view); err != nil {
			w.T.Fatal(err)
		}
		return view.Status != "running"
	})
	if view.Status != "idle" {
		w.T.Errorf("the box is %s: %s", view.Status, view.Error)
	}
	return len(view.NetworkPolicy.AllowedCIDRs) > 0, view.PolicyVersion
}

// agrees fails the test unless API, kernel and store have the same policy, and returns which.
func agrees(r *harness.Raider, what string) (isWide bool) {
	r.T.Helper()
	isWide, version := policyNow(r.World, r.Box)
	for _, a := range extra {
		got := r.Try("udp", netip.AddrPortFrom(a, 4444))
		for began := time.Now(); isWide && got == harness.SawNothing && time.Since(began) < time.Minute; { // lost, and not refused
			got = r.Try("udp", netip.AddrPortFrom(a, 4444))
		}
		if (got == harness.Saw(nil)) != isWide {
			r.T.Errorf("%s: the API says wide=%v, but of %v the box sees %s", what, isWide, a, got)
		}
	}
	s := stored(r.World)
	defer s.Close()
	p, err := s.Rules.Policy(policy.BoxID(r.Box))
	if err != nil || p.Version != version || (len(p.Spec.AllowedCIDRs) > 0) != isWide {
		r.T.Errorf("%s: the API says version %d wide=%v, the store %+v %v", what, version, isWide, p, err)
	}
	if staged, err := s.Rules.Staged(); err != nil || len(staged) > 0 {
		r.T.Errorf("%s: the store holds a staged policy: %v %v", what, staged, err)
	}
	if staged, err := s.Rules.StagedHeaders(); err != nil || len(staged) > 0 {
		r.T.Errorf("%s: the store holds staged header rules: %v", what, err)
	}
	return isWide
}

// stored opens a copy of the store as it is on disk.
func stored(w *harness.World) *store.DB {
	w.T.Helper()
	dir := w.T.TempDir()
	err := os.Chmod(dir, 0o700)
	for _, name := range []string{"boxgate.db", "secret.key"} {
		data, readErr := unchanging(w, filepath.Join(w.Dir, "state", name))
		if err == nil {
			err = readErr
		}
		if err == nil {
			err = os.WriteFile(filepath.Join(dir, name), data, 0o600)
		}
	}
	if err != nil {
		w.T.Fatal(err)
	}
	db, err := store.Open(store.Options{Dir: dir})
	if err != nil {
		w.T.Fatalf("the store on disk is not whole: %v", err)
	}
	return db
}

// unchanging reads a file until it has the same content twice in a row: the gateway may commit transactions meanwhile, and after two of
// them a file that was read in part before is not whole.
func unchanging(w *harness.World, path string) (data []byte, err error) {
	w.T.Helper()
	w.Until(path+" does not change", func() bool {
		before := data
		data, err = os.ReadFile(path)
		return err != nil || before != nil && bytes.Equal(data, before)
	})
	return data, err
}

// failing makes the gateway fail at a step of an operation, and restarts it if it died.
func failing(w *harness.World, kind, step string, operation func() error) (failed error) {
	w.T.Helper()
	what := kind + " at " + strconv.Quote(step)
	w.Arm(kind, step)
	failed = operation()
	w.MustReachStep(what)
	if kind == harness.FaultDie {
		w.AwaitExit(what)
		w.StartIfStopped()
	}
	return failed
}

// kindsOf returns the faults to test at a step: all in the nightly tier, and a different one for each step in the gate.
func kindsOf(step string) []string {
	kinds := []string{harness.FaultError, harness.FaultPanic, harness.FaultDie}
	if isMark(step) {
		kinds = kinds[1:]
	}
	if nightly.Enabled() {
		return kinds
	}
	i := 0
	for _, steps := range operations {
		if at := slices.Index(steps, step); at >= 0 {
			i = at % len(kinds)
			break
		}
	}
	return kinds[i : i+1]
}

// nothingLeft fails the test if traces of a box exist in the API, the kernel, on disk, or in the store.
func nothingLeft(w *harness.World, what string) {
	w.T.Helper()
	var boxes []struct{ ID, Status, Error string }
	if err := w.Client.Get(w.T.Context(), "/v2/box", &boxes); err != nil || len(boxes) != 0 {
		w.T.Errorf("%s: boxes: %v %v", what, boxes, err)
	}
	links, err := w.Net.Gateway().Run(w.T.Context(), "ip", "-o", "link")
	if err != nil || strings.Contains(links, "alias boxgate box") {
		w.T.Errorf("%s: links are left: %v %s", what, err, links)
	}
	chains, err := w.Net.Gateway().Run(w.T.Context(), "nft", "list", "chains", "inet")
	if err != nil || strings.Contains(chains, "chain plan_") {
		w.T.Errorf("%s: chains are left: %v %s", what, err, chains)
	}
	for _, dir := range []string{filepath.Join(w.Dir, "state", "boxes"), filepath.Join(lab.RunDir(w.Dir), "netns")} {
		if entries, err := os.ReadDir(dir); err != nil || len(entries) > 0 {
			w.T.Errorf("%s: %s holds %v %v", what, dir, entries, err)
		}
	}
	s := stored(w)
	defer s.Close()
	if records, err := s.Boxes.All(); err != nil || len(records) > 0 {
		w.T.Errorf("%s: the store holds %v %v", what, records, err)
	}
}
