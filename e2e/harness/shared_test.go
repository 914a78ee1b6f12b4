package harness

import (
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"boxgate/internal/lab"
)

// TestReplacedGatewayIsNotShared: a lab whose gateway was upgraded is not used again although the old process still drains, and closing
// it ends the process that serves now.
func TestReplacedGatewayIsNotShared(t *testing.T) {
	needRoot(t)
	TakeSlot(t)
	from, err := poolFor(lab.Options{}, false)
	if err != nil {
		t.Fatal(err)
	}
	s, err := from.acquire()
	if err != nil {
		t.Fatal(err)
	}
	own, dir := *s.Lab, s.Dir
	w := worldIn(t, &own)
	holdProcess(w, w.Create(map[string]any{}))
	upgrade := own.Command(t.Context(), "upgrade")
	var out strings.Builder
	upgrade.Stdout, upgrade.Stderr = &out, &out
	if err := own.Net.Gateway().Start(upgrade); err != nil {
		t.Fatal(err)
	}
	if err := upgrade.Wait(); err != nil {
		t.Error(err, out.String())
	}
	if err := s.reset(t, &own); err == nil || !strings.Contains(err.Error(), "replaced") {
		t.Error("the lab would be used again:", err)
	}
	if err := own.Close(); err != nil {
		t.Error(err)
	}
	if left, err := lab.Traces(dir); err != nil || len(left) > 0 {
		t.Error(left, err)
	}
}

// A lab is closed when no test has used it for some time, and only then.
func TestUnusedLabsAreClosed(t *testing.T) {
	now := time.Now()
	unused, used := &sharedLab{since: now.Add(-idleLimit)}, &sharedLab{since: now}
	l := &labs{idle: []*sharedLab{unused, used}}
	pools.mu.Lock()
	if pools.byText == nil {
		pools.byText = map[string]*labs{}
	}
	pools.byText[t.Name()] = l
	pools.mu.Unlock()
	defer func() {
		pools.mu.Lock()
		defer pools.mu.Unlock()
		delete(pools.byText, t.Name())
	}()
	if got := takeIdle(now); len(got) != 1 || got[0] != unused {
		t.Errorf("%d labs are closed, want the unused one", len(got))
	}
	if s := l.acquireIdle(); s != used || len(l.idle) > 0 {
		t.Errorf("%v is lent, want the one that was used", s)
	}
}

// holdProcess opens a connection of a box that keeps the present process of the gateway draining after a replacement.
func holdProcess(w *World, box string) {
	w.T.Helper()
	const host = "stream.example.org"
	reached := make(chan struct{})
	if err := errors.Join(w.Net.AddHost(host, "198.51.100.77"), w.Net.ServeHTTP(host, http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		close(reached)
		<-r.Context().Done()
	}))); err != nil {
		w.T.Fatal(err)
	}
	w.Background(box, "curl -k -sS -m 600 https://"+host+"/", io.Discard)
	select {
	case <-reached:
	case <-time.After(time.Minute):
		w.T.Fatal("the connection was not made")
	}
}
