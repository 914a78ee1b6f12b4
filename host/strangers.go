package host

import (
	"context"
	"net"
	"net/http"
	"slices"
	"sync"
)

// strangers is a listener that holds a bounded number of connections of which no key was seen. A new one beyond that takes
// the place of the oldest of whoever has the most: so somebody who opens many closes their own, and who comes with a key
// gets in. A connection that has shown a key is not counted any more.
type strangers struct {
	net.Listener
	most int

	mu   sync.Mutex
	from map[string][]*visitor // by peer, oldest first
	n    int
}

func newStrangers(ln net.Listener, most int) *strangers {
	return &strangers{Listener: ln, most: most, from: map[string][]*visitor{}}
}

// visitor is one connection.
type visitor struct {
	net.Conn
	door *strangers
	peer string
}

// Accept implements [net.Listener].
func (s *strangers) Accept() (net.Conn, error) {
	c, err := s.Listener.Accept()
	if err != nil {
		return nil, err
	}
	v := &visitor{Conn: c, door: s, peer: peerOf(c)}
	if out := s.add(v); out != nil {
		_ = out.Conn.Close()
	}
	return v, nil
}

// add counts a visitor, and returns the one that has to leave for it, if one has to.
func (s *strangers) add(v *visitor) (out *visitor) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.from[v.peer] = append(s.from[v.peer], v)
	if s.n++; s.n <= s.most {
		return nil
	}
	for _, theirs := range s.from {
		if out == nil || len(theirs) > len(s.from[out.peer]) {
			out = theirs[0]
		}
	}
	s.removeLocked(out)
	return out
}

func (s *strangers) remove(v *visitor) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.removeLocked(v)
}

func (s *strangers) removeLocked(v *visitor) {
	theirs := s.from[v.peer]
	i := slices.Index(theirs, v)
	if i < 0 {
		return
	}
	s.n--
	if s.from[v.peer] = slices.Delete(theirs, i, i+1); len(s.from[v.peer]) == 0 {
		delete(s.from, v.peer)
	}
}

// Close implements [net.Conn].
func (v *visitor) Close() error {
	v.door.remove(v)
	return v.Conn.Close()
}

type visitorKey struct{}

// withVisitor makes the connection of a request known to keyShown.
func withVisitor(ctx context.Context, c net.Conn) context.Context {
	return context.WithValue(ctx, visitorKey{}, c)
}

// keyShown says that a valid key came over the connection of a request.
func keyShown(r *http.Request) {
	if v, ok := r.Context().Value(visitorKey{}).(*visitor); ok {
		v.door.remove(v)
	}
}
