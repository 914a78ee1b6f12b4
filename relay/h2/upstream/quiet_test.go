package upstream

import (
	"context"
	"net"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
)

// oneConn is a listener of one connection.
type oneConn struct{ conns chan net.Conn }

func (l oneConn) Accept() (net.Conn, error) {
	c, ok := <-l.conns
	if !ok {
		return nil, net.ErrClosed
	}
	return c, nil
}

func (l oneConn) Close() error {
	select {
	case <-l.conns:
	default:
		close(l.conns)
	}
	return nil
}

func (oneConn) Addr() net.Addr { return &net.TCPAddr{} }

// TestQuietStreamOfGRPC: a server of gRPC with its default enforcement of keep-alive keeps a stream on which nothing is said
// for an hour.
func TestQuietStreamOfGRPC(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		near, far := net.Pipe()
		l := oneConn{make(chan net.Conn, 1)}
		l.conns <- far
		server := grpc.NewServer()
		healthpb.RegisterHealthServer(server, health.NewServer())
		go func() { _ = server.Serve(l) }()
		c := New(near, func() {})
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		if !c.Reserve() {
			t.Fatal("no stream")
		}
		st, err := c.Open(ctx, request("POST", "/grpc.health.v1.Health/Watch", "content-type", "application/grpc", "te", "trailers"), false)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := st.Write(make([]byte, 5)); err != nil { // an empty message
			t.Fatal(err)
		}
		if err := st.CloseWrite(nil); err != nil {
			t.Fatal(err)
		}
		if h, err := st.Head(); err != nil || h.Status != 200 {
			t.Fatal(h, err)
		}
		if n, err := st.Read(make([]byte, 100)); err != nil || n < 5 {
			t.Fatal(n, err)
		}
		over := make(chan struct{})
		go func() {
			defer close(over)
			if _, err := st.Read(make([]byte, 100)); ctx.Err() == nil {
				t.Errorf("the stream has ended: %v", err)
			}
		}()
		select {
		case <-over:
		case <-time.After(time.Hour):
		}
		cancel()
		<-over
		st.Close()
		c.Close()
		server.Stop()
	})
}
