package attack

import (
	"net/netip"
	"sync"
	"testing"
	"time"

	"golang.org/x/net/http2"

	"boxgate/e2e/harness"
)

// floods are the attacks of HTTP/2 clients that have brought servers down. Each sends until going returns false or the
// connection is closed.
var floods = map[string]func(f *harness.Frames, going func() bool){
	"rapid reset": func(f *harness.Frames, going func() bool) { // CVE-2023-44487
		for id := uint32(1); going(); id += 2 {
			f.Send(id, true, harness.Head("api.example.com", harness.Field{":path", "/slow/1000"})...)
			if f.WriteRSTStream(id, http2.ErrCodeCancel) != nil {
				return
			}
		}
	},
	"CONTINUATION": func(f *harness.Frames, going func() bool) { // CVE-2023-45288
		err := f.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: []byte{0}})
		for err == nil && going() {
			err = f.WriteContinuation(1, false, make([]byte, 1000))
		}
	},
	"PING": func(f *harness.Frames, going func() bool) { // CVE-2019-9512
		for going() && f.WritePing(false, [8]byte{}) == nil {
		}
	},
	"SETTINGS": func(f *harness.Frames, going func() bool) { // CVE-2019-9515
		for going() && f.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 1}) == nil {
		}
	},
	"empty DATA": func(f *harness.Frames, going func() bool) { // CVE-2019-9518
		f.Send(1, false, harness.Head("api.example.com", harness.Field{":method", "POST"}, harness.Field{":path", "/echo"})...)
		for going() && f.WriteData(1, false, nil) == nil {
		}
	},
	"PRIORITY": func(f *harness.Frames, going func() bool) { // CVE-2019-9513
		for id := uint32(1); going() && f.WritePriority(id, http2.PriorityParam{StreamDep: id + 2}) == nil; id += 2 {
		}
	},
	"a window of one byte": func(f *harness.Frames, going func() bool) { // CVE-2019-9517, CVE-2019-9511
		_ = f.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 0})
		for id := uint32(1); going() && id < 200; id += 2 {
			f.Send(id, true, harness.Head("api.example.com", harness.Field{":path", "/bytes/100000"})...)
		}
		for going() && f.WriteWindowUpdate(1, 1) == nil {
		}
	},
	"a table that grows": func(f *harness.Frames, going func() bool) { // the HPACK bomb
		f.Encoder.SetMaxDynamicTableSize(4096)
		many := []harness.Field{{"x", string(make([]byte, 0))}}
		for range 4000 {
			many = append(many, harness.Field{"x-filler-of-some-length", "yyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyy"})
		}
		for id := uint32(1); going() && f.Fields[id] == nil; id += 2 {
			f.Send(id, true, harness.Head("api.example.com", many...)...)
		}
	},
}

// TestAttackHTTP2Floods runs each flood over several connections. The interceptor closes them or survives them without
// growing, and another box is not affected.
func TestAttackHTTP2Floods(t *testing.T) {
	t.Parallel()
	w := harness.Shared(t)
	in := w.Intrude(w.Create(map[string]any{
		"network_policy": harness.Custom("api.example.com"),
		"attach_headers": map[string]any{"api.example.com": map[string]string{"X-Key": harness.Canary}},
	}))
	for name, flood := range floods {
		t.Run(name, func(t *testing.T) {
			in := in.On(t)
			before := memory(in.World)
			stop := bystander(in.World)
			var all sync.WaitGroup
			until := time.Now().Add(500 * time.Millisecond)
			for range 4 {
				f := in.Frames("api.example.com")
				_ = f.Conn.SetDeadline(until.Add(time.Second))
				all.Go(func() {
					flood(f, func() bool { return time.Now().Before(until) })
					f.Conn.Close()
				})
				all.Go(func() { // the answers must be read, or the flood stops
					buf := make([]byte, 64<<10)
					for {
						if _, err := f.Conn.Read(buf); err != nil {
							return
						}
					}
				})
			}
			all.Wait()
			bound := 150
			if harness.RaceDetector() {
				bound *= 2
			}
			if grown := memory(in.World) - before; grown > bound {
				t.Errorf("the gateway grew by %d MiB", grown)
			}
			if n, slowest := stop(); n < 2 || slowest > heldUp {
				t.Errorf("the other box made %d requests, the slowest took %v", n, slowest)
			}
		})
	}
	if err := in.Fetch(netip.AddrPortFrom(in.Resolve("api.example.com", "ip4"), 443), "api.example.com"); err != nil {
		t.Errorf("after the floods: %v", err)
	}
	w.NoInternalErrors()
}
