package box

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/zap"

	"boxgate/api"
	"boxgate/api/history"
	"boxgate/host/lease"
	"boxgate/host/state"
	"boxgate/policy"
	"boxgate/policy/document"
	"boxgate/store"
)

// ends is a table of one box whose deletion is recorded.
type ends struct {
	*lifetimes
	box     *state.Box
	stored  store.Box
	deleted time.Time     // when the deletion began; zero: not yet
	paused  []time.Time   // when pauses began
	fail    int           // deletions and pauses that fail before one succeeds
	full    bool          // the store cannot be written
	ahead   time.Duration // how far the wall clock is ahead
	boot    string        // of the host
}

// Update implements the records of [lifetimes].
func (e *ends) Update(b store.Box) error {
	if e.full {
		return errors.New("no space")
	}
	e.stored = b
	return nil
}

// newEnds returns a box with an end; zero: with none.
func newEnds(t *testing.T, ttl time.Duration) *ends {
	t.Helper()
	e, begun := &ends{boot: "first"}, time.Now()
	now := func() lease.Now {
		return lease.Now{Wall: time.Now().Add(e.ahead), Boot: e.boot, Since: time.Hour + time.Since(begun)}
	}
	record := store.Box{ID: "b1", State: "idle", Ephemeral: ttl > 0, TTL: ttl}
	if ttl > 0 {
		record = within(record, ttl, now())
	}
	e.stored, e.box = record, state.NewBox(record, store.Policy{}, store.Headers{}, api.Hosted{}, 0)
	e.lifetimes = &lifetimes{now: now, log: zap.NewNop(), records: e, boxes: &state.Table{}, delete: func(_ context.Context, b *state.Box) error {
		if b.Deleting = true; e.deleted.IsZero() {
			e.deleted = time.Now()
		}
		if e.fail > 0 {
			e.fail--
			return errors.New("a process does not end")
		}
		b.Deleted = true
		e.forget(b)
		e.boxes.Remove(b.ID)
		return nil
	}, history: history.New(func(policy.BoxID) bool { return true }), pause: func(_ context.Context, b *state.Box) error {
		e.paused = append(e.paused, time.Now())
		if e.fail > 0 {
			e.fail--
			return errors.New("a process does not stop")
		}
		b.Status = api.StatusPaused
		return nil
	}}
	e.boxes.Add(e.box)
	e.box.Lock()
	defer e.box.Unlock()
	e.keep(e.box)
	return e
}

// isDeleted reports whether the deletion of the box has begun.
func (e *ends) isDeleted() bool {
	synctest.Wait()
	e.box.Lock()
	defer e.box.Unlock()
	return !e.deleted.IsZero()
}

// TestTheEndOfABoxMoves: a box is deleted at the end that was set last, earlier or later, and not without one.
func TestTheEndOfABoxMoves(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		ttl time.Duration // of the creation
		set []api.Lifetime
		end time.Duration // 0: none
	}{
		"as created":           {time.Hour, nil, time.Hour},
		"later":                {time.Hour, []api.Lifetime{{TTL: 3 * time.Hour}}, 3 * time.Hour},
		"earlier":              {time.Hour, []api.Lifetime{{TTL: time.Minute}}, time.Minute},
		"extended":             {time.Hour, []api.Lifetime{{Extend: time.Minute}, {Extend: time.Minute}}, time.Hour + 2*time.Minute},
		"later and earlier":    {time.Hour, []api.Lifetime{{TTL: 3 * time.Hour}, {TTL: time.Second}}, time.Second},
		"none":                 {time.Hour, []api.Lifetime{{Unlimited: true}}, 0},
		"none, and one again":  {time.Hour, []api.Lifetime{{Unlimited: true}, {TTL: 2 * time.Hour}}, 2 * time.Hour},
		"a box without an end": {0, []api.Lifetime{{TTL: time.Minute}}, time.Minute},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				begun := time.Now()
				e := newEnds(t, c.ttl)
				for _, set := range c.set {
					is, _, err := e.set(t.Context(), "b1", set)
					if err != nil || !is.ExpiresAt.Equal(e.stored.ExpiresAt) || is.ExpiresAt.IsZero() && is.Ephemeral {
						t.Fatalf("%+v %v", is, err)
					}
				}
				time.Sleep(c.end - time.Nanosecond)
				if e.isDeleted() {
					t.Fatalf("deleted %v too early", begun.Add(c.end).Sub(e.deleted))
				}
				time.Sleep(2 * api.MaxTTL)
				if e.isDeleted() != (c.end > 0) || c.end > 0 && !e.deleted.Equal(begun.Add(c.end)) {
					t.Errorf("deleted at %v, want %v", e.deleted.Sub(begun), c.end)
				}
			})
		})
	}
}

// TestAnEndThatIsPutOffInTime: of a box whose end is put off at the very moment of it, either the deletion has begun and the caller
// learns that the box is gone, or the box lives until the new end.
func TestAnEndThatIsPutOffInTime(t *testing.T) {
	t.Parallel()
	outcomes := map[bool]int{}
	for range 300 {
		synctest.Test(t, func(t *testing.T) {
			e := newEnds(t, time.Minute)
			end := time.Now().Add(time.Minute)
			var prolonged bool
			var callers sync.WaitGroup
			callers.Go(func() {
				time.Sleep(time.Minute - time.Duration(rand.IntN(2)))
				_, _, err := e.set(t.Context(), "b1", api.Lifetime{TTL: time.Hour})
				if prolonged = err == nil; err != nil && !errors.Is(err, api.ErrNotFound) {
					t.Error(err)
				}
			})
			callers.Wait()
			synctest.Wait()
			time.Sleep(time.Minute)
			if outcomes[prolonged]++; prolonged == e.isDeleted() {
				t.Fatalf("prolonged: %v, deleted at its former end: %v", prolonged, e.isDeleted())
			}
			time.Sleep(2 * time.Hour)
			if !e.isDeleted() || prolonged && e.deleted.Before(end.Add(time.Hour-time.Second)) {
				t.Errorf("prolonged: %v, deleted %v after its former end", prolonged, e.deleted.Sub(end))
			}
		})
	}
	if outcomes[true] == 0 {
		t.Error("no box was in time:", outcomes)
	}
}

// TestAnEndIsNotMissed: a deletion that fails is tried again, a box that is being deleted gets no other end, and a process that has
// handed its boxes over deletes none, until it has them back.
func TestAnEndIsNotMissed(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		e := newEnds(t, time.Hour)
		e.fail = 3
		time.Sleep(time.Hour + time.Second)
		if _, _, err := e.set(t.Context(), "b1", api.Lifetime{TTL: time.Hour}); !errors.Is(err, api.ErrNotFound) {
			t.Errorf("a box that is being deleted: %v", err)
		}
		time.Sleep(3 * expiryRetry)
		if !e.box.Deleted {
			t.Error("the box is still there")
		}
	})
	synctest.Test(t, func(t *testing.T) {
		e := newEnds(t, time.Hour)
		e.boxes.HandedOver.Store(true)
		time.Sleep(2 * time.Hour)
		if e.isDeleted() {
			t.Fatal("deleted by the process before")
		}
		e.boxes.HandedOver.Store(false)
		time.Sleep(expiryRetry + time.Second)
		if !e.isDeleted() {
			t.Error("the replacement failed, and the box has no end")
		}
	})
	synctest.Test(t, func(t *testing.T) { // a full disk
		e := newEnds(t, time.Hour)
		e.full = true
		if _, _, err := e.set(t.Context(), "b1", api.Lifetime{TTL: 2 * time.Hour}); !errors.Is(err, api.ErrUnavailable) {
			t.Error(err)
		}
		if time.Sleep(time.Hour + time.Second); !e.isDeleted() {
			t.Error("an end that was not stored counts")
		}
	})
}

// setClock has the wall clock ahead of the boot clock by a time.
func (e *ends) setClock(ahead time.Duration) {
	e.box.Lock()
	defer e.box.Unlock()
	e.ahead = ahead
}

// TestAClockThatIsSetMovesNoEnd: a box lives as long as its creator asked for, however the wall clock is set meanwhile, and the end that
// is shown and stored follows that clock.
func TestAClockThatIsSetMovesNoEnd(t *testing.T) {
	t.Parallel()
	for _, ahead := range []time.Duration{3 * time.Hour, -time.Hour, 50 * 365 * 24 * time.Hour} {
		synctest.Test(t, func(t *testing.T) {
			e, begun := newEnds(t, 2*time.Hour), time.Now()
			time.Sleep(time.Minute + time.Second)
			e.setClock(ahead)
			time.Sleep(lookInterval)
			if want := begun.Add(2*time.Hour + ahead); !e.stored.ExpiresAt.Equal(want) || !e.box.Shown.Load().ExpiresAt.Equal(want) {
				t.Errorf("a clock set by %v: the end is %v, want %v", ahead, e.stored.ExpiresAt, want)
			}
			if time.Sleep(begun.Add(2*time.Hour - time.Nanosecond).Sub(time.Now())); e.isDeleted() {
				t.Fatalf("a clock set by %v: deleted before its end", ahead)
			}
			if time.Sleep(time.Nanosecond); !e.isDeleted() {
				t.Errorf("a clock set by %v: the box outlives its end", ahead)
			}
		})
		synctest.Test(t, func(t *testing.T) { // the end moves before the next look at it
			e := newEnds(t, 2*time.Hour)
			e.setClock(ahead)
			is, was, err := e.set(t.Context(), "b1", api.Lifetime{Extend: time.Hour})
			if now := time.Now().Add(ahead); err != nil || !was.Equal(now.Add(2*time.Hour)) || !is.ExpiresAt.Equal(now.Add(3*time.Hour)) {
				t.Errorf("a clock set by %v: from %v to %v, %v", ahead, was, is.ExpiresAt, err)
			}
			if time.Sleep(3*time.Hour - time.Nanosecond); e.isDeleted() {
				t.Fatalf("a clock set by %v: deleted before its new end", ahead)
			}
			if time.Sleep(time.Nanosecond); !e.isDeleted() {
				t.Errorf("a clock set by %v: the box outlives its new end", ahead)
			}
		})
	}
}

// TestTheEndAfterAnotherBootIsThatOfTheWallClock: the end of a box that was made before the host was restarted is judged by the wall clock,
// and a box whose end has passed by a step of that clock is deleted within a minute.
func TestTheEndAfterAnotherBootIsThatOfTheWallClock(t *testing.T) {
	t.Parallel()
	for _, boot := range []string{"second", ""} {
		synctest.Test(t, func(t *testing.T) {
			e := newEnds(t, 2*time.Hour)
			e.box.Lock()
			e.boot, e.ahead = boot, -time.Hour
			e.keep(e.box)
			e.box.Unlock()
			if time.Sleep(3*time.Hour - time.Second); e.isDeleted() {
				t.Error("deleted before its end")
			}
			if time.Sleep(time.Second); !e.isDeleted() {
				t.Error("the box outlives its end")
			}
		})
		synctest.Test(t, func(t *testing.T) {
			e := newEnds(t, 2*time.Hour)
			e.box.Lock()
			e.boot, e.ahead = boot, 3*time.Hour
			e.box.Unlock()
			if time.Sleep(lookInterval); !e.isDeleted() {
				t.Error("the box outlives its end")
			}
		})
	}
}

// TestWhoMayMoveAnEnd: keys for one box only bring it forward, and there is no end beyond the limit, by steps either.
func TestWhoMayMoveAnEnd(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		as := func(r api.Role) context.Context { return api.WithCaller(t.Context(), api.Caller{Role: r}) }
		for _, c := range []struct {
			ttl  time.Duration
			role api.Role
			set  api.Lifetime
			want error
		}{
			{time.Hour, api.RoleBox, api.Lifetime{TTL: time.Minute}, nil},
			{time.Hour, api.RoleBox, api.Lifetime{TTL: time.Hour}, nil},
			{time.Hour, api.RoleBox, api.Lifetime{TTL: 2 * time.Hour}, api.ErrForbidden},
			{time.Hour, api.RoleBox, api.Lifetime{Extend: time.Second}, api.ErrForbidden},
			{time.Hour, api.RoleBox, api.Lifetime{Unlimited: true}, api.ErrForbidden},
			{0, api.RoleBox, api.Lifetime{TTL: api.MaxTTL}, nil},
			{0, api.RoleBox, api.Lifetime{Unlimited: true}, nil},
			{time.Hour, api.RoleCreator, api.Lifetime{Extend: time.Hour}, nil},
			{time.Hour, api.RoleCreator, api.Lifetime{Unlimited: true}, nil},
			{0, api.RoleAdmin, api.Lifetime{Extend: time.Hour}, api.ErrConflict},
			{time.Hour, api.RoleAdmin, api.Lifetime{}, errNoLifetime},
		} {
			e := newEnds(t, c.ttl)
			was := e.stored
			if _, _, err := e.set(as(c.role), "b1", c.set); !errors.Is(err, c.want) {
				t.Errorf("%v by %s: %v", c.set, c.role, err)
			}
			if c.want != nil && !e.stored.ExpiresAt.Equal(was.ExpiresAt) {
				t.Errorf("%v by %s: the end has moved", c.set, c.role)
			}
			e.forget(e.box)
		}
		e := newEnds(t, api.MaxTTL-time.Minute)
		defer e.forget(e.box)
		_, _, err1 := e.set(as(api.RoleAdmin), "b1", api.Lifetime{Extend: time.Minute})
		_, _, err2 := e.set(as(api.RoleAdmin), "b1", api.Lifetime{Extend: time.Second})
		if invalid := (*document.InvalidError)(nil); err1 != nil || !errors.As(err2, &invalid) {
			t.Errorf("%v, %v", err1, err2)
		}
		e.box.Record.Attached = &store.Attached{Kind: api.AttachNetNS}
		if _, _, err := e.set(as(api.RoleAdmin), "b1", api.Lifetime{TTL: time.Hour}); !errors.Is(err, api.ErrConflict) {
			t.Errorf("an attached box: %v", err)
		}
	})
}

// TestBoxesOfKeysEndByTheOperatorsLimit: within launcher.max_ttl, keys other than admin keys neither create a box without an end nor give one
// a later end, by steps either. A box of the operator's can still be ended earlier by them.
func TestBoxesOfKeysEndByTheOperatorsLimit(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		as := func(r api.Role) context.Context { return api.WithCaller(t.Context(), api.Caller{Role: r}) }
		bounded := &lifetimes{most: time.Hour}
		for _, c := range []struct {
			role        api.Role
			asked, want time.Duration // want 0 with asked: refused
		}{
			{api.RoleCreator, 0, time.Hour}, {api.RoleCreator, api.MaxTTL, time.Hour}, {api.RoleCreator, time.Minute, time.Minute}, {api.RoleCreator, time.Hour, time.Hour},
			{api.RoleCreator, time.Hour + time.Second, 0}, {"", 0, time.Hour}, {api.RoleAdmin, 0, 0}, {api.RoleAdmin, api.MaxTTL, api.MaxTTL},
		} {
			got, err := bounded.ofNew(as(c.role), c.asked)
			if invalid := (*document.InvalidError)(nil); got != c.want || errors.As(err, &invalid) != (c.want == 0 && c.asked > 0) {
				t.Errorf("%q asks for %v: %v, %v", c.role, c.asked, got, err)
			}
			if got, err := (&lifetimes{}).ofNew(as(c.role), c.asked); got != c.asked || err != nil {
				t.Errorf("without a limit, %q asks for %v: %v, %v", c.role, c.asked, got, err)
			}
		}
		for _, c := range []struct {
			ttl  time.Duration
			role api.Role
			set  api.Lifetime
			want error
		}{
			{time.Minute, api.RoleCreator, api.Lifetime{TTL: time.Hour}, nil},
			{time.Minute, api.RoleCreator, api.Lifetime{TTL: time.Hour + time.Second}, api.ErrForbidden},
			{time.Minute, api.RoleCreator, api.Lifetime{Extend: time.Hour}, api.ErrForbidden},
			{time.Minute, api.RoleCreator, api.Lifetime{Unlimited: true}, api.ErrForbidden},
			{0, api.RoleCreator, api.Lifetime{Unlimited: true}, api.ErrForbidden},
			{0, api.RoleBox, api.Lifetime{TTL: 2 * time.Hour}, api.ErrForbidden},
			{3 * time.Hour, api.RoleCreator, api.Lifetime{TTL: 2 * time.Hour}, nil},
			{3 * time.Hour, api.RoleBox, api.Lifetime{TTL: 2 * time.Hour}, nil},
			{time.Minute, api.RoleAdmin, api.Lifetime{Unlimited: true}, nil},
			{time.Minute, api.RoleAdmin, api.Lifetime{TTL: api.MaxTTL}, nil},
		} {
			e := newEnds(t, c.ttl)
			e.most = time.Hour
			if _, _, err := e.set(as(c.role), "b1", c.set); !errors.Is(err, c.want) {
				t.Errorf("%v by %s of a box with %v: %v", c.set, c.role, c.ttl, err)
			}
			e.forget(e.box)
		}
	})
}

// TestPausedAtTheEnd: a box with on_end pause is paused at its end instead of deleted, gets as much time as before when it is resumed, and
// is deleted when it has been paused for as long as the operator allows.
func TestPausedAtTheEnd(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		begun := time.Now()
		e := newEnds(t, time.Hour)
		e.kept, e.fail = 24*time.Hour, 2
		if is, was, err := e.setEnd(t.Context(), "b1", api.End{OnEnd: api.EndPause}); err != nil || is.OnEnd != api.EndPause || was.OnEnd != "" || e.stored.OnEnd != api.EndPause {
			t.Fatalf("%+v %+v %v", is, was, err)
		}
		time.Sleep(time.Hour + 2*expiryRetry + time.Second)
		first := begun.Add(time.Hour)
		if e.isDeleted() || len(e.paused) != 3 || !e.paused[0].Equal(first) || !e.stored.PausedAtEnd || !e.stored.ExpiresAt.Equal(first.Add(2*expiryRetry+24*time.Hour)) {
			t.Fatalf("%v, %+v", e.paused, e.stored)
		}
		for _, set := range []api.Lifetime{{TTL: time.Hour}, {Unlimited: true}, {Extend: time.Second}} {
			if _, _, err := e.set(t.Context(), "b1", set); !errors.Is(err, api.ErrConflict) {
				t.Errorf("%+v: %v", set, err)
			}
		}
		time.Sleep(time.Hour)
		resume := func(ctx context.Context) error {
			e.box.Lock()
			defer e.box.Unlock()
			err := e.renew(ctx, e.box)
			if err == nil {
				e.box.Status = api.StatusIdle
			}
			return err
		}
		as := func(r api.Role) context.Context { return api.WithCaller(t.Context(), api.Caller{Role: r}) }
		if err := resume(as(api.RoleBox)); !errors.Is(err, api.ErrForbidden) || !e.stored.PausedAtEnd {
			t.Errorf("a key for one box: %v", err)
		}
		e.full = true
		if err := resume(as(api.RoleCreator)); !errors.Is(err, api.ErrUnavailable) || !e.box.Record.PausedAtEnd {
			t.Errorf("a new end that cannot be stored: %v", err)
		}
		e.full = false
		if err := resume(as(api.RoleCreator)); err != nil || e.stored.PausedAtEnd || !e.stored.ExpiresAt.Equal(time.Now().Add(time.Hour)) {
			t.Errorf("%v, %+v", err, e.stored)
		}
		time.Sleep(time.Hour + time.Second)
		if len(e.paused) != 4 || !e.stored.PausedAtEnd {
			t.Errorf("at its next end: %v, %+v", e.paused, e.stored)
		}
		time.Sleep(24*time.Hour - 2*time.Second)
		if e.isDeleted() {
			t.Error("deleted too early")
		}
		if time.Sleep(2 * time.Second); !e.isDeleted() {
			t.Error("the box is kept beyond launcher.max_paused")
		}
	})
}

// TestPauseAtTheEndIsBounded: the new end of a resumed box is within launcher.max_ttl, a minute away at least if no call of the API resumed it, and a box that could not be created is deleted.
func TestPauseAtTheEndIsBounded(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		for _, c := range []struct {
			ttl, most, want time.Duration
			role            api.Role
		}{
			{2 * time.Hour, time.Hour, time.Hour, ""}, {2 * time.Hour, time.Hour, time.Hour, api.RoleCreator}, {2 * time.Hour, time.Hour, 2 * time.Hour, api.RoleAdmin},
			{time.Minute, time.Hour, time.Minute, ""}, {time.Second, time.Hour, time.Minute, ""}, {time.Second, 30 * time.Second, 30 * time.Second, ""},
			{time.Second, time.Hour, time.Second, api.RoleCreator}, {0, 0, api.MaxTTL, ""}, {0, time.Hour, time.Hour, ""},
			{time.Second, time.Hour, time.Minute, api.RoleBox}, {2 * time.Minute, time.Hour, 2 * time.Minute, api.RoleBox},
		} {
			e := newEnds(t, c.ttl)
			e.most = c.most
			e.box.Lock()
			e.box.Record.PausedAtEnd, e.box.Record.AutoResume = true, true
			err := e.renew(api.WithCaller(t.Context(), api.Caller{Role: c.role}), e.box)
			e.box.Unlock()
			if left := time.Until(e.stored.ExpiresAt); err != nil || left != c.want {
				t.Errorf("%+v: %v %v", c, left, err)
			}
			e.forget(e.box)
		}
		e := newEnds(t, time.Hour)
		e.box.Lock()
		e.box.Record.OnEnd, e.box.Record.State = api.EndPause, string(api.StatusError)
		e.box.Unlock()
		if time.Sleep(time.Hour + time.Second); !e.isDeleted() || len(e.paused) > 0 {
			t.Error("a box that could not be created is kept")
		}
	})
}

// TestKeyOfABoxThatEndsAndResumesIt: a key for one box that brings the end of its box forward and resumes it, by itself or by a visitor, in turn
// pauses it once a minute. It can shorten an end that is far.
func TestKeyOfABoxThatEndsAndResumesIt(t *testing.T) {
	t.Parallel()
	for _, by := range []api.Role{api.RoleBox, ""} {
		synctest.Test(t, func(t *testing.T) {
			e := newEnds(t, time.Hour)
			e.box.Lock()
			e.box.Record.OnEnd, e.box.Record.AutoResume, e.box.Record.ExpiresAt = api.EndPause, true, e.stored.ExpiresAt
			e.box.Unlock()
			ofBox := api.WithCaller(t.Context(), api.Caller{Role: api.RoleBox, Key: "key_1", Box: "b1"})
			resume := t.Context()
			if by != "" {
				resume = ofBox
			}
			began := time.Now()
			for time.Since(began) < 10*time.Minute {
				if _, _, err := e.set(ofBox, "b1", api.Lifetime{TTL: time.Second}); err != nil && !errors.Is(err, api.ErrConflict) && !errors.Is(err, api.ErrForbidden) { // it is paused, or ends sooner
					t.Fatal(err)
				}
				time.Sleep(2 * time.Second)
				e.box.Lock()
				if e.box.Record.PausedAtEnd {
					if err := e.renew(resume, e.box); err != nil {
						t.Error(err)
					}
					e.box.Status = api.StatusIdle
				}
				e.box.Unlock()
			}
			if n := len(e.paused); n < 2 || n > 11 {
				t.Errorf("resumed by %q: %d pauses in ten minutes", by, n)
			}
			e.box.Lock()
			e.forget(e.box)
			e.box.Unlock()
		})
	}
}

// TestWhoMayKeepABox: keys for one box can neither have it paused at its end nor resumed by its use, but can take that back.
func TestWhoMayKeepABox(t *testing.T) {
	t.Parallel()
	pause, auto := api.End{OnEnd: api.EndPause}, api.End{OnEnd: api.EndPause, AutoResume: true}
	for _, c := range []struct {
		is, to    api.End
		role      api.Role
		keepAlive bool
		want      error
	}{
		{api.End{}, pause, api.RoleBox, false, api.ErrForbidden}, {api.End{}, auto, api.RoleBox, false, api.ErrForbidden}, {pause, auto, api.RoleBox, false, api.ErrForbidden},
		{auto, pause, api.RoleBox, false, nil}, {pause, api.End{OnEnd: api.EndDelete}, api.RoleBox, false, nil}, {pause, pause, api.RoleBox, false, nil},
		{api.End{}, auto, api.RoleCreator, false, nil}, {api.End{}, pause, api.RoleAdmin, true, api.ErrConflict}, {api.End{}, api.End{OnEnd: api.EndDelete}, api.RoleAdmin, true, nil},
	} {
		e := newEnds(t, time.Hour)
		e.box.Record.OnEnd, e.box.Record.AutoResume, e.box.Record.KeepAlive = c.is.OnEnd, c.is.AutoResume, c.keepAlive
		if _, _, err := e.setEnd(api.WithCaller(t.Context(), api.Caller{Role: c.role}), "b1", c.to); !errors.Is(err, c.want) {
			t.Errorf("%+v: %v", c, err)
		}
		e.box.Lock()
		e.forget(e.box)
		e.box.Unlock()
	}
}

// TestSuspend: a box is paused as at its end, before it, and after it was resumed its end counts as before. One that cannot be paused goes
// on, with its end.
func TestSuspend(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		e := newEnds(t, time.Hour)
		e.kept = 24 * time.Hour
		broken := errors.New("not now")
		suspend := func(role api.Role, err error) error {
			_, got := e.suspendNow(api.WithCaller(t.Context(), api.Caller{Role: role}), "b1", func(_ context.Context, b *state.Box) error {
				if err == nil {
					b.Status = api.StatusPaused
				}
				return err
			})
			return got
		}
		e.box.Status = api.StatusIdle
		if err := suspend(api.RoleBox, nil); !errors.Is(err, api.ErrForbidden) || e.stored.PausedAtEnd {
			t.Errorf("a key for one box: %v", err)
		}
		if err := suspend(api.RoleCreator, broken); !errors.Is(err, broken) || e.box.Record.PausedAtEnd || e.box.Status != api.StatusIdle {
			t.Errorf("a box that cannot be paused: %v", err)
		}
		time.Sleep(10 * time.Minute)
		for range 2 {
			if err := suspend(api.RoleCreator, nil); err != nil || !e.stored.PausedAtEnd || !e.stored.ExpiresAt.Equal(time.Now().Add(24*time.Hour)) {
				t.Fatalf("%v, %+v", err, e.stored)
			}
		}
		if time.Sleep(2 * time.Hour); e.isDeleted() {
			t.Fatal("the time of a suspended box goes on")
		}
		e.box.Lock()
		err := e.renew(t.Context(), e.box)
		e.box.Status = api.StatusIdle
		e.box.Unlock()
		if err != nil || e.stored.PausedAtEnd || !e.stored.ExpiresAt.Equal(time.Now().Add(time.Hour)) {
			t.Fatalf("%v, %+v", err, e.stored)
		}
		if time.Sleep(time.Hour + time.Second); !e.isDeleted() || len(e.paused) > 0 {
			t.Error("a box that was suspended is not deleted at its end")
		}
		for _, c := range []struct {
			ttl    time.Duration
			status api.Status
			kept   bool // alive
		}{{0, api.StatusIdle, false}, {time.Hour, api.StatusCreating, false}, {time.Hour, api.StatusIdle, true}} {
			e = newEnds(t, c.ttl)
			e.box.Status, e.box.Record.KeepAlive = c.status, c.kept
			if err := suspend(api.RoleAdmin, nil); !errors.Is(err, api.ErrConflict) || e.stored.PausedAtEnd {
				t.Errorf("%+v: %v", c, err)
			}
			e.box.Lock()
			e.forget(e.box)
			e.box.Unlock()
		}
	})
}

// TestNewEndOfABox: the new end of a box whose pause was set later is as far off as the end was then, or as the last one that was set.
func TestNewEndOfABox(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		e := newEnds(t, time.Hour)
		e.box.Record.TTL = 0
		time.Sleep(20 * time.Minute)
		if _, _, err := e.setEnd(t.Context(), "b1", api.End{OnEnd: api.EndPause}); err != nil || e.stored.TTL != 40*time.Minute {
			t.Errorf("%v %v", e.stored.TTL, err)
		}
		if _, _, err := e.set(t.Context(), "b1", api.Lifetime{TTL: time.Minute}); err != nil || e.stored.TTL != time.Minute {
			t.Errorf("%v %v", e.stored.TTL, err)
		}
		if _, _, err := e.set(t.Context(), "b1", api.Lifetime{Extend: time.Hour}); err != nil || e.stored.TTL != time.Minute {
			t.Errorf("%v %v", e.stored.TTL, err)
		}
		if _, _, err := e.setEnd(t.Context(), "b1", api.End{OnEnd: api.EndDelete}); err != nil || e.stored.TTL != 0 || e.stored.OnEnd != "" {
			t.Errorf("%+v %v", e.stored, err)
		}
		e.box.Lock()
		e.forget(e.box)
		e.box.Unlock()
	})
}
