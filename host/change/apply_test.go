package change

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"

	"go.uber.org/zap"

	"boxgate/api"
)

var errFake = errors.New("fake failure")

// fakeChange records its steps. The step bad fails or panics.
func fakeChange(bad string, panics, took bool) (Change, *[]string) {
	var steps []string
	step := func(name string) error {
		steps = append(steps, name)
		if name == bad && panics {
			panic("with a secret")
		}
		if name == bad {
			return errFake
		}
		return nil
	}
	return Change{
		What:        "the fake",
		Stage:       func() error { return step("stage") },
		Enforce:     func(context.Context) error { return step("enforce") },
		Commit:      func() error { return step("commit") },
		Abort:       func() error { return step("abort") },
		ApplyStored: func() (bool, error) { return took, step("settle") },
	}, &steps
}

// A change is staged, then applied, then committed. A failure before the commit aborts it; after a failure of the commit,
// or a panic anywhere, the stored state decides.
func TestOrderOfAChange(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		bad          string
		panics, took bool
		want, answer string
	}{
		{"", false, false, "stage enforce commit", ""},
		{"stage", false, false, "stage", "nothing was changed"},
		{"enforce", false, false, "stage enforce abort", "could not be applied; the change was rolled back"},
		{"commit", false, false, "stage enforce commit settle", "could not be stored; the change was rolled back"},
		{"commit", false, true, "stage enforce commit settle", ""}, // the commit had reached the disk
		{"stage", true, false, "stage settle", "may have been rolled back"},
		{"enforce", true, false, "stage enforce settle", "may have been rolled back"},
		{"commit", true, false, "stage enforce commit settle", "may have been rolled back"},
		{"commit", true, true, "stage enforce commit settle", "may have been rolled back"},
	} {
		ch, steps := fakeChange(c.bad, c.panics, c.took)
		err := Apply(t.Context(), zap.NewNop(), ch)
		if got := strings.Join(*steps, " "); got != c.want {
			t.Errorf("%q panics=%v: the steps are %q, want %q", c.bad, c.panics, got, c.want)
		}
		switch {
		case c.answer == "" && err != nil:
			t.Errorf("%q took=%v: %v", c.bad, c.took, err)
		case c.answer != "" && (err == nil || !strings.Contains(err.Error(), c.answer) || !errors.Is(err, api.ErrUnavailable)):
			t.Errorf("%q panics=%v: %v, want an error with %q", c.bad, c.panics, err, c.answer)
		}
		if err != nil && strings.Contains(err.Error(), "secret") {
			t.Errorf("the error contains the panic value: %v", err)
		}
	}
}

// A change that reached the disk but cannot be applied fails, and so does one that cannot be settled.
func TestAChangeThatCannotBeSettledFails(t *testing.T) {
	t.Parallel()
	for _, took := range []bool{true, false} {
		ch, _ := fakeChange("commit", false, took)
		ch.ApplyStored = func() (bool, error) { return took, errFake }
		if err := Apply(t.Context(), zap.NewNop(), ch); !errors.Is(err, errFake) {
			t.Errorf("took=%v: %v", took, err)
		}
	}
}

// A caller that disconnects does not stop a change that has begun.
func TestAChangeGoesOnWithoutItsCaller(t *testing.T) {
	t.Parallel()
	ctx, hangUp := context.WithCancel(t.Context())
	ch, steps := fakeChange("", false, false)
	enforce := ch.Enforce
	ch.Enforce = func(ctx context.Context) error {
		hangUp()
		return errors.Join(enforce(ctx), ctx.Err())
	}
	if err := Apply(ctx, zap.NewNop(), ch); err != nil || !slices.Equal(*steps, []string{"stage", "enforce", "commit"}) {
		t.Errorf("%v %v", *steps, err)
	}
}

// The error of a change without rollback does not mention one.
func TestFailedChangeWithoutRollback(t *testing.T) {
	nothing := func() error { return nil }
	err := Apply(t.Context(), zap.NewNop(), Change{
		What: "the change", Stage: nothing, Commit: nothing,
		Enforce:     func(context.Context) error { return errors.New("the kernel refuses") },
		ApplyStored: func() (bool, error) { return false, nil },
	})
	if err == nil || !strings.Contains(err.Error(), "could not be applied; it will be tried again") {
		t.Errorf("%v", err)
	}
}
