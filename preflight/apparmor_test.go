package preflight

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// The files of the kernel name the profiles that hinder. dist/boot-arm64.sh checks the same with a kernel that has AppArmor.
func TestAppArmor(t *testing.T) {
	t.Parallel()
	const (
		enabled  = "sys/module/apparmor/parameters/enabled"
		own      = "proc/self/attr/apparmor/current"
		older    = "proc/self/attr/current"
		profiles = "sys/kernel/security/apparmor/profiles"
		userns   = "proc/sys/kernel/apparmor_restrict_unprivileged_userns"
	)
	for name, c := range map[string]struct {
		files map[string]string
		want  string // empty: no warning
	}{
		"no AppArmor":               {map[string]string{older: "unconfined\n"}, ""},
		"off":                       {map[string]string{enabled: "N\n", own: "gateway (enforce)\n"}, ""},
		"unconfined":                {map[string]string{enabled: "Y\n", own: "unconfined\n"}, ""},
		"only complains":            {map[string]string{enabled: "Y\n", own: "/usr/local/bin/gateway (complain)\n"}, ""},
		"the gateway":               {map[string]string{enabled: "Y\n", own: "/usr/local/bin/gateway (enforce)\n"}, "aa-disable /usr/local/bin/gateway"},
		"the gateway, older kernel": {map[string]string{enabled: "Y\n", older: "gw (enforce)\n\x00"}, "the AppArmor profile gw confines the gateway"},
		"the runtime":               {map[string]string{enabled: "Y\n", own: "unconfined\n", profiles: "lsb_release (enforce)\n/usr/sbin/runc (enforce)\n"}, "aa-disable /usr/sbin/runc"},
		"a label for the runtime":   {map[string]string{enabled: "Y\n", own: "unconfined\n", profiles: "runc (unconfined)\ncrun (enforce)\n"}, ""},
		"user namespaces":           {map[string]string{enabled: "Y\n", own: "unconfined\n", userns: "1\n"}, "sysctl -w kernel.apparmor_restrict_unprivileged_userns=0"},
	} {
		root := t.TempDir()
		for path, text := range c.files {
			path = filepath.Join(root, path)
			if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(text), 0o600)); err != nil {
				t.Fatal(err)
			}
		}
		err := CheckAppArmor(root, "runc")
		switch {
		case c.want == "" && err != nil:
			t.Errorf("%s: %v", name, err)
		case c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)):
			t.Errorf("%s: %v, want %s", name, err, c.want)
		}
		if c.want != "" && err != nil && !errors.As(Errors(err)[0], new(Warning)) {
			t.Errorf("%s: it is no warning", name)
		}
	}
}
