package ingress

import (
	"context"
	"fmt"
	"net/http"
	"net/netip"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"boxgate/policy"

	"github.com/coder/websocket"
)

// sleepers are boxes that sleep until up is set.
type sleepers struct {
	wake  func(ctx context.Context, box policy.BoxID, port uint16) error
	used  *atomic.Int64 // counts beginnings and ends; nil: not counted
	moved func(byVisitor bool)
	up    atomic.Bool // they are awake
}

func (s *sleepers) count() {
	if s.used != nil {
		s.used.Add(1)
	}
}

func (s *sleepers) Enter(policy.BoxID, uint16) bool { s.count(); return s.up.Load() }
func (s *sleepers) Leave(policy.BoxID)              { s.count() }

func (s *sleepers) Moved(_ policy.BoxID, byVisitor bool) {
	if s.moved != nil {
		s.moved(byVisitor)
	}
}

func (s *sleepers) Wake(ctx context.Context, box policy.BoxID, port uint16) error {
	return s.wake(ctx, box, port)
}

// TestWakeOnce has many requests wait for a sleeping box: it is woken once, for all of them.
func TestWakeOnce(t *testing.T) {
	t.Parallel()
	const many = 10
	var woken, used atomic.Int64
	awake := make(chan struct{})
	f := start(t, func(c *Config) {
		c.Boxes = &sleepers{used: &used, wake: func(_ context.Context, box policy.BoxID, port uint16) error {
			if woken.Add(1); box != "box1" || port == 0 {
				t.Errorf("woke %s for port %d", box, port)
			}
			<-awake
			return nil
		}}
	})
	f.wakeWait = time.Minute
	app := record(t)
	f.expose("a", app.Server, Auth{Open: true})
	c := f.client(t, true)
	var wg sync.WaitGroup
	for range many {
		wg.Go(func() {
			if res, _ := get(t, c, "https://a"+domain+"/", nil); res.StatusCode != 200 {
				t.Error(res.Status)
			}
		})
	}
	until(t, "all wait", func() bool { return f.active.count() == many })
	if app.count() != 0 {
		t.Error("the application was reached before the box was awake")
	}
	close(awake)
	wg.Wait()
	if woken.Load() != 1 {
		t.Errorf("woken %d times", woken.Load())
	}
	until(t, "each request was told of when it began and when it ended", func() bool { return used.Load() == 2*many })
	f.expose("b", app.Server, Auth{Bearer: new(BearerDigest("tok"))})
	if res, _ := get(t, c, "https://b"+domain+"/", nil); res.StatusCode != 401 || woken.Load() != 1 || used.Load() != 2*many {
		t.Errorf("without a credential: %s, and the box is woken or used", res.Status)
	}
}

// TestWakeOfManyPorts: a visitor of all ports of a box has few of them awaited, whatever other boxes wait for, and the places come back.
func TestWakeOfManyPorts(t *testing.T) {
	t.Parallel()
	var w wakers
	var waiting atomic.Int64
	awake := make(chan struct{})
	wake := func(context.Context, policy.BoxID, uint16) error {
		waiting.Add(1)
		<-awake
		waiting.Add(-1)
		return nil
	}
	at := func(box policy.BoxID, port int) *waking {
		return w.join(wake, Target{Box: box, Addr: netip.AddrPortFrom(netip.MustParseAddr("10.200.0.2"), uint16(port))})
	}
	var calls []*waking
	for port := 1; port <= 20*maxDoors; port++ {
		call := at("box1", port)
		if port <= maxDoors {
			calls = append(calls, call)
			continue
		}
		select {
		case <-call.done:
			if call.err != errWaking {
				t.Fatal(call.err)
			}
		default:
			t.Fatalf("port %d is awaited too", port)
		}
	}
	if at("box1", 1) != calls[0] {
		t.Error("a port that is awaited already is not waited for")
	}
	calls = append(calls, at("box2", 1))
	until(t, "the attempts run", func() bool { return waiting.Load() == maxDoors+1 })
	close(awake)
	for _, call := range calls {
		if <-call.done; call.err != nil {
			t.Error(call.err)
		}
	}
	if len(w.calls) > 0 || len(w.doors) > 0 {
		t.Errorf("%d attempts and %d boxes remain", len(w.calls), len(w.doors))
	}
}

// until waits for a condition.
func until(t *testing.T, what string, met func() bool) {
	t.Helper()
	hang := time.After(time.Minute)
	for tick := time.Tick(time.Millisecond); !met(); {
		select {
		case <-tick:
		case <-hang:
			t.Fatal("still not: ", what)
		}
	}
}

// TestWakeTakesLong asks a client to come again while the box continues to wake, and lets it in afterwards.
func TestWakeTakesLong(t *testing.T) {
	t.Parallel()
	awake := make(chan struct{})
	var woken atomic.Int64
	f := start(t, func(c *Config) {
		c.Boxes = &sleepers{wake: func(context.Context, policy.BoxID, uint16) error {
			woken.Add(1)
			<-awake
			return nil
		}}
	})
	f.wakeWait = 10 * time.Millisecond
	app := record(t)
	f.expose("a", app.Server, Auth{Open: true})
	c := f.client(t, false)
	for range 3 {
		res, _ := get(t, c, "https://a"+domain+"/", nil)
		if res.StatusCode != http.StatusServiceUnavailable || res.Header.Get("Retry-After") != "5" {
			t.Errorf("%s, Retry-After %q", res.Status, res.Header.Get("Retry-After"))
		}
	}
	if woken.Load() != 1 || app.count() != 0 {
		t.Errorf("woken %d times, %d requests arrived", woken.Load(), app.count())
	}
	close(awake)
	until(t, "the box is awake", func() bool {
		res, _ := get(t, c, "https://a"+domain+"/", nil)
		return res.StatusCode == 200
	})
}

// TestOpenConnectionDoesNotKeepTheBoxAwake: an open connection without traffic is no use of the box, and the visitor's next
// bytes wake it.
func TestOpenConnectionDoesNotKeepTheBoxAwake(t *testing.T) {
	t.Parallel()
	var used, sent, received atomic.Int64
	boxes := &sleepers{used: &used, moved: func(byVisitor bool) {
		if byVisitor {
			sent.Add(1)
		} else {
			received.Add(1)
		}
	}}
	boxes.up.Store(true)
	f := start(t, func(c *Config) { c.Boxes = boxes })
	f.expose("a", echoServer(t), Auth{Open: true})
	c, _, err := dialWebSocket(t, f, "a", "")
	if err != nil {
		t.Fatal(err)
	}
	until(t, "the box may sleep", func() bool { return used.Load() == 2 })
	for range 3 {
		before := [2]int64{sent.Load(), received.Load()}
		if err := c.Write(t.Context(), websocket.MessageText, []byte("x")); err != nil {
			t.Fatal(err)
		}
		if _, _, err := c.Read(t.Context()); err != nil {
			t.Fatal(err)
		}
		if sent.Load() == before[0] || received.Load() == before[1] {
			t.Errorf("before a message %v, after it %d %d", before, sent.Load(), received.Load())
		}
	}
}

// TestBoxThatIsDown is not reported as starting, and the client is not asked to come again.
func TestBoxThatIsDown(t *testing.T) {
	t.Parallel()
	f := start(t, func(c *Config) {
		c.Boxes = &sleepers{wake: func(context.Context, policy.BoxID, uint16) error { return fmt.Errorf("%w: a secret reason", ErrDown) }}
	})
	f.expose("a", record(t).Server, Auth{Open: true})
	res, body := get(t, f.client(t, false), "https://a"+domain+"/", nil)
	if res.StatusCode != http.StatusBadGateway || res.Header.Get("Retry-After") != "" || !strings.Contains(body, "has stopped") || strings.Contains(body, "secret") {
		t.Errorf("%s %q: %s", res.Status, res.Header.Get("Retry-After"), body)
	}
}

// TestPanicInWaking fails the wake, only for the requests that wait for it.
func TestPanicInWaking(t *testing.T) {
	t.Parallel()
	f := start(t, func(c *Config) {
		c.Boxes = &sleepers{wake: func(context.Context, policy.BoxID, uint16) error { panic("no") }}
	})
	app := record(t)
	f.expose("a", app.Server, Auth{Open: true})
	for range 2 {
		if res, _ := get(t, f.client(t, false), "https://a"+domain+"/", nil); res.StatusCode != http.StatusServiceUnavailable {
			t.Error(res.Status)
		}
	}
}

// TestRevocationWhileABoxWakes is reported to the waiting client, which is not asked to come again.
func TestRevocationWhileABoxWakes(t *testing.T) {
	t.Parallel()
	waking := make(chan struct{})
	f := start(t, func(c *Config) {
		c.Boxes = &sleepers{wake: func(ctx context.Context, _ policy.BoxID, _ uint16) error {
			close(waking)
			select {
			case <-ctx.Done():
			case <-t.Context().Done():
			}
			return errWaking
		}}
	})
	target := f.expose("a", record(t).Server, Auth{Open: true})
	go func() {
		<-waking
		f.CloseURL(target.ID)
	}()
	if res, body := get(t, f.client(t, false), "https://a"+domain+"/", nil); res.StatusCode != http.StatusUnauthorized || res.Header.Get("Retry-After") != "" {
		t.Errorf("%s %q: %s", res.Status, res.Header.Get("Retry-After"), body)
	}
}

// TestEachPortIsWaitedFor: the programs of a box begin to listen one after another, and a request waits for its own port.
func TestEachPortIsWaitedFor(t *testing.T) {
	t.Parallel()
	first, second := record(t), record(t)
	portOf := func(app *recorder) uint16 {
		return netip.MustParseAddrPort(app.Listener.Addr().String()).Port()
	}
	listens := map[uint16]chan struct{}{portOf(first): make(chan struct{}), portOf(second): make(chan struct{})}
	var waiting atomic.Int64
	f := start(t, func(c *Config) {
		c.Boxes = &sleepers{wake: func(_ context.Context, _ policy.BoxID, port uint16) error {
			waiting.Add(1)
			<-listens[port]
			return nil
		}}
	})
	f.wakeWait = time.Minute
	f.expose("a", first.Server, Auth{Open: true})
	f.expose("b", second.Server, Auth{Open: true})
	c := f.client(t, true)
	var both sync.WaitGroup
	answered := make(chan string, 2)
	for _, host := range []string{"a", "b"} {
		both.Go(func() {
			if res, _ := get(t, c, "https://"+host+domain+"/", nil); res.StatusCode != 200 {
				t.Errorf("%s: %s", host, res.Status)
			}
			answered <- host
		})
	}
	until(t, "each port is waited for", func() bool { return waiting.Load() == 2 })
	close(listens[portOf(first)])
	if host := <-answered; host != "a" || second.count() != 0 {
		t.Errorf("%s was answered first, and its neighbour got %d requests", host, second.count())
	}
	close(listens[portOf(second)])
	both.Wait()
}
