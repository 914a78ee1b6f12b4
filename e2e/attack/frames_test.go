package attack

import (
	"testing"

	"golang.org/x/net/http2"

	"boxgate/audit"
	"boxgate/e2e/harness"
	"boxgate/policy/name"
)

// TestAttackFramesThatCarryNothing sends requests in many frames without content. Each costs the sender nine bytes and
// is valid by itself. A few are accepted, because clients may send them; more end the connection.
func TestAttackFramesThatCarryNothing(t *testing.T) {
	t.Parallel()
	w := harness.Shared(t)
	in := w.Intrude(w.Create(map[string]any{
		"network_policy": harness.Custom("api.example.com"),
		"attach_headers": map[string]any{"api.example.com": map[string]string{"X-Key": harness.Canary}},
	}))
	emptyData := func(f *harness.Frames, n int, padding []byte) {
		f.Send(1, false, harness.Head("api.example.com", harness.Field{":method", "POST"}, harness.Field{":path", "/echo"})...)
		for range n {
			if f.WriteDataPadded(1, false, nil, padding) != nil {
				return
			}
		}
		_ = f.WriteData(1, true, []byte("x"))
	}
	for name, send := range map[string]func(f *harness.Frames, n int){
		"CONTINUATION": func(f *harness.Frames, n int) {
			f.Block.Reset()
			for _, h := range harness.Head("api.example.com") {
				_ = f.Encoder.WriteField(h.HPACK())
			}
			err := f.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, EndStream: true})
			for i := 0; i < n && err == nil; i++ {
				err = f.WriteContinuation(1, false, nil)
			}
			_ = f.WriteContinuation(1, true, f.Block.Bytes())
		},
		"DATA":            func(f *harness.Frames, n int) { emptyData(f, n, nil) },
		"DATA of padding": func(f *harness.Frames, n int) { emptyData(f, n, make([]byte, 200)) },
	} {
		t.Run(name, func(t *testing.T) {
			in := in.On(t)
			f := in.Frames("api.example.com")
			if send(f, 10); f.Outcome(1) != "200" {
				t.Errorf("ten of them: %v", f.Fields[1])
			}
			f = in.Frames("api.example.com")
			if send(f, 5000); f.Outcome(1) != "closed" {
				t.Errorf("thousands of them were taken for a request: %v", f.Fields[1])
			}
		})
	}
	in.Event(in.Box, func(e audit.Event) bool {
		return e.Reason == name.ReasonBadRequest && e.Error == "the connection is ended with ENHANCE_YOUR_CALM"
	})
}
