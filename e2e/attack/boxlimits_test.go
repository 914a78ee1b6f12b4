package attack

import (
	"crypto/tls"
	"errors"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"boxgate/api"
	"boxgate/config"
	"boxgate/e2e/harness"
)

// holding opens up to most intercepted connections from a box until one is refused, and returns them.
func holding(in *harness.Intruder, most int) (held []net.Conn) {
	in.T.Helper()
	for len(held) < most {
		c := in.DialHost("api.example.com", 443)
		_ = c.SetDeadline(time.Now().Add(harness.Patience))
		if tls.Client(c, &tls.Config{ServerName: "api.example.com", RootCAs: in.Roots}).Handshake() != nil {
			c.Close()
			break
		}
		held = append(held, c)
	}
	return held
}

func closeAll(held []net.Conn) {
	for _, c := range held {
		c.Close()
	}
}

// TestLimitsOfSingleBoxes: individual limits of boxes apply, lower and higher than the default, while another box keeps
// the default. A change takes effect while a box is busy and survives a restart. A key that is not an admin's cannot
// raise a limit.
func TestLimitsOfSingleBoxes(t *testing.T) {
	t.Parallel()
	const all = 4
	w := harness.NewWorld(t, func(c *config.Config) { c.Limits.Interceptions = all })
	intruders := map[string]*harness.Intruder{}
	for _, name := range []string{"low", "high", "plain"} {
		intruders[name] = w.Intrude(w.SecretBox())
	}
	set := func(c *api.Client, name string, n any) error {
		return c.Do(t.Context(), "PATCH", api.BoxPath(intruders[name].Box, "config", "limits"), map[string]any{"limits": map[string]any{"interceptions": n}}, nil)
	}
	holds := func(name string, want int) {
		t.Helper()
		got := 0
		w.Until("what the box held before has ended", func() bool {
			held := holding(intruders[name], want+1)
			closeAll(held)
			got = len(held)
			return got >= want
		})
		if got != want {
			t.Errorf("box %s has %d connections, want %d", name, got, want)
		}
	}
	for name, n := range map[string]int{"low": 2, "high": 7} {
		if err := set(w.Client, name, n); err != nil {
			t.Fatal(err)
		}
	}
	holds("low", 2)
	holds("high", 7)
	holds("plain", all)

	weak := api.NewClient(w.Socket, makeKey(w, "weak", "one-box", intruders["plain"].Box, nil))
	for name, n := range map[string]any{"plain": all + 1, "low": 1} {
		err := set(weak, name, n)
		refused, ok := errors.AsType[*api.ResponseError](err)
		want, words := http.StatusForbidden, "admin"
		if name == "low" {
			want, words = http.StatusNotFound, ""
		}
		if !ok || refused.Status != want || !strings.Contains(err.Error(), words) {
			t.Errorf("a key of box plain sets a limit of box %s: %v", name, err)
		}
	}
	if err := set(weak, "plain", 1); err != nil {
		t.Fatal(err)
	}
	holds("plain", 1)

	// When its limit is lowered below its usage, the box gets no new ones until it holds fewer.
	held := holding(intruders["high"], 6)
	if err := set(w.Client, "high", 3); err != nil || len(held) != 6 {
		t.Fatal(len(held), err)
	}
	if more := holding(intruders["high"], 1); len(more) != 0 {
		t.Error("a box that holds more than its limit got a connection")
	}
	closeAll(held)
	holds("high", 3)

	// While the limit changes and the box keeps opening connections, it never has more than the higher limit.
	var changes sync.WaitGroup
	stop := make(chan struct{})
	changes.Go(func() {
		for i := 0; ; i++ {
			select {
			case <-stop:
				return
			default:
			}
			if err := set(w.Client, "high", 2+i%2); err != nil {
				t.Error(err)
				return
			}
		}
	})
	for range 5 {
		held := holding(intruders["high"], 8)
		if len(held) > 3 {
			t.Errorf("while its limit changed, a box had %d connections", len(held))
		}
		closeAll(held)
	}
	close(stop)
	changes.Wait()
	if err := set(w.Client, "high", 3); err != nil {
		t.Fatal(err)
	}

	w.Kill()
	if err := w.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	holds("low", 2)
	holds("high", 3)
	holds("plain", 1)
}
