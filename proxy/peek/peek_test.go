package peek

import (
	"bytes"
	"crypto/tls"
	"errors"
	"net"
	"os"
	"strings"
	"testing"
	"time"

	"boxgate/internal/memory"
	"boxgate/proxy/peek/peektest"
)

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

// pieces is a connection that yields its data in reads of n bytes, then the end.
type pieces struct {
	readOnly
	n int
}

func (p pieces) Read(b []byte) (int, error) { return p.Reader.Read(b[:min(p.n, len(b))]) }

func peekAll(t *testing.T, data []byte, n int) First {
	t.Helper()
	f, err := Read(pieces{readOnly{bytes.NewReader(data)}, n}, plenty(), nil, time.Now().Add(time.Minute), time.Time{})
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.HasPrefix(data, f.Data) {
		t.Error("the bytes kept for the upstream are not those that were sent")
	}
	return f
}

func TestClientHelloHoweverItComes(t *testing.T) {
	hello := peektest.Named(t, "api.example.com")
	long := peektest.Hello(t, &tls.Config{ServerName: "api.example.com", InsecureSkipVerify: true, NextProtos: peektest.LongProtocols(40000)})
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
			if f.Kind != TLS || f.Name.String() != "api.example.com" {
				t.Errorf("%s in reads of %d bytes: kind %d, name %q", what, n, f.Kind, f.Name)
			}
		}
	}
}

func TestFirstBytesAreToldApart(t *testing.T) {
	hello := peektest.Named(t, "api.example.com")
	old := peektest.Hello(t, &tls.Config{ServerName: "api.example.com", InsecureSkipVerify: true, MinVersion: tls.VersionTLS10, MaxVersion: tls.VersionTLS11})
	for what, c := range map[string]struct {
		data string
		want Kind
	}{
		"request":                {"GET / HTTP/1.1\r\n", HTTP},
		"bare LF":                {"GET / HTTP/1.0\n", HTTP}, // the strict parser refuses it with an HTTP status
		"unknown method":         {"PROPFIND /x HTTP/1.1\r\n", HTTP},
		"HTTP/2 in the clear":    {"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", Other},
		"HTTP/0.9":               {"GET /\r\n", Other},
		"SMTP":                   {"EHLO me\r\n", Other},
		"SSH":                    {"SSH-2.0-OpenSSH_9.2\r\n", Other},
		"SSLv2 hello":            {"\x80\x2e\x01\x00\x02\x00\x15\x00\x00\x00\x10", Other},
		"long word":              {strings.Repeat("A", 100), Other},
		"end in a request line":  {"GET / HT", Other},
		"end in a hello":         {string(hello[:50]), BadTLS},
		"TLS 1.1 at most":        {string(old), BadTLS},
		"record of another kind": {"\x16\x03\x01\x00\x01\x01\x17\x03\x01\x00\x01\x00", BadTLS},
		"ServerHello":            {"\x16\x03\x01\x00\x04\x02\x00\x00\x00", BadTLS},
		"record beyond 18 KB":    {"\x16\x03\x01\xff\xff\x01", BadTLS},
		"hello of 16 MB":         {"\x16\x03\x01\x00\x04\x01\xff\xff\xff", BadTLS},
		"empty record":           {"\x16\x03\x01\x00\x00" + string(hello), BadTLS},
		"endless request line":   {"GET /" + strings.Repeat("a", Cap), Oversize},
		"one-byte records":       {string(inRecords(append([]byte{recordHandshake, 3, 1, 0x40, 0}, append([]byte{1, 0, 0x80, 0}, make([]byte, 1<<14-4)...)...), 1)), Oversize},
		"nothing":                {"", Silent},
	} {
		if got := peekAll(t, []byte(c.data), 1<<16).Kind; got != c.want {
			t.Errorf("%s: kind %d, want %d", what, got, c.want)
		}
	}
}

func TestSNIThatIsNoHostNameIsNoName(t *testing.T) {
	for _, sni := range []string{"10.0.0.1.", "0x7f.1", "a..b", "a/b"} {
		// crypto/tls does not send such names, so one of the same length is overwritten.
		stand := "n" + strings.Repeat("x", len(sni)-1)
		data := bytes.Replace(peektest.Named(t, stand), []byte(stand), []byte(sni), 1)
		if f := peekAll(t, data, 1<<16); !f.Name.IsZero() {
			t.Errorf("SNI %q became the name %q", sni, f.Name)
		}
	}
	if f := peekAll(t, bytes.Replace(peektest.Named(t, "api.example.com"), []byte("api.ex"), []byte("API.Ex"), 1), 9); f.Name.String() != "api.example.com" {
		t.Errorf("an upper-case SNI became %q", f.Name)
	}
}

func TestGreaseECHIsNoReasonToRefuse(t *testing.T) {
	hello := peektest.Named(t, "api.example.com")
	// An outer encrypted_client_hello (RFC 9849) with random content, as browsers send it to every server.
	ech := append([]byte{0xfe, 0x0d, 0, 42, 0, 0, 1, 0, 1, 7, 0, 16}, bytes.Repeat([]byte{9}, 16)...)
	ech = append(append(ech, 0, 16), bytes.Repeat([]byte{8}, 16)...)
	f := peekAll(t, peektest.WithExtension(t, hello, ech), 1<<16)
	if f.Kind != TLS || f.Name.String() != "api.example.com" {
		t.Errorf("kind %d, name %q", f.Kind, f.Name)
	}
}

func TestTwoSNINamesAreRefused(t *testing.T) {
	hello := peektest.Named(t, "api.example.com")
	entry := append([]byte{0, 0, 15}, "api.example.com"...)
	second := append([]byte{0, 0, 15}, "bad.example.org"...)
	list := append(append([]byte{0, 36}, entry...), second...)
	cut := bytes.Index(hello, append([]byte{0, 0, 0, 20, 0, 18}, entry...)) // turns the extension of crypto/tls into a GREASE one
	if cut < 0 {
		t.Fatal("no SNI in the hello")
	}
	hello[cut], hello[cut+1] = 0x1a, 0x1a
	f := peekAll(t, peektest.WithExtension(t, hello, append([]byte{0, 0, 0, 38}, list...)), 1<<16)
	if f.Kind != BadTLS {
		t.Errorf("kind %d, name %q", f.Kind, f.Name)
	}
}

func TestSilenceAndDeadline(t *testing.T) {
	t.Parallel()
	client, server := net.Pipe()
	defer client.Close()
	now := time.Now()
	f, err := Read(server, plenty(), nil, now.Add(time.Minute), now.Add(20*time.Millisecond))
	if err != nil || f.Kind != Silent || f.Ended {
		t.Errorf("a silent client: %+v, %v", f, err)
	}
	go client.Write([]byte{recordHandshake})
	_, err = Read(server, plenty(), nil, time.Now().Add(100*time.Millisecond), time.Now().Add(time.Second))
	if !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("one byte and silence: %v", err)
	}
}

// FuzzPeek: peeking never panics, never invents bytes, accepts only hellos that crypto/tls accepts, and finds a ClientHello
// in pieces if and only if it finds it whole.
func FuzzPeek(f *testing.F) {
	hello := peektest.Named(f, "api.example.com")
	f.Add(hello, 3)
	f.Add(inRecords(hello, 5), 100)
	f.Add([]byte("GET / HTTP/1.1\r\nHost: x\r\n\r\n"), 1)
	f.Add([]byte("\x16\x03\x01\x00\x04\x01\x00\x00\x00"), 1)
	f.Fuzz(func(t *testing.T, data []byte, n int) {
		if n <= 0 {
			n = 1
		}
		whole, pieced := peekAll(t, data, 1<<20), peekAll(t, data, n)
		if whole.Kind != pieced.Kind || whole.Name != pieced.Name {
			t.Errorf("whole: %d %q, in pieces: %d %q", whole.Kind, whole.Name, pieced.Kind, pieced.Name)
		}
		if whole.Kind != TLS {
			return
		}
		if again, err := parseHello(data); err != nil || again.ServerName != whole.SNI {
			t.Errorf("crypto/tls reads %v, %v; peeked %q", again, err, whole.SNI)
		}
	})
}

// plenty returns a claim large enough for every peek.
func plenty() *memory.Claim {
	c := new(memory.Claim)
	c.Open(memory.New(1<<20, 1<<20).Account("box"), memory.FirstBytes)
	return c
}
