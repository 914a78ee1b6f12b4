package field

import (
	"crypto/tls"
	"crypto/x509"
	"os"
	"slices"
	"testing"

	"boxgate/internal/nightly"
)

func TestCertificatesAreForTheNames(t *testing.T) {
	a, err := newAuthority(t.TempDir() + "/test")
	if err != nil {
		t.Fatal(err)
	}
	pair, err := tls.LoadX509KeyPair(a.Leaf, a.LeafKey)
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(a.CA)
	if err != nil {
		t.Fatal(err)
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(text)
	for _, name := range []string{"up.bench.test", "n1.fresh.bench.test"} {
		if _, err := pair.Leaf.Verify(x509.VerifyOptions{Roots: roots, DNSName: name}); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestMountPoints(t *testing.T) {
	const mounts = `21 1 0:20 / /run rw - tmpfs tmpfs rw
30 21 0:4 net:[1] /run/x/attached/a rw - nsfs nsfs rw
31 21 0:4 net:[2] /run/x/attached/b rw - nsfs nsfs rw
32 21 0:4 net:[3] /run/xy/attached/c rw - nsfs nsfs rw
`
	if got := mountPoints(mounts, "/run/x"); !slices.Equal(got, []string{"/run/x/attached/b", "/run/x/attached/a"}) {
		t.Errorf("got %q", got)
	}
}

// TestFieldLeavesNothing creates the namespaces and removes them again.
func TestFieldLeavesNothing(t *testing.T) {
	nightly.Root(t)
	if os.Geteuid() != 0 {
		t.Fatal("namespaces need root: run the tests as make test does")
	}
	f, err := New(t.Context(), t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	c, err := f.Client.Run(t.Context(), "ip", "route", "get", "203.0.113.10")
	if err != nil {
		t.Errorf("the client has no way to the upstream: %v: %s", err, c)
	}
	if err := f.Close(); err != nil {
		t.Errorf("closing: %v", err)
	}
	if _, err := os.Stat(f.Dir); !os.IsNotExist(err) {
		t.Errorf("%s is still there: %v", f.Dir, err)
	}
	if _, err := f.Client.Run(t.Context(), "true"); err == nil {
		t.Error("a namespace is still open")
	}
}
