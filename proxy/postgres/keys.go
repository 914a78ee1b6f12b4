package postgres

import (
	"context"
	"crypto/rand"
	"crypto/subtle"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"io"
	"net/netip"
	"sync"
	"time"

	"boxgate/policy"
	"boxgate/proxy/problem"
)

// Keys knows what the keys with which boxes may cancel queries stand for. A box is never told the key of the server: with
// that it could cancel through another way, and those of others might be guessed. The zero value is empty. Safe for
// concurrent use.
type Keys struct {
	mu   sync.Mutex
	keys map[uint32]ownKey // by process, which is unique here
}

type ownKey struct {
	cancel
	box policy.BoxID
	of  backend
}

// backend is a connection as its server knows it.
type backend struct {
	authority string
	addr      netip.Addr
	process   uint32
	key       []byte
}

// add returns a new key for a connection of a box.
func (k *Keys) add(box policy.BoxID, of backend) cancel {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.keys == nil {
		k.keys = map[uint32]ownKey{}
	}
	for {
		var b [8]byte
		_, _ = rand.Read(b[:]) // never fails
		c := cancel{process: binary.BigEndian.Uint32(b[:4]) >> 1, key: [4]byte(b[4:])}
		if _, taken := k.keys[c.process]; !taken && c.process != 0 {
			k.keys[c.process] = ownKey{c, box, of}
			return c
		}
	}
}

func (k *Keys) remove(c cancel) {
	k.mu.Lock()
	defer k.mu.Unlock()
	delete(k.keys, c.process)
}

// find returns what a key stands for: a connection of the same box to the same host and port.
func (k *Keys) find(box policy.BoxID, authority string, c cancel) (backend, bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	own, ok := k.keys[c.process]
	if !ok || own.box != box || own.of.authority != authority || subtle.ConstantTimeCompare(own.key[:], c.key[:]) == 0 {
		return backend{}, false
	}
	return own.of, true
}

// cancel passes on a request to cancel what another connection of the box does. The box is told nothing, as by a server.
func (s *Session) cancel(ctx context.Context, p packet) error {
	c, err := parseCancel(p)
	if err != nil {
		return &Refusal{Reason: policy.ReasonProtocol, Err: err}
	}
	of, ok := s.Keys.find(s.Box, s.Authority, c)
	if !ok {
		return &Refusal{Reason: policy.ReasonHeaderRule, Err: errors.New("a request to cancel with a key that is not of this box")}
	}
	ctx, stop := context.WithTimeout(ctx, s.LoginTimeout)
	defer stop()
	err = s.sendCancel(ctx, of)
	var typed *problem.Upstream
	switch {
	case err == nil:
		return ErrCancelled
	case errors.As(err, new(*policy.DeniedError)), errors.As(err, &typed):
		return err
	}
	return &problem.Upstream{Reason: policy.ReasonUnreachable, Name: s.Name, Err: err}
}

func (s *Session) sendCancel(ctx context.Context, of backend) error {
	conn, err := s.Dial(ctx, of.addr)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }()
	if d, ok := ctx.Deadline(); ok {
		_ = conn.SetDeadline(d)
	}
	answer := make([]byte, 1)
	if _, err := conn.Write(binary.BigEndian.AppendUint32([]byte{0, 0, 0, 8}, codeTLS)); err != nil {
		return err
	}
	if _, err := io.ReadFull(conn, answer); err != nil {
		return err
	}
	if answer[0] != 'S' {
		return s.notVerified(errors.New("the server does not speak TLS"))
	}
	secure := tls.Client(conn, s.tlsConfig(func() {}))
	if err := secure.HandshakeContext(ctx); err != nil {
		return s.notVerified(err)
	}
	request := binary.BigEndian.AppendUint32(nil, uint32(12+len(of.key)))
	request = binary.BigEndian.AppendUint32(request, codeCancel)
	request = binary.BigEndian.AppendUint32(request, of.process)
	if _, err := secure.Write(append(request, of.key...)); err != nil {
		return err
	}
	_ = secure.SetReadDeadline(time.Now().Add(s.HelloTimeout))
	_, _ = secure.Read(answer) // the server closes once it has done it
	return nil
}
