package offer

import (
	"bytes"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"testing"
)

// TestHelloIsAnswered: crypto/tls understands the hello, and its choice and certificates are read.
func TestHelloIsAnswered(t *testing.T) {
	t.Parallel()
	hello, err := Hello("a.example", tls.VersionTLS13)
	if err != nil {
		t.Fatal(err)
	}
	client, server := net.Pipe()
	defer client.Close()
	stop := errors.New("seen")
	var seen *tls.ClientHelloInfo
	go func() {
		_, _ = client.Write(hello)
		_, _ = io.Copy(io.Discard, client)
	}()
	err = tls.Server(server, &tls.Config{GetConfigForClient: func(h *tls.ClientHelloInfo) (*tls.Config, error) {
		seen = h
		return nil, stop
	}}).Handshake()
	_ = server.Close()
	if !errors.Is(err, stop) || seen.ServerName != "a.example" || len(seen.CipherSuites) < 30 || seen.SupportedVersions[0] != tls.VersionTLS13 {
		t.Errorf("%v %+v", err, seen)
	}
}

// TestNames: suites and groups without a name in crypto/tls have OpenSSL's.
func TestNames(t *testing.T) {
	t.Parallel()
	for got, want := range map[string]string{
		SuiteName(0x009e): "DHE-RSA-AES128-GCM-SHA256", SuiteName(tls.TLS_AES_128_GCM_SHA256): "TLS_AES_128_GCM_SHA256", GroupName(30): "X448", GroupName(tls.X25519): "X25519",
	} {
		if got != want {
			t.Errorf("%s, want %s", got, want)
		}
	}
	if Supports(30) || !Supports(tls.X25519) {
		t.Error("supported groups")
	}
}

// FuzzAnswer: no answer of a server makes the readers panic or read on beyond their bound.
func FuzzAnswer(f *testing.F) {
	f.Add([]byte("\x16\x03\x03\x00\x04\x0b\x00\x00\x00"))
	f.Add([]byte("\x16\x03\x03\x00\x30\x02\x00\x00\x2c\x03\x03" + string(make([]byte, 32)) + "\x00\xc0\x2f\x00\x00\x04\x00\x33\x00\x00"))
	f.Add([]byte("\x16\x03\x03\x00\x0e\x0b\x00\x00\x0a\x00\x00\x07\x00\x00\x04cert"))
	f.Fuzz(func(t *testing.T, answer []byte) {
		var o Offer
		o.Read(bytes.NewReader(answer))
		_ = o.Missing(false)
		in := &counter{in: io.MultiReader(bytes.NewReader(answer), bytes.NewReader(make([]byte, 2*maxAnswer)))}
		size := 0
		for _, c := range Certificates(in) {
			size += len(c)
		}
		if size > len(answer)+2*maxAnswer || in.n > maxAnswer {
			t.Errorf("%d bytes of certificates, %d read", size, in.n)
		}
	})
}

type counter struct {
	in io.Reader
	n  int
}

func (c *counter) Read(b []byte) (int, error) {
	n, err := c.in.Read(b)
	c.n += n
	return n, err
}
