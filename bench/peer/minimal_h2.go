package peer

import (
	"io"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"

	"boxgate/bench/origin"
)

// literal is the added header, encoded in HPACK as a literal without indexing, which may follow any block.
var literal = appendLiteral(nil, "x-inject", origin.Value)

func appendLiteral(b []byte, name, value string) []byte {
	b = append(b, 0, byte(len(name)))
	b = append(b, name...)
	b = append(b, byte(len(value)))
	return append(b, value...)
}

// frames joins a client's HTTP/2 connection to a new one to the upstream. Frames pass unchanged, except header blocks,
// which are decoded and get one more field.
func (m *minimal) frames(client *wire) {
	up, err := m.upstream()
	if err != nil {
		return
	}
	defer up.Close()
	go func() {
		defer client.Close()
		copyRecords(client, up)
	}()
	f := forwarder{from: client, to: up, in: make([]byte, 0, 64<<10), decoder: hpack.NewDecoder(4096, func(hpack.HeaderField) {})}
	if f.preface() == nil {
		f.run()
	}
}

// copyRecords copies decrypted data, with one write for all available records.
func copyRecords(to, from *wire) {
	buf := make([]byte, 32<<10)
	for {
		n, err := from.Read(buf)
		for err == nil && from.recordBuffered() && len(buf)-n >= 16<<10 {
			var next int
			next, err = from.Read(buf[n:])
			n += next
		}
		if _, failed := to.Write(buf[:n]); failed != nil || err != nil {
			return
		}
	}
}

// forwarder forwards the frames of a client.
type forwarder struct {
	from, to *wire
	in, out  []byte // read but not forwarded, forwarded but not written
	decoder  *hpack.Decoder
}

func (f *forwarder) preface() error {
	f.out = make([]byte, len(http2.ClientPreface), 64<<10)
	_, err := io.ReadFull(f.from, f.out)
	return err
}

func (f *forwarder) run() {
	for {
		n, err := f.from.Read(f.in[len(f.in):cap(f.in)])
		if err != nil {
			return
		}
		f.in = f.in[:len(f.in)+n]
		if err := f.forward(); err != nil {
			return
		}
		if len(f.out) == 0 || f.from.recordBuffered() && len(f.out) < 32<<10 {
			continue
		}
		if _, err := f.to.Write(f.out); err != nil {
			return
		}
		f.out = f.out[:0]
	}
}

const (
	frameHeader = 9
	maxFrame    = 16 << 10 // the default SETTINGS_MAX_FRAME_SIZE
)

// forward forwards the complete frames read so far.
func (f *forwarder) forward() error {
	rest := f.in
	for len(rest) >= frameHeader {
		length := int(rest[0])<<16 | int(rest[1])<<8 | int(rest[2])
		if length > maxFrame {
			return http2.ErrFrameTooLarge
		}
		if len(rest) < frameHeader+length {
			break
		}
		if err := f.frame(rest[:frameHeader+length]); err != nil {
			return err
		}
		rest = rest[frameHeader+length:]
	}
	f.in = f.in[:copy(f.in, rest)]
	return nil
}

func (f *forwarder) frame(frame []byte) error {
	if http2.FrameType(frame[3]) != http2.FrameHeaders {
		f.out = append(f.out, frame...)
		return nil
	}
	if http2.Flags(frame[4])&^http2.FlagHeadersEndStream != http2.FlagHeadersEndHeaders { // padded, with a priority, or in several frames
		return errHead
	}
	if _, err := f.decoder.Write(frame[frameHeader:]); err != nil {
		return err
	}
	if err := f.decoder.Close(); err != nil { // ends the block
		return err
	}
	length := len(frame) - frameHeader + len(literal)
	f.out = append(f.out, byte(length>>16), byte(length>>8), byte(length))
	f.out = append(append(f.out, frame[3:]...), literal...)
	return nil
}
