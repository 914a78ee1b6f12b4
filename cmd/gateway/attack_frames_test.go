package main

import (
	"testing"

	"golang.org/x/net/http2"

	"boxgate/audit"
	"boxgate/policy"
)

// TestAttackFramesThatCarryNothing sends requests in any number of frames without content, which cost the sender nine bytes
// each and are in order one by one. A few are borne, as some client may send them; more end the connection.
func TestAttackFramesThatCarryNothing(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	in := w.intrude(w.create(map[string]any{
		"network_policy": custom("api.example.com"),
		"attach_headers": map[string]any{"api.example.com": map[string]string{"X-Key": canary}},
	}))
	emptyData := func(f *frames, n int, padding []byte) {
		f.send(1, false, head("api.example.com", field{":method", "POST"}, field{":path", "/echo"})...)
		for range n {
			if f.WriteDataPadded(1, false, nil, padding) != nil {
				return
			}
		}
		_ = f.WriteData(1, true, []byte("x"))
	}
	for name, send := range map[string]func(f *frames, n int){
		"CONTINUATION": func(f *frames, n int) {
			f.block.Reset()
			for _, h := range head("api.example.com") {
				_ = f.encoder.WriteField(hpackField(h))
			}
			err := f.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, EndStream: true})
			for i := 0; i < n && err == nil; i++ {
				err = f.WriteContinuation(1, false, nil)
			}
			_ = f.WriteContinuation(1, true, f.block.Bytes())
		},
		"DATA":            func(f *frames, n int) { emptyData(f, n, nil) },
		"DATA of padding": func(f *frames, n int) { emptyData(f, n, make([]byte, 200)) },
	} {
		t.Run(name, func(t *testing.T) {
			in := in.on(t)
			f := in.frames("api.example.com")
			if send(f, 10); f.outcome(1) != "200" {
				t.Errorf("ten of them: %v", f.fields[1])
			}
			f = in.frames("api.example.com")
			if send(f, 5000); f.outcome(1) != "closed" {
				t.Errorf("thousands of them were taken for a request: %v", f.fields[1])
			}
		})
	}
	in.event(in.box, func(e audit.Event) bool {
		return e.Reason == policy.ReasonBadRequest && e.Error == "the connection is ended with ENHANCE_YOUR_CALM"
	})
}
