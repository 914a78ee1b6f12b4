package oci

import (
	"bytes"
	"context"
	"encoding/pem"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"golang.org/x/sys/unix"

	"boxgate/api"
	"boxgate/cmd/gateway/command/docker"
	"boxgate/launcher"
	"boxgate/launcher/oci"
)

// InstallCA adds the CA of a box and the gateway's additional roots to the certificates of the running containers with that box, which
// `gateway oci` has created. Of the gateway it uses Client and Roots.
func (g Gateway) InstallCA(ctx context.Context, box string) error {
	_, err := g.installCA(ctx, box, false)
	return err
}

// RenewCA is InstallCA for containers that still trust the CA of their box. It reports whether one does. Containers with another error
// do not keep it from the others.
func (g Gateway) RenewCA(ctx context.Context, box string) (renewed bool, err error) {
	return g.installCA(ctx, box, true)
}

func (g Gateway) installCA(ctx context.Context, box string, renew bool) (installed bool, err error) {
	records, err := findRecords(func(r *record) bool { return r.Box == box })
	if err == nil && len(records) == 0 {
		err = fmt.Errorf("the state of its containers in %s is gone: start them again", stateDir)
	}
	if err != nil {
		return false, err
	}
	var ca []byte
	if err := g.Client.Get(ctx, api.BoxPath(box, "ca"), &ca); err != nil {
		return false, err
	}
	var failed []error
	for _, r := range records {
		done, err := r.trust(ctx, ca, g.Roots, renew)
		if err != nil {
			failed = append(failed, fmt.Errorf("the container %s: %w", r.ID, err))
		}
		installed = installed || done
	}
	return installed, errors.Join(failed...)
}

// trust adds a CA and further roots to a running container; with renew, only if it trusts the CA, which it reports.
func (r *record) trust(ctx context.Context, ca, extra []byte, renew bool) (installed bool, err error) {
	unlock, err := lock(ctx, r.dir)
	if err != nil {
		return false, err
	}
	defer unlock()
	box := r.Box
	if r, err = load(r.dir); err != nil || r == nil || r.Box != box {
		return false, err // deleted since
	}
	switch mounted := filepath.Join(r.dir, mountedBundle); {
	case oci.ByName(r.Runtime).OwnFiles:
		return false, fmt.Errorf("under %s only its next start adds roots, as the host cannot change the files of a running one", oci.ByName(r.Runtime).Name)
	case r.Files != "":
	case exists(mounted):
		return true, extend(mounted, slices.Concat(bytes.TrimSpace(ca), []byte("\n"), extra))
	default:
		return false, errors.New("an earlier version of the gateway has created it: start it again")
	}
	if pid, err := r.state(ctx); renew && err == nil && pid == 0 {
		return false, nil // it has ended, and cannot start again
	}
	root, err := r.openFiles(ctx)
	if err != nil {
		return false, err
	}
	defer root.Close()
	at := fmt.Sprintf("/proc/self/fd/%d", root.Fd())
	if renew {
		if trusts, err := launcher.TrustsCA(at, 0, ca); err != nil || !trusts {
			return false, err
		}
	}
	return true, launcher.InstallCA(at, 0, ca, extra)
}

// openFiles opens the root of a running container that the CA was installed in at its creation. A container that can make namespaces
// has perhaps given its first process another root, such as a directory of the host that its user may not write to.
func (r *record) openFiles(ctx context.Context) (*os.File, error) {
	pid := r.process(ctx)
	if pid == 0 {
		return nil, errors.New("it does not run")
	}
	process, err := os.OpenFile(fmt.Sprintf("/proc/%d", pid), unix.O_PATH|unix.O_DIRECTORY, 0)
	if err != nil {
		return nil, errors.New("it has ended just now")
	}
	defer process.Close()
	// While the box is attached, the number of its namespace is no other's: this process is one of the box's.
	if now, err := identity(fmt.Sprintf("/proc/self/fd/%d/ns/net", process.Fd())); err != nil || now != r.NetNS {
		return nil, errors.New("it has ended just now")
	}
	root, err := docker.CloneRoot(process)
	if err != nil {
		return nil, fmt.Errorf("its files: %w", err)
	}
	if now, err := identity(fmt.Sprintf("/proc/self/fd/%d", root.Fd())); err != nil || now != r.Files {
		return nil, errors.Join(errors.New("it has another root directory than at its creation: start it again"), err, root.Close())
	}
	return root, nil
}

func exists(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}

// extend appends the certificates that a bundle lacks. The bundle is mounted in the container, which so keeps the file: it cannot be
// exchanged.
func extend(path string, certs []byte) error {
	old, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	known := map[string]bool{}
	for block, rest := pem.Decode(old); block != nil; block, rest = pem.Decode(rest) {
		known[string(block.Bytes)] = true
	}
	var missing []byte
	for block, rest := pem.Decode(certs); block != nil; block, rest = pem.Decode(rest) {
		if !known[string(block.Bytes)] {
			missing = append(missing, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: block.Bytes})...)
		}
	}
	if len(missing) == 0 {
		return nil
	}
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_APPEND|unix.O_NOFOLLOW, 0)
	if err != nil {
		return err
	}
	if !bytes.HasSuffix(old, []byte("\n")) {
		missing = append([]byte("\n"), missing...)
	}
	_, err = f.Write(missing)
	return errors.Join(err, f.Close())
}
