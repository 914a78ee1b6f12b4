package lifecycle

import (
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"boxgate/api"
	"boxgate/e2e/harness"
	"boxgate/internal/lab"
	"boxgate/policy"
	"boxgate/store"
	"boxgate/store/history"
)

// guest is an attached box.
type guest struct {
	*harness.ForeignBox
	id   string
	link string // its interface on the host
}

// attachGuests attaches n boxes, which may reach api.example.com.
func attachGuests(t *testing.T, w *harness.World, n int) (guests []guest) {
	t.Helper()
	for i := range n {
		f := harness.NewForeignBox(t)
		var made struct{ ID string }
		body := map[string]any{"pid": f.PID, "name": fmt.Sprintf("guest%d", i),
			"network_policy": map[string]any{"mode": "custom", "allowed_domains": []string{"api.example.com"}}}
		if err := w.Client.Do(t.Context(), "POST", "/v2/box/attach", body, &made); err != nil {
			t.Fatal(err)
		}
		links, err := w.Net.Gateway().Run(t.Context(), "ip", "-o", "link")
		if err != nil {
			t.Fatal(err)
		}
		g := guest{ForeignBox: f, id: made.ID}
		for line := range strings.Lines(links) {
			if strings.Contains(line, "boxgate box "+made.ID) {
				g.link, _, _ = strings.Cut(strings.Fields(line)[1], "@")
			}
		}
		guests = append(guests, g)
	}
	return guests
}

// reaches reports whether the box reaches the allowed host.
func (g guest) reaches() bool {
	_, code := g.Sh("curl -sSk --max-time 60 -o /dev/null https://api.example.com/")
	return code == 0
}

// Some of many boxes are broken when the gateway starts. They are closed, and the API gives the reason. A missing link
// is created again. The others have their network.
func TestBrokenBoxesDoNotHoldUpAStart(t *testing.T) {
	t.Parallel()
	w := harness.Shared(t)
	guests := attachGuests(t, w, 8)
	w.Kill()

	gone, unlinked, unreadable, stranger := guests[0], guests[1], guests[2], guests[3]
	host := w.Net.Gateway()
	pin := filepath.Join(lab.RunDir(w.Dir), "attached", gone.id)
	_, errPin := host.Run(t.Context(), "umount", pin)
	_, errLink := host.Run(t.Context(), "ip", "link", "del", unlinked.link)
	if err := errors.Join(errPin, errLink); err != nil {
		t.Fatal(err)
	}
	if _, code := stranger.Sh("ip link set eth0 down && ip link set eth0 name old0 && ip link add eth0 type veth peer name eth1"); code != 0 {
		t.Fatal("the box could not change its interfaces")
	}
	db, err := store.Open(store.Options{Dir: filepath.Join(w.Dir, "state")})
	if err != nil {
		t.Fatal(err)
	}
	mistaken := policy.Spec{Mode: policy.ModeCustom, AllowedDomains: []string{"https://api.example.com/"}}
	id := policy.BoxID(unreadable.id)
	if err := errors.Join(db.Rules.StagePolicy(id, store.Policy{Spec: mistaken, Version: 2}, history.Origin{}), db.Rules.CommitPolicy(id), db.Close()); err != nil {
		t.Fatal(err)
	}

	if err := w.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	for _, g := range guests {
		closed := g.id == gone.id || g.id == unreadable.id || g.id == stranger.id
		var view struct{ Status, Error string }
		if err := w.Client.Get(t.Context(), api.BoxPath(g.id), &view); err != nil {
			t.Fatal(err)
		}
		said := view.Status == "error" && strings.Contains(view.Error, "could not be recovered")
		if g.id == gone.id {
			said = view.Status == "gone"
		}
		if said != closed {
			t.Errorf("box %s is %s: %s", g.id, view.Status, view.Error)
		}
		if g.reaches() == closed {
			t.Errorf("box %s, %s: it reaches what its policy allows: %v", g.id, view.Error, !closed)
		}
	}
}
