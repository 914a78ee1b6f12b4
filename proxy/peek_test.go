package proxy

import (
	"bytes"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"os"
	"strings"
	"testing"
	"time"

	"boxgate/internal/memory"
)

// helloBytes returns what crypto/tls sends first under cfg.
func helloBytes(t testing.TB, cfg *tls.Config) []byte {
	t.Helper()
	client, server := net.Pipe()
	go func() {
		_ = tls.Client(client, cfg).Handshake()
		client.Close()
	}()
	defer server.Close()
	var out []byte
	for {
		head := make([]byte, recordHeader)
		if _, err := io.ReadFull(server, head); err != nil {
			t.Fatal(err)
		}
		body := make([]byte, int(head[3])<<8|int(head[4]))
		if _, err := io.ReadFull(server, body); err != nil {
			t.Fatal(err)
		}
		out = append(append(out, head...), body...)
		var s helloScan
		if s.next(out) == kindTLS {
			return out
		}
	}
}

func namedHello(t testing.TB, name string) []byte {
	return helloBytes(t, &tls.Config{ServerName: name, InsecureSkipVerify: true})
}

// longProtocols makes a ClientHello of more than one record.
func longProtocols(n int) (protos []string) {
	for range n / 200 {
		protos = append(protos, strings.Repeat("x", 199))
	}
	return protos
}

// inRecords splits the payload of whole records into records of n bytes.
func inRecords(hello []byte, n int) []byte {
	var payload, out []byte
	for len(hello) > 0 {
		length := int(hello[3])<<8 | int(hello[4])
		payload = append(payload, hello[recordHeader:recordHeader+length]...)
		hello = hello[recordHeader+length:]
	}
	for len(payload) > 0 {
		k := min(n, len(payload))
		out = append(append(out, recordHandshake, 3, 1, byte(k>>8), byte(k)), payload[:k]...)
		payload = payload[k:]
	}
	return out
}

// pieces is a connection from which everything comes in reads of n bytes, then the end.
type pieces struct {
	readOnly
	n int
}

func (p pieces) Read(b []byte) (int, error) { return p.Reader.Read(b[:min(p.n, len(b))]) }

func peekAll(t *testing.T, data []byte, n int) first {
	t.Helper()
	f, err := peek(pieces{readOnly{bytes.NewReader(data)}, n}, plenty(), nil, time.Now().Add(time.Minute), time.Time{})
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.HasPrefix(data, f.data) {
		t.Error("the bytes kept for the upstream are not those that were sent")
	}
	return f
}

func TestClientHelloHoweverItComes(t *testing.T) {
	hello := namedHello(t, "api.example.com")
	long := helloBytes(t, &tls.Config{ServerName: "api.example.com", InsecureSkipVerify: true, NextProtos: longProtocols(40000)})
	if len(long) < 1<<14+1000 {
		t.Fatalf("the long hello has %d bytes", len(long))
	}
	for what, data := range map[string][]byte{
		"whole": hello, "several records": inRecords(hello, 100), "one-byte records": inRecords(hello, 1),
		"larger than 16 KiB": long,
		"more behind it":     append(bytes.Clone(hello), "early"...),
	} {
		for _, n := range []int{1, 7, 1 << 16} {
			f := peekAll(t, data, n)
			if f.kind != kindTLS || f.name.String() != "api.example.com" {
				t.Errorf("%s in reads of %d bytes: kind %d, name %q", what, n, f.kind, f.name)
			}
		}
	}
}

func TestFirstBytesAreToldApart(t *testing.T) {
	hello := namedHello(t, "api.example.com")
	old := helloBytes(t, &tls.Config{ServerName: "api.example.com", InsecureSkipVerify: true, MinVersion: tls.VersionTLS10, MaxVersion: tls.VersionTLS11})
	for what, c := range map[string]struct {
		data string
		want kind
	}{
		"request":                {"GET / HTTP/1.1\r\n", kindHTTP},
		"bare LF":                {"GET / HTTP/1.0\n", kindHTTP}, // the strict parser refuses it in HTTP's words
		"unknown method":         {"PROPFIND /x HTTP/1.1\r\n", kindHTTP},
		"HTTP/2 in the clear":    {"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", kindOther},
		"HTTP/0.9":               {"GET /\r\n", kindOther},
		"SMTP":                   {"EHLO me\r\n", kindOther},
		"SSH":                    {"SSH-2.0-OpenSSH_9.2\r\n", kindOther},
		"SSLv2 hello":            {"\x80\x2e\x01\x00\x02\x00\x15\x00\x00\x00\x10", kindOther},
		"long word":              {strings.Repeat("A", 100), kindOther},
		"end in a request line":  {"GET / HT", kindOther},
		"end in a hello":         {string(hello[:50]), kindBadTLS},
		"TLS 1.1 at most":        {string(old), kindBadTLS},
		"record of another kind": {"\x16\x03\x01\x00\x01\x01\x17\x03\x01\x00\x01\x00", kindBadTLS},
		"ServerHello":            {"\x16\x03\x01\x00\x04\x02\x00\x00\x00", kindBadTLS},
		"record beyond 18 KB":    {"\x16\x03\x01\xff\xff\x01", kindBadTLS},
		"hello of 16 MB":         {"\x16\x03\x01\x00\x04\x01\xff\xff\xff", kindBadTLS},
		"empty record":           {"\x16\x03\x01\x00\x00" + string(hello), kindBadTLS},
		"endless request line":   {"GET /" + strings.Repeat("a", peekCap), kindOversize},
		"one-byte records":       {string(inRecords(append([]byte{recordHandshake, 3, 1, 0x40, 0}, append([]byte{1, 0, 0x80, 0}, make([]byte, 1<<14-4)...)...), 1)), kindOversize},
		"nothing":                {"", kindSilent},
	} {
		if got := peekAll(t, []byte(c.data), 1<<16).kind; got != c.want {
			t.Errorf("%s: kind %d, want %d", what, got, c.want)
		}
	}
}

func TestSNIThatIsNoHostNameIsNoName(t *testing.T) {
	for _, sni := range []string{"10.0.0.1.", "0x7f.1", "a..b", "a/b"} {
		// crypto/tls does not send such names itself: one of the same length is overwritten.
		stand := "n" + strings.Repeat("x", len(sni)-1)
		data := bytes.Replace(namedHello(t, stand), []byte(stand), []byte(sni), 1)
		if f := peekAll(t, data, 1<<16); !f.name.IsZero() {
			t.Errorf("SNI %q became the name %q", sni, f.name)
		}
	}
	if f := peekAll(t, bytes.Replace(namedHello(t, "api.example.com"), []byte("api.ex"), []byte("API.Ex"), 1), 9); f.name.String() != "api.example.com" {
		t.Errorf("an upper-case SNI became %q", f.name)
	}
}

func TestGreaseECHIsNoReasonToRefuse(t *testing.T) {
	hello := namedHello(t, "api.example.com")
	// encrypted_client_hello (RFC 9849) of the outer kind with random content, as browsers send it to every server.
	ech := append([]byte{0xfe, 0x0d, 0, 42, 0, 0, 1, 0, 1, 7, 0, 16}, bytes.Repeat([]byte{9}, 16)...)
	ech = append(append(ech, 0, 16), bytes.Repeat([]byte{8}, 16)...)
	f := peekAll(t, withExtension(t, hello, ech), 1<<16)
	if f.kind != kindTLS || f.name.String() != "api.example.com" {
		t.Errorf("kind %d, name %q", f.kind, f.name)
	}
}

// withExtension puts one more extension at the end of a ClientHello of one record.
func withExtension(t *testing.T, hello, ext []byte) []byte {
	t.Helper()
	out := append(bytes.Clone(hello), ext...)
	at := recordHeader + handshakeHeader + 2 + 32
	at += 1 + int(out[at])
	at += 2 + int(out[at])<<8 + int(out[at+1])
	at += 1 + int(out[at])
	add := func(at, width int) {
		n := 0
		for i := range width {
			n = n<<8 | int(out[at+i])
		}
		n += len(ext)
		for i := width - 1; i >= 0; i-- {
			out[at+i] = byte(n)
			n >>= 8
		}
	}
	add(at, 2)
	add(recordHeader+1, 3)
	add(3, 2)
	return out
}

func TestTwoSNINamesAreRefused(t *testing.T) {
	hello := namedHello(t, "api.example.com")
	entry := append([]byte{0, 0, 15}, "api.example.com"...)
	second := append([]byte{0, 0, 15}, "bad.example.org"...)
	list := append(append([]byte{0, 36}, entry...), second...)
	cut := bytes.Index(hello, append([]byte{0, 0, 0, 20, 0, 18}, entry...)) // the extension crypto/tls wrote becomes a GREASE one
	if cut < 0 {
		t.Fatal("no SNI in the hello")
	}
	hello[cut], hello[cut+1] = 0x1a, 0x1a
	f := peekAll(t, withExtension(t, hello, append([]byte{0, 0, 0, 38}, list...)), 1<<16)
	if f.kind != kindBadTLS {
		t.Errorf("kind %d, name %q", f.kind, f.name)
	}
}

func TestSilenceAndDeadline(t *testing.T) {
	t.Parallel()
	client, server := net.Pipe()
	defer client.Close()
	now := time.Now()
	f, err := peek(server, plenty(), nil, now.Add(time.Minute), now.Add(20*time.Millisecond))
	if err != nil || f.kind != kindSilent || f.eof {
		t.Errorf("a silent client: %+v, %v", f, err)
	}
	go client.Write([]byte{recordHandshake})
	_, err = peek(server, plenty(), nil, time.Now().Add(100*time.Millisecond), time.Now().Add(time.Second))
	if !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("one byte and silence: %v", err)
	}
}

// FuzzPeek holds the peek to what crypto/tls understands: it never panics, invents no bytes, and finds a ClientHello in
// pieces exactly where it finds it whole.
func FuzzPeek(f *testing.F) {
	hello := namedHello(f, "api.example.com")
	f.Add(hello, 3)
	f.Add(inRecords(hello, 5), 100)
	f.Add([]byte("GET / HTTP/1.1\r\nHost: x\r\n\r\n"), 1)
	f.Add([]byte("\x16\x03\x01\x00\x04\x01\x00\x00\x00"), 1)
	f.Fuzz(func(t *testing.T, data []byte, n int) {
		if n <= 0 {
			n = 1
		}
		whole, pieced := peekAll(t, data, 1<<20), peekAll(t, data, n)
		if whole.kind != pieced.kind || whole.name != pieced.name {
			t.Errorf("whole: %d %q, in pieces: %d %q", whole.kind, whole.name, pieced.kind, pieced.name)
		}
		if whole.kind != kindTLS {
			return
		}
		if again, err := parseHello(data); err != nil || again.ServerName != whole.sni {
			t.Errorf("crypto/tls reads %v, %v; peeked %q", again, err, whole.sni)
		}
	})
}

// plenty is a claim that is granted whatever a peek needs.
func plenty() *memory.Claim {
	c := new(memory.Claim)
	c.Open(memory.New(1<<20, 1<<20).Account("box"), memory.FirstBytes)
	return c
}
