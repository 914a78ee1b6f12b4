package load

import (
	"bufio"
	"bytes"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
)

// The windows opened by the generator, large enough never to limit a program under test.
const (
	streamWindow = 1 << 20
	connWindow   = 1 << 30
)

// http2 keeps a number of requests open over one connection.
func (g *generator) http2(w *worker) error {
	c, err := g.open(g.next())
	if err != nil {
		return err
	}
	defer c.Close()
	defer g.interrupt(c)()
	if c.ConnectionState().NegotiatedProtocol != "h2" {
		return errors.New("HTTP/2 was not negotiated")
	}
	s := newSession(g, c, w)
	if err := s.begin(); err != nil {
		return err
	}
	for !g.finished() {
		if err := s.step(); err != nil {
			return err
		}
	}
	return nil
}

// session is one HTTP/2 connection.
type session struct {
	g       *generator
	worker  *worker
	r       *bufio.Reader
	w       *bufio.Writer
	framer  *http2.Framer
	block   bytes.Buffer
	encoder *hpack.Encoder
	decoder *hpack.Decoder
	fields  map[string]string
	streams map[uint32]*stream
	nextID  uint32
	unacked uint32 // bytes of data for which no WINDOW_UPDATE was sent yet
}

// stream is an open request.
type stream struct {
	sentAt         time.Time
	status, result string
	body           []byte
	length         int64
}

func newSession(g *generator, c *tls.Conn, w *worker) *session {
	s := &session{g: g, worker: w, r: bufio.NewReaderSize(c, 64<<10), w: bufio.NewWriterSize(c, 32<<10)}
	s.framer = http2.NewFramer(s.w, s.r)
	s.framer.SetReuseFrames()
	s.encoder = hpack.NewEncoder(&s.block)
	s.fields, s.streams, s.nextID = map[string]string{}, map[uint32]*stream{}, 1
	s.decoder = hpack.NewDecoder(4096, func(f hpack.HeaderField) {
		if f.Name == ":status" || f.Name == "grpc-status" {
			s.fields[f.Name] = f.Value
		}
	})
	return s
}

// begin sends the preface and the first requests.
func (s *session) begin() error {
	err := errors.Join(
		second(io.WriteString(s.w, http2.ClientPreface)),
		s.framer.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: streamWindow}, http2.Setting{ID: http2.SettingEnablePush, Val: 0}),
		s.framer.WriteWindowUpdate(0, connWindow))
	for range s.g.Streams {
		err = errors.Join(err, s.send())
	}
	return errors.Join(err, s.w.Flush())
}

func second(_ int, err error) error { return err }

// message is a gRPC message of 100 bytes.
var message = append([]byte{0, 0, 0, 0, 100}, bytes.Repeat([]byte("m"), 100)...)

// send opens the next request.
func (s *session) send() error {
	id, call := s.nextID, s.g.Kind == GRPC
	s.nextID += 2
	s.streams[id] = &stream{sentAt: time.Now()}
	s.block.Reset()
	for _, f := range s.g.fields() {
		if err := s.encoder.WriteField(f); err != nil {
			return err
		}
	}
	err := s.framer.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: s.block.Bytes(), EndStream: !call, EndHeaders: true})
	if call {
		err = errors.Join(err, s.framer.WriteData(id, true, message))
	}
	return err
}

// fields returns the header fields of a request.
func (g *generator) fields() []hpack.HeaderField {
	method := "GET"
	var more []hpack.HeaderField
	if g.Kind == GRPC {
		method = "POST"
		more = []hpack.HeaderField{{Name: "content-type", Value: "application/grpc"}, {Name: "te", Value: "trailers"}}
	}
	for _, line := range g.Header {
		name, value, _ := strings.Cut(line, ": ")
		more = append(more, hpack.HeaderField{Name: strings.ToLower(name), Value: value})
	}
	return append([]hpack.HeaderField{
		{Name: ":method", Value: method}, {Name: ":scheme", Value: "https"}, {Name: ":authority", Value: g.Name},
		{Name: ":path", Value: g.Path}, {Name: "user-agent", Value: "bench"},
	}, more...)
}

// step handles one frame. If no more input is buffered, it then sends the pending output.
func (s *session) step() error {
	f, err := s.framer.ReadFrame()
	if err != nil {
		return err
	}
	ended, err := s.handle(f)
	if err == nil && ended {
		err = s.finish(f.Header().StreamID)
	}
	if err == nil && s.r.Buffered() == 0 {
		err = s.w.Flush()
	}
	return err
}

// handle processes a frame and reports whether it ends its stream.
func (s *session) handle(f http2.Frame) (ended bool, err error) {
	switch f := f.(type) {
	case *http2.HeadersFrame:
		return f.StreamEnded(), s.headers(f)
	case *http2.DataFrame:
		return f.StreamEnded(), s.data(f)
	case *http2.SettingsFrame:
		if !f.IsAck() {
			return false, s.framer.WriteSettingsAck()
		}
	case *http2.PingFrame:
		if !f.IsAck() {
			return false, s.framer.WritePing(true, f.Data)
		}
	case *http2.RSTStreamFrame:
		return false, fmt.Errorf("a stream was reset: %v", f.ErrCode)
	case *http2.GoAwayFrame:
		return false, fmt.Errorf("GOAWAY: %v", f.ErrCode)
	}
	return false, nil
}

func (s *session) headers(f *http2.HeadersFrame) error {
	if !f.HeadersEnded() {
		return errors.New("headers in several frames")
	}
	clear(s.fields)
	if _, err := s.decoder.Write(f.HeaderBlockFragment()); err != nil {
		return err
	}
	st, ok := s.streams[f.StreamID]
	if !ok {
		return fmt.Errorf("headers of stream %d", f.StreamID)
	}
	if status, ok := s.fields[":status"]; ok {
		st.status = status
	}
	if result, ok := s.fields["grpc-status"]; ok {
		st.result = result
	}
	return s.decoder.Close()
}

func (s *session) data(f *http2.DataFrame) error {
	st, ok := s.streams[f.StreamID]
	if !ok {
		return fmt.Errorf("data of stream %d", f.StreamID)
	}
	st.length += int64(len(f.Data()))
	if s.g.Kind == GRPC {
		st.body = append(st.body, f.Data()...)
	}
	if s.unacked += f.Length; s.unacked < connWindow/2 {
		return nil
	}
	given := s.unacked
	s.unacked = 0
	return s.framer.WriteWindowUpdate(0, given)
}

// finish verifies an answer and opens the next request.
func (s *session) finish(id uint32) error {
	st := s.streams[id]
	delete(s.streams, id)
	if err := s.g.verify(st); err != nil {
		return err
	}
	s.g.recordUnit(s.worker, st.sentAt)
	return s.send()
}

func (g *generator) verify(st *stream) error {
	switch {
	case st.status != "200":
		return fmt.Errorf("status %s", st.status)
	case g.Kind == GRPC && (st.result != "0" || len(st.body) < 5 || int(binary.BigEndian.Uint32(st.body[1:])) != len(st.body)-5):
		return fmt.Errorf("grpc-status %q with %d bytes", st.result, len(st.body))
	case g.Kind == HTTP2 && st.length != g.Size:
		return fmt.Errorf("%d bytes in the place of %d", st.length, g.Size)
	}
	return nil
}
