package lifecycle

import (
	"net/http"
	"strings"
	"testing"

	"boxgate/api"
	"boxgate/config"
)

// rooted reports whether the API shows a box as one whose code may become its root, and whether a new command can.
func (u *upgrading) rooted(box string) (shown, can bool) {
	u.T.Helper()
	out, code := u.Sh(box, "sudo -n id -u") // wakes the box
	var v struct{ Root bool }
	if err := u.Client.Do(u.T.Context(), http.MethodGet, api.BoxPath(box), nil, &v); err != nil {
		u.T.Fatal(err)
	}
	return v.Root, code == 0 && strings.TrimSpace(out) == "0"
}

// TestReloadOfRoot: a reload that sets launcher.root changes new boxes, and others when they start the next time; one that
// takes it away changes the next command of every box. It outlasts the gateway's own restarts.
func TestReloadOfRoot(t *testing.T) {
	t.Parallel()
	debian := func(root bool) func(*config.Config) {
		return func(c *config.Config) { c.Launcher.Images["debian"], c.Launcher.Root = "debian", root }
	}
	u := newUpgrading(t, debian(false))
	u.StartIfStopped()
	create := func() string { return u.Create(map[string]any{"runtime": "debian"}) }
	expect := func(when, box string, shown, can bool) {
		t.Helper()
		if s, c := u.rooted(box); s != shown || c != can {
			t.Errorf("%s: shown %v, can %v; want %v, %v", when, s, c, shown, can)
		}
	}
	before := create()
	expect("off", before, false, false)
	u.reconfigure(debian(true))
	u.mustReplace("reload")
	after := create()
	expect("a box from before", before, false, false)
	expect("a new box", after, true, true)
	u.Kill()
	u.StartIfStopped()
	expect("a box from before, after a crash", before, false, false)
	expect("a new box, after a crash", after, true, true)
	u.Reboot()
	u.StartIfStopped()
	expect("a box from before, after a reboot", before, true, true)
	expect("a new box, after a reboot", after, true, true)
	u.reconfigure(debian(false))
	u.mustReplace("reload")
	expect("taken away", after, true, false)
	expect("a box without, later", create(), false, false)
	u.Reboot()
	u.StartIfStopped()
	expect("taken away, after a reboot", after, false, false)
}
