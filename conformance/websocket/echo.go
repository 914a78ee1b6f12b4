package websocket

import (
	"bufio"
	"crypto/sha1" //nolint:gosec // required by RFC 6455; not used for security
	"encoding/base64"
	"encoding/binary"
	"errors"
	"io"
	"net/http"
	"time"
	"unicode/utf8"
)

// echoRest bounds the wait for the client to close the connection after the server's close frame.
const echoRest = 2 * time.Second

// Echo sends every message back, over an upgraded HTTP/1.1 connection or an extended CONNECT (RFC 8441). It answers
// violations of RFC 6455 with a close frame as soon as it detects them, even within a frame, and closes the connection.
func Echo() http.Handler { return http.HandlerFunc(serveEcho) }

func serveEcho(w http.ResponseWriter, r *http.Request) {
	a, answer, compressed := accept(r.Header.Get("Sec-WebSocket-Extensions"))
	if compressed {
		w.Header().Set("Sec-WebSocket-Extensions", answer)
	}
	var rw io.ReadWriteCloser
	var err error
	if r.Method == http.MethodConnect && r.Header.Get(":protocol") == "websocket" {
		rw, err = overHTTP2(w, r)
	} else {
		rw, err = upgrade(w, r)
	}
	if err != nil {
		return // already answered, or the client disconnected
	}
	defer rw.Close()
	e := &echo{r: bufio.NewReader(rw), w: rw, compressed: compressed}
	e.in.forgets = a.clientForgets
	e.out.forgets, e.out.window = a.serverForgets, a.serverWindow
	e.serve()
}

func upgrade(w http.ResponseWriter, r *http.Request) (io.ReadWriteCloser, error) {
	key := r.Header.Get("Sec-WebSocket-Key")
	if r.Header.Get("Upgrade") != "websocket" || r.Header.Get("Sec-WebSocket-Version") != "13" || len(key) != 24 {
		http.Error(w, "this is a WebSocket server", http.StatusUpgradeRequired)
		return nil, http.ErrNotSupported
	}
	w.Header()["Upgrade"], w.Header()["Connection"] = []string{"websocket"}, []string{"Upgrade"}
	w.Header().Set("Sec-WebSocket-Accept", acceptKey(key))
	w.WriteHeader(http.StatusSwitchingProtocols)
	conn, buffered, err := http.NewResponseController(w).Hijack()
	if err != nil {
		return nil, err
	}
	return hijacked{conn, buffered.Reader}, nil
}

// acceptKey returns the Sec-WebSocket-Accept for a key (RFC 6455, 4.2.2).
func acceptKey(key string) string {
	sum := sha1.Sum([]byte(key + "258EAFA5-E914-47DA-95CA-C5AB0DC85B11")) //nolint:gosec // as above
	return base64.StdEncoding.EncodeToString(sum[:])
}

// echo is one connection of the server.
type echo struct {
	r          *bufio.Reader
	w          io.Writer
	compressed bool // permessage-deflate was negotiated
	in         inflater
	out        deflater

	message []byte // received so far
	opcode  byte   // opcode of the message; 0: no message has begun
	packed  bool   // the message is compressed
	text    utf8Check
}

// failure ends a connection with a close code.
type failure int

func (failure) Error() string { return "websocket: the peer broke the protocol" }

// serve handles frames until the connection ends.
func (e *echo) serve() {
	for {
		h, err := readHead(e.r)
		if err == nil {
			err = e.check(&h)
		}
		if err == nil && h.control() {
			err = e.controlFrame(&h)
		} else if err == nil {
			err = e.dataFrame(&h)
		}
		var broke failure
		switch {
		case err == nil:
		case errors.As(err, &broke):
			e.goodbye(closePayload(int(broke), ""))
			return
		case errors.Is(err, errTooBig):
			e.goodbye(closePayload(codeTooBig, ""))
			return
		default:
			return
		}
	}
}

// check validates the header of a frame.
func (e *echo) check(h *head) error {
	allowed := byte(0)
	if e.compressed && (h.opcode == opText || h.opcode == opBinary) {
		allowed = 4
	}
	switch {
	case h.rsv&^allowed != 0, !h.masked:
		return failure(codeProtocol)
	case h.opcode > opBinary && h.opcode < opClose, h.opcode > opPong:
		return failure(codeProtocol)
	case h.control():
		if !h.fin || h.length > 125 {
			return failure(codeProtocol)
		}
	case (h.opcode == opContinuation) != (e.opcode != 0):
		return failure(codeProtocol)
	case h.length > messageMax || len(e.message)+int(h.length) > messageMax:
		return errTooBig
	}
	return nil
}

func (e *echo) controlFrame(h *head) error {
	payload := make([]byte, h.length)
	if _, err := io.ReadFull(e.r, payload); err != nil {
		return noEOF(err)
	}
	h.unmask(payload, 0)
	switch h.opcode {
	case opPing:
		return e.write(opPong, 0, payload)
	case opClose:
		if code := closeFault(payload); code != 0 {
			return failure(code)
		}
		e.goodbye(payload[:min(2, len(payload))])
		return io.EOF
	}
	return nil
}

// closeFault returns the close code for answering an invalid close frame payload, or 0.
func closeFault(payload []byte) int {
	if len(payload) == 0 {
		return 0
	}
	if len(payload) == 1 {
		return codeProtocol
	}
	switch code := binary.BigEndian.Uint16(payload); {
	case code < 1000, code == 1004, code == 1005, code == 1006, code > 1011 && code < 3000, code > 4999:
		return codeProtocol
	}
	if !utf8.Valid(payload[2:]) {
		return codePayload
	}
	return 0
}

// dataFrame reads a frame of a message. After the last frame it sends the message back.
func (e *echo) dataFrame(h *head) error {
	if h.opcode != opContinuation {
		e.opcode, e.packed, e.message, e.text = h.opcode, h.rsv&4 != 0, e.message[:0], utf8Check{}
	}
	for offset := 0; uint64(offset) < h.length; {
		if _, err := e.r.Peek(1); err != nil {
			return noEOF(err)
		}
		part, err := e.r.Peek(min(e.r.Buffered(), int(h.length)-offset))
		if err != nil {
			return err
		}
		from := len(e.message)
		e.message = append(e.message, part...)
		h.unmask(e.message[from:], offset)
		if e.opcode == opText && !e.packed && !e.text.add(e.message[from:]) {
			return failure(codePayload)
		}
		offset += len(part)
		if _, err := e.r.Discard(len(part)); err != nil {
			return err
		}
	}
	if !h.fin {
		return nil
	}
	return e.sendBack()
}

func (e *echo) sendBack() error {
	opcode, message := e.opcode, e.message
	e.opcode = 0
	if e.packed {
		var err error
		if message, err = e.in.decompress(message); err != nil {
			return failure(codePayload)
		}
		if opcode == opText && !utf8.Valid(message) {
			return failure(codePayload)
		}
	} else if opcode == opText && !e.text.whole() {
		return failure(codePayload)
	}
	if !e.compressed {
		return e.write(opcode, 0, message)
	}
	packed, err := e.out.compress(message)
	if err != nil {
		return err
	}
	return e.write(opcode, 4, packed)
}

// write sends one frame.
func (e *echo) write(opcode, rsv byte, payload []byte) error {
	b := appendHead(make([]byte, 0, 10+len(payload)), head{fin: true, rsv: rsv, opcode: opcode, length: uint64(len(payload))})
	_, err := e.w.Write(append(b, payload...))
	return err
}

// goodbye sends a close frame and waits until the client has read it.
func (e *echo) goodbye(payload []byte) {
	if err := e.write(opClose, 0, payload); err != nil {
		return
	}
	if half, ok := e.w.(interface{ CloseWrite() error }); ok {
		_ = half.CloseWrite()
		if d, ok := e.w.(interface{ SetReadDeadline(time.Time) error }); ok {
			_ = d.SetReadDeadline(time.Now().Add(echoRest))
			_, _ = io.Copy(io.Discard, e.r)
		}
	}
}
