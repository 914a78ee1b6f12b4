package fleet_test

import (
	"context"
	"errors"
	"net"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"boxgate/fleet"
	"boxgate/fleet/etcdtest"
)

// TestReasonsOfAnUnreachableEtcd: the error names the endpoint, and what is wrong with it or with the files of this client.
func TestReasonsOfAnUnreachableEtcd(t *testing.T) {
	t.Parallel()
	start := (*exec.Cmd).Start
	good := etcdtest.StartTLS(t, start, otherPort(t)).Access()
	stranger := etcdtest.StartTLS(t, start, otherPort(t)).Access() // of another authority
	away := "https://" + otherPort(t)
	for name, x := range map[string]struct {
		access fleet.Access
		want   string
	}{
		"no certificate":          {fleet.Access{Endpoints: good.Endpoints, CAFile: good.CAFile}, "tls: certificate required"},
		"another authority":       {fleet.Access{Endpoints: good.Endpoints, CAFile: stranger.CAFile, CertFile: good.CertFile, KeyFile: good.KeyFile}, "certificate signed by unknown authority"},
		"a stranger":              {fleet.Access{Endpoints: good.Endpoints, CAFile: good.CAFile, CertFile: stranger.CertFile, KeyFile: stranger.KeyFile}, "remote error: tls"},
		"the roots of a system":   {fleet.Access{Endpoints: good.Endpoints}, "certificate signed by unknown authority"},
		"a port without a server": {fleet.Access{Endpoints: []string{away}, CAFile: good.CAFile}, "connection refused"},
		"a socket that is gone":   {fleet.Access{Endpoints: []string{"unix:///nowhere/client:1"}}, "no such file or directory"},
		"one of two is the right": {fleet.Access{Endpoints: []string{away, good.Endpoints[0]}, CAFile: good.CAFile, CertFile: good.CertFile, KeyFile: good.KeyFile}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			client, err := fleet.Dial(x.access)
			if err != nil {
				t.Fatal(err)
			}
			defer client.Close()
			most := time.Minute
			if x.want != "" {
				most = 300 * time.Millisecond
			}
			ctx, cancel := context.WithTimeout(t.Context(), most)
			defer cancel()
			_, _, err = fleet.Get(ctx, client, "x")
			if x.want == "" {
				if err != nil {
					t.Error(err)
				}
				return
			}
			if err = x.access.Explain(t.Context(), err); !errors.Is(err, fleet.ErrUnreachable) || !strings.Contains(err.Error(), x.access.Endpoints[0]+": ") || !strings.Contains(err.Error(), x.want) {
				t.Error(err)
			}
		})
	}
	if err := good.Explain(t.Context(), errors.New("x")); err.Error() != "x" {
		t.Error(err)
	}
}

// TestKeyFileOfEtcd: the key of the client must be its owner's alone.
func TestKeyFileOfEtcd(t *testing.T) {
	t.Parallel()
	access := etcdtest.StartTLS(t, (*exec.Cmd).Start, otherPort(t)).Access()
	if err := os.Chmod(access.KeyFile, 0o640); err != nil {
		t.Fatal(err)
	}
	if _, err := fleet.Dial(access); err == nil || !strings.Contains(err.Error(), "run chmod 600 "+access.KeyFile) {
		t.Errorf("a key that others may read: %v", err)
	}
}

// otherPort returns a loopback address that was free.
func otherPort(t *testing.T) string {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	return ln.Addr().String()
}
