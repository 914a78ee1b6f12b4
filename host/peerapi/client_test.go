package peerapi

import (
	"context"
	"net/http"
	"net/http/httptest"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"

	"go.uber.org/zap"

	"boxgate/api/access"
	"boxgate/fleet"
	"boxgate/fleet/directory"
	"boxgate/fleet/node"
)

// TestLooksIntoTheDirectoryAreFew: many calls for names, and for the boxes of silent hosts, at the same time are few requests to etcd at a time, and all are answered.
func TestLooksIntoTheDirectoryAreFew(t *testing.T) {
	t.Parallel()
	c := NewClient(&node.Node{}, zap.NewNop())
	var now, most atomic.Int64
	look := func() (end func()) {
		for n, seen := now.Add(1), most.Load(); n > seen && !most.CompareAndSwap(seen, n); seen = most.Load() {
		}
		for range 100 {
			runtime.Gosched()
		}
		return func() { now.Add(-1) }
	}
	c.find = func(context.Context, string) (directory.Owner, bool, error) {
		defer look()()
		return directory.Owner{Host: "bbbbbb"}, true, nil
	}
	c.boxes = func(context.Context, string) (map[string]directory.Entry, error) {
		defer look()()
		return map[string]directory.Entry{"bbbbbb0000000001": {Name: "web"}}, nil
	}
	var calls sync.WaitGroup
	for range 10 * mostLookups {
		calls.Go(func() {
			if o, ok, err := c.lookUp(t.Context(), "web"); !ok || err != nil || o.Host != "bbbbbb" {
				t.Errorf("%v, %v, %v", o, ok, err)
			}
		})
		calls.Go(func() {
			if list := c.inDirectory(t.Context(), "bbbbbb"); len(list) != 1 || list[0].Name != "web" {
				t.Errorf("%v", list)
			}
		})
	}
	calls.Wait()
	if most.Load() > mostLookups {
		t.Errorf("%d requests at a time, the limit is %d", most.Load(), mostLookups)
	}
}

// TestHeadersSentToAnotherHost: another host gets the key and the query as they are, without fields for this host, and with the true way of the call.
func TestHeadersSentToAnotherHost(t *testing.T) {
	t.Parallel()
	c := NewClient(&node.Node{Config: node.Config{Identity: fleet.Identity{Host: "aaaaaa"}}}, zap.NewNop())
	in := httptest.NewRequest("POST", "http://localhost/v2/box/far/exec?a=1;b&a=2", http.NoBody)
	in.RemoteAddr = "192.0.2.7:1234"
	for name, value := range map[string]string{
		"X-Box-Api-Key": "key", "Cookie": "boxgate_session=secret", "Origin": "http://localhost", "Sec-Fetch-Site": "same-origin", access.PeerHeader: "cccccc", clientHeader: "198.51.100.1",
	} {
		in.Header.Set(name, value)
	}
	out := in.Clone(t.Context())
	c.address(out, in, fleet.Host{ID: "bbbbbb", Key: []byte{1, 2}})
	for name, want := range map[string]string{
		"X-Box-Api-Key": "key", "Cookie": "", "Origin": "", "Sec-Fetch-Site": "", access.PeerHeader: "aaaaaa", clientHeader: "192.0.2.7",
	} {
		if got := out.Header.Get(name); got != want {
			t.Errorf("%s: %q, want %q", name, got, want)
		}
	}
	if out.URL.RawQuery != "a=1;b&a=2" || out.URL.Host != "bbbbbb.0102.invalid" {
		t.Errorf("%v", out.URL)
	}
}
