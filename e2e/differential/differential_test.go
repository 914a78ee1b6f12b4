package differential

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"

	"boxgate/config"
	"boxgate/e2e/harness"
	"boxgate/internal/nightly"
)

// TestServersAreTheSameThroughTheGateway: clients make the request of every row on each way.
func TestServersAreTheSameThroughTheGateway(t *testing.T) {
	t.Parallel()
	l := newLab(t, "")
	saw := l.ask(map[string]func(*way, []row) map[string]seen{"curl": (*way).curl, "Go": (*way).golang, "socket": (*way).sockets, "openssl": (*way).openssl})
	l.compare(saw, []string{"curl", "Go", "socket", "openssl"})
}

// lab has the servers of all rows, and one box per way.
type lab struct {
	*harness.World
	rows []row
	ways []*way // direct, spliced, intercepted
}

// newLab starts the servers of all rows. The boxes use the given image, or the default one.
func newLab(t *testing.T, image string) *lab {
	t.Helper()
	issuer := newIssuer(t)
	root := pemFile(t, tls.Certificate{Certificate: [][]byte{issuer.root.cert.Raw}})
	l := &lab{World: harness.NewWorld(t, func(c *config.Config) {
		c.Proxy.UpstreamCAFiles = append(c.Proxy.UpstreamCAFiles, root)
		if image != "" {
			withClients(t, c)
		}
	})}
	for _, r := range table {
		if nightly.Enabled() || !r.nightly {
			l.rows = append(l.rows, r)
		}
	}
	l.serve(issuer)
	l.furnish(root, image)
	return l
}

// serve starts the servers.
func (l *lab) serve(issuer *issuer) {
	l.T.Helper()
	var started []*site
	machine := &jvm{}
	for n, r := range l.rows {
		s := &site{World: l.World, t: l.T, issuer: issuer, row: r, host: r.host(), port: r.port(), alive: "alive." + r.host(), jvm: machine}
		addrs := []string{address4(n), fmt.Sprintf("2001:db8:1::1:%x", n)}
		switch {
		case r.server.v4 || r.only == "ip4":
			addrs = addrs[:1]
		case r.only == "ip6":
			addrs = addrs[1:]
		}
		names := addrs
		if r.dead != "" {
			names = append([]string{r.dead}, addrs...)
		}
		for name, list := range map[string][]string{s.alive: addrs, s.host: names} {
			if err := l.Net.AddHost(name, list...); err != nil {
				l.T.Fatal(err)
			}
		}
		r.server.start(s)
		started = append(started, s)
	}
	for _, s := range started {
		if s.until != nil {
			l.Until(s.row.name+" listens", s.until)
		}
	}
}

// mostRows is the number of available addresses.
const mostRows = 230

// address4 returns the address of a row.
func address4(n int) string {
	const first, others = 67, 255 - 67
	if n < others {
		return fmt.Sprintf("198.51.100.%d", first+n)
	}
	return fmt.Sprintf("192.0.2.%d", 1+n-others)
}

// furnish creates the boxes and writes the trusted authorities into each.
func (l *lab) furnish(root, image string) {
	l.T.Helper()
	text, err := os.ReadFile(root)
	if err != nil {
		l.T.Fatal(err)
	}
	honest := string(text) + string(l.Net.CAPEM())
	rules := map[string]any{}
	add := func(pattern, option string) {
		rule := map[string]any{"headers": map[string]string{"X-Key": harness.Canary}}
		switch key, value, _ := strings.Cut(option, ": "); value {
		case "":
		case "true":
			rule[key] = true
		default:
			rule[key] = value
		}
		rules[pattern] = rule
	}
	add("*."+domain, "")
	add("*."+domain+":9443", "")
	for _, r := range l.rows {
		if r.option != "" {
			add(fmt.Sprintf("%s:%d", r.host(), r.port()), r.option)
		}
	}
	for _, w := range []struct {
		name string
		body map[string]any
	}{
		{"direct", map[string]any{"network_policy": map[string]any{"mode": "custom", "allowed_cidrs": []string{"198.51.100.0/24", "192.0.2.0/24", "2001:db8:1::/48", "2001:db8:2::/48"}}}},
		{"spliced", map[string]any{"network_policy": harness.Custom("*." + domain)}},
		{"intercepted", map[string]any{"network_policy": harness.Custom("*." + domain), "attach_headers": rules}},
	} {
		if image != "" {
			w.body["runtime"] = image
		}
		made := &way{name: w.name, Intruder: l.Intrude(l.Create(w.body)), file: "/workspace/home/roots.pem", roots: x509.NewCertPool()}
		trusted := honest
		if w.name == "intercepted" {
			out, code := l.GatewayCommand("ca", "--box", made.Box)
			if trusted = out; code != 0 {
				l.T.Fatalf("gateway ca: %d %s", code, out)
			}
		}
		if !made.roots.AppendCertsFromPEM([]byte(trusted)) {
			l.T.Fatalf("no certificates in %q", trusted)
		}
		l.MustSh(made.Box, "cat >"+made.file+" <<'END'\n"+trusted+"END\n")
		l.ways = append(l.ways, made)
	}
}

// results are the views of clients: by client, way and row.
type results map[string]map[string]map[string]seen

// ask runs each client on every way, concurrently in different boxes.
func (l *lab) ask(clients map[string]func(*way, []row) map[string]seen) results {
	l.T.Helper()
	out := results{}
	var mu sync.Mutex
	for client, ask := range clients {
		out[client] = map[string]map[string]seen{}
		var rows []row
		for _, r := range l.rows {
			if r.suits(client) {
				rows = append(rows, r)
			}
		}
		var wait sync.WaitGroup
		for _, w := range l.ways {
			wait.Go(func() {
				saw := ask(w, rows)
				mu.Lock()
				defer mu.Unlock()
				out[client][w.name] = saw
			})
		}
		wait.Wait()
	}
	return out
}

// compare fails the test where a way differs from the direct one and the document does not list it, and the other way
// round.
func (l *lab) compare(saw results, clients []string) {
	l.T.Helper()
	documented := readDocument(l.T)
	for _, client := range clients {
		for _, r := range l.rows {
			if !r.suits(client) {
				continue
			}
			l.T.Run(client+"/"+r.name, func(t *testing.T) {
				direct, spliced, intercepted := saw[client]["direct"][r.name], saw[client]["spliced"][r.name], saw[client]["intercepted"][r.name]
				all := fmt.Sprintf("\ndirect: %s %s\nspliced: %s %s\nintercepted: %s %s", direct, direct.what, spliced, spliced.what, intercepted, intercepted.what)
				if direct == (seen{}) || spliced == (seen{}) || intercepted == (seen{}) {
					t.Fatal("the client was not run", all)
				}
				if fails := r.refuses(client); direct.fails != fails && known(client) {
					t.Errorf("without the gateway the client fails: %v, the table says %v%s", direct.fails, fails, all)
				}
				want, listed := documented[cell{r.name, client}]
				got := difference(direct, intercepted)
				if better := want == (pair{"fails", "works"}) && !spliced.fails; !r.plain && !better && spliced.String() != direct.String() {
					t.Errorf("spliced, it is not the same%s", all)
				}
				if got != want {
					t.Errorf("docs/limits.md says %v (%v), it is %v%s", want, listed, got, all)
				}
			})
		}
	}
}

// known reports whether the table lists the servers that the client refuses.
func known(client string) bool {
	return client == "curl" || client == "Go" || client == "socket" || client == "openssl"
}

// pair is the documented behaviour of a server directly and intercepted: empty if it is the same.
type pair struct{ direct, intercepted string }

func (p pair) String() string {
	if p == (pair{}) {
		return "that nothing differs"
	}
	return fmt.Sprintf("%s directly, %s intercepted", p.direct, p.intercepted)
}

func difference(direct, intercepted seen) pair {
	words := map[bool]string{false: "works", true: "fails"}
	switch {
	case direct.fails != intercepted.fails:
		return pair{words[direct.fails], words[intercepted.fails]}
	case direct.String() != intercepted.String():
		return pair{"works", "differs"}
	}
	return pair{}
}

// cell is a server and a client.
type cell struct{ server, client string }

// document is the page that lists the differences.
const document = "../../docs/limits.md"

// readDocument reads the table below the heading "Servers that differ": servers, clients, directly, intercepted, why.
func readDocument(t *testing.T) map[cell]pair {
	t.Helper()
	text, err := os.ReadFile(document)
	if err != nil {
		t.Fatal(err)
	}
	_, section, ok := strings.Cut(string(text), "\n### Servers that differ\n")
	if !ok {
		t.Fatal("docs/limits.md has no list of servers that differ")
	}
	section, _, _ = strings.Cut(section, "\n#")
	out := map[cell]pair{}
	for line := range strings.Lines(section) {
		columns := strings.Split(strings.Trim(line, "|\n "), " | ")
		if !strings.HasPrefix(line, "| `") {
			continue
		}
		if len(columns) != 5 || len(columns[4]) < 20 {
			t.Errorf("docs/limits.md: a line without five columns, or without a reason: %s", line)
			continue
		}
		for server := range strings.SplitSeq(columns[0], ", ") {
			server = strings.Trim(server, "`")
			if !strings.Contains(" "+names()+" ", " "+server+" ") {
				t.Errorf("docs/limits.md lists the server %s, which the table does not have", server)
			}
			for client := range strings.SplitSeq(columns[1], ", ") {
				at := cell{server, client}
				if _, twice := out[at]; twice {
					t.Errorf("docs/limits.md lists %v twice", at)
				}
				out[at] = pair{columns[2], columns[3]}
			}
		}
	}
	return out
}

// names returns the names of all rows.
func names() string {
	var out []string
	for _, r := range table {
		out = append(out, r.name)
	}
	return strings.Join(out, " ")
}

// domain is the domain of the servers.
const domain = "wire.example.com"

// TestRowsAreWellFormed: each row has a unique name, which is a valid label, and its server has an address.
func TestRowsAreWellFormed(t *testing.T) {
	t.Parallel()
	used := map[string]bool{}
	for _, r := range table {
		if used[r.name] || strings.Trim(r.name, "abcdefghijklmnopqrstuvwxyz0123456789-") != "" || len(r.name) > 40 {
			t.Errorf("%q is no name, or used twice", r.name)
		}
		used[r.name] = true
	}
	if len(table) > mostRows {
		t.Errorf("%d rows: there are addresses for %d", len(table), mostRows)
	}
}
