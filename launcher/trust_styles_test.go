package launcher

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"boxgate/launcher/launchertest"
	"boxgate/launcher/rootfs"
)

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
