package conformance

import (
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/net/http2"

	"boxgate/conformance"
	"boxgate/e2e/harness"
)

//lint:file-ignore SA1019 a client of exactly one connection, already made, has no other constructor.

// TestConformanceHTTP2Client runs h2spec's cases for clients, with a server that breaks the protocol: with the gateway
// as its client, for a program in the box that requests a page, and for comparison with Go's client, which is known to
// fail some. The gateway must pass every case, and the program must get an answer or a reset, not silence. Each case
// has its own host.
func TestConformanceHTTP2Client(t *testing.T) {
	t.Parallel()
	s := newSuiteWorld(t)
	ours := s.clientRun(through)
	runs := []conformance.Run{ours}
	if fullSuites {
		runs = append(runs, s.clientRun(directly))
	}
	report(t, "h2spec, HTTP/2 client", runs...)
	if n := len(ours.Results); n != 57 {
		t.Errorf("h2spec had %d cases", n)
	}
	for _, r := range ours.Except() {
		t.Errorf("%s %s: %s %s", r.Case, r.Title, r.Outcome, r.Detail)
	}
}

// clientRun runs all cases by one way, several concurrently.
func (s *suiteWorld) clientRun(way string) conformance.Run {
	s.T.Helper()
	cases := conformance.ClientCases()
	hosts := make([]string, len(cases))
	byHost := map[string]*conformance.ClientCase{}
	for i, c := range cases {
		hosts[i] = fmt.Sprintf("c%d-%s", i, strings.Fields(way)[0]) + "." + suiteHost
		byHost[hosts[i]] = c
		if err := s.Net.AddHost(hosts[i], strings.TrimSuffix(suiteAddr, ":443")); err != nil {
			s.T.Fatal(err)
		}
	}
	ln := tls.NewListener(s.listen(), &tls.Config{Certificates: []tls.Certificate{s.cert}, NextProtos: []string{"h2"}})
	defer ln.Close()
	go serveCases(ln, byHost)

	results := make([]conformance.Result, len(cases))
	var wg sync.WaitGroup
	slots := make(chan struct{}, 16)
	for i, c := range cases {
		slots <- struct{}{}
		wg.Go(func() {
			defer func() { <-slots }()
			said, done := s.page(way, hosts[i])
			defer done()
			results[i] = c.Result()
			if said == "nothing" {
				results[i].Outcome, results[i].Detail = conformance.Failed, "the program that asked heard nothing"
			}
		})
	}
	wg.Wait()
	return conformance.Run{Way: way, Results: results}
}

// serveCases passes each connection to the case of its host.
func serveCases(ln net.Listener, byHost map[string]*conformance.ClientCase) {
	for {
		conn, err := ln.Accept()
		if err != nil {
			return
		}
		go func() {
			c := conn.(*tls.Conn)
			if err := c.Handshake(); err != nil || byHost[c.ConnectionState().ServerName] == nil {
				_ = c.Close()
				return
			}
			byHost[c.ConnectionState().ServerName].Serve(c)
		}()
	}
}

// page requests a page from a host over a new connection and returns the status, "broken off", or "nothing" on a
// timeout. done closes the connection.
func (s *suiteWorld) page(way, host string) (answer string, done func()) {
	conn, err := s.dialSuite(way, host)
	if err != nil {
		return "broken off", func() {}
	}
	done = func() { _ = conn.Close() }
	client, err := (&http2.Transport{}).NewClientConn(conn)
	if err != nil {
		return "broken off", done
	}
	req, err := http.NewRequestWithContext(s.T.Context(), "GET", "https://"+host+"/", nil)
	if err != nil {
		s.T.Error(err)
		return "", done
	}
	said := make(chan string, 1)
	go func() {
		res, err := client.RoundTrip(req)
		if err != nil {
			said <- "broken off"
			return
		}
		_, _ = io.Copy(io.Discard, res.Body)
		_ = res.Body.Close()
		said <- strconv.Itoa(res.StatusCode)
	}()
	select {
	case word := <-said:
		return word, done
	case <-time.After(harness.Patience):
		return "nothing", done
	}
}

// dialSuite connects to a host of the suite, from inside the box or directly.
func (s *suiteWorld) dialSuite(way, host string) (*tls.Conn, error) {
	to := netip.MustParseAddrPort(suiteAddr)
	roots, err := rootsOf(s.roots[way])
	if err != nil {
		return nil, err
	}
	var raw net.Conn
	if way == through {
		raw, err = s.Connect(netip.AddrPortFrom(s.Resolve(host, "ip4"), to.Port()))
	} else {
		raw, err = s.Net.Internet().DialContext(s.T.Context(), "tcp", suiteAddr)
	}
	if err != nil {
		return nil, err
	}
	conn := tls.Client(raw, &tls.Config{ServerName: host, RootCAs: roots, NextProtos: []string{"h2"}})
	if err := conn.HandshakeContext(s.T.Context()); err != nil {
		_ = raw.Close()
		return nil, err
	}
	return conn, nil
}
