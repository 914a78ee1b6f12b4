package balancer

import (
	"bytes"
	"errors"
	"io"
	"net/netip"
	"strings"
	"testing"
	"time"
)

var passedKey = bytes.Repeat([]byte{7}, 32)

// passed returns a header of host aaaaaa to host bbbbbb.
func passed(from, to netip.AddrPort) Passed {
	return Passed{From: from, To: to, Name: "bbbbbb0000000001-8000.example.org", Mode: ModeTLS, Sender: "aaaaaa", Receiver: "bbbbbb", At: time.UnixMilli(1796000000123), Nonce: NewNonce()}
}

func keyOf(sender string) ([]byte, bool) { return passedKey, sender == "aaaaaa" }

// TestHeaderOfAnotherHost: a header has the visitor's address for every reader of the PROXY protocol, and is proven by all of its bytes.
func TestHeaderOfAnotherHost(t *testing.T) {
	t.Parallel()
	for _, p := range []Passed{passed(v4, to4), passed(v6, to6), passed(v4, to6)} {
		raw := p.Append([]byte("before"), passedKey)[len("before"):]
		after := strings.NewReader(string(raw) + "after")
		read, err := ReadPassed(after)
		if rest, _ := io.ReadAll(after); err != nil || !bytes.Equal(read, raw) || string(rest) != "after" {
			t.Fatalf("%d of %d bytes, then %q, %v", len(read), len(raw), rest, err)
		}
		if got, err := OpenPassed(raw, "bbbbbb", keyOf); err != nil || got != p {
			t.Errorf("%+v, want %+v, %v", got, p, err)
		}
		if h, err := Read(bytes.NewReader(raw)); err != nil || h.From != p.From {
			t.Errorf("for another reader: %+v, %v", h, err)
		}
	}
}

// TestForgedHeader: no header with a changed byte, for another host, or with another key is accepted.
func TestForgedHeader(t *testing.T) {
	t.Parallel()
	p := passed(v4, to4)
	raw := p.Append(nil, passedKey)
	for i := range raw {
		other := bytes.Clone(raw)
		other[i] ^= 1
		if got, err := OpenPassed(other, "bbbbbb", keyOf); err == nil {
			t.Fatalf("byte %d changed: %+v", i, got)
		}
		if got, err := OpenPassed(raw[:i], "bbbbbb", keyOf); err == nil {
			t.Fatalf("%d bytes: %+v", i, got)
		}
	}
	stranger := p
	stranger.Sender = "cccccc"
	for what, c := range map[string]struct {
		raw      []byte
		receiver string
		want     error
	}{
		"another receiver": {raw, "cccccc", ErrPassed},
		"another sender":   {stranger.Append(nil, passedKey), "bbbbbb", ErrPassed},
		"another key":      {p.Append(nil, make([]byte, 32)), "bbbbbb", ErrForged},
		"more bytes":       {append(bytes.Clone(raw), 0), "bbbbbb", ErrPassed},
		"no proof":         {header(proxy, tcp4, v4, to4), "bbbbbb", ErrPassed},
		"of its own":       {header(local, tcp4, v4, to4), "bbbbbb", ErrPassed},
	} {
		if _, err := OpenPassed(c.raw, c.receiver, keyOf); !errors.Is(err, c.want) {
			t.Errorf("%s: %v", what, err)
		}
	}
	long := append(bytes.Clone(raw[:14]), 0xff, 0xff)
	if _, err := ReadPassed(bytes.NewReader(long)); !errors.Is(err, errSize) {
		t.Errorf("a long header: %v", err)
	}
}

// TestHeaderWorksOnce: a header is accepted once, also if the memory is full, and not after its time.
func TestHeaderWorksOnce(t *testing.T) {
	t.Parallel()
	start := time.UnixMilli(1796000000000)
	f := NewFresh(start)
	f.most = 4
	type one struct {
		at time.Time
		n  Nonce
	}
	var used []one
	for i := range 30 {
		now := start.Add(time.Duration(i+1) * 100 * time.Millisecond)
		h := one{now, NewNonce()}
		if err := f.Accept(h.at, h.n, now); err != nil {
			t.Fatalf("header %d: %v", i, err)
		}
		used = append(used, h)
		for j, h := range used {
			if err := f.Accept(h.at, h.n, now); err == nil {
				t.Fatalf("header %d is accepted again after %d", j, i)
			}
		}
		if n := len(f.current.seen) + len(f.before.seen); n > 2*f.most {
			t.Fatalf("%d headers are remembered", n)
		}
	}
	now := start.Add(time.Hour)
	for at, want := range map[time.Time]error{now.Add(-FreshTime - 1): errStale, now.Add(FreshTime + 1): errStale, now.Add(-FreshTime): nil, now.Add(FreshTime): nil} {
		if err := f.Accept(at, NewNonce(), now); !errors.Is(err, want) {
			t.Errorf("%v: %v", at.Sub(now), err)
		}
	}
	if err := NewFresh(now).Accept(now.Add(-time.Millisecond), NewNonce(), now); !errors.Is(err, errStale) {
		t.Errorf("from before the start: %v", err)
	}
}

// FuzzOpenPassed: a header that is accepted is that of its fields.
func FuzzOpenPassed(f *testing.F) {
	f.Add(passed(v4, to4).Append(nil, passedKey))
	f.Add(passed(v6, to6).Append(nil, passedKey))
	f.Fuzz(func(t *testing.T, raw []byte) {
		read, err := ReadPassed(bytes.NewReader(raw))
		if err != nil {
			return
		}
		if p, err := OpenPassed(read, "bbbbbb", keyOf); err == nil && !bytes.Equal(p.Append(nil, passedKey), read) {
			t.Errorf("%+v", p)
		}
		if p, err := parsePassed(read); err == nil && (len(p.Name) == 0 || len(p.Name) > nameMost || len(p.Sender) != hostSize) {
			t.Errorf("%+v", p)
		}
	})
}
