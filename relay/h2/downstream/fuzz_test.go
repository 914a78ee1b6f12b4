package downstream

import (
	"bytes"
	"io"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
)

// FuzzServe sends arbitrary bytes after the preface, in two pieces: the server does not panic, sends valid frames, keeps to its
// limits, and ends when the client leaves.
func FuzzServe(f *testing.F) {
	var wire, block bytes.Buffer
	fr := http2.NewFramer(&wire, nil)
	enc := hpack.NewEncoder(&block)
	for i, head := 0, get("te", "trailers"); i < len(head); i += 2 {
		_ = enc.WriteField(hpack.HeaderField{Name: head[i], Value: head[i+1]}) // into memory
	}
	_ = fr.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 3})
	_ = fr.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: block.Bytes()[:5], PadLength: 3})
	_ = fr.WriteContinuation(1, true, block.Bytes()[5:])
	_ = fr.WriteData(1, false, []byte("some data"))
	_ = fr.WriteWindowUpdate(1, 1)
	_ = fr.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: []byte("\x00\x01x\x01y"), EndHeaders: true, EndStream: true})
	_ = fr.WriteRSTStream(1, http2.ErrCodeCancel)
	_ = fr.WritePing(false, [8]byte{})
	_ = fr.WriteGoAway(0, http2.ErrCodeNo, nil)
	f.Add(wire.Bytes(), 20)
	f.Add([]byte("\x00\x00\x00\x04\x00\x00\x00\x00\x00\x00\x00\x01\x01\x05\x00\x00\x00\x01\x82"), 9)
	f.Fuzz(func(t *testing.T, sent []byte, cut int) {
		if len(sent) > 1<<20 || cut < 0 || cut > len(sent) {
			return
		}
		synctest.Test(t, func(t *testing.T) {
			p := unserved(t)
			var c *conn
			p.serve(func(s *Stream) { c = s.c; echo(s) })
			_, _ = io.WriteString(p.conn, http2.ClientPreface)
			_, _ = p.conn.Write(sent[:cut])
			synctest.Wait()
			_, _ = p.conn.Write(sent[cut:])
			p.frames()
			if c != nil {
				c.mu.Lock()
				if len(c.out.pending) > batchMax+headMax || c.running > 100 || len(c.streams) > 100 {
					t.Errorf("%d bytes, %d handlers, %d streams", len(c.out.pending), c.running, len(c.streams))
				}
				c.mu.Unlock()
			}
			p.leave()
			time.Sleep(time.Hour)
		})
	})
}
