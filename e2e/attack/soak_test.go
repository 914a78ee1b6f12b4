package attack

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	mdns "github.com/miekg/dns"

	"boxgate/api"
	"boxgate/e2e/harness"
	"boxgate/internal/nightly"
)

// soakTime returns the duration of [TestSoakOfHostileClients], both parts together. GATEWAY_TEST_SOAK, a duration,
// shortens it.
func soakTime(t *testing.T) time.Duration {
	t.Helper()
	text := os.Getenv("GATEWAY_TEST_SOAK")
	if text == "" {
		return 10 * time.Minute
	}
	d, err := time.ParseDuration(text)
	if err != nil {
		t.Fatal("GATEWAY_TEST_SOAK: ", err)
	}
	return d
}

// TestSoakOfHostileClients: eight strangers, four weak keys and two hostile boxes attack at fixed rates, at the same
// time as an operator, a visitor and an honest box. The p99 of each honest call stays below three times its value in
// the quarter before, without the attackers.
//
// The attackers are processes in a control group with half of the machine. Processes that only compute use up that
// half, in the quarter without the attackers and during the attack. The honest calls therefore have the same share of
// the processors in both, and the difference is the gateway's own time, locks and slots that it lets the attackers
// take.
func TestSoakOfHostileClients(t *testing.T) {
	nightly.Only(t) // ten minutes, and it measures
	length := soakTime(t)
	harness.TakeAllSlots(t)
	s := newSoak(t)
	s.measure(time.Second) // opens connections and resolves names first
	calm, _ := s.beside("the calm", s.spinners(), length/4)
	attacked, results := s.beside("the attack", append(s.spinners(), s.attackers()...), length-length/4)
	for _, name := range slices.Sorted(maps.Keys(results)) {
		r := results[name]
		t.Logf("%-30s %6d attempts: %d done, %d refused, %d failed %s", name, r.Tried, r.Done, r.Refused, r.Failed, r.Problem)
		if r.Tried == 0 || r.Done+r.Refused < r.Tried/4 {
			t.Errorf("%s did not attack: %+v", name, r)
		}
	}
	for _, call := range slices.Sorted(maps.Keys(calm)) {
		before, after := calm[call], attacked[call]
		times := float64(after.at(99)) / float64(before.at(99))
		t.Logf("%-18s calm: %5d calls, median %8v, p99 %8v; attacked: %5d calls, median %8v, p99 %8v: %.1f times", call,
			len(before), before.at(50), before.at(99), len(after), after.at(50), after.at(99), times)
		if times >= 3 {
			t.Errorf("%s: a p99 of %v under attack, %.1f times the %v without", call, after.at(99), times, before.at(99))
		}
	}
	s.NoInternalErrors()
}

// beside measures while the given clients attack, and also returns the clients' results.
func (s *soak) beside(what string, clients []hostile, length time.Duration) (map[string]latencies, map[string]soakResult) {
	s.T.Helper()
	stop := s.attack(clients)
	gateway, began := s.processorTime(), time.Now()
	periods, used := s.share.Periods()
	before := machineTime(s.T)
	measured := s.measure(length)
	after, usedUp := s.share.Periods()
	busy, all := machineTime(s.T).since(before)
	s.T.Logf("in %s the gateway took %.2f processors of %d; the share was used up in %d%% of the time, and the machine was busy for %d%%", what,
		float64(s.processorTime()-gateway)/float64(time.Since(began)), runtime.NumCPU(), 100*(usedUp-used)/max(1, after-periods), 100*busy/max(1, all))
	if given := 100 * (usedUp - used) / max(1, after-periods); given < 75 {
		s.T.Fatalf("the spinning processes used up their share in %d%% of the time only: this machine is busy with something else, and nothing can be measured", given)
	}
	return measured, stop()
}

// processorTime returns the CPU time of the gateway so far.
func (s *soak) processorTime() time.Duration {
	s.T.Helper()
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", s.Process.Process.Pid))
	if err != nil {
		s.T.Fatal(err)
	}
	_, after, _ := strings.Cut(string(stat), ") ")
	var ticks time.Duration
	for _, field := range strings.Fields(after)[11:13] { // utime and stime, in hundredths of a second
		n, err := strconv.Atoi(field)
		if err != nil {
			s.T.Fatal(err)
		}
		ticks += time.Duration(n)
	}
	return ticks * 10 * time.Millisecond
}

// times are the counters of /proc/stat since the machine started: user, nice, system, idle, iowait and so on.
type times []int

func machineTime(t *testing.T) (out times) {
	t.Helper()
	stat, err := os.ReadFile("/proc/stat")
	if err != nil {
		t.Fatal(err)
	}
	line, _, _ := strings.Cut(string(stat), "\n")
	for _, field := range strings.Fields(line)[1:9] {
		n, err := strconv.Atoi(field)
		if err != nil {
			t.Fatal(err)
		}
		out = append(out, n)
	}
	return out
}

// since returns the share of the time in which the machine was busy.
func (n times) since(before times) (busy, all int) {
	for i := range n {
		all += n[i] - before[i]
	}
	return all - (n[3] - before[3]) - (n[4] - before[4]), all
}

// soak is a lab with the targets of the attackers and the clients that are measured.
type soak struct {
	*harness.World
	share     *harness.CPUShare
	visited   *visited // the URL of the visitor
	attacked  *visited // URLs of another box, for the strangers
	raw       *visited
	honest    *harness.Intruder
	addresses addresses
}

func newSoak(t *testing.T) *soak {
	t.Helper()
	w := harness.NewWorld(t, nil)
	s := &soak{World: w, share: harness.NewCPUShare(t, 0.5)}
	for _, url := range []**visited{&s.visited, &s.attacked} {
		in := w.Intrude(w.Create(map[string]any{"network_policy": map[string]any{"mode": "deny-all"}}))
		serveVisitors(in)
		*url = visitURL(w, in.Box, map[string]any{"port": 8000, "bearer_token": true})
	}
	s.raw = visitURL(w, s.attacked.box, map[string]any{"port": 8001, "protocol": "tcp"})
	s.honest = w.Intrude(hoarder(w))
	s.addresses = addresses{"api.example.com": s.honest.Resolve("api.example.com", "ip4"), "www.example.com": s.honest.Resolve("www.example.com", "ip4")}
	return s
}

// spinners use up the share of the attackers.
func (s *soak) spinners() []hostile {
	var all []hostile
	for i := range runtime.NumCPU() {
		all = append(all, hostile{Name: fmt.Sprint("spinner ", i), Kind: "spin", Rate: 2})
	}
	return all
}

// attackers returns the strangers, the keys and the boxes, with their rates.
func (s *soak) attackers() []hostile {
	gateway, _ := s.Net.GatewayAddrs()
	var all []hostile
	for i := range 8 {
		kind := []string{"holds connections", "resets", "slow requests", "wrong credentials"}[i%4]
		a := hostile{Name: fmt.Sprintf("stranger %d, %s", i, kind), Kind: kind, Rate: 10, Most: 400, From: netip.AddrFrom4([4]byte{198, 51, 100, byte(200 + i)}),
			To: netip.AddrPortFrom(gateway, 443), Host: s.attacked.host}
		if kind == "resets" {
			a.Host = s.raw.host
		}
		all = append(all, a)
	}
	return append(append(all, s.weakKeys()...), s.hostileBoxes()...)
}

func (s *soak) weakKeys() []hostile {
	box := s.Create(map[string]any{})
	keys := []hostile{
		{Kind: "read-only", Rate: 20, Most: 1000, Box: box, Key: makeKey(s.World, "reader", "read-only", "", nil)},
		{Kind: "one-box", Rate: 10, Most: 200, Box: box, Key: makeKey(s.World, "one-box", "one-box", box, map[string]int64{"commands": 32})},
		{Kind: "URLs", Rate: 10, Key: makeKey(s.World, "urls", "box-creator", "", map[string]int64{"urls": 50})},
		{Kind: "snapshots", Rate: 0.5, Key: makeKey(s.World, "snapshots", "box-creator", "", map[string]int64{"snapshots": 4})},
	}
	for i := range keys {
		k := &keys[i]
		k.Name = "key, " + k.Kind
		if k.Box != "" {
			continue
		}
		var made struct{ ID string }
		if err := api.NewClient(s.Socket, k.Key).Do(s.T.Context(), "POST", "/v2/box", map[string]any{}, &made); err != nil {
			s.T.Fatal(err)
		}
		k.Box = made.ID
	}
	return keys
}

func (s *soak) hostileBoxes() []hostile {
	dns := netip.MustParseAddrPort(s.honest.DNS)
	api := netip.AddrPortFrom(s.addresses["api.example.com"], 443)
	return []hostile{
		{Name: "box, floods", Kind: "floods", Rate: 50, Most: 1500, To: api, Host: "api.example.com", Other: dns, Box: hoarder(s.World)},
		{Name: "box, denied and hoards", Kind: "denied and hoards", Rate: 50, Most: 1500, To: api, Host: "api.example.com", Box: hoarder(s.World)},
	}
}

// attack starts the processes of clients. stop ends them and returns their results.
func (s *soak) attack(clients []hostile) (stop func() map[string]soakResult) {
	s.T.Helper()
	type process struct {
		cmd *exec.Cmd
		in  io.WriteCloser
		out bytes.Buffer
	}
	var all []*process
	for _, c := range clients {
		p := &process{cmd: exec.Command("/proc/self/exe")}
		p.cmd.Env = append(os.Environ(), soakerVariable+"=1", "GOMAXPROCS=1")
		p.cmd.Stdout, p.cmd.Stderr = &p.out, os.Stderr
		var err error
		if p.in, err = p.cmd.StdinPipe(); err == nil {
			err = s.from(c)(p.cmd.Start)
		}
		if err != nil {
			s.T.Fatal(err)
		}
		s.T.Cleanup(func() { _ = p.cmd.Process.Kill() })
		s.share.Join(p.cmd.Process.Pid)
		all = append(all, p)
	}
	for i, c := range clients { // all of them are members of the share
		if err := json.NewEncoder(all[i].in).Encode(c); err != nil {
			s.T.Fatal(err)
		}
	}
	return func() map[string]soakResult {
		results := map[string]soakResult{}
		for _, p := range all {
			_ = p.in.Close()
		}
		for i, p := range all {
			var r soakResult
			err := p.cmd.Wait()
			if err == nil {
				err = json.Unmarshal(p.out.Bytes(), &r)
			}
			if err != nil {
				s.T.Errorf("%s: %v", clients[i].Name, err)
			}
			results[clients[i].Name] = r
		}
		return results
	}
}

// from runs a function in the network namespace of a client.
func (s *soak) from(c hostile) func(func() error) error {
	switch {
	case c.From.IsValid():
		return s.Net.Internet().Do
	case c.Key != "":
		return s.Net.Gateway().Do
	case c.Box != "":
		return (&harness.Intruder{World: s.World, Box: c.Box}).InNetNS
	}
	return func(f func() error) error { return f() }
}

// latencies are the sorted durations of calls of one kind.
type latencies []time.Duration

// at returns a percentile.
func (l latencies) at(percent int) time.Duration {
	if len(l) == 0 {
		return 0
	}
	return l[min(len(l)-1, len(l)*percent/100)].Round(10 * time.Microsecond)
}

// measure makes the calls of the operator, the visitor and the honest box at their rates, and returns their durations.
func (s *soak) measure(length time.Duration) map[string]latencies {
	s.T.Helper()
	ctx, cancel := context.WithTimeout(s.T.Context(), length)
	defer cancel()
	var all sync.WaitGroup
	var mu sync.Mutex
	results := map[string]latencies{}
	for name, call := range s.calls() {
		all.Go(func() {
			took := latencies{}
			tick := time.NewTicker(call.pace)
			defer tick.Stop()
			for ctx.Err() == nil {
				began := time.Now()
				if err := call.do(); err != nil {
					s.T.Errorf("%s: %v", name, err)
				}
				took = append(took, time.Since(began))
				select {
				case <-tick.C:
				case <-ctx.Done():
				}
			}
			slices.Sort(took)
			mu.Lock()
			defer mu.Unlock()
			results[name] = took
		})
	}
	all.Wait()
	return results
}

// soakCall is a measured call and its interval.
type soakCall struct {
	pace time.Duration
	do   func() error
}

func (s *soak) calls() map[string]soakCall {
	ctx := s.T.Context()
	policies := []map[string]any{harness.Custom("api.example.com", "www.example.com", harness.OriginName), harness.Custom("api.example.com", "www.example.com")}
	changes := 0
	return map[string]soakCall{
		"operator, list": {100 * time.Millisecond, func() error { return s.Client.Get(ctx, "/v2/box", nil) }},
		"operator, exec": {250 * time.Millisecond, func() error {
			return s.Client.Do(ctx, "POST", api.BoxPath(s.honest.Box, "exec"), map[string]any{"command": []string{"true"}}, nil)
		}},
		"operator, PUT": {200 * time.Millisecond, func() error {
			changes++
			return s.Client.Do(ctx, "PUT", api.BoxPath(s.honest.Box, "config", "network-policy"), policies[changes%2], nil)
		}},
		"visitor, GET": {50 * time.Millisecond, s.visit},
		"honest box, HTTPS": {50 * time.Millisecond, func() error {
			return s.honest.Fetch(netip.AddrPortFrom(s.addresses["api.example.com"], 443), "api.example.com")
		}},
		"honest box, DNS": {20 * time.Millisecond, s.lookUp},
	}
}

// visit makes one request of the visitor, on a new connection.
func (s *soak) visit() error {
	gateway, _ := s.Net.GatewayAddrs()
	c, err := s.Net.Internet().DialContext(s.T.Context(), "tcp", netip.AddrPortFrom(gateway, 443).String())
	if err != nil {
		return err
	}
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(harness.Patience))
	v := tls.Client(c, &tls.Config{ServerName: s.visited.host, RootCAs: s.visited.roots})
	if _, err := fmt.Fprintf(v, "GET / HTTP/1.1\r\nHost: %s\r\nAuthorization: Bearer %s\r\nConnection: close\r\n\r\n", s.visited.host, s.visited.Token); err != nil {
		return err
	}
	return wantStatus(v, http.StatusOK)
}

// lookUp makes one DNS query of the honest box.
func (s *soak) lookUp() error {
	var c net.Conn
	err := s.honest.InNetNS(func() (err error) {
		c, err = net.Dial("udp", s.honest.DNS)
		return err
	})
	if err != nil {
		return err
	}
	defer c.Close()
	client := mdns.Client{Timeout: harness.Patience}
	answer, _, err := client.ExchangeWithConn(new(mdns.Msg).SetQuestion("api.example.com.", mdns.TypeA), &mdns.Conn{Conn: c})
	if err == nil && len(answer.Answer) == 0 {
		err = fmt.Errorf("the answer is %s", strings.TrimSpace(answer.String()))
	}
	return err
}

// soakerVariable makes this binary run as one hostile client of [TestSoakOfHostileClients].
const soakerVariable = "BOXGATE_SOAKER"

// hostile is one hostile client: a stranger, a weak key or a box. It is a separate process in the network namespace
// that it attacks from.
type hostile struct {
	Name  string         // in the report
	Kind  string         // of [soakerKinds]
	Rate  float64        // attempts a second
	Most  int            // connections kept open
	From  netip.Addr     // address of a stranger
	To    netip.AddrPort // the public URLs, or a host on the internet
	Host  string         // of a public URL, or on the internet
	Key   string
	Box   string
	Other netip.AddrPort // a box's DNS server
}

// soaker is a hostile client in its own process.
type soaker struct {
	hostile
	client *api.Client
	open   kept
	tally  soakTally
}

// soakTally counts the results of a soaker's attempts.
type soakTally struct {
	Tried, Done, Refused, Failed atomic.Int64
	first                        sync.Once
	problem                      atomic.Value // the first failure
}

// soakResult is the tally reported by the process of a soaker.
type soakResult struct {
	Tried, Done, Refused, Failed int64
	Problem                      string
}

// soakerKinds are the actions of hostile clients, attempt by attempt. An error means that the attempt failed;
// errRefused is the expected refusal of the gateway.
var soakerKinds = map[string]func(s *soaker, i int) error{
	"spin":              (*soaker).spin,
	"holds connections": (*soaker).holdVisit,
	"resets":            (*soaker).resetVisit,
	"slow requests":     (*soaker).slowVisit,
	"wrong credentials": (*soaker).wrongVisit,
	"read-only":         (*soaker).idleAndBodies,
	"one-box":           (*soaker).commands,
	"URLs":              (*soaker).urls,
	"snapshots":         (*soaker).snapshots,
	"floods":            (*soaker).floods,
	"denied and hoards": (*soaker).deniedAndHoards,
}

var errRefused = errors.New("refused")

// soakersAtOnce bounds the concurrent attempts of one client.
const soakersAtOnce = 256

// runSoaker is the process of a hostile client. Its standard input has its configuration in JSON, and ends when the
// process must exit.
func runSoaker() error {
	in := bufio.NewReader(os.Stdin)
	var s soaker
	line, err := in.ReadBytes('\n')
	if err == nil {
		err = json.Unmarshal(line, &s.hostile)
	}
	if err != nil {
		return err
	}
	s.client = api.NewClient("http://"+adminAddress, s.Key)
	s.open.most = s.Most
	ctx, end := context.WithCancel(context.Background())
	go func() {
		_, _ = io.Copy(io.Discard, in)
		end()
	}()
	s.attack(ctx, soakerKinds[s.Kind])
	r := soakResult{Tried: s.tally.Tried.Load(), Done: s.tally.Done.Load(), Refused: s.tally.Refused.Load(), Failed: s.tally.Failed.Load()}
	r.Problem, _ = s.tally.problem.Load().(string)
	return json.NewEncoder(os.Stdout).Encode(&r)
}

// attack makes attempts at the rate of the soaker until ctx ends. It skips an attempt while soakersAtOnce are running.
func (s *soaker) attack(ctx context.Context, attempt func(*soaker, int) error) {
	tick := time.NewTicker(time.Duration(float64(time.Second) / s.Rate))
	defer tick.Stop()
	places := make(chan struct{}, soakersAtOnce)
	for i := 0; ; i++ {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		select {
		case places <- struct{}{}:
		default:
			continue
		}
		s.tally.Tried.Add(1)
		go func() {
			defer func() { <-places }()
			s.tally.count(attempt(s, i))
		}()
	}
}

// count classifies the result of an attempt. A 429 is a refusal because quotas cause it.
func (t *soakTally) count(err error) {
	refusal := (*api.ResponseError)(nil)
	switch {
	case err == nil:
		t.Done.Add(1)
	case errors.Is(err, errRefused), errors.As(err, &refusal) && refusal.Status == http.StatusTooManyRequests:
		t.Refused.Add(1)
	default:
		t.Failed.Add(1)
		t.first.Do(func() { t.problem.Store(err.Error()) })
	}
}

// kept holds the latest connections open.
type kept struct {
	mu    sync.Mutex
	most  int
	conns []net.Conn
}

func (k *kept) add(c net.Conn) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if len(k.conns) >= k.most {
		_ = k.conns[0].Close()
		k.conns = k.conns[1:]
	}
	k.conns = append(k.conns, c)
}

// spin uses CPU time without calling the gateway.
func (s *soaker) spin(int) error {
	for began := time.Now(); time.Since(began) < time.Second; {
	}
	return nil
}

// visit connects to a public URL by TLS.
func (s *soaker) visit() (*tls.Conn, *net.TCPConn, error) {
	d := net.Dialer{Timeout: 10 * time.Second, LocalAddr: net.TCPAddrFromAddrPort(netip.AddrPortFrom(s.From, 0))}
	c, err := d.Dial("tcp", s.To.String())
	if err != nil {
		return nil, nil, err
	}
	_ = c.SetDeadline(time.Now().Add(20 * time.Second))
	v := tls.Client(c, &tls.Config{ServerName: s.Host, InsecureSkipVerify: true})
	if err := v.Handshake(); err != nil {
		_ = c.Close()
		return nil, nil, fmt.Errorf("%w: %w", errRefused, err) // its address has the maximum number of connections
	}
	return v, c.(*net.TCPConn), nil
}

func (s *soaker) holdVisit(int) error {
	v, _, err := s.visit()
	if err == nil {
		s.open.add(v)
	}
	return err
}

func (s *soaker) resetVisit(int) error {
	v, tcp, err := s.visit()
	if err != nil {
		return err
	}
	_, _ = io.WriteString(v, "x")
	_, _ = v.Read(make([]byte, 1)) // until the port has answered
	resetNow(tcp)
	return nil
}

// slowVisit sends a request byte by byte, until the gateway ends it.
func (s *soaker) slowVisit(int) error {
	v, _, err := s.visit()
	if err != nil {
		return err
	}
	defer v.Close()
	_, err = fmt.Fprintf(v, "POST / HTTP/1.1\r\nHost: %s\r\nContent-Length: 1000000\r\nX-Slow: ", s.Host)
	for range 18 {
		if err != nil {
			return nil //nolint:nilerr // ended by the gateway
		}
		time.Sleep(time.Second)
		_, err = io.WriteString(v, "s")
	}
	return nil
}

func (s *soaker) wrongVisit(i int) error {
	v, _, err := s.visit()
	if err != nil {
		return err
	}
	defer v.Close()
	if _, err := fmt.Fprintf(v, "GET / HTTP/1.1\r\nHost: %s\r\nAuthorization: Bearer wrong-%d\r\nConnection: close\r\n\r\n", s.Host, i); err != nil {
		return err
	}
	return wantStatus(v, http.StatusUnauthorized)
}

// wantStatus reads the head of a response. 403, 429 and the end of the connection count as refusals.
func wantStatus(c io.Reader, want int) error {
	res, err := http.ReadResponse(bufio.NewReader(c), nil)
	if err != nil {
		return fmt.Errorf("%w: %w", errRefused, err) // the connection was closed in favour of another
	}
	switch res.StatusCode {
	case want:
		return nil
	case http.StatusForbidden, http.StatusTooManyRequests:
		return errRefused
	}
	return fmt.Errorf("answer %s, want %d", res.Status, want)
}

// request sends a request with the key on a new connection. Only sent of the announced length bytes of the body follow.
func (s *soaker) request(method, path string, length int, sent string) (net.Conn, error) {
	c, err := net.DialTimeout("tcp", adminAddress, 10*time.Second)
	if err != nil {
		return nil, err
	}
	_ = c.SetDeadline(time.Now().Add(20 * time.Second))
	_, _ = fmt.Fprintf(c, "%s %s HTTP/1.1\r\nHost: localhost\r\nX-Box-Api-Key: %s\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s", method, path, s.Key, length, sent)
	return c, nil
}

var unfinished = strings.Repeat(" ", 256<<10)

// idleAndBodies opens a connection that is used once and kept open, or sends an endless body.
func (s *soaker) idleAndBodies(i int) error {
	if i%2 == 0 {
		c, err := s.request("POST", api.BoxPath(s.Box, "egress", "explain"), 8<<20, unfinished)
		if err == nil {
			s.open.add(c)
		}
		return err
	}
	c, err := s.request("GET", "/v2/box", 0, "")
	if err != nil {
		return err
	}
	s.open.add(c)
	return wantStatus(c, http.StatusOK)
}

// commands starts a command that ends immediately, or one that does not end and whose output is never read.
func (s *soaker) commands(i int) error {
	if i%4 == 0 {
		return s.client.Do(context.Background(), "POST", api.BoxPath(s.Box, "exec"), map[string]any{"command": []string{"true"}}, nil)
	}
	body := `{"command":["sleep","3600"]}`
	c, err := s.request("POST", api.BoxPath(s.Box, "exec-stream"), len(body), body)
	if err != nil {
		return err
	}
	s.open.add(c)
	return wantStatus(c, http.StatusOK)
}

// urls creates a public URL for another port.
func (s *soaker) urls(i int) error {
	return s.client.Do(context.Background(), "POST", api.BoxPath(s.Box, "preview"), map[string]any{"port": 1024 + i%60_000}, nil)
}

// snapshots takes a snapshot, or deletes all snapshots.
func (s *soaker) snapshots(i int) error {
	if i%8 == 7 {
		return s.client.Do(context.Background(), "DELETE", "/v2/box/snapshots", map[string]any{}, nil)
	}
	return s.client.Do(context.Background(), "POST", api.BoxPath(s.Box, "snapshots"), map[string]any{}, nil)
}

// floods sends eight DNS queries, and opens a connection that begins a handshake and stops.
func (s *soaker) floods(i int) error {
	for n := range 8 {
		if err := s.query(fmt.Sprintf("q%d-%d.example.com.", i, n)); err != nil {
			return err
		}
	}
	return s.hoard(s.To.Port(), func(c net.Conn) error { _, err := c.Write(endless); return err })
}

// hoard opens a connection to a port of the host and keeps it open.
func (s *soaker) hoard(port uint16, begin func(net.Conn) error) error {
	c, err := net.DialTimeout("tcp", netip.AddrPortFrom(s.To.Addr(), port).String(), 10*time.Second)
	if err != nil {
		return errRefused
	}
	s.open.add(c)
	_ = c.SetDeadline(time.Now().Add(20 * time.Second))
	if begin(c) != nil {
		return errRefused // a reset
	}
	return nil
}

var endless = endlessHello()

// query sends one DNS query without waiting for the answer.
func (s *soaker) query(name string) error {
	c, err := net.Dial("udp", s.Other.String())
	if err != nil {
		return err
	}
	defer c.Close()
	q, err := new(mdns.Msg).SetQuestion(name, mdns.TypeA).Pack()
	if err == nil {
		_, err = c.Write(q)
	}
	return err
}

// deniedAndHoards makes a request with a long path that is denied, or makes the gateway hold memory with an endless
// request head or an unread answer.
func (s *soaker) deniedAndHoards(i int) error {
	switch i % 20 {
	case 0:
		return s.hoard(80, func(c net.Conn) error {
			_, err := io.WriteString(c, "GET / HTTP/1.1\r\nHost: "+s.Host+"\r\nX: "+strings.Repeat("x", 60<<10))
			return err
		})
	case 10:
		return s.hoard(s.To.Port(), func(c net.Conn) error {
			v := tls.Client(c, &tls.Config{ServerName: s.Host, InsecureSkipVerify: true})
			_, err := fmt.Fprintf(v, "GET /bytes/50000000 HTTP/1.1\r\nHost: %s\r\n\r\n", s.Host)
			return err
		})
	}
	c, err := net.DialTimeout("tcp", netip.AddrPortFrom(s.To.Addr(), 80).String(), 10*time.Second)
	if err != nil {
		return errRefused
	}
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(20 * time.Second))
	_, _ = fmt.Fprintf(c, "GET /%d/%s HTTP/1.1\r\nHost: evil.example.net\r\nConnection: close\r\n\r\n", i, longPath)
	return wantStatus(c, http.StatusOK)
}

var longPath = strings.Repeat("long/", 800)
