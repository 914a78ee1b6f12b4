package launcher

import (
	"crypto/x509/pkix"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"boxgate/launcher/launchertest"
	"boxgate/launcher/snapshot"
)

// capture captures a box, and returns the layers.
func capture(t *testing.T, l *Launcher, from func() (Captured, error)) []string {
	t.Helper()
	c, err := from()
	if err != nil {
		t.Fatal(err)
	}
	if c.Size <= 0 || c.Files <= 0 {
		t.Errorf("%+v", c)
	}
	return c.Layers
}

// TestBoxesOfASnapshot: boxes of a snapshot see the files of the original box but not each other's changes; each maps the
// owners into its own range of user IDs. The snapshot survives its box, and the layers of a long chain are merged.
func TestBoxesOfASnapshot(t *testing.T) {
	t.Parallel()
	l := newLauncher(t)
	first := newBox(t, l, nil)
	want(t, rootSh(t, l, first, `set -e
		echo kept >/workspace/home/file; chown 1000:1000 /workspace/home/file; chmod 640 /workspace/home/file
		rm /etc/issue 2>/dev/null || rm /etc/passwd-; mkdir /opt/new; mkfifo /opt/new/pipe; ln /workspace/home/file /opt/new/linked
		cp /bin/true /opt/new/set; chmod 4755 /opt/new/set
		rm /.boxgate-init; mkdir -p /.boxgate-init/not/empty; echo ok`), "ok") // the last is where its copies have their first process
	layers := capture(t, l, func() (Captured, error) { return l.Capture(t.Context(), first, "one", nil) })
	want(t, sh(t, l, first, "cat file"), "kept") // it continues
	if err := l.Delete(t.Context(), first); err != nil {
		t.Fatal(err)
	}
	seen := `stat -c '%n %U:%G %a %h %F' /workspace/home/file /opt/new/* ; ls /etc/issue 2>&1 | cut -c1-10; cat /workspace/home/file`
	var told string
	for i := range 3 {
		id := newBox(t, l, func(s *Spec) { s.Layers = layers })
		r := rootSh(t, l, id, seen)
		if told == "" {
			told = r.out
		}
		if r.out != told || !strings.Contains(r.out, "/opt/new/linked boxuser:boxuser 640 2 regular file") || !strings.Contains(r.out, "/opt/new/set root:root 4755") {
			t.Errorf("%d: %s", i, r.out)
		}
		want(t, rootSh(t, l, id, `echo other >>/workspace/home/file; chown 5:5 /opt/new/set; rm /opt/new/pipe; echo ok`), "ok")
	}
	last := newBox(t, l, func(s *Spec) { s.Layers = layers })
	for i := range maxLayers + 1 {
		want(t, sh(t, l, last, fmt.Sprintf("echo %d >>/workspace/home/file; echo done", i)), "done")
		layers = capture(t, l, func() (Captured, error) { return l.Capture(t.Context(), last, fmt.Sprint("chain", i), nil) })
		if err := l.Delete(t.Context(), last); err != nil {
			t.Fatal(err)
		}
		last = newBox(t, l, func(s *Spec) { s.Layers = layers })
	}
	if len(layers) > maxLayers {
		t.Errorf("%d layers", len(layers))
	}
	want(t, sh(t, l, last, "wc -l <file; ls /etc/issue /etc/passwd- 2>/dev/null | wc -l"), "18\n1")
}

// TestOldCAIsNotTrusted: a box created from a snapshot trusts its own CA, but not that of the original box.
func TestOldCAIsNotTrusted(t *testing.T) {
	t.Parallel()
	l := newLauncher(t)
	var ofBox [2][]byte
	for i, name := range []string{"boxgate box old", "boxgate box new"} {
		ofBox[i], _ = launchertest.Certificate(t, pkix.Name{CommonName: name, Organization: []string{"boxgate"}}, nil, nil)
	}
	old, ca := ofBox[0], ofBox[1]
	first := newBox(t, l, func(s *Spec) { s.CA = old })
	find := `grep -rlF "$(sed -n 6p /tmp/ca)" /etc /usr/local/share /opt/java 2>/dev/null | sort`
	before := rootSh(t, l, first, "cat >/tmp/ca <<'EOF'\n"+string(old)+"EOF\nupdate-ca-certificates >/dev/null 2>&1; "+find)
	if !strings.Contains(before.out, "/etc/ssl/certs/ca-certificates.crt") {
		t.Fatalf("the box does not trust its own CA: %+v", before)
	}
	layers := capture(t, l, func() (Captured, error) { return l.Capture(t.Context(), first, "trusting", nil) })
	second := newBox(t, l, func(s *Spec) { s.CA, s.Layers, s.Hostname = ca, layers, "second" })
	for name, c := range map[string]struct {
		ca   []byte
		want bool
	}{"old": {old, false}, "new": {ca, true}} {
		r := rootSh(t, l, second, "cat >/tmp/ca <<'EOF'\n"+string(c.ca)+"EOF\n"+find)
		if (r.out != "") != c.want {
			t.Errorf("the %s CA is in %q", name, r.out)
		}
	}
	want(t, sh(t, l, second, "hostname; grep -c second /etc/hosts; grep -c ^SSL_CERT_FILE /etc/environment"), "second\n1\n1")
}

// TestLayersGoWhenNobodyNeedsThem: unneeded layers are removed, complete or not; a failed capture leaves nothing.
func TestLayersGoWhenNobodyNeedsThem(t *testing.T) {
	t.Parallel()
	l := newLauncher(t)
	id := newBox(t, l, nil)
	for _, name := range []string{"kept", "dropped"} {
		if _, err := l.Capture(t.Context(), id, name, nil); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Mkdir(l.layers.Path("cut.partial"), 0o700); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"kept", "../out"} { // an existing layer, and an invalid name
		if _, err := l.Capture(t.Context(), id, name, nil); err == nil {
			t.Errorf("%q was captured", name)
		}
	}
	if err := l.KeepLayers(func(layer string) bool { return layer == "kept" }); err != nil {
		t.Fatal(err)
	}
	left, err := filepath.Glob(filepath.Join(l.dirs.layers(), "*"))
	if err != nil || len(left) != 1 || filepath.Base(left[0]) != "kept" {
		t.Errorf("%v %v", left, err)
	}
	if err := l.Delete(t.Context(), id); err != nil {
		t.Fatal(err)
	}
	if _, err := l.Capture(t.Context(), id, "late", nil); !errors.Is(err, ErrNotFound) {
		t.Errorf("of a box that is gone: %v", err)
	}
	if err := errors.Join(l.KeepLayers(func(string) bool { return false }), l.EmptyTrash(t.Context())); err != nil {
		t.Error(err)
	}
}

// TestCapturesAreGivenUp: a capture that takes too long is cancelled: the box continues, and no layer remains.
func TestCapturesAreGivenUp(t *testing.T) {
	t.Parallel()
	l := newLauncher(t)
	id := newBox(t, l, nil)
	for want, most := range map[string]captureLimits{
		"was frozen for too long": {snapshot.Terms{Entries: 1 << 20, Frozen: 1}, time.Hour},
		"took too long":           {snapshot.Terms{Entries: 1 << 20, Frozen: time.Hour}, 1},
		"more than 1 files":       {snapshot.Terms{Entries: 1, Frozen: time.Hour}, time.Hour},
	} {
		l.captures = most
		if _, err := l.Capture(t.Context(), id, "given-up", nil); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v", want, err)
		}
		if left, err := os.ReadDir(l.dirs.layers()); err != nil || len(left) > 0 {
			t.Errorf("%q: %v %v", want, left, err)
		}
		if st, err := l.State(t.Context(), id); err != nil || st.State != StateIdle {
			t.Errorf("%q: the box is %+v, %v", want, st, err)
		}
	}
	l.captures = defaultCaptureLimits
	capture(t, l, func() (Captured, error) { return l.Capture(t.Context(), id, "whole", nil) })
}
