package postgres

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/subtle"
	"encoding/binary"
	"errors"
	"io"
	"net/netip"
	"slices"
	"sync"
	"time"

	"boxgate/internal/socket"
	"boxgate/policy"
	"boxgate/policy/name"
	"boxgate/proxy/problem"
)

// Keys maps the cancel keys of boxes to the servers' keys. A box receives the server's process ID, which
// functions such as pg_terminate_backend take, with a key that the gateway generated: with the server's key it could cancel
// over a connection that does not pass the gateway, and the short keys of other clients might be guessed. The zero value is
// empty. Safe for concurrent use.
type Keys struct {
	mu   sync.Mutex
	keys map[keyScope][]issuedKey // a list, because servers behind one name may have equal process IDs
}

// keyScope is the scope of a key: connections of a box to a host and port, for one process ID.
type keyScope struct {
	box       policy.BoxID
	authority string
	process   uint32
}

// issuedKey is a key that the gateway generated, and the server connection that it cancels.
type issuedKey struct {
	key []byte
	of  backend
}

// backend identifies a connection at its server.
type backend struct {
	authority string
	addr      netip.Addr
	process   uint32
	key       []byte // empty if the server does not support cancel requests
}

// Lengths of keys in bytes: before protocol version 3.2, as PostgreSQL generates them since then, and the longest allowed.
const (
	shortKey = 4
	longKey  = 32
	maxKey   = 256
)

// add generates and stores a key of n bytes for a connection of a box.
func (k *Keys) add(box policy.BoxID, of backend, n int) cancel {
	at := keyScope{box, of.authority, of.process}
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.keys == nil {
		k.keys = map[keyScope][]issuedKey{}
	}
	for {
		key := make([]byte, n)
		_, _ = rand.Read(key) // never fails
		if _, taken := findKey(k.keys[at], key); !taken {
			k.keys[at] = append(k.keys[at], issuedKey{key, of})
			return cancel{of.process, key}
		}
	}
}

func (k *Keys) remove(box policy.BoxID, authority string, c cancel) {
	at := keyScope{box, authority, c.process}
	k.mu.Lock()
	defer k.mu.Unlock()
	k.keys[at] = slices.DeleteFunc(k.keys[at], func(own issuedKey) bool { return bytes.Equal(own.key, c.key) })
	if len(k.keys[at]) == 0 {
		delete(k.keys, at)
	}
}

// find returns the server connection of a key, if it belongs to the same box, host and port.
func (k *Keys) find(box policy.BoxID, authority string, c cancel) (backend, bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	return findKey(k.keys[keyScope{box, authority, c.process}], c.key)
}

func findKey(keys []issuedKey, key []byte) (of backend, found bool) {
	for _, own := range keys {
		if subtle.ConstantTimeCompare(own.key, key) == 1 {
			of, found = own.of, true
		}
	}
	return of, found
}

// cancel forwards a request to cancel a query on another connection of the box. Like a server, it sends no answer.
func (s *Session) cancel(ctx context.Context, p packet) error {
	c, err := parseCancel(p)
	if err != nil {
		return &Refusal{Reason: name.ReasonProtocol, Err: err}
	}
	of, ok := s.Keys.find(s.Box, s.Authority, c)
	if !ok {
		return &Refusal{Reason: name.ReasonHeaderRule, Err: errors.New("a cancel request with a key that does not belong to this box")}
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
	return &problem.Upstream{Reason: name.ReasonUnreachable, Name: s.Name, Err: err}
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
	secure := socket.Initiate(conn, s.tlsConfig(func() {}))
	if err := secure.HandshakeContext(ctx); err != nil {
		return s.notVerified(err)
	}
	secure.Established()
	request := binary.BigEndian.AppendUint32(nil, uint32(12+len(of.key)))
	request = binary.BigEndian.AppendUint32(request, codeCancel)
	request = binary.BigEndian.AppendUint32(request, of.process)
	if _, err := secure.Write(append(request, of.key...)); err != nil {
		return err
	}
	_ = secure.SetReadDeadline(time.Now().Add(s.HelloTimeout))
	_, _ = secure.Read(answer) // the server closes the connection after it has handled the request
	return nil
}
