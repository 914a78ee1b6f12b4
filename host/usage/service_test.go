package usage

import (
	"context"
	"errors"
	"path/filepath"
	"strings"
	"testing"

	"go.uber.org/zap"

	"boxgate/api"
	"boxgate/api/history"
	"boxgate/host/state"
	"boxgate/launcher"
	"boxgate/policy"
	"boxgate/store"
)

// If a policy change closes a box while it is being started again, the box is not shown as usable, and the caller gets an
// error.
func TestResumeShowsThatTheBoxWasClosed(t *testing.T) {
	t.Parallel()
	db, err := store.Open(store.Options{Dir: filepath.Join(t.TempDir(), "state")})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = db.Close() })
	table := &state.Table{}
	b := state.NewBox(store.Box{ID: "box1"}, store.Policy{}, store.Headers{}, api.Hosted{}, 0)
	table.Add(b)
	b.Ended, b.Status = true, api.StatusError
	u := &Service{records: db.Boxes, log: zap.NewNop(), boxes: table, sandboxes: state.Sandboxes{Launcher: &launcher.Launcher{}}, history: history.New(table.Has)}
	const closed = "its policy could not be applied"
	u.starter = starter(func(b *state.Box) error { // a policy that cannot be applied comes in between
		b.ShowError(closed)
		return nil
	})
	_, err = u.ResumeBox(t.Context(), "box1")
	if !errors.Is(err, api.ErrUnavailable) || !strings.Contains(err.Error(), closed) {
		t.Errorf("the caller got the error %v", err)
	}
	if v := b.Shown.Load(); v.Status != api.StatusError || v.Error != closed || b.Gate.IsOpen() {
		t.Errorf("its view has status %s, %q", v.Status, v.Error)
	}
}

// starter starts boxes with a function of the test.
type starter func(*state.Box) error

func (s starter) Restart(_ context.Context, b *state.Box) error { return s(b) }

func (s starter) RenewRoots(context.Context, policy.BoxID) error { return nil }
