package dns

import (
	"container/list"
	"context"
	"errors"
	"net"
	"sync"
	"sync/atomic"
	"time"

	mdns "github.com/miekg/dns"

	"boxgate/audit"
	"boxgate/policy"
	"boxgate/policy/name"
)

const (
	// tcpIdle is how long a client may take to send its next query completely (RFC 7766, section 6.2.3).
	tcpIdle = 10 * time.Second
	// tcpWrite is how long a client may take to read an answer.
	tcpWrite = 5 * time.Second
	// tcpPipeline is the number of queries of one connection handled concurrently.
	tcpPipeline = 16
)

// ServeTCP answers the queries on the connections that ln accepts until ctx ends, then closes them and returns nil.
// Once the server retires it accepts no more connections, and returns when the open ones have ended. It closes ln. A
// connection carries many queries, each answered as soon as its answer is ready (RFC 7766, section 6.2.1.1).
func (s *Server) ServeTCP(ctx context.Context, ln net.Listener) error {
	var serving sync.WaitGroup
	defer s.usages.flush()
	defer serving.Wait()
	defer ln.Close()
	defer context.AfterFunc(ctx, func() { ln.Close() })()
	accepting := s.trackAccepting()
	defer accepting()
	held := s.openConns(ln)
	defer context.AfterFunc(s.retiring, func() { ln.Close() })()
	for {
		conn, err := ln.Accept()
		if err != nil {
			if ctx.Err() != nil || s.retiring.Err() != nil {
				accepting()
				return nil
			}
			if errors.Is(err, net.ErrClosed) {
				return err
			}
			s.pause(ctx, "cannot accept a DNS connection", err)
			continue
		}
		box, c := s.boxOf(conn), &tcpConn{Conn: conn}
		use, ok := s.usages.connect(box, c)
		if !ok {
			s.refuseConn(box, use)
			conn.Close()
			continue
		}
		held.Add(1)
		serving.Go(func() {
			defer held.Add(-1)
			defer use.disconnect(c)
			s.serveConn(ctx, use, c)
		})
	}
}

// openConns returns the counter of a listener's open connections.
func (s *Server) openConns(ln net.Listener) *atomic.Int64 {
	count, _ := s.connCounts.LoadOrStore(ln, &atomic.Int64{})
	return count.(*atomic.Int64)
}

// OpenConns returns the number of open connections accepted from a listener passed to [Server.ServeTCP].
func (s *Server) OpenConns(ln net.Listener) int { return int(s.openConns(ln).Load()) }

// boxOf returns the box that a connection comes from, or nil.
func (s *Server) boxOf(conn net.Conn) *policy.Box {
	if a, ok := conn.RemoteAddr().(*net.TCPAddr); ok {
		return s.boxAt(a.AddrPort().Addr())
	}
	return nil
}

// policyOf returns the active policy of the box that a connection comes from, or nil.
func (s *Server) policyOf(conn net.Conn) *policy.Compiled {
	if box := s.boxOf(conn); box != nil {
		return box.Policy.Load()
	}
	return nil
}

// refuseConn records that a connection was closed before its first query.
func (s *Server) refuseConn(box *policy.Box, use *usage) {
	ev := audit.Event{Time: time.Now(), Stage: policy.StageDNS, Protocol: policy.TCP, Action: audit.ActionRefuse, Reason: name.ReasonUnknownBox}
	if box != nil {
		ev.Box, ev.Reason = box.ID, name.ReasonLimit
	}
	s.record(use, ev)
}

// serveConn answers queries until the client is done or too slow, or ctx ends.
func (s *Server) serveConn(ctx context.Context, use *usage, conn *tcpConn) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer conn.Close()
	defer context.AfterFunc(ctx, func() { conn.Close() })()
	slots := make(chan struct{}, tcpPipeline)
	pol := s.policyOf(conn)
	var answering sync.WaitGroup
	defer answering.Wait()
	for {
		conn.SetReadDeadline(time.Now().Add(s.tcpIdle))
		wire, err := readMessage(conn, maxQuery)
		if err != nil || s.retiring.Err() != nil && s.policyOf(conn) != pol {
			return // another process now changes the policy of this box
		}
		if !use.beginQuery(conn) {
			return // closed to make room for another connection
		}
		slots <- struct{}{}
		answering.Go(func() {
			defer func() { <-slots; use.endQuery(conn) }()
			if out := s.Handle(ctx, s.boxOf(conn), policy.TCP, wire); out == nil || conn.send(out) != nil {
				conn.Close()
			}
		})
	}
}

// tcpConn serializes the writing of answers.
type tcpConn struct {
	net.Conn
	mu sync.Mutex

	// Guarded by the mutex of the box's usage.
	element  *list.Element // in the box's list of connections; nil: being closed
	inFlight int           // queries being answered
}

func (c *tcpConn) send(wire []byte) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(wire) > mdns.MaxMsgSize {
		return errMessageSize
	}
	c.SetWriteDeadline(time.Now().Add(tcpWrite))
	return writeMessage(c.Conn, wire)
}
