package box

import (
	"context"
	"errors"
	"slices"
	"testing"

	"go.uber.org/zap"

	"boxgate/host/change"
	"boxgate/host/state"
)

// fakeSteps records the steps and their rollbacks.
type fakeSteps struct{ done []string }

// step returns a step that records its name and its rollback, and then returns the result of how.
func (f *fakeSteps) step(name string, how func(*provisioning) error, undone error) step {
	return func(p *provisioning, _ context.Context) error {
		p.undo.Add(func(ctx context.Context) error {
			f.done = append(f.done, "undo "+name)
			return errors.Join(undone, ctx.Err())
		})
		f.done = append(f.done, name)
		return how(p)
	}
}

var errStep = errors.New("a step fails")

func works(*provisioning) error  { return nil }
func fails(*provisioning) error  { return errStep }
func panics(*provisioning) error { panic("with a secret") }

// deletes simulates a deletion while a step runs without the box's lock.
func deletes(p *provisioning) error { p.box.Deleted = true; return errStep }

// When a step fails or panics, it and the steps before it are rolled back in reverse order, even if the caller has
// disconnected, and even if one rollback fails. For a box that was deleted in between, no rollback runs: its resources
// may already be another box's.
func TestFailedProvisioningIsUndone(t *testing.T) {
	t.Parallel()
	errLeft := errors.New("left")
	for name, c := range map[string]struct {
		bad    func(*provisioning) error
		undone error
		want   []string
		cause  error
	}{
		"none fails":        {works, nil, []string{"a", "b", "c"}, nil},
		"an error":          {fails, nil, []string{"a", "b", "undo b", "undo a"}, errStep},
		"a panic":           {panics, nil, []string{"a", "b", "undo b", "undo a"}, change.ErrFault},
		"and it is stuck":   {fails, errLeft, []string{"a", "b", "undo b", "undo a"}, errStep},
		"deleted meanwhile": {deletes, nil, []string{"a", "b"}, errDeletedConcurrently},
	} {
		ctx, hangUp := context.WithCancel(t.Context())
		hangUp()
		f := &fakeSteps{}
		l := &Provisioner{log: zap.NewNop()}
		err := l.provision(ctx, &provisioning{box: &state.Box{}}, []step{f.step("a", works, nil), f.step("b", c.bad, c.undone), f.step("c", works, nil)})
		if !errors.Is(err, c.cause) || c.cause == nil && err != nil {
			t.Errorf("%s: %v", name, err)
		}
		var left *leftoverError
		if errors.As(err, &left) != (c.undone != nil) {
			t.Errorf("%s: what is left: %v", name, err)
		}
		if !slices.Equal(f.done, c.want) {
			t.Errorf("%s: %q, want %q", name, f.done, c.want)
		}
	}
}
