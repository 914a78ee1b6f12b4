package rootfs

import (
	"bytes"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"regexp"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"boxgate/launcher/files"
)

// anchorPath is where Debian's update-ca-certificates looks for local CAs, so that a box that runs it keeps its CA.
const anchorPath = "/usr/local/share/ca-certificates/boxgate.crt"

// otherBundles are the stores of other distributions. Existing ones get the box's CA too.
var otherBundles = []string{
	"/etc/ssl/cert.pem",                                 // Alpine, OpenBSD's libressl
	"/etc/pki/tls/certs/ca-bundle.crt",                  // Fedora, RHEL
	"/etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem", // Fedora, RHEL
	"/etc/ssl/ca-bundle.pem",                            // SUSE
	"/var/lib/ca-certificates/ca-bundle.pem",            // SUSE
}

// otherAnchors are the directories of CA certificates that other distributions build their bundles from.
var otherAnchors = []string{"/etc/pki/ca-trust/source/anchors", "/etc/pki/trust/anchors"}

// hostBundles are the possible files of this host's public roots, for images without roots.
var hostBundles = []string{BundlePath, "/etc/pki/tls/certs/ca-bundle.crt", "/etc/ssl/ca-bundle.pem", "/etc/ssl/cert.pem"}

// Trust adds a CA and further roots to the public roots of a root file system that is not a box's.
func (b *Root) Trust(ca, extra []byte) error { return b.trust(ca, extra) }

// trust makes the box trust a CA, and further roots, in addition to the public ones.
func (b *Root) trust(ca, roots []byte) error {
	own, err := parseCA(ca)
	if err != nil {
		return err
	}
	certs, err := parseCA(roots)
	if err != nil {
		return err
	}
	certs = append(slices.Clone(own), certs...)
	bundle, err := b.bundle(certs)
	if err != nil {
		return err
	}
	if err := b.writeBundle(bundle); err != nil {
		return err
	}
	if err := b.trustInShells(); err != nil {
		return err
	}
	if len(certs) == 0 {
		return nil
	}
	if err := b.extendOthers(certs); err != nil {
		return err
	}
	if err := b.writeAnchors(certs); err != nil {
		return err
	}
	if len(own) > 0 {
		if err := b.writeKnownHosts(own); err != nil {
			return err
		}
	}
	return b.trustJava(bundle)
}

// Trusts reports whether the bundle of a root file system contains all certificates of a CA.
func (b *Root) Trusts(ca []byte) (bool, error) {
	certs, err := parseCA(ca)
	if err != nil {
		return false, err
	}
	bundle, err := b.read(BundlePath)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	return err == nil && len(certs) > 0 && bytes.Equal(appendMissing(bundle, certs), bundle), err
}

// writeBundle replaces the bundle at once: programs of a running container read the old or the new one.
func (b *Root) writeBundle(bundle []byte) error {
	p, err := files.Resolve(b.root, BundlePath)
	if err != nil {
		return err
	}
	return b.exchange(p, bundle, 0o644)
}

// parseCA parses CA certificates; anything else in the PEM is refused, above all a private key.
func parseCA(data []byte) ([]*x509.Certificate, error) {
	var certs []*x509.Certificate
	for rest := bytes.TrimSpace(data); len(rest) > 0; rest = bytes.TrimSpace(rest) {
		var block *pem.Block
		if block, rest = pem.Decode(rest); block == nil {
			return nil, errors.New("the box's CA is not PEM")
		}
		if block.Type != "CERTIFICATE" {
			return nil, fmt.Errorf("the box's CA contains a %s: only certificates may enter a box", block.Type)
		}
		c, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			return nil, fmt.Errorf("the box's CA is not a certificate: %w", err)
		}
		certs = append(certs, c)
	}
	return certs, nil
}

// bundle returns the public roots, of the image or otherwise of the host, followed by the box's certificates.
func (b *Root) bundle(certs []*x509.Certificate) ([]byte, error) {
	for _, name := range append([]string{BundlePath}, otherBundles...) {
		roots, err := b.read(name)
		if err == nil && len(bytes.TrimSpace(roots)) > 0 {
			return appendMissing(withoutBoxes(roots), certs), nil
		}
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, err
		}
	}
	roots, err := PublicRoots()
	if err != nil {
		return nil, fmt.Errorf("the image has no public root certificates, and %w", err)
	}
	return appendMissing(roots, certs), nil
}

// PublicRoots returns the public root certificates of this host, in PEM.
func PublicRoots() ([]byte, error) {
	for _, name := range hostBundles {
		if roots, err := os.ReadFile(name); err == nil && len(bytes.TrimSpace(roots)) > 0 {
			return append(bytes.TrimRight(roots, "\n"), '\n'), nil
		}
	}
	return nil, errors.New("this host has no public root certificates: apt-get install ca-certificates")
}

// extendOthers adds the CA to the stores of other distributions that are separate files.
func (b *Root) extendOthers(certs []*x509.Certificate) error {
	main, err := files.Resolve(b.root, BundlePath)
	if err != nil {
		return err
	}
	stores, err := b.filesAt(otherBundles, main)
	if err != nil {
		return err
	}
	for _, p := range stores {
		old, err := b.readAt(p)
		if err != nil {
			return err
		}
		if err := b.exchange(p, appendMissing(withoutBoxes(old), certs), 0o644); err != nil {
			return err
		}
	}
	return nil
}

// filesAt returns the files that the names lead to in the box, each once and without the files in except.
func (b *Root) filesAt(names []string, except ...string) ([]string, error) {
	var found []string
	for _, name := range names {
		var err error
		if found, err = b.addFile(found, name, except...); err != nil {
			return nil, err
		}
	}
	return found, nil
}

// addFile appends the file that a name leads to in the box, if it exists and is not in found or except.
func (b *Root) addFile(found []string, name string, except ...string) ([]string, error) {
	p, err := files.Resolve(b.root, name)
	if err == nil && b.isFile(p) && !slices.Contains(found, p) && !slices.Contains(except, p) {
		found = append(found, p)
	}
	return found, err
}

// writeAnchors writes the CA to the directories that stores are rebuilt from, and to OpenSSL's directory of single
// certificates, with a link named after the hash of the subject.
func (b *Root) writeAnchors(certs []*x509.Certificate) error {
	all := appendCerts(nil, certs)
	if err := b.write(anchorPath, all, 0o644); err != nil {
		return err
	}
	for _, dir := range otherAnchors {
		if b.isDir(dir) {
			if err := b.write(path.Join(dir, "boxgate.pem"), all, 0o644); err != nil {
				return err
			}
		}
	}
	dir := path.Dir(BundlePath)
	if err := b.dropHashNames(dir); err != nil {
		return err
	}
	for i, c := range certs {
		name := fmt.Sprintf("boxgate-%d.pem", i)
		if err := b.replace(path.Join(dir, name), appendCerts(nil, certs[i:i+1]), 0o644); err != nil {
			return err
		}
		hash, err := subjectHash(c.RawSubject)
		if err != nil {
			return err
		}
		if err := b.symlink(name, b.freeHashName(dir, hash)); err != nil {
			return err
		}
	}
	return nil
}

// dropHashNames removes the links to the CA of an earlier box with these files.
func (b *Root) dropHashNames(dir string) error {
	p, err := files.Resolve(b.root, dir)
	if err != nil {
		return err
	}
	var ours []string
	err = b.eachIn(p, func(name string) error {
		if !hashName.MatchString(name) {
			return nil
		}
		link := path.Join(p, name)
		if target, err := b.root.Readlink(link); err == nil && anchorName.MatchString(target) {
			if ours = append(ours, link); len(ours) > maxHashNames {
				return fmt.Errorf("%s has too many links to certificates of boxes", dir)
			}
		}
		return nil
	})
	for _, link := range ours {
		err = errors.Join(err, b.root.Remove(link))
	}
	return err
}

// maxHashNames is the maximum number of links to certificates of boxes.
const maxHashNames = 4096

// hashName matches OpenSSL's names of certificate links.
var hashName = regexp.MustCompile(`^[0-9a-f]{8}\.[0-9]+$`)

// eachIn calls do for the name of each entry of a directory of the root, until it fails. The directory may have any size. A
// missing one, or a file, has no entries.
func (b *Root) eachIn(dir string, do func(name string) error) error {
	p, err := files.Resolve(b.root, dir)
	if err != nil {
		return err
	}
	if !b.isDir(dir) {
		return nil
	}
	d, err := b.root.OpenFile(p, os.O_RDONLY|unix.O_DIRECTORY, 0)
	if err != nil {
		return err
	}
	defer d.Close()
	for {
		names, err := d.Readdirnames(256)
		for _, name := range names {
			if err := do(name); err != nil {
				return err
			}
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

// anchorName matches the names that [Root.writeAnchors] gives to single certificates.
var anchorName = regexp.MustCompile(`^boxgate-[0-9]+\.pem$`)

// freeHashName returns {hash}.N for the first N not taken: subjects may share a hash.
func (b *Root) freeHashName(dir string, hash uint32) string {
	for n := 0; ; n++ {
		name := path.Join(dir, fmt.Sprintf("%08x.%d", hash, n))
		p, err := files.ResolveParent(b.root, name)
		if err != nil {
			return name
		}
		if _, err := b.root.Lstat(p); err != nil {
			return name
		}
	}
}

// withoutBoxes returns a bundle without the CAs of boxes. A snapshot has the CA of its original box, and a box created from
// it gets another one.
func withoutBoxes(bundle []byte) []byte {
	const begin, end = "-----BEGIN CERTIFICATE-----", "-----END CERTIFICATE-----"
	var out []byte
	for rest := bundle; len(rest) > 0; {
		at := bytes.Index(rest, []byte(begin))
		stop := -1
		if at >= 0 {
			stop = bytes.Index(rest[at:], []byte(end))
		}
		if stop < 0 {
			return append(out, rest...)
		}
		stop += at + len(end)
		out = append(out, rest[:at]...)
		block := rest[at:stop]
		if rest = rest[stop:]; !isBoxCA(block) {
			out = append(out, block...)
			continue
		}
		rest = bytes.TrimPrefix(bytes.TrimPrefix(rest, []byte("\r")), []byte("\n"))
	}
	return out
}

// isBoxCA reports whether a PEM block is the CA that a gateway has created for a box.
func isBoxCA(text []byte) bool {
	block, _ := pem.Decode(text)
	if block == nil || !bytes.Contains(block.Bytes, []byte(boxCAName)) {
		return false
	}
	c, err := x509.ParseCertificate(block.Bytes)
	return err == nil && slices.Contains(c.Subject.Organization, "boxgate") && strings.HasPrefix(c.Subject.CommonName, boxCAName)
}

// boxCAName is the prefix of the names of boxes' CAs.
const boxCAName = "boxgate box "

// appendMissing appends the certificates that the bundle lacks: a snapshot already has the roots of its original box.
func appendMissing(bundle []byte, certs []*x509.Certificate) []byte {
	return appendCerts(bundle, slices.DeleteFunc(slices.Clone(certs), func(c *x509.Certificate) bool {
		return bytes.Contains(bundle, bytes.TrimSpace(appendCerts(nil, []*x509.Certificate{c})))
	}))
}

// appendCerts appends certificates to a bundle, on a new line.
func appendCerts(bundle []byte, certs []*x509.Certificate) []byte {
	out := bytes.TrimRight(bytes.Clone(bundle), "\n")
	if len(out) > 0 {
		out = append(out, '\n')
	}
	for _, c := range certs {
		out = append(out, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: c.Raw})...)
	}
	return out
}
