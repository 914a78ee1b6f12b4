package pool

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"sync/atomic"
)

// one is a connection for one request at a time. Requests are judged by a version of a policy.
type one struct {
	place    *Place[string, int]
	from, to int // versions that allow it
	unfit    bool
	closed   bool
}

func (c *one) Usable(by int) bool { return c.from <= by && by <= c.to }
func (c *one) Fit() bool          { return !c.unfit }
func (c *one) HangUp()            { c.closed = true }
func (c *one) Cost(idle bool) int {
	if idle {
		return 1
	}
	return 10
}

// many is a connection for several requests at a time.
type many struct {
	one
	room int
}

func (c *many) Reserve() bool {
	if c.room == 0 {
		return false
	}
	c.room--
	return true
}

func (c *many) Cancel() { c.room++ }

// account has memory for a pool.
type account struct{ most, open, free int }

func (a *account) Room(open int) bool { return open < a.most }
func (a *account) Count(n int)        { a.open += n }
func (a *account) Release(n int)      { a.free += n }

func (a *account) Acquire(n int) bool {
	if a.free < n {
		return false
	}
	a.free -= n
	return true
}

func newPool(a *account) *Pool[string, int] {
	p := &Pool[string, int]{Idle: 4, IdleTime: time.Hour}
	if a != nil {
		p.Limits = a
	}
	return p
}

// use puts a connection that any version allows into use.
func use(t *testing.T, p *Pool[string, int], key string) *one {
	t.Helper()
	pl, err := p.Acquire(key, 10)
	if err != nil {
		t.Fatal(err)
	}
	c := &one{place: pl, to: 9}
	if err := pl.Fill(c); err != nil {
		t.Fatal(err)
	}
	return c
}

// share adds a shared connection with room for requests, and ends the first.
func share(t *testing.T, p *Pool[string, int], key string, room int) *many {
	t.Helper()
	pl, err := p.Acquire(key, 10)
	if err != nil {
		t.Fatal(err)
	}
	c := &many{one: one{place: pl, to: 9}, room: room - 1}
	if err := pl.Add(c); err != nil {
		t.Fatal(err)
	}
	return c
}

// first is the first version of the policy.
func first() int { return 1 }

// TestIdleConnectionsGiveWay: at each limit, the connection that has been idle longest is closed, and none in use.
func TestIdleConnectionsGiveWay(t *testing.T) {
	t.Parallel()
	a := &account{most: 3, free: 40}
	p := newPool(a)
	first, second, third := use(t, p, "a"), use(t, p, "b"), use(t, p, "a")
	if _, err := p.Acquire("c", 10); !errors.Is(err, ErrLimit) {
		t.Errorf("a fourth: %v", err)
	}
	second.place.Rest()
	first.place.Rest()
	if a.free != 40-1-1-10 {
		t.Errorf("%d bytes are free", a.free)
	}
	if pl, err := p.Acquire("c", 10); err != nil || !second.closed || first.closed || third.closed {
		t.Errorf("%v; closed: %v, %v, %v", err, first.closed, second.closed, third.closed)
	} else {
		pl.Release()
	}
	if _, err := p.Acquire("c", 35); !errors.Is(err, ErrMemory) || !first.closed {
		t.Errorf("more than there is memory for: %v", err)
	}
	third.place.Release()
	third.place.Release()
	if a.free != 40 || a.open != 0 || p.Open() != 0 || p.Stats() != (Stats{}) {
		t.Errorf("left: %+v, %+v", a, p.Stats())
	}
}

// TestFewConnectionsAreKept for a key, and for all.
func TestFewConnectionsAreKept(t *testing.T) {
	t.Parallel()
	p := newPool(nil)
	p.IdleEach = 2
	all := []*one{use(t, p, "a"), use(t, p, "a"), use(t, p, "a"), use(t, p, "b"), use(t, p, "b"), use(t, p, "c")}
	for _, c := range all {
		c.place.Rest()
	}
	for i, c := range all {
		if c.closed != slices.Contains([]int{0, 2}, i) { // the key had enough; all were too many
			t.Errorf("%d: closed %v", i, c.closed)
		}
	}
	shared := []*many{share(t, p, "d", 1), share(t, p, "d", 1), share(t, p, "d", 1)}
	for _, c := range shared {
		c.place.Leave(false)
	}
	if !shared[2].closed || shared[1].closed || p.Stats().Idle != 4 || p.Open() != 4 {
		t.Errorf("%+v", p.Stats())
	}
	p.CloseIdle(time.Minute)
	if p.Stats().Idle != 4 {
		t.Error("a fresh one was closed")
	}
	p.CloseIdle(0)
	if p.Stats() != (Stats{}) {
		t.Errorf("left: %+v", p.Stats())
	}
}

// TestJudgedBeforeFurtherUse: a connection that the present policy forbids is closed, not used, and so is one that is not fit.
func TestJudgedBeforeFurtherUse(t *testing.T) {
	t.Parallel()
	p := newPool(nil)
	old, fresh, single := use(t, p, "a"), use(t, p, "a"), share(t, p, "a", 2)
	fresh.to = 1
	old.place.Rest()
	fresh.place.Rest()
	single.place.Leave(false)
	single.from = 3
	if got := p.Take("a", 2); got != old || !fresh.closed {
		t.Errorf("%+v; the forbidden one is closed: %v", got, fresh.closed)
	}
	if got, _ := p.Share("a", 2); got != nil || !single.closed {
		t.Errorf("%+v; the forbidden one is closed: %v", got, single.closed)
	}
	old.unfit = true
	if old.place.Rest(); !old.closed {
		t.Error("an unfit connection is kept")
	}
	unfit := use(t, p, "a")
	unfit.place.Rest()
	unfit.unfit = true
	if p.CloseUnfit(); !unfit.closed || p.Open() != 0 {
		t.Errorf("%d connections are left", p.Open())
	}
}

// TestProtocolIsRemembered: a server that spoke HTTP/1.1 is not dialled for others to share, until it is forgotten. Few are remembered.
func TestProtocolIsRemembered(t *testing.T) {
	t.Parallel()
	p := newPool(nil)
	p.PlainMost = 2
	dial := func(_ context.Context, pl *Place[string, int], _ bool) (Conn[int], error) {
		return &one{place: pl, to: 9}, nil
	}
	for _, key := range []string{"a", "b", "c", "d"} {
		up, err := p.Get(t.Context(), key, &Order[string, int]{By: first, Dial: dial})
		if err != nil {
			t.Fatal(err)
		}
		c, ok := up.(*one)
		if !ok {
			t.Fatalf("%T", up)
		}
		if _, plain := p.Share(key, 1); !plain {
			t.Error("the protocol was forgotten")
		}
		if _, err := p.Get(t.Context(), key, &Order[string, int]{By: first, Dial: dial}); !errors.Is(err, ErrPlain) {
			t.Error(err)
		}
		if c.place.Release(); p.Stats().Ports > p.PlainMost+1 {
			t.Errorf("%d servers are remembered", p.Stats().Ports)
		}
	}
	p.Forget("d")
	if _, plain := p.Share("d", 1); plain {
		t.Error("the protocol is remembered")
	}
	p.CloseIdle(0)
	if p.Stats() != (Stats{}) {
		t.Errorf("left: %+v", p.Stats())
	}
}

// TestRequestsWaitForOneAttempt: requests at the same time share one connection, as far as it has room.
func TestRequestsWaitForOneAttempt(t *testing.T) {
	t.Parallel()
	p := newPool(nil)
	begun, goOn := make(chan int, 10), make(chan struct{})
	o := Order[string, int]{By: first, Dial: func(_ context.Context, pl *Place[string, int], _ bool) (Conn[int], error) {
		begun <- p.Open()
		<-goOn
		return &many{one: one{place: pl, to: 9}, room: 2}, nil // and one for the attempt
	}}
	var all sync.WaitGroup
	var mu sync.Mutex
	users := map[Conn[int]]int{}
	for range 6 {
		all.Go(func() {
			up, err := p.Get(t.Context(), "a", &o)
			if err != nil {
				t.Error(err)
			}
			mu.Lock()
			defer mu.Unlock()
			users[up]++
		})
	}
	for end := time.Now().Add(time.Minute); p.Stats().Waiting < 6 && time.Now().Before(end); {
		time.Sleep(time.Millisecond)
	}
	close(goOn)
	all.Wait()
	if n := <-begun; n != 1 || len(users) != 2 || len(begun) != 1 {
		t.Errorf("%v use %d connections after %d more attempts", users, len(users), len(begun))
	}
}

// TestARequestGetsItsOwnConnection: the request that began an attempt gets the connection, though it has room for no other and many wait.
func TestARequestGetsItsOwnConnection(t *testing.T) {
	t.Parallel()
	p := newPool(nil)
	begun, goOn := make(chan struct{}, 100), make(chan struct{})
	var dials atomic.Int64
	o := Order[string, int]{By: first, Dial: func(_ context.Context, pl *Place[string, int], _ bool) (Conn[int], error) {
		c := &many{one: one{place: pl, to: 9, unfit: dials.Add(1) == 1}} // which marks the first one
		begun <- struct{}{}
		<-goOn
		return c, nil
	}}
	own := make(chan Conn[int], 1)
	get := func(out chan<- Conn[int]) {
		up, err := p.Get(t.Context(), "a", &o)
		if err != nil {
			t.Error(err)
		}
		out <- up
	}
	go get(own)
	<-begun
	others := make(chan Conn[int], 30)
	for range cap(others) {
		go get(others)
	}
	for end := time.Now().Add(time.Minute); p.Stats().Waiting <= cap(others) && time.Now().Before(end); {
		time.Sleep(time.Millisecond)
	}
	close(goOn)
	if up := <-own; up == nil || up.Fit() {
		t.Error("another request took the connection")
	}
	for range cap(others) {
		<-others
	}
}

// TestAttemptsForARequestAreFew: a server whose new connections the judgement forbids is not dialled over and over. The request gets the
// connection, and judges it like any that it dialled.
func TestAttemptsForARequestAreFew(t *testing.T) {
	t.Parallel()
	p := newPool(nil)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var dials atomic.Int64
	up, err := p.Get(ctx, "a", &Order[string, int]{By: first, Dial: func(ctx context.Context, pl *Place[string, int], _ bool) (Conn[int], error) {
		if dials.Add(1) == 100 {
			cancel()
		}
		return &many{one: one{place: pl, from: 5, to: 9}, room: 1}, ctx.Err()
	}})
	if n := dials.Load(); n != 1 || err != nil || up == nil {
		t.Fatalf("%d attempts: %v", n, err)
	}
	if other, _ := p.Share("a", 1); other != nil {
		t.Error("another request uses it")
	}
}

// TestPolicyChangesDuringAnAttempt: a connection that only the new policy allows serves the request.
func TestPolicyChangesDuringAnAttempt(t *testing.T) {
	t.Parallel()
	p := newPool(nil)
	var version, dials atomic.Int64
	version.Store(1)
	up, err := p.Get(t.Context(), "a", &Order[string, int]{
		By: func() int { return int(version.Load()) },
		Dial: func(_ context.Context, pl *Place[string, int], _ bool) (Conn[int], error) {
			version.Store(2)
			if dials.Add(1) > 1 {
				return nil, errors.New("another attempt")
			}
			return &many{one: one{place: pl, from: 2, to: 9}, room: 1}, nil
		},
	})
	if err != nil || up == nil || !up.Usable(2) {
		t.Errorf("%v, %v", up, err)
	}
}

// TestClosedPool: no connection is kept or made for an owner that has gone, and attempts end.
func TestClosedPool(t *testing.T) {
	t.Parallel()
	p := newPool(nil)
	inUse, idle, shared := use(t, p, "a"), use(t, p, "a"), share(t, p, "b", 2)
	idle.place.Rest()
	failed := make(chan error, 1)
	begun := make(chan struct{})
	go func() {
		_, err := p.Get(context.Background(), "c", &Order[string, int]{By: first, Dial: func(ctx context.Context, pl *Place[string, int], _ bool) (Conn[int], error) {
			close(begun)
			<-ctx.Done()
			return &one{place: pl}, nil
		}})
		failed <- err
	}()
	<-begun
	p.Close()
	if err := <-failed; !errors.Is(err, ErrClosed) {
		t.Errorf("the attempt: %v", err)
	}
	if !idle.closed || !shared.closed || inUse.closed {
		t.Errorf("closed: idle %v, shared %v, in use %v", idle.closed, shared.closed, inUse.closed)
	}
	if inUse.place.Rest(); !inUse.closed {
		t.Error("a connection is kept")
	}
	if _, err := p.Acquire("a", 1); !errors.Is(err, ErrClosed) {
		t.Error(err)
	}
	if p.Open() != 0 || p.Stats() != (Stats{}) {
		t.Errorf("left: %d, %+v", p.Open(), p.Stats())
	}
}

// TestPanicOfAnAttempt: a panic in an attempt is reported once, on its own stack, also if no request waits any more, and fails those that
// wait.
func TestPanicOfAnAttempt(t *testing.T) {
	t.Parallel()
	for _, waits := range []bool{true, false} {
		p := newPool(&account{most: 4})
		stacks := make(chan string, 4)
		p.Panicked = func(key string, v any) { stacks <- fmt.Sprint(key, " ", v, " ", string(debug.Stack())) }
		ctx, cancel := context.WithCancel(t.Context())
		o := &Order[string, int]{By: first, Dial: func(dialling context.Context, _ *Place[string, int], _ bool) (Conn[int], error) {
			if !waits {
				cancel()
				<-dialling.Done() // the request has stopped waiting
			}
			return explode()
		}}
		_, err := p.Get(ctx, "a", o)
		cancel()
		var fault *Panic
		if waits && (!errors.As(err, &fault) || fault.Value != "fake" || !fault.Reported()) || !waits && !errors.Is(err, context.Canceled) {
			t.Errorf("waits %t: %v", waits, err)
		}
		if got := <-stacks; !strings.HasPrefix(got, "a fake ") || !strings.Contains(got, "pool.explode") || len(stacks) != 0 {
			t.Errorf("waits %t: %s", waits, got)
		}
	}
}

func explode() (Conn[int], error) { panic("fake") }

// TestAttackOwnerOfManyIdleConnections: beyond the limit, connections of owners with more than an equal share give way, so that one owner
// displaces none of another with few.
func TestAttackOwnerOfManyIdleConnections(t *testing.T) {
	t.Parallel()
	p := newPool(nil)
	p.Idle, p.Owner = 6, func(key string) string { return key[:1] }
	rest := func(key string) *one {
		c := use(t, p, key)
		c.place.Rest()
		return c
	}
	few := []*one{rest("b1"), rest("b2")}
	var many []*one
	for i := range 20 {
		many = append(many, rest(fmt.Sprint("a", i)))
	}
	kept := 0
	for _, c := range many {
		if !c.closed {
			kept++
		}
	}
	if few[0].closed || few[1].closed || kept != 4 || many[19].closed || p.Stats().Idle != 6 {
		t.Errorf("closed %t, %t; %d of the other owner are kept", few[0].closed, few[1].closed, kept)
	}
	few = append(few, rest("c1")) // the owner of many makes room
	if few[0].closed || few[1].closed || few[2].closed || p.Stats().Idle != 6 || p.owned["a"] != 3 {
		t.Errorf("owners: %v", p.owned)
	}
	p.Close()
	if len(p.owned) != 0 {
		t.Errorf("owners of a closed pool: %v", p.owned)
	}
}
