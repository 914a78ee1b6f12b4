package launcher

import (
	"bytes"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"boxgate/internal/nightly"
	"boxgate/launcher/launchertest"
	"boxgate/launcher/namespace"
	"boxgate/launcher/rootfs"
)

// Real clients accept the CA, over real TLS, next to the public roots.
func TestClientsInTheBoxTrustItsCA(t *testing.T) {
	t.Parallel()
	l := newLauncher(t)
	ca, server := testChain(t, "shop.example")
	id := newBox(t, l, func(s *Spec) { s.CA = ca })
	if err := namespace.InNetNS(l.dirs.pin(id), func() error {
		lo, err := netlink.LinkByName("lo")
		if err != nil {
			return err
		}
		return netlink.LinkSetUp(lo)
	}); err != nil {
		t.Fatal(err)
	}
	if r := rootSh(t, l, id, "echo 127.0.0.1 shop.example >> /etc/hosts"); r.exit != 0 {
		t.Fatalf("%+v", r)
	}
	want(t, run(t, l, id, ExecSpec{Args: []string{"sh", "-c", "cat > server.pem; echo hello > page"}, Stdin: bytes.NewReader(server)}), "")
	want(t, sh(t, l, id, `cat > server.py <<'.'
import http.server, ssl, socketserver
c = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER); c.load_cert_chain("server.pem")
socketserver.ThreadingTCPServer.daemon_threads = True
s = socketserver.ThreadingTCPServer(("127.0.0.1", 443), http.server.SimpleHTTPRequestHandler)
s.socket = c.wrap_socket(s.socket, server_side=True)
open("up", "w").close()
s.serve_forever()
.
python3 server.py >log 2>&1 & until [ -e up ]; do sleep 0.01; done; echo up`), "up")
	for client, script := range map[string]string{
		"curl":                   "curl -sS https://shop.example/page",
		"curl, store only":       "env -i curl -sS https://shop.example/page",
		"python":                 `python3 -c 'import urllib.request as u; print(u.urlopen("https://shop.example/page").read().decode())'`,
		"python, store only":     `env -i python3 -c 'import urllib.request as u; print(u.urlopen("https://shop.example/page").read().decode())'`,
		"node":                   `node -e 'require("https").get("https://shop.example/page", r => r.pipe(process.stdout))'`,
		"openssl, by the bundle": `echo | openssl s_client -verify_return_error -connect shop.example:443 -servername shop.example 2>&1 | grep -q 'Verify return code: 0' && echo hello`,
		"openssl, by the hash":   `echo | env -u SSL_CERT_FILE openssl s_client -verify_return_error -no-CAfile -CApath /etc/ssl/certs -connect shop.example:443 -servername shop.example 2>&1 | grep -q 'Verify return code: 0' && echo hello`,
		"git":                    `git -c http.followRedirects=false ls-remote https://shop.example/x 2>&1 | grep -q 'not found' && echo hello`,
		"git, store only":        `env -i git ls-remote https://shop.example/x 2>&1 | grep -q 'not found' && echo hello`,
	} {
		t.Run(client, func(t *testing.T) { want(t, sh(t, l, id, script), "hello") })
	}
	public := sh(t, l, id, "grep -c BEGIN.CERTIFICATE $SSL_CERT_FILE")
	if len(strings.TrimSpace(public.out)) < 3 {
		t.Errorf("the bundle holds no public roots: %s certificates", public.out)
	}
	for _, name := range rootfs.TrustVariables {
		want(t, sh(t, l, id, "echo $"+name), rootfs.BundlePath)
	}
	// A box that rebuilds its store keeps its CA.
	if r := rootSh(t, l, id, "update-ca-certificates >/dev/null 2>&1; env -i curl -sS https://shop.example/page"); strings.TrimSpace(r.out) != "hello" {
		t.Errorf("after update-ca-certificates: %+v", r)
	}
}

func TestBoxWithoutCAHasPublicRoots(t *testing.T) {
	t.Parallel()
	l := newLauncher(t)
	id := newBox(t, l, func(s *Spec) { s.CA = nil })
	r := sh(t, l, id, "grep -c BEGIN.CERTIFICATE $SSL_CERT_FILE; ls /etc/ssl/certs/boxgate* /usr/local/share/ca-certificates/boxgate.crt 2>/dev/null")
	if f := strings.Fields(r.out); len(f) != 1 || len(f[0]) < 3 {
		t.Errorf("%+v", r)
	}
}

// testChain returns a CA and a server's certificate with its key.
func testChain(t *testing.T, host string) (ca, server []byte) {
	t.Helper()
	caPEM, caKey := launchertest.Certificate(t, pkix.Name{CommonName: "Boxgate  Test CA ", Organization: []string{"Maple & Co"}}, nil, nil)
	block, _ := pem.Decode(caPEM)
	parent, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		t.Fatal(err)
	}
	leaf, key := launchertest.Certificate(t, pkix.Name{CommonName: host}, parent, caKey)
	der, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	return caPEM, append(leaf, pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: der})...)
}

// tree makes a root file system of files; an entry whose content begins with "-> " is a link.
func tree(t *testing.T, files map[string]string) string {
	t.Helper()
	root := t.TempDir()
	for name, content := range files {
		at := filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(at), 0o755); err != nil {
			t.Fatal(err)
		}
		var err error
		if target, link := strings.CutPrefix(content, "-> "); link {
			err = os.Symlink(target, at)
		} else {
			err = os.WriteFile(at, []byte(content), 0o644)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	return root
}

// trusted furnishes a box with a root file system and a CA, and returns a function that reads files of the root as the box
// would see them: files that the launcher has not touched come from the image.
func trusted(t *testing.T, image string, ca []byte) func(name string) string {
	t.Helper()
	l := launcherIn(t, t.TempDir(), map[string]string{"default": image})
	id := newBox(t, l, func(s *Spec) { s.CA = ca })
	return func(name string) string {
		t.Helper()
		data, err := os.ReadFile(filepath.Join(l.dirs.upper(id), name))
		if err != nil {
			t.Errorf("%s was not written: %v", name, err)
		}
		return string(data)
	}
}

// Each style of system gets the CA in the files that its programs read, next to the existing public roots.
func TestStoresOfEachStyle(t *testing.T) {
	t.Parallel()
	public, ca := string(launchertest.CA(t)), launchertest.CA(t)
	for _, style := range []struct {
		name     string
		files    map[string]string
		bundles  []string // have the public roots, then the CA
		anchors  []string // have only the CA
		profiled string   // content of /etc/profile if the launcher writes it
	}{
		{
			name: "Debian",
			files: map[string]string{
				"usr/bin/.keep": "", "etc/profile": "# Debian's\n", "etc/ssl/certs/ca-certificates.crt": public,
			},
			bundles: []string{"etc/ssl/certs/ca-certificates.crt"},
			anchors: []string{"usr/local/share/ca-certificates/boxgate.crt", "etc/ssl/certs/boxgate-0.pem"},
		},
		{
			name: "Alpine", // its OpenSSL reads /etc/ssl/cert.pem; so does ssl_client, which busybox wget uses
			files: map[string]string{
				"bin/busybox": "", "bin/sh": "-> /bin/busybox", "etc/alpine-release": "3.20.3\n", "etc/profile": "# Alpine's\n",
				"etc/ssl/certs/ca-certificates.crt": public, "etc/ssl/cert.pem": "-> certs/ca-certificates.crt",
				"etc/ssl1.1/cert.pem": "-> /etc/ssl/cert.pem", "usr/bin/.keep": "",
			},
			bundles: []string{"etc/ssl/certs/ca-certificates.crt"},
			anchors: []string{"usr/local/share/ca-certificates/boxgate.crt", "etc/ssl/certs/boxgate-0.pem"},
		},
		{
			name:    "Alpine without ca-certificates",
			files:   map[string]string{"bin/busybox": "", "usr/bin/.keep": "", "etc/profile": "# Alpine's\n", "etc/ssl/cert.pem": public},
			bundles: []string{"etc/ssl/cert.pem", "etc/ssl/certs/ca-certificates.crt"},
		},
		{
			name: "Red Hat",
			files: map[string]string{
				"usr/bin/.keep": "", "etc/profile": "# Red Hat's\n", "etc/pki/ca-trust/source/anchors/.keep": "",
				"etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem": public,
				"etc/pki/tls/certs/ca-bundle.crt":                  "-> /etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem",
				"etc/pki/tls/cert.pem":                             "-> /etc/pki/tls/certs/ca-bundle.crt",
				"etc/ssl/certs":                                    "-> ../pki/tls/certs",
			},
			bundles: []string{"etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem"},
			anchors: []string{"etc/pki/ca-trust/source/anchors/boxgate.pem"},
		},
		{
			name:     "nothing at all",
			files:    map[string]string{"usr/bin/.keep": ""},
			profiled: "for file in /etc/profile.d/*.sh; do\n  [ -r \"$file\" ] && . \"$file\"\ndone\nunset file\n",
		},
	} {
		t.Run(style.name, func(t *testing.T) {
			t.Parallel()
			read := trusted(t, tree(t, style.files), ca)
			for _, name := range style.bundles {
				if got := read(name); !strings.HasPrefix(got, strings.TrimSpace(public)) || !strings.HasSuffix(got, string(ca)) {
					t.Errorf("%s is not the public roots and the CA:\n%s", name, got)
				}
			}
			for _, name := range style.anchors {
				if got := read(name); got != string(ca) {
					t.Errorf("%s is not the CA:\n%s", name, got)
				}
			}
			if style.profiled != "" && read("etc/profile") != style.profiled {
				t.Error("a login shell would not read /etc/profile.d")
			}
			checkShellVariables(t, read("etc/profile.d/boxgate.sh"), read("etc/environment"))
		})
	}
}

// checkShellVariables runs the profile in a shell: it must set every variable that is not set already.
func checkShellVariables(t *testing.T, profile, environment string) {
	t.Helper()
	cmd := exec.Command("sh", "-c", profile+"\nenv")
	cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "PIP_CERT=/mine"}
	out, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range rootfs.TrustVariables {
		want := name + "=" + rootfs.BundlePath + "\n"
		if name == "PIP_CERT" {
			want = "PIP_CERT=/mine\n"
		}
		if !bytes.Contains(out, []byte(want)) {
			t.Errorf("a login shell lacks %s:\n%s", want, out)
		}
		if !strings.Contains(environment, name+"="+rootfs.BundlePath+"\n") {
			t.Errorf("/etc/environment lacks %s", name)
		}
	}
}

// The image's lines in /etc/environment stay, and win.
func TestEnvironmentOfTheImageStays(t *testing.T) {
	t.Parallel()
	read := trusted(t, tree(t, map[string]string{"usr/bin/.keep": "", "etc/environment": "PIP_CERT=/mine"}), launchertest.CA(t))
	got := read("etc/environment")
	if !strings.HasSuffix(got, "\nPIP_CERT=/mine\n") || !strings.Contains(got, "NODE_EXTRA_CA_CERTS="+rootfs.BundlePath+"\n") {
		t.Errorf("/etc/environment:\n%s", got)
	}
}

// su and apt drop the groups of root before they switch to another user.
func TestRootMayDropItsGroups(t *testing.T) {
	t.Parallel()
	l := newLauncher(t)
	id := newBox(t, l, nil)
	r := rootSh(t, l, id, `su boxuser -s /bin/sh -c 'id -un; id -G'`)
	if f := strings.Fields(r.out); r.exit != 0 || len(f) != 2 || f[0] != "boxuser" || f[1] != "1000" {
		t.Errorf("%+v", r)
	}
}

// Where the launcher reads and writes, an image may have endless files, or files that block for ever. The box is refused
// soon, and no part of it remains.
func TestImageWithTrapsWhereTrustIsWritten(t *testing.T) {
	t.Parallel()
	nightly.Root(t)
	ca := launchertest.CA(t)
	pipe := func(p string) error { return unix.Mkfifo(p, 0o644) }
	endless := func(p string) error { return unix.Mknod(p, unix.S_IFCHR|0o666, int(unix.Mkdev(1, 5))) }
	huge := func(p string) error {
		if err := os.WriteFile(p, nil, 0o644); err != nil {
			return err
		}
		return os.Truncate(p, 64<<30)
	}
	for what, place := range map[string]func(string) error{"pipe": pipe, "device": endless, "huge": huge} {
		for _, name := range []string{
			"etc/passwd", "etc/group", "etc/shadow", "etc/environment", "etc/profile", "etc/ssl/certs/ca-certificates.crt", "etc/ssl/cert.pem",
			"etc/profile.d/boxgate.sh",
		} {
			t.Run(what+" "+name, func(t *testing.T) {
				t.Parallel()
				image := tree(t, map[string]string{"usr/bin/.keep": "", "etc/hostname": ""})
				at := filepath.Join(image, name)
				if err := os.MkdirAll(filepath.Dir(at), 0o755); err != nil {
					t.Fatal(err)
				}
				if err := place(at); err != nil {
					t.Fatal(err)
				}
				overwritten := what == "huge" && name == "etc/profile.d/boxgate.sh" // it is not read
				unread := what != "huge" && (name == "etc/shadow")                  // nor is this
				err := createIn(t, image, ca, 2*time.Minute)
				if (err == nil) != (overwritten || unread) {
					t.Errorf("creating a box: %v", err)
				}
			})
		}
	}
}

// A trust store is written for each Java: an image with very many would fill the host's disk.
func TestImageWithVeryManyTrustStores(t *testing.T) {
	t.Parallel()
	files := map[string]string{"usr/bin/.keep": ""}
	for i := range nightly.Size(100, 1000) { // 64 are allowed
		files[fmt.Sprintf("opt/java%d/lib/security/cacerts", i)] = ""
	}
	if err := createIn(t, tree(t, files), launchertest.CA(t), 2*time.Minute); err == nil {
		t.Error("a box of an image with too many trust stores was created")
	}
}

// A box may fill the directories in which the launcher looks for trust stores, before it is snapshotted.
func TestImageWithVeryManyEntriesWhereTrustIsLookedFor(t *testing.T) {
	t.Parallel()
	image := tree(t, map[string]string{"usr/bin/.keep": "", "opt/java/jdk/lib/security/cacerts": "old", "etc/ssl/certs/.keep": ""})
	for _, dir := range []string{"opt", "etc/ssl/certs"} {
		for i := range nightly.Size(4_000, 20_000) {
			if err := os.Symlink("x", filepath.Join(image, dir, fmt.Sprintf("%08x.0", i))); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := createIn(t, image, launchertest.CA(t), 2*time.Minute); err != nil {
		t.Error(err)
	}
}

// There are other files beside installations of Java, and a box may put anything there.
func TestImageWithOtherEntriesWhereTrustIsLookedFor(t *testing.T) {
	t.Parallel()
	image := tree(t, map[string]string{"usr/bin/.keep": "", "usr/lib/jvm/jdk/lib/security/cacerts": "old", "usr/lib/jvm/.jdk.jinfo": "", "opt/java": ""})
	for _, link := range []string{"usr/lib/jvm/itself", "opt/itself"} {
		if err := os.Symlink("itself", filepath.Join(image, link)); err != nil {
			t.Fatal(err)
		}
	}
	if err := createIn(t, image, launchertest.CA(t), 2*time.Minute); err != nil {
		t.Error(err)
	}
}

// createIn creates a box with a root file system, and returns the error, which must come in time.
func createIn(t *testing.T, image string, ca []byte, within time.Duration) error {
	t.Helper()
	l := launcherIn(t, t.TempDir(), map[string]string{"default": image})
	spec := Spec{ID: newID(), CA: ca}
	made := make(chan error, 1)
	go func() {
		_, err := l.Prepare(t.Context(), spec)
		if err == nil {
			err = l.Create(t.Context(), spec)
		}
		made <- err
	}()
	select {
	case err := <-made:
		return err
	case <-time.After(within):
		t.Fatal("the launcher hangs")
		return nil
	}
}
