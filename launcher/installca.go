package launcher

import (
	"errors"

	"boxgate/launcher/namespace"
	"boxgate/launcher/rootfs"
)

// InstallCA makes programs in a root file system trust a CA and further roots, given in PEM, in addition to the public
// roots: in the stores of its distribution and in Java's. owner is the user ID, on the host, of root in there. Links are
// resolved within the root; file systems mounted in it are part of it.
func InstallCA(root string, owner int, ca, extra []byte) error {
	r, err := rootfs.Open(root, namespace.IDsFrom(owner))
	if err != nil {
		return err
	}
	return errors.Join(r.Trust(ca, extra), r.Close())
}

// TrustsCA reports whether [InstallCA] has been called for a root file system with this CA.
func TrustsCA(root string, owner int, ca []byte) (bool, error) {
	r, err := rootfs.Open(root, namespace.IDsFrom(owner))
	if err != nil {
		return false, err
	}
	trusts, err := r.Trusts(ca)
	return trusts, errors.Join(err, r.Close())
}

// PutFile puts an empty file into a root file system as [InstallCA] does. It replaces an existing file without opening it;
// a directory that is not empty is an error.
func PutFile(root string, owner int, name string) error {
	r, err := rootfs.Open(root, namespace.IDsFrom(owner))
	if err != nil {
		return err
	}
	return errors.Join(r.Replace(name, nil, 0o644), r.Close())
}

// BundlePath is where [InstallCA] writes the public roots and the CA.
const BundlePath = rootfs.BundlePath
