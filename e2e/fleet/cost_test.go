package fleet

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httputil"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/zap"

	"boxgate/api"
	"boxgate/e2e/harness"
	"boxgate/fleet"
	"boxgate/fleet/node"
	"boxgate/fleet/pki"
	"boxgate/fleet/roster"
	"boxgate/internal/nightly"
)

// The measurement of a call through another host.
const (
	costRounds   = 15
	costVariable = "GATEWAY_TEST_COST_ROUNDS" // environment variable with another number of rounds, for the scenario S15 of the bench
	costCalls    = 150                        // one after the other, and of each of the concurrent ones
	costAtOnce   = 16
	costBody     = 64 << 20
	// mostCost is the bound of a call's time through another host, compared with a bare hop.
	mostCost = 2
)

// bareHop serves a reverse proxy that adds mutual TLS 1.3 only, to a host, as a member of the fleet, in the namespace of another one. It
// returns its address.
func (j joined) bareHop(from, to *host) (address string) {
	j.t.Helper()
	ctx, cancel := context.WithTimeout(j.t.Context(), harness.Patience)
	defer cancel()
	at := fleet.Access{Endpoints: []string{j.etcd.Endpoint()}}
	client, err := fleet.Dial(at)
	if err != nil {
		j.t.Fatal(err)
	}
	defer client.Close()
	token, err := pki.ParseToken(strings.TrimSpace(from.command(0, "", "fleet", "token")))
	if err != nil {
		j.t.Fatal(err)
	}
	identity, err := roster.Roster{Client: client, Name: "test"}.Join(ctx, roster.Machine{ID: "dddddd", Name: "hop", Keep: func(fleet.Identity) error { return nil }}, token)
	if err != nil {
		j.t.Fatal(err)
	}
	n, err := node.New(node.Config{Access: at, Fleet: "test", Identity: identity, StateDir: j.t.TempDir(), Version: "hop", Boxes: func() int { return 0 }, Ingress: "192.0.2.1:1", Address: "192.0.2.1:2", Log: zap.NewNop()})
	if err != nil {
		j.t.Fatal(err)
	}
	n.Shared().Attach(nil)
	running, stop := context.WithCancel(j.t.Context())
	done := make(chan struct{})
	j.t.Cleanup(func() { stop(); <-done; _ = n.Close() })
	if err := n.Start(ctx); err != nil {
		j.t.Fatal(err)
	}
	go func() { defer close(done); n.Run(running) }()
	from.Until("the hop is a member", func() bool { _, err := n.Certificate(); return err == nil && !n.Fenced() })
	ln, err := from.Net.Gateway().Listen("tcp", "127.0.0.1:0")
	if err != nil {
		j.t.Fatal(err)
	}
	member, _ := n.Member(to.id)
	server := &http.Server{ReadHeaderTimeout: time.Minute, Handler: &httputil.ReverseProxy{
		FlushInterval: -1,
		Transport: &http.Transport{MaxIdleConnsPerHost: 64, DisableCompression: true, DialTLSContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			plain, err := from.Net.Gateway().DialContext(ctx, "tcp", member.Address)
			if err != nil {
				return nil, err
			}
			secured := tls.Client(plain, n.Peers().Client(n.Certificate, to.id))
			return secured, secured.HandshakeContext(ctx)
		}},
		Rewrite: func(p *httputil.ProxyRequest) {
			p.Out.URL.Scheme, p.Out.URL.Host, p.Out.Host = "https", "host.invalid", "localhost"
			p.Out.Header.Set("Boxgate-Fleet-Host", identity.Host)
		},
	}}
	go func() { _ = server.Serve(ln) }()
	j.t.Cleanup(func() { _ = server.Close() })
	return ln.Addr().String()
}

// measured is a way to a box.
type measured struct {
	base   string
	client *http.Client
	key    string
}

func (j joined) way(from *host, address string) measured {
	return measured{base: "http://" + address, key: j.key, client: &http.Client{Timeout: harness.Patience, Transport: &http.Transport{MaxIdleConnsPerHost: costAtOnce, DialContext: func(ctx context.Context, network, address string) (net.Conn, error) {
		return from.Net.Gateway().DialContext(ctx, network, address)
	}}}}
}

// do makes a call, and returns how long it took.
func (m measured) do(ctx context.Context, method, path, kind string, body io.Reader) (time.Duration, error) {
	r, err := http.NewRequestWithContext(ctx, method, m.base+path, body)
	if err != nil {
		return 0, err
	}
	r.Header.Set(api.KeyHeader, m.key)
	if kind != "" {
		r.Header.Set("Content-Type", kind)
	}
	began := time.Now()
	resp, err := m.client.Do(r)
	if err != nil {
		return 0, err
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err == nil && resp.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s: %d %s", path, resp.StatusCode, text)
	}
	return time.Since(began), err
}

// median measures calls, some of them at a time, and returns the median of their times.
func (m measured) median(ctx context.Context, path string, atOnce int) (time.Duration, error) {
	var mu sync.Mutex
	var took []time.Duration
	var failed error
	var all sync.WaitGroup
	for range atOnce {
		all.Go(func() {
			for range costCalls {
				one, err := m.do(ctx, http.MethodGet, path, "", http.NoBody)
				mu.Lock()
				took, failed = append(took, one), errors.Join(failed, err)
				mu.Unlock()
				if err != nil {
					return
				}
			}
		})
	}
	all.Wait()
	slices.Sort(took)
	return took[len(took)/2], failed
}

// ratios are the times by another host, compared with a bare hop, of the rounds.
type ratios struct {
	name          string
	through, bare []time.Duration
	ratio         []float64
}

func (r *ratios) add(through, bare time.Duration) {
	r.through, r.bare, r.ratio = append(r.through, through), append(r.bare, bare), append(r.ratio, float64(through)/float64(bare))
}

// check logs the medians, and fails if that of the ratios is too high.
func (r *ratios) check(t *testing.T) {
	t.Helper()
	for _, list := range [][]time.Duration{r.through, r.bare} {
		slices.Sort(list)
	}
	slices.Sort(r.ratio)
	middle := len(r.ratio) / 2
	t.Logf("%s: %.2f times a bare hop (median of %d rounds, %.2f to %.2f); %v and %v", r.name, r.ratio[middle], len(r.ratio), r.ratio[0], r.ratio[len(r.ratio)-1],
		r.through[middle].Round(10*time.Microsecond), r.bare[middle].Round(10*time.Microsecond))
	if r.ratio[middle] > mostCost {
		t.Errorf("%s: more than %v times a bare hop", r.name, mostCost)
	}
}

// TestCostOfACallThroughAnotherHost compares calls for a box by another host with the same calls by a bare reverse proxy with mutual TLS
// to the owner, in turns.
func TestCostOfACallThroughAnotherHost(t *testing.T) {
	nightly.Only(t)
	j, a, b, _ := three(t)
	box := j.make(b, "")
	through, bare := j.way(a, "127.0.0.1:8600"), j.way(a, j.bareHop(a, b))
	both := func(measure func(measured) (time.Duration, error)) (x, y time.Duration) {
		t.Helper()
		var errs [2]error
		if rand.N(2) == 0 {
			x, errs[0] = measure(through)
			y, errs[1] = measure(bare)
		} else {
			y, errs[1] = measure(bare)
			x, errs[0] = measure(through)
		}
		if err := errors.Join(errs[:]...); err != nil {
			t.Fatal(err)
		}
		return x, y
	}
	path := "/v2/box/" + box
	sequential, concurrent, upload := ratios{name: "calls one after the other"}, ratios{name: fmt.Sprintf("%d calls at a time", costAtOnce)}, ratios{name: "an upload of 64 MiB"}
	rounds := costRounds
	if text := os.Getenv(costVariable); text != "" {
		var err error
		if rounds, err = strconv.Atoi(text); err != nil || rounds < 1 {
			t.Fatalf("%s=%s", costVariable, text)
		}
	}
	for range rounds {
		sequential.add(both(func(m measured) (time.Duration, error) { return m.median(t.Context(), path, 1) }))
		concurrent.add(both(func(m measured) (time.Duration, error) { return m.median(t.Context(), path, costAtOnce) }))
	}
	form, kind := uploadOf(t, "/tmp/up", string(bytes.Repeat([]byte("0123456789abcdef"), costBody/16)))
	for range max(rounds/3, 1) {
		upload.add(both(func(m measured) (time.Duration, error) {
			return m.do(t.Context(), http.MethodPost, path+"/files/upload", kind, strings.NewReader(form))
		}))
	}
	sequential.check(t)
	concurrent.check(t)
	upload.check(t)
}
