package launcher

import (
	"errors"

	"boxgate/launcher/furnish"
	"boxgate/launcher/namespace"
)

// InstallCA makes what runs in a root file system trust a CA and further roots, given in PEM, in addition to the public roots: in the stores of its
// distribution, and in Java's. owner is the user ID, on the host, of root in there. Links in it never lead out of it, but what is
// mounted in it is part of it.
func InstallCA(root string, owner int, ca, extra []byte) error {
	r, err := furnish.Open(root, namespace.IDsFrom(owner))
	if err != nil {
		return err
	}
	return errors.Join(r.Trust(ca, extra), r.Close())
}

// PutFile puts an empty file into a root file system as [InstallCA] does, in place of what has its name, which is never opened. A
// directory that is not empty is an error.
func PutFile(root string, owner int, name string) error {
	r, err := furnish.Open(root, namespace.IDsFrom(owner))
	if err != nil {
		return err
	}
	return errors.Join(r.Replace(name, nil, 0o644), r.Close())
}

// BundlePath is where a root with an installed CA has the public roots and that CA.
const BundlePath = furnish.BundlePath
