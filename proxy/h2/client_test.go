package h2

import (
	"encoding/binary"
	"testing"

	"golang.org/x/net/http2"
)

// TestResetsOfTheLibraryKeepTheirCode: a code is given for the reset of a handler that breaks off, and for no other.
func TestResetsOfTheLibraryKeepTheirCode(t *testing.T) {
	for _, c := range []struct{ sent, want http2.ErrCode }{
		{http2.ErrCodeInternal, http2.ErrCodeRefusedStream},
		{http2.ErrCodeStreamClosed, http2.ErrCodeStreamClosed},
		{http2.ErrCodeProtocol, http2.ErrCodeProtocol},
		{http2.ErrCodeNo, http2.ErrCodeNo},
	} {
		r := &ClientConn{streams: streamTracker{refused: func(string) {}}}
		r.ResetWith(1, http2.ErrCodeRefusedStream)
		got := r.marked(binary.BigEndian.AppendUint32([]byte{0, 0, 4, byte(http2.FrameRSTStream), 0, 0, 0, 0, 1}, uint32(c.sent)))
		if code := http2.ErrCode(binary.BigEndian.Uint32(got[FrameHead:])); code != c.want {
			t.Errorf("%v went out as %v", c.sent, code)
		}
	}
}
