package launcher

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"boxgate/launcher/launchertest"
	"boxgate/launcher/rootfs"
	"boxgate/policy"
)

// withOldRoots returns the boxes of a launcher that were not given these roots.
func withOldRoots(t *testing.T, l *Launcher, roots []byte) []policy.BoxID {
	t.Helper()
	old, err := WithOldRoots(l.cfg, roots)
	if err != nil {
		t.Fatal(err)
	}
	return old
}

// TestRunningBoxesGetRoots: a running box trusts new roots in its bundle and in OpenSSL's directory. A program that has opened the
// bundle reads the old one to its end, and what the box changed elsewhere stays.
func TestRunningBoxesGetRoots(t *testing.T) {
	t.Parallel()
	l := newLauncher(t)
	roots, server := testChain(t, "corp.example")
	ca := launchertest.CA(t)
	id := newBox(t, l, func(s *Spec) { s.CA = ca })
	want(t, rootSh(t, l, id, "rm /etc/profile.d/boxgate.sh; echo own >/etc/environment; mkdir -p /opt/java/x/lib/security; touch /opt/java/x/lib/security/cacerts; echo done"), "done")
	want(t, run(t, l, id, ExecSpec{Args: []string{"sh", "-c", "cat >server.pem; sleep 1000 <" + rootfs.BundlePath + " >/dev/null 2>&1 & echo $! >pid; echo done"}, Stdin: bytes.NewReader(server)}), "done")
	const verify = "openssl verify -no-CAfile -no-CAstore -CApath /etc/ssl/certs server.pem 2>&1 | tail -1; openssl verify -no-CApath -no-CAstore -CAfile " + rootfs.BundlePath + " server.pem 2>&1 | tail -1"
	if r := sh(t, l, id, verify); strings.Contains(r.out, "OK") {
		t.Fatalf("trusted before: %+v", r)
	}
	if old := withOldRoots(t, l, roots); !slices.Contains(old, id) {
		t.Errorf("%s is not among the boxes with old roots: %v", id, old)
	}
	for range 2 { // the second call has nothing to do
		if err := l.RenewRoots(t.Context(), id, ca, roots); err != nil {
			t.Fatal(err)
		}
		if old := withOldRoots(t, l, roots); slices.Contains(old, id) {
			t.Errorf("%s is among the boxes with old roots", id)
		}
	}
	want(t, sh(t, l, id, verify), "server.pem: OK\nserver.pem: OK")
	want(t, sh(t, l, id, "stat -c '%U %G %a' "+rootfs.BundlePath+"; ls /etc/ssl/certs | grep -c new; cat /etc/environment; ls /etc/profile.d/boxgate.sh 2>/dev/null; head -c 4 /opt/java/x/lib/security/cacerts | od -An -tx1"),
		"root root 644\n0\nown\n fe ed fe ed")
	want(t, sh(t, l, id, "grep -c BEGIN /proc/$(cat pid)/fd/0 >a; grep -c BEGIN "+rootfs.BundlePath+" >b; expr $(cat b) - $(cat a)"), "1")
	if err := l.RenewRoots(t.Context(), newID(), ca, roots); !errors.Is(err, ErrNotFound) {
		t.Errorf("a box that does not exist: %v", err)
	}
	if err := l.Stop(t.Context(), id); err != nil {
		t.Fatal(err)
	}
	other, _ := testChain(t, "other.example")
	if err := l.RenewRoots(t.Context(), id, ca, other); !errors.Is(err, ErrNotRunning) {
		t.Errorf("a stopped box: %v", err)
	}
	if old := withOldRoots(t, l, other); len(old) > 0 {
		t.Errorf("a stopped box gets roots at its next start: %v", old)
	}
}

// TestAttackBoxLeadsItsRootsAstray: whatever a box puts in the place of its certificates, it reads nothing of the host there, nothing of
// the host is changed, and it remains known as a box with old roots.
func TestAttackBoxLeadsItsRootsAstray(t *testing.T) {
	t.Parallel()
	l := newLauncher(t)
	roots, _ := testChain(t, "corp.example")
	outside := filepath.Join(t.TempDir(), "outside")
	if err := os.WriteFile(outside, []byte("of the host"), 0o666); err != nil {
		t.Fatal(err)
	}
	for name, script := range map[string]string{
		"a pipe":                 "rm $B; mkfifo $B",
		"a directory":            "rm $B; mkdir $B",
		"an endless link":        "rm -rf /etc/ssl; ln -s ssl /etc/ssl",
		"a file of the host":     "rm $B; ln -s " + outside + " $B",
		"a file of the kernel":   "rm $B; ln -s /proc/sys/kernel/hostname $B",
		"another of the kernel":  "rm $B; ln -s /proc/sys/kernel/hostname /etc/ssl/cert.pem",
		"a device":               "rm $B; ln -s /dev/zero $B",
		"no CA":                  "echo nothing >$B",
		"more than memory":       "rm $B; truncate -s 1T $B",
		"a store of the kernel":  "mkdir -p /etc/pki/tls/certs; ln -s /proc/sys/kernel/hostname /etc/pki/tls/certs/ca-bundle.crt",
		"anchors that are links": "rm -rf /usr/local/share/ca-certificates; ln -s /proc/sys/kernel /usr/local/share/ca-certificates",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ca := launchertest.CA(t)
			id := newBox(t, l, func(s *Spec) { s.CA = ca })
			want(t, rootSh(t, l, id, "B="+rootfs.BundlePath+"; "+script+"; echo done"), "done")
			began := time.Now()
			err := l.RenewRoots(t.Context(), id, ca, roots)
			if took := time.Since(began); err == nil || took > time.Minute {
				t.Errorf("%v after %v", err, took)
			}
			if data, err := os.ReadFile(outside); err != nil || string(data) != "of the host" {
				t.Errorf("%q %v", data, err)
			}
			if old := withOldRoots(t, l, roots); !slices.Contains(old, id) {
				t.Errorf("it does not count as a box with old roots: %v", old)
			}
			host, err := os.ReadFile("/proc/sys/kernel/hostname")
			if err != nil {
				t.Fatal(err)
			}
			r := rootSh(t, l, id, "for f in $(find /etc/ssl /etc/pki -type f -size -1M 2>/dev/null); do cat $f; done")
			if strings.Contains(r.out, "\n"+string(host)) || strings.HasPrefix(r.out, string(host)) {
				t.Errorf("the box has read the host's name: %q", host)
			}
			l.mustNotSeeWorkers(t, id)
		})
	}
}
