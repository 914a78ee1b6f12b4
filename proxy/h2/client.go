package h2

import (
	"crypto/tls"
	"encoding/binary"
	"sync"

	"golang.org/x/net/http2"

	"boxgate/internal/memory"
)

// ClientConn wraps the connection of an HTTP/2 client for the library. When a handler aborts, the library resets the
// stream with INTERNAL_ERROR, with no way to choose the code; ClientConn replaces it by the code that the upstream
// sent, which tells the client whether it may retry. It tracks frames by their length only.
type ClientConn struct {
	*clientReader
	streams streamTracker

	mu    sync.Mutex
	codes map[uint32]http2.ErrCode // of streams that are about to be reset; at most 2*Streams

	head [FrameHead]byte // of the current frame
	got  int             // bytes of head
	left int             // remaining bytes of its payload
	out  []byte
}

// NewClientConn wraps a connection for the library to serve. holds accounts for incomplete header blocks. malformed is
// called for each request that is refused here as malformed, refused for each that the library refuses on its own, and
// flooded if the connection ends because it sends requests faster than the library can refuse them; none may block.
// Release must be called when done.
func NewClientConn(conn *tls.Conn, holds *memory.Account, malformed func(method, authority, path string), refused func(why string), flooded func()) *ClientConn {
	return &ClientConn{clientReader: newClientReader(conn, holds, malformed, flooded), streams: streamTracker{refused: refused}}
}

// Release releases the resources of the connection.
func (r *ClientConn) Release() { r.heads.Close() }

// Handed notes that the handler has a stream, or that its refusal was already recorded.
func (r *ClientConn) Handed(stream uint32) {
	r.behind.Store(0)
	r.streams.begin(stream)
}

// Over notes that the client has ended a stream: the library writes nothing more for it.
func (r *ClientConn) Over(stream uint32) { r.streams.over(stream) }

// Refusing returns the stream of the request for which malformed was called.
func (r *ClientConn) Refusing() uint32 { return r.stream }

// ResetWith sets the code of a stream's reset. The reset must follow.
func (r *ClientConn) ResetWith(stream uint32, code http2.ErrCode) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.codes == nil || len(r.codes) >= 2*Streams { // leftovers of streams that the client has reset
		r.codes = map[uint32]http2.ErrCode{}
	}
	r.codes[stream] = code
}

// Write writes b with the codes of resets replaced. It must not be called concurrently.
func (r *ClientConn) Write(b []byte) (int, error) {
	r.behind.Store(0)
	return r.clientReader.Write(r.marked(b))
}

func (r *ClientConn) marked(b []byte) []byte {
	sent, copied := b, false
	for at := 0; at < len(b); {
		if r.left > 0 {
			n := min(r.left, len(b)-at)
			r.left -= n
			at += n
			continue
		}
		n := copy(r.head[r.got:], b[at:])
		r.got += n
		at += n
		if r.got < len(r.head) {
			break
		}
		r.got, r.left = 0, int(binary.BigEndian.Uint32(r.head[:4])>>8)
		r.streams.wrote(r.head, b[at:])
		if len(b)-at < 4 { // the library writes each frame in one piece
			continue
		}
		code, ok := r.codeOf(http2.ErrCode(binary.BigEndian.Uint32(b[at:])))
		if !ok {
			continue
		}
		if !copied {
			r.out, copied = append(r.out[:0], b...), true
			sent = r.out
		}
		binary.BigEndian.PutUint32(sent[at:], uint32(code))
	}
	return sent
}

// codeOf returns the code for the frame whose head was read, if it is a reset with a code set by ResetWith. has is its
// current code. Codes other than that of an aborted handler are the library's verdict on the client's own frames, such
// as DATA on a stream that the client had ended, and are kept: the handler fails because of them, and may call
// ResetWith before the reset has left the library's buffer.
func (r *ClientConn) codeOf(has http2.ErrCode) (http2.ErrCode, bool) {
	if http2.FrameType(r.head[3]) != http2.FrameRSTStream || r.left != 4 {
		return 0, false
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	stream := binary.BigEndian.Uint32(r.head[5:]) & (1<<31 - 1)
	code, ok := r.codes[stream]
	delete(r.codes, stream)
	return code, ok && has == http2.ErrCodeInternal
}
