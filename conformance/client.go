package conformance

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
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
