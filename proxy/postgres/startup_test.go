package postgres

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"strings"
	"testing"
)

func packetOf(code uint32, body string) []byte {
	b := binary.BigEndian.AppendUint32(nil, uint32(8+len(body)))
	return append(binary.BigEndian.AppendUint32(b, code), body...)
}

// FuzzStartup: the first packets of a box are read within their limits, and a parsed one can be encoded again.
func FuzzStartup(f *testing.F) {
	f.Add(packetOf(codeVersion3, "user\x00app\x00database\x00orders\x00\x00"))
	f.Add(packetOf(codeVersion3|2, "user\x00app\x00_pq_.x\x001\x00\x00rest"))
	f.Add(packetOf(codeVersion3, "\x00"))
	f.Add(packetOf(codeCancel, "\x00\x00\x00\x01key!"))
	f.Add(packetOf(codeTLS, ""))
	f.Add([]byte("\x00\x00\x00\x04"))
	f.Add([]byte("GET / HTTP/1.1\r\n\r\n"))
	f.Fuzz(func(t *testing.T, data []byte) {
		r := bytes.NewReader(data)
		p, err := readPacket(r)
		if read := len(data) - r.Len(); read > maxStartup || err == nil && read != 8+len(p.body) {
			t.Fatalf("%d bytes were read for %q", read, p.body)
		}
		if err != nil {
			return
		}
		if c, err := parseCancel(p); err == nil && string(p.body[4:]) != string(c.key) {
			t.Fatalf("%+v of %q", c, p.body)
		}
		s, err := parseStartup(p)
		if err != nil {
			return
		}
		again := 1
		for name, value := range s.parameters {
			if name == "" || strings.ContainsAny(name+value, "\x00") || strings.HasPrefix(name, "_pq_.") {
				t.Fatalf("%q=%q", name, value)
			}
			again += len(name) + len(value) + 2
		}
		if len(s.options) == 0 && again != len(p.body) {
			t.Fatalf("%q became %v", p.body, s.parameters)
		}
	})
}

// TestStartupPackets: packets that servers could interpret differently are refused, immediately if because of their length.
func TestStartupPackets(t *testing.T) {
	for name, body := range map[string]string{
		"twice": "user\x00a\x00user\x00b\x00\x00", "no end": "user\x00a\x00", "no value": "user\x00", "more": "user\x00a\x00\x00user\x00b\x00", "nothing": "",
	} {
		if _, err := parseStartup(packet{codeVersion3, []byte(body)}); !errors.Is(err, errStartup) {
			t.Errorf("%s: %v", name, err)
		}
	}
	for _, head := range []string{"\x00\x00\x00\x07\x00\x03\x00\x00", "\xff\xff\xff\xff\x00\x03\x00\x00", "\x00\x00\x27\x11\x00\x03\x00\x00"} {
		if _, err := readPacket(strings.NewReader(head)); !errors.Is(err, errStartup) {
			t.Errorf("%q: %v", head, err)
		}
	}
}

// FuzzFollow: a box's messages are found however they are split.
func FuzzFollow(f *testing.F) {
	f.Add([]byte("Q\x00\x00\x00\x0chello\x00\x00\x00X\x00\x00\x00\x04"), uint8(3))
	f.Add([]byte("p\x00\x00\x00\x05x"), uint8(1))
	f.Fuzz(func(t *testing.T, data []byte, piece uint8) {
		whole, pieces := (&Server{}).checkMessages(data), true
		c := &Server{}
		for rest := data; len(rest) > 0 && pieces; {
			n := min(len(rest), int(piece)+1)
			pieces = c.checkMessages(rest[:n])
			rest = rest[n:]
		}
		if whole != pieces {
			t.Fatalf("%q: %v at once, %v in pieces of %d", data, whole, pieces, int(piece)+1)
		}
	})
}

// TestMessagesEndReads: a reader of one message does not consume data after it.
func TestMessagesEndReads(t *testing.T) {
	from := strings.NewReader("Z\x00\x00\x00\x05INext")
	m := &messageReader{r: from}
	b := make([]byte, 64)
	var got []byte
	for len(got) < 6 {
		n, err := m.Read(b)
		if err != nil {
			t.Fatal(err)
		}
		got = append(got, b[:n]...)
	}
	if rest, _ := io.ReadAll(from); string(got) != "Z\x00\x00\x00\x05I" || string(rest) != "Next" {
		t.Errorf("%q, then %q", got, rest)
	}
}
