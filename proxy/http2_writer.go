package proxy

import (
	"encoding/binary"
	"errors"
	"net/http"
	"reflect"
	"sync"

	"golang.org/x/net/http2"
)

// clientWriter writes to an HTTP/2 client. The library resets a stream whose handler broke off with INTERNAL_ERROR and lets
// nobody say otherwise; here it gets the code that the upstream gave, which tells a client whether to try again. Frames are
// followed by their lengths alone.
type clientWriter struct {
	*clientReader
	streams streamTracker

	mu    sync.Mutex
	codes map[uint32]http2.ErrCode // of streams that are about to be reset; at most 2*h2Streams

	head [h2FrameHead]byte // of the frame under way
	got  int               // bytes of head
	left int               // bytes of its payload still to come
	out  []byte
}

// because says why a stream is going to be reset. It must be followed by the reset.
func (r *clientWriter) because(stream uint32, code http2.ErrCode) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.codes == nil || len(r.codes) >= 2*h2Streams { // left behind by streams that the client reset meanwhile
		r.codes = map[uint32]http2.ErrCode{}
	}
	r.codes[stream] = code
}

// Write sends b, with the codes of resets replaced. Only one goroutine at a time calls it.
func (r *clientWriter) Write(b []byte) (int, error) { return r.clientReader.Write(r.marked(b)) }

func (r *clientWriter) marked(b []byte) []byte {
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
func (r *clientWriter) codeOf(has http2.ErrCode) (http2.ErrCode, bool) {
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

// resetCode is the code with which a stream to the upstream ended, if it ended with a reset.
func resetCode(err error) (http2.ErrCode, bool) {
	var reset http2.StreamError
	if errors.As(err, &reset) {
		return reset.Code, true
	}
	return http2.ErrCodeInternal, false
}

// resetWith breaks the stream off with a code. It does not return.
func (st *stream) resetWith(code http2.ErrCode) {
	if id, ok := streamID(st.w); ok {
		st.c.writer.because(id, code)
	}
	panic(http.ErrAbortHandler)
}

// The library tells a handler neither the number of its stream nor that the client waits for 100. Both are read where it
// keeps them; should it ever keep them elsewhere, resets have the code INTERNAL_ERROR and bodies are asked for at once, and
// tests fail.

func streamID(w http.ResponseWriter) (uint32, bool) {
	v := below(reflect.ValueOf(w), "rws", "stream", "id")
	if v.Kind() != reflect.Uint32 {
		return 0, false
	}
	return uint32(v.Uint()), true
}

// expectsContinue reports whether the client waits to be told before it sends the request's body.
func expectsContinue(r *http.Request) bool {
	v := below(reflect.ValueOf(r.Body), "needsContinue")
	return v.Kind() == reflect.Bool && v.Bool()
}

// below follows the names of fields through structures and pointers; the result is invalid if one is missing.
func below(v reflect.Value, path ...string) reflect.Value {
	for _, name := range path {
		for v.Kind() == reflect.Pointer || v.Kind() == reflect.Interface {
			v = v.Elem()
		}
		if v.Kind() != reflect.Struct {
			return reflect.Value{}
		}
		v = v.FieldByName(name)
	}
	return v
}
