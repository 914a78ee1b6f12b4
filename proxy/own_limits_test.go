package proxy_test

import (
	"crypto/tls"
	"net"
	"net/http"
	"testing"

	"boxgate/policy"
	"boxgate/policy/name"
	"boxgate/proxy"
	"boxgate/proxy/proxytest"
)

// TestConnectionsOfOneBoxHaveItsOwnLimit: a box's own limit applies as soon as it is set, below or above the common one. A
// box over its limit gets no new connection until it is below, but keeps those it has. Other boxes have the common limit.
func TestConnectionsOfOneBoxHaveItsOwnLimit(t *testing.T) {
	t.Parallel()
	r := proxytest.New(t, proxytest.Allow("good.example"), func(c *proxy.Config) { c.MaxConns = 2 })
	second := second(r)
	addr := r.Listen(r.Trap(443))
	open := func() int { return len(r.Live.Of(r.Box.ID)) }
	dial := func(want int) []interface{ Close() error } {
		t.Helper()
		var held []interface{ Close() error }
		for n := open(); n < want; n = open() {
			held = append(held, proxytest.DialTo(t, addr))
			proxytest.Await(t, "one more connection", func() bool { return open() > n })
		}
		return held
	}
	full := func(limit int) {
		t.Helper()
		if closedOnArrival(t, addr); open() < limit { // or the reset came before the connection was made
			t.Errorf("with a limit of %d, %d connections are open", limit, open())
		}
	}
	r.Box.Limits.Store(policy.Limits{policy.LimitConnections: 4})
	held := dial(4)
	full(4)
	r.Box.Limits.Store(policy.Limits{policy.LimitConnections: 1})
	for i := len(held) - 1; i >= 0; i-- {
		full(1)
		if open() != i+1 {
			t.Fatalf("of %d connections %d are left", i+1, open())
		}
		held[i].Close()
		proxytest.Await(t, "one connection less", func() bool { return open() == i })
	}
	dial(1)
	full(1)
	r.Box.Limits.Store(policy.Limits{})
	dial(2)
	full(2)
	for range 2 {
		second(addr)
	}
	proxytest.Await(t, "the connections of the other box", func() bool { return len(r.Live.Of("box2")) == 2 })
}

func TestInterceptionsOfOneBoxHaveItsOwnLimit(t *testing.T) {
	t.Parallel()
	r := proxytest.New(t, proxytest.Allow("good.example"))
	r.Policy(proxytest.Allow("good.example"), map[string]map[string]string{"good.example": {"X-Key": "k"}})
	owner := r.TLSServer("good.example")
	r.Names.Set("good.example", owner.Addr())
	addr := r.Listen(owner)
	intercepted := func() error {
		return tls.Client(proxytest.DialTo(t, addr), &tls.Config{ServerName: "good.example", RootCAs: r.BoxCA.Pool()}).Handshake()
	}
	if err := intercepted(); err != nil {
		t.Fatal(err)
	}
	r.Box.Limits.Store(policy.Limits{policy.LimitInterceptions: 1})
	if err := intercepted(); err == nil || proxytest.AccessDeniedAlert(err) {
		t.Errorf("one too many ended with %v, want a reset", err)
	}
	if used := r.Proxy.Filled(r.Box.ID)["interceptions"]; used != 1 {
		t.Errorf("%v of the limit is used, want all", used)
	}
	r.Box.Limits.Store(policy.Limits{policy.LimitInterceptions: 2})
	if err := intercepted(); err != nil {
		t.Error(err)
	}
}

func TestNewConnectionsOfOneBoxHaveTheirOwnRate(t *testing.T) {
	t.Parallel()
	r := proxytest.New(t, proxytest.Allow("good.example"), func(c *proxy.Config) { c.MaxNewConns = 1 })
	owner := r.TLSServer("good.example")
	r.Names.Set("good.example", owner.Addr())
	addr := r.Listen(owner)
	r.Box.Limits.Store(policy.Limits{policy.LimitNewConnections: 1000})
	connects := func() bool {
		c, err := net.Dial("tcp", addr)
		if err != nil {
			return false // reset before the dial returned
		}
		defer c.Close()
		got, err := r.Hello(c, "good.example")
		return err == nil && got == "hello from good.example"
	}
	for range 20 {
		proxytest.Await(t, "a connection within the box's own rate", connects)
	}
	r.Box.Limits.Store(policy.Limits{policy.LimitNewConnections: 1})
	proxytest.Await(t, "a connection beyond it", func() bool { return !connects() })
	r.WantReason(name.ReasonLimit)
}

func TestRequestsOfOneBoxHaveTheirOwnRate(t *testing.T) {
	t.Parallel()
	l := proxytest.New(t, proxytest.AllowAll, proxytest.Patient)
	_, port := l.HTTPSServer(true, func(http.ResponseWriter, *http.Request) {})
	l.Policy(proxytest.AllowAll, proxytest.SecretFor(proxytest.API, port))
	for _, h2 := range []bool{false, true} {
		client := l.HTTPClient(port, h2)
		get := func() int {
			res, _ := proxytest.Get(t, client, "https://"+proxytest.HostPort(port)+"/", nil)
			return res.StatusCode
		}
		l.Box.Limits.Store(policy.Limits{})
		proxytest.Await(t, "a request within the limit of all", func() bool { return get() == http.StatusOK })
		l.Box.Limits.Store(policy.Limits{policy.LimitRequests: 1})
		proxytest.Await(t, "a request beyond the box's own limit", func() bool { return get() == http.StatusTooManyRequests })
	}
}
