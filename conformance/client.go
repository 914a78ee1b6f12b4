package conformance

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"boxgate/conformance/websocket"
)

// Target is the host that a suite runs against. Its name is resolved by the DNS server, and its certificate verified
// against Roots.
type Target struct {
	Host  string `json:"host"`
	DNS   string `json:"dns"`   // address and port of the DNS server
	Roots string `json:"roots"` // PEM file of the trusted certificates
	Full  bool   `json:"full"`  // run the full suite instead of a subset short enough for a test run
}

// job is the assignment of the client process, passed in the environment.
type job struct {
	Suite  string `json:"suite"`
	Target Target `json:"target"`
	Out    string `json:"out"` // file for the results
}

const jobVariable = "BOXGATE_CONFORMANCE_JOB"

// suites maps names to suites.
var suites = map[string]func(context.Context, Target) ([]Result, error){
	"h2spec": h2spec,
	"grpc":   grpcInterop,
	"websocket over HTTP/1.1": func(ctx context.Context, t Target) ([]Result, error) {
		return webSocket(ctx, t, websocket.HTTP1(t.Host)), nil
	},
	"websocket over HTTP/2": func(ctx context.Context, t Target) ([]Result, error) {
		return webSocket(ctx, t, websocket.HTTP2(t.Host)), nil
	},
}

// clientTimeout bounds the run of a client.
const clientTimeout = 3 * time.Minute

// IsClient reports whether this process was started by [Client]. If so, it must call only [ClientMain].
func IsClient() bool { return os.Getenv(jobVariable) != "" }

// ClientMain runs the suite and returns the exit code.
func ClientMain() int {
	if err := clientMain(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

func clientMain() error {
	var j job
	if err := json.Unmarshal([]byte(os.Getenv(jobVariable)), &j); err != nil {
		return err
	}
	suite, ok := suites[j.Suite]
	if !ok {
		return fmt.Errorf("unknown suite %q", j.Suite)
	}
	// Replaces the resolver of the machine's resolv.conf.
	net.DefaultResolver = &net.Resolver{PreferGo: true, StrictErrors: true,
		Dial: func(ctx context.Context, network, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, network, j.Target.DNS)
		}}
	ctx, cancel := context.WithTimeout(context.Background(), clientTimeout)
	defer cancel()
	results, err := suite(ctx, j.Target)
	if err != nil {
		return err
	}
	data, err := json.Marshal(results)
	if err != nil {
		return err
	}
	return os.WriteFile(j.Out, data, 0o600)
}

// Client runs a suite in a new process of this program. start starts it in its namespace; dir is for its results file.
func Client(ctx context.Context, suite string, target Target, dir string, start func(*exec.Cmd) error) ([]Result, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	out, err := os.MkdirTemp(dir, "suite")
	if err != nil {
		return nil, err
	}
	j := job{Suite: suite, Target: target, Out: filepath.Join(out, "results.json")}
	order, err := json.Marshal(j)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, clientTimeout+10*time.Second)
	defer cancel()
	cmd := exec.CommandContext(ctx, self)
	cmd.Env = append(os.Environ(), jobVariable+"="+string(order), "SSL_CERT_FILE="+target.Roots, "SSL_CERT_DIR=/nonexistent")
	var said tail
	cmd.Stdout, cmd.Stderr = &said, &said
	if err := start(cmd); err != nil {
		return nil, err
	}
	if err := cmd.Wait(); err != nil {
		return nil, fmt.Errorf("client of suite %s: %w; last output: %s", suite, err, said.String())
	}
	data, err := os.ReadFile(j.Out)
	if err != nil {
		return nil, err
	}
	var results []Result
	if err := json.Unmarshal(data, &results); err != nil {
		return nil, err
	}
	if len(results) == 0 {
		return nil, errors.New("the suite ran no cases")
	}
	return results, nil
}

// tail keeps the last 4 KiB written to it.
type tail struct{ data []byte }

func (t *tail) Write(p []byte) (int, error) {
	t.data = append(t.data, p...)
	t.data = t.data[max(0, len(t.data)-4096):]
	return len(p), nil
}

func (t *tail) String() string { return string(t.data) }

// Outcomes of a case. Suites may add their own.
const (
	OK     = "OK"
	Failed = "FAILED"
)

// Result is the result of one case.
type Result struct {
	Case    string `json:"case"`             // number or name in the suite
	Title   string `json:"title,omitempty"`  // short description
	Outcome string `json:"outcome"`          // OK, FAILED, or another outcome of the suite
	Detail  string `json:"detail,omitempty"` // the reason why it is not OK
	Seen    string `json:"seen,omitempty"`   // the peer's behaviour, if several are OK
}

// Run is the result of one run of a suite.
type Run struct {
	Way     string // such as "direct" or "through the gateway"
	Results []Result
}

// Tally returns the number of each outcome, such as "145 OK, 1 FAILED".
func (r Run) Tally() string {
	count := map[string]int{}
	for _, c := range r.Results {
		count[c.Outcome]++
	}
	var words []string
	for o := range count {
		words = append(words, o)
	}
	slices.SortFunc(words, func(a, b string) int { return count[b] - count[a] })
	for i, o := range words {
		words[i] = fmt.Sprintf("%d %s", count[o], o)
	}
	return strings.Join(words, ", ")
}

// Except returns the results that are not OK.
func (r Run) Except() []Result {
	var out []Result
	for _, c := range r.Results {
		if c.Outcome != OK {
			out = append(out, c)
		}
	}
	return out
}

// Difference is a case whose result differs in the second run.
type Difference struct {
	First, Second Result // one is zero if the case was not in its run
}

// String describes the difference.
func (d Difference) String() string {
	name := d.First.Case
	if name == "" {
		name = d.Second.Case
	}
	return fmt.Sprintf("%s: %s %s%s, but %s %s%s", name,
		d.First.Outcome, d.First.Detail, d.First.Seen, d.Second.Outcome, d.Second.Detail, d.Second.Seen)
}

// Informational is the outcome of a case without a required behaviour.
const Informational = websocket.Informational

// Differences returns the cases whose Outcome or, unless the case is informational, Seen differs between two runs, in
// the order of the first.
func Differences(first, second Run) []Difference {
	rest := map[string]Result{}
	for _, c := range second.Results {
		rest[c.Case] = c
	}
	var out []Difference
	for _, a := range first.Results {
		b := rest[a.Case]
		delete(rest, a.Case)
		if a.Outcome != b.Outcome || a.Seen != b.Seen && a.Outcome != Informational {
			out = append(out, Difference{a, b})
		}
	}
	for _, b := range second.Results {
		if _, only := rest[b.Case]; only {
			out = append(out, Difference{Second: b})
		}
	}
	return out
}

// Table writes one line per run, then each case that is not OK in one of them.
func Table(w io.Writer, suite string, runs ...Run) error {
	t := tabwriter.NewWriter(w, 0, 4, 2, ' ', 0)
	fmt.Fprintf(t, "%s\tcases\toutcome\n", suite)
	for _, r := range runs {
		fmt.Fprintf(t, "%s\t%d\t%s\n", r.Way, len(r.Results), r.Tally())
	}
	for _, r := range runs {
		for _, c := range r.Except() {
			fmt.Fprintf(t, "  %s\t%s\t%s %s: %s\n", r.Way, c.Outcome, c.Case, c.Title, oneLine(c.Detail+c.Seen))
		}
	}
	return t.Flush()
}

func oneLine(s string) string { return strings.Join(strings.Fields(s), " ") }
