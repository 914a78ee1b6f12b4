package preflight

import (
	"bufio"
	"errors"
	"os"
	"path/filepath"
	"strings"
)

// CheckAppArmor warns of AppArmor profiles that hinder the gateway or its boxes: one that confines this program, one that
// is loaded for the OCI runtime, and the restriction of user namespaces of Ubuntu 24.04. root is the file system with
// /proc and /sys, usually "/"; runtime is empty if no boxes are launched.
func CheckAppArmor(root, runtime string) error {
	read := func(path string) string {
		text, err := os.ReadFile(filepath.Join(root, path))
		if err != nil {
			return "" // without AppArmor, the files do not exist
		}
		return strings.TrimRight(string(text), "\x00\n")
	}
	if read("sys/module/apparmor/parameters/enabled") != "Y" {
		return nil
	}
	own := read("proc/self/attr/apparmor/current")
	if own == "" {
		own = read("proc/self/attr/current") // before Linux 5.8
	}
	var errs []error
	if name, enforced := strings.CutSuffix(own, " (enforce)"); enforced {
		errs = append(errs, hinders(name, "the gateway"))
	}
	if runtime != "" {
		if name := enforcedFor(filepath.Join(root, "sys/kernel/security/apparmor/profiles"), runtime); name != "" {
			errs = append(errs, hinders(name, "the runtime "+runtime))
		}
	}
	if read("proc/sys/kernel/apparmor_restrict_unprivileged_userns") == "1" {
		errs = append(errs, Warnf("AppArmor lets no unprivileged program make a user namespace: browsers with their own sandbox and bubblewrap "+
			"fail in boxes and under gateway run; sysctl -w kernel.apparmor_restrict_unprivileged_userns=0, and set it in /etc/sysctl.d"))
	}
	return errors.Join(errs...)
}

func hinders(profile, whom string) error {
	return Warnf("the AppArmor profile %s confines %s, which makes namespaces, mounts and network rules and starts boxes, also confined: "+
		"aa-disable %s (package apparmor-utils)", profile, whom, profile)
}

// enforcedFor returns the profile in a list of loaded ones (apparmorfs, "NAME (MODE)") that is enforced for a program:
// those of files are named after the program or its path.
func enforcedFor(list, program string) string {
	f, err := os.Open(list)
	if err != nil {
		return ""
	}
	defer f.Close()
	for lines := bufio.NewScanner(f); lines.Scan(); {
		name, enforced := strings.CutSuffix(lines.Text(), " (enforce)")
		if enforced && filepath.Base(name) == filepath.Base(program) {
			return name
		}
	}
	return ""
}
