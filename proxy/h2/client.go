package h2

import (
	"crypto/tls"
	"encoding/binary"
	"sync"

	"golang.org/x/net/http2"

	"boxgate/internal/memory"
)

// ClientConn is the connection of an HTTP/2 client as the library reads and writes it. The library resets a stream whose handler broke off with INTERNAL_ERROR and lets
// nobody say otherwise; here it gets the code that the upstream gave, which tells a client whether to try again. Frames are
// followed by their lengths alone.
type ClientConn struct {
	*clientReader
	streams streamTracker

	mu    sync.Mutex
	codes map[uint32]http2.ErrCode // of streams that are about to be reset; at most 2*Streams

	head [FrameHead]byte // of the frame under way
	got  int             // bytes of head
	left int             // bytes of its payload still to come
	out  []byte
}

// NewClientConn returns the connection for the library to serve. holds is what header blocks under way are counted in.
// malformed is called for each request that is refused here for its form, refused for each that the library refuses by itself;
// neither may wait. release must be called in the end.
func NewClientConn(conn *tls.Conn, holds *memory.Account, malformed func(method, authority, path string), refused func(why string)) *ClientConn {
	return &ClientConn{clientReader: newClientReader(conn, holds, malformed), streams: streamTracker{refused: refused}}
}

// Release gives back what the connection holds.
func (r *ClientConn) Release() { r.heads.Close() }

// Handed notes that the handler has a stream, or that its refusal was told elsewhere.
func (r *ClientConn) Handed(stream uint32) { r.streams.begin(stream) }

// Over notes that the client has ended a stream: the library writes nothing for it any more.
func (r *ClientConn) Over(stream uint32) { r.streams.over(stream) }

// Refusing returns the stream of the request that malformed was called for.
func (r *ClientConn) Refusing() uint32 { return r.stream }

// ResetWith says why a stream is going to be reset. It must be followed by the reset.
func (r *ClientConn) ResetWith(stream uint32, code http2.ErrCode) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.codes == nil || len(r.codes) >= 2*Streams { // left behind by streams that the client reset meanwhile
		r.codes = map[uint32]http2.ErrCode{}
	}
	r.codes[stream] = code
}

// Write sends b, with the codes of resets replaced. Only one goroutine at a time calls it.
func (r *ClientConn) Write(b []byte) (int, error) { return r.clientReader.Write(r.marked(b)) }

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
		if len(b)-at < 4 { // the library writes a frame as one piece
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

// codeOf returns the code that the frame whose head was read is to have, if it is a reset that one was given for. has is
// the code it has. Any other than that of a handler that broke off is the library's verdict on the client's own frames,
// such as DATA on a stream that the client had ended, and stands: the handler fails because of it, and may well say why
// before the reset has left the library's buffer.
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
