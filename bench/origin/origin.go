// Package origin has the servers behind the programs under test for which nginx is not suited: one that answers a
// ClientHello without TLS, one that accepts uploads, a gRPC service, and a name server. They verify the header set by
// the program under test.
package origin

import (
	"context"
	"crypto/tls"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/coder/websocket"
	"github.com/miekg/dns"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"boxgate/bench/load"
)

// Every program under test sets this header.
const (
	Header = "X-Inject"
	Value  = "Bearer tok"
)

// Addresses of the origins, and the domains that resolve to them. Names below bench.test resolve to the web server
// unless listed; boxes may not resolve names below denied.test.
const (
	Web     = "203.0.113.10"
	Hello   = "203.0.113.11"
	Sink    = "203.0.113.12"
	GRPC    = "203.0.113.13"
	Name    = "203.0.113.53"
	Network = "203.0.113.0/24" // contains all of them
	Suffix  = "bench.test"
)

// Plain is the port of the web server without TLS, where it does not check the header.
const Plain = "8080"

// Method is the gRPC method that echoes its message.
const Method = "/bench.Echo/Unary"

// Serve runs the servers until ctx ends. It calls ready when they listen.
func Serve(ctx context.Context, certificate, key string, ready func()) error {
	pair, err := tls.LoadX509KeyPair(certificate, key)
	if err != nil {
		return err
	}
	failed := make(chan error, 1)
	for _, start := range []func(tls.Certificate, chan<- error) error{serveHello, serveSink, serveGRPC, serveNames} {
		if err := start(pair, failed); err != nil {
			return err
		}
	}
	ready()
	select {
	case err := <-failed:
		return err
	case <-ctx.Done():
		return nil
	}
}

// serveHello answers any ClientHello with 1 KiB.
func serveHello(_ tls.Certificate, _ chan<- error) error {
	ln, err := net.Listen("tcp", Hello+":443")
	if err != nil {
		return err
	}
	go func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			go answerHello(c)
		}
	}()
	return nil
}

func answerHello(c net.Conn) {
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(time.Minute))
	if _, err := load.ReadRecord(c); err != nil {
		return
	}
	if _, err := c.Write(make([]byte, 1024)); err == nil {
		_, _ = c.Read(make([]byte, 1)) // the client closes first
	}
}

// serveSink accepts uploads.
func serveSink(pair tls.Certificate, failed chan<- error) error {
	body := []byte(strings.Repeat("x", 1024))
	server := &http.Server{
		ReadHeaderTimeout: time.Minute,
		TLSConfig:         &tls.Config{Certificates: []tls.Certificate{pair}, NextProtos: []string{"http/1.1"}},
		Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			n, err := io.Copy(io.Discard, r.Body)
			if err != nil || r.Header.Get(Header) != Value || n == 0 {
				w.WriteHeader(http.StatusForbidden)
				return
			}
			w.Header().Set("Content-Length", strconv.Itoa(len(body)))
			_, _ = w.Write(body)
		}),
	}
	ln, err := net.Listen("tcp", Sink+":443")
	if err != nil {
		return err
	}
	go func() { failed <- server.ServeTLS(ln, "", "") }()
	return nil
}

// raw is a gRPC codec that passes messages on unchanged.
type raw struct{}

func (raw) Name() string { return "raw" }

func (raw) Marshal(v any) ([]byte, error) { return *v.(*[]byte), nil }

func (raw) Unmarshal(data []byte, v any) error {
	*v.(*[]byte) = append([]byte(nil), data...)
	return nil
}

// serveGRPC echoes the messages of unary calls.
func serveGRPC(pair tls.Certificate, failed chan<- error) error {
	ln, err := net.Listen("tcp", GRPC+":443")
	if err != nil {
		return err
	}
	config := &tls.Config{Certificates: []tls.Certificate{pair}}
	server := grpc.NewServer(grpc.Creds(credentials.NewTLS(config)), grpc.ForceServerCodec(raw{}), grpc.MaxConcurrentStreams(1000))
	server.RegisterService(&grpc.ServiceDesc{
		ServiceName: "bench.Echo", HandlerType: (*any)(nil), Methods: []grpc.MethodDesc{{MethodName: "Unary", Handler: echo}},
	}, struct{}{})
	go func() { failed <- server.Serve(ln) }()
	return nil
}

func echo(_ any, ctx context.Context, decode func(any) error, _ grpc.UnaryServerInterceptor) (any, error) {
	var message []byte
	if err := decode(&message); err != nil {
		return nil, err
	}
	fields, _ := metadata.FromIncomingContext(ctx)
	if got := fields.Get(Header); len(got) != 1 || got[0] != Value {
		return nil, status.Error(codes.PermissionDenied, "the header was not set")
	}
	return &message, nil
}

// serveNames answers for every name below bench.test, with a TTL of an hour.
func serveNames(_ tls.Certificate, failed chan<- error) error {
	conn, err := net.ListenPacket("udp", Name+":53")
	if err != nil {
		return err
	}
	server := &dns.Server{PacketConn: conn, Handler: dns.HandlerFunc(answer)}
	go func() { failed <- server.ActivateAndServe() }()
	return nil
}

func answer(w dns.ResponseWriter, q *dns.Msg) {
	m := new(dns.Msg).SetReply(q)
	m.RecursionAvailable = true
	switch name := q.Question[0].Name; {
	case !dns.IsSubDomain(Suffix+".", name):
		m.Rcode = dns.RcodeNameError
	case q.Question[0].Qtype == dns.TypeA:
		header := dns.RR_Header{Name: name, Rrtype: dns.TypeA, Class: dns.ClassINET, Ttl: 3600}
		m.Answer = []dns.RR{&dns.A{Hdr: header, A: net.ParseIP(address(name))}}
	}
	_ = w.WriteMsg(m)
}

// address returns the address of a name.
func address(name string) string {
	label, _, _ := strings.Cut(name, ".")
	special := map[string]string{"hello": Hello, "sink": Sink, "grpc": GRPC}
	if a, ok := special[strings.ToLower(label)]; ok {
		return a
	}
	return Web
}

// Echo serves WebSockets that return every message, behind public URLs.
func Echo(address string) error {
	server := &http.Server{Addr: address, Handler: http.HandlerFunc(serveEcho), ReadHeaderTimeout: time.Minute}
	return server.ListenAndServe()
}

func serveEcho(w http.ResponseWriter, r *http.Request) {
	c, err := websocket.Accept(w, r, &websocket.AcceptOptions{InsecureSkipVerify: true}) // any origin is accepted
	if err != nil {
		return
	}
	defer c.CloseNow() //nolint:errcheck // the client has gone or broken the protocol
	for {
		kind, message, err := c.Read(context.Background())
		if err != nil || c.Write(context.Background(), kind, message) != nil {
			return
		}
	}
}
