package rootfs

import (
	"bytes"
	"crypto/sha1"
	"crypto/x509"
	"encoding/asn1"
	"encoding/binary"
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
	"time"
	"unicode/utf16"

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
	if len(own) > 0 {
		if err := b.writeKnownHosts(own); err != nil {
			return err
		}
	}
	return b.trustElsewhere(certs, bundle)
}

// trustElsewhere adds certificates to all stores but the bundle, which has them already.
func (b *Root) trustElsewhere(certs []*x509.Certificate, bundle []byte) error {
	if err := b.extendOthers(certs); err != nil {
		return err
	}
	if err := b.writeAnchors(certs); err != nil {
		return err
	}
	return b.trustJava(bundle)
}

// ErrCARemoved is returned by [Root.Renew] for a box that has removed its CA from its bundle.
var ErrCARemoved = errors.New("the box has removed the CA from " + BundlePath)

// Renew adds further roots to the stores of a box whose programs are running and may be reading them, or changing them: each file is
// exchanged as a whole, and settings of the box are not touched. ca is the CA that the box was created with; a box without it gets
// no roots.
func (b *Root) Renew(ca, roots []byte) error {
	trusts, err := b.Trusts(ca)
	if err == nil && !trusts {
		err = ErrCARemoved
	}
	if err != nil {
		return err
	}
	certs, err := parseCA(slices.Concat(ca, roots))
	if err != nil {
		return err
	}
	bundle, err := b.bundle(certs)
	if err != nil {
		return err
	}
	if err := b.writeBundle(bundle); err != nil {
		return err
	}
	return b.trustElsewhere(certs, bundle)
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
func (b *Root) writeBundle(bundle []byte) error { return b.exchangeNamed(BundlePath, bundle) }

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
	if b.accept != nil { // this host's files are out of reach
		return nil, ErrCARemoved
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
	if err := b.exchangeNamed(anchorPath, all); err != nil {
		return err
	}
	for _, dir := range otherAnchors {
		if b.isDir(dir) {
			if err := b.exchangeNamed(path.Join(dir, "boxgate.pem"), all); err != nil {
				return err
			}
		}
	}
	dir := path.Dir(BundlePath)
	hashes := map[string]string{} // of the subjects, by file
	for i, c := range certs {
		name := fmt.Sprintf("boxgate-%d.pem", i)
		if err := b.exchangePlain(path.Join(dir, name), appendCerts(nil, certs[i:i+1])); err != nil {
			return err
		}
		hash, err := subjectHash(c.RawSubject)
		if err != nil {
			return err
		}
		hashes[name] = fmt.Sprintf("%08x", hash)
	}
	linked, err := b.dropHashNames(dir, hashes)
	if err != nil {
		return err
	}
	for i := range certs {
		name := fmt.Sprintf("boxgate-%d.pem", i)
		if linked[name] {
			continue
		}
		link, err := b.freeHashName(dir, hashes[name])
		if err != nil {
			return err
		}
		if err := b.symlink(name, link); err != nil {
			return err
		}
	}
	return nil
}

// exchangeNamed is exchange for a name, whose links are followed.
func (b *Root) exchangeNamed(name string, data []byte) error {
	p, err := files.Resolve(b.root, name)
	if err != nil {
		return err
	}
	return b.exchange(p, data, 0o644)
}

// exchangePlain is exchange for a name that may be a link, which is replaced.
func (b *Root) exchangePlain(name string, data []byte) error {
	p, err := files.ResolveParent(b.root, name)
	if err != nil {
		return err
	}
	if fi, err := b.root.Lstat(p); err == nil && !fi.Mode().IsRegular() {
		if err := b.root.Remove(p); err != nil {
			return err
		}
	}
	return b.exchange(p, data, 0o644)
}

// dropHashNames removes the links to certificates of an earlier box with these files, or of earlier roots. A link that is right, by
// the hash of its target, stays; the targets of these are returned.
func (b *Root) dropHashNames(dir string, hashes map[string]string) (linked map[string]bool, err error) {
	p, err := files.Resolve(b.root, dir)
	if err != nil {
		return nil, err
	}
	var ours []string
	linked = map[string]bool{}
	err = b.eachIn(p, func(name string) error {
		if !hashName.MatchString(name) {
			return nil
		}
		link := path.Join(p, name)
		target, err := b.root.Readlink(link)
		switch {
		case err != nil || !anchorName.MatchString(target):
		case hashes[target] == name[:8] && !linked[target]:
			linked[target] = true
		default:
			if ours = append(ours, link); len(ours) > maxHashNames {
				return fmt.Errorf("%s has too many links to certificates of boxes", dir)
			}
		}
		return nil
	})
	for _, link := range ours {
		err = errors.Join(err, b.root.Remove(link))
	}
	return linked, err
}

// maxHashNames is the maximum number of links to certificates of boxes, and of names for certificates with the same hash.
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

// freeHashName returns {hash}.N for the first N not taken: subjects may share a hash. A box may have taken any number of them, so only
// the first maxHashNames are tried.
func (b *Root) freeHashName(dir, hash string) (string, error) {
	for n := range maxHashNames {
		name := path.Join(dir, fmt.Sprintf("%s.%d", hash, n))
		p, err := files.ResolveParent(b.root, name)
		if err != nil {
			return name, nil
		}
		if _, err := b.root.Lstat(p); err != nil {
			return name, nil
		}
	}
	return "", fmt.Errorf("%s has too many files for certificates with the hash %s", dir, hash)
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

// profilePath is read by every login shell, through /etc/profile, and environmentPath by PAM (pam_env(8)): by su, sshd and
// cron, which start with an empty environment.
const (
	profilePath     = "/etc/profile.d/boxgate.sh"
	environmentPath = "/etc/environment"
)

// mainProfile reads the directory of profiles, for images without /etc/profile.
const mainProfile = `for file in /etc/profile.d/*.sh; do
  [ -r "$file" ] && . "$file"
done
unset file
`

// trustInShells sets the variables for programs that do not inherit the environment of a command. A variable that is
// already set is kept.
func (b *Root) trustInShells() error {
	profile := bytes.NewBufferString("# The box's certificates, for programs that do not use the system's store.\n")
	lines := new(bytes.Buffer)
	for _, name := range TrustVariables {
		fmt.Fprintf(profile, "export %s=\"${%s:-%s}\"\n", name, name, BundlePath)
		fmt.Fprintf(lines, "%s=%s\n", name, BundlePath)
	}
	if err := b.write(profilePath, profile.Bytes(), 0o644); err != nil {
		return err
	}
	if _, err := b.read("/etc/profile"); errors.Is(err, fs.ErrNotExist) {
		if err := b.write("/etc/profile", []byte(mainProfile), 0o644); err != nil {
			return err
		}
	} else if err != nil {
		return err
	}
	old, err := b.read(environmentPath)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if len(old) > 0 && !bytes.HasSuffix(old, []byte("\n")) {
		old = append(old, '\n')
	}
	old = bytes.TrimPrefix(old, lines.Bytes())                            // of an earlier box with these files
	return b.write(environmentPath, append(lines.Bytes(), old...), 0o644) // the image's own lines come last, and win
}

// BundlePath is the trust store of Debian, Ubuntu, Alpine and most others; the launcher creates it in images without one.
const BundlePath = "/etc/ssl/certs/ca-certificates.crt"

// TrustVariables are for programs that do not use the system's store. Most of them replace the program's own roots, so they
// point to a bundle with the public roots and the box's CA. AWS_CA_BUNDLE is missing: with it AWS's SDK for Go fails in
// programs that pass it a custom HTTP client, and the other AWS SDKs work with these variables.
var TrustVariables = []string{
	"SSL_CERT_FILE",                    // OpenSSL, Go, Ruby, PHP, Bun
	"CURL_CA_BUNDLE",                   // curl, requests
	"REQUESTS_CA_BUNDLE",               // requests, boto3, AWS's command line
	"PIP_CERT",                         // pip
	"NODE_EXTRA_CA_CERTS",              // Node, which does not read the system's store
	"GIT_SSL_CAINFO",                   // git
	"CARGO_HTTP_CAINFO",                // cargo
	"NPM_CONFIG_CAFILE",                // npm
	"DENO_CERT",                        // Deno
	"PERL_LWP_SSL_CA_FILE",             // LWP
	"HTTPLIB2_CA_CERTS",                // httplib2
	"GRPC_DEFAULT_SSL_ROOTS_FILE_PATH", // gRPC's C core
}

// javaStores are the root stores of Java runtimes: the shared stores of Debian and Fedora, then stores of single
// installations (as patterns).
var (
	javaStores   = []string{"/etc/ssl/certs/java/cacerts", "/etc/pki/java/cacerts", "/etc/pki/ca-trust/extracted/java/cacerts"}
	javaPatterns = []string{"usr/lib/jvm/*/lib/security/cacerts", "usr/lib/jvm/*/jre/lib/security/cacerts", "opt/java/*/lib/security/cacerts", "opt/*/lib/security/cacerts"}
)

// maxJavaStores is how many an image may have: each one is written to the host's disk.
const maxJavaStores = 64

// trustJava rewrites the trust stores of the image's Java runtimes from the bundle.
func (b *Root) trustJava(bundle []byte) error {
	stores, err := b.filesAt(javaStores)
	if err != nil {
		return err
	}
	for _, pattern := range javaPatterns {
		dir, rest, _ := strings.Cut(pattern, "/*/")
		err := b.eachIn(dir, func(name string) (err error) { // names are not kept, since a box may have filled the directory with millions
			store := path.Join(dir, name, rest)
			if !b.isFile(store) {
				return nil // name may be a file, or a link to itself, where the store cannot even be looked up
			}
			if stores, err = b.addFile(stores, store); err == nil && len(stores) > maxJavaStores {
				err = fmt.Errorf("the image has more than %d trust stores of Java", maxJavaStores)
			}
			return err
		})
		if err != nil {
			return err
		}
	}
	if len(stores) == 0 {
		return nil
	}
	store := javaKeyStore(bundle, time.Now())
	for _, p := range stores {
		if err := b.exchange(p, store, 0o644); err != nil {
			return err
		}
	}
	return nil
}

// javaKeyStore encodes certificates as a JKS of trusted certificates, which every Java since 1.2 reads, protected by the
// default password of Java's stores.
func javaKeyStore(bundle []byte, now time.Time) []byte {
	const (
		magic       = 0xfeedfeed
		version     = 2
		trustedCert = 2
		password    = "changeit"
	)
	var entries bytes.Buffer
	count := uint32(0)
	for block, rest := pem.Decode(bundle); block != nil; block, rest = pem.Decode(rest) {
		if block.Type != "CERTIFICATE" {
			continue
		}
		entries.Write(binary.BigEndian.AppendUint32(nil, trustedCert))
		javaString(&entries, fmt.Sprintf("boxgate-%d", count))
		entries.Write(binary.BigEndian.AppendUint64(nil, uint64(now.UnixMilli())))
		javaString(&entries, "X.509")
		entries.Write(binary.BigEndian.AppendUint32(nil, uint32(len(block.Bytes))))
		entries.Write(block.Bytes)
		count++
	}
	out := binary.BigEndian.AppendUint32(nil, magic)
	out = binary.BigEndian.AppendUint32(out, version)
	out = binary.BigEndian.AppendUint32(out, count)
	out = append(out, entries.Bytes()...)
	digest := sha1.New() // the format's own integrity check
	for _, unit := range utf16.Encode([]rune(password)) {
		digest.Write(binary.BigEndian.AppendUint16(nil, unit))
	}
	digest.Write([]byte("Mighty Aphrodite")) // fixed by the format
	digest.Write(out)
	return digest.Sum(out)
}

// javaString writes ASCII as java.io.DataOutput.writeUTF does.
func javaString(w *bytes.Buffer, s string) {
	w.Write(binary.BigEndian.AppendUint16(nil, uint16(len(s))))
	w.WriteString(s)
}

// attribute is one AttributeTypeAndValue of a distinguished name (RFC 5280, 4.1.2.4).
type attribute struct {
	Type  asn1.ObjectIdentifier
	Value asn1.RawValue
}

// relativeName is one RelativeDistinguishedName. The suffix SET makes encoding/asn1 encode it as a SET OF.
type relativeNameSET []attribute

// subjectHash returns the hash in OpenSSL's file names of a certificate directory (X509_NAME_hash): the first four bytes,
// least significant first, of SHA-1 over the subject in canonical form: every string in UTF-8, lower case, without outer
// white space and with single spaces inside, and without the outermost SEQUENCE header.
func subjectHash(rawSubject []byte) (uint32, error) {
	var name []relativeNameSET
	if rest, err := asn1.Unmarshal(rawSubject, &name); err != nil || len(rest) > 0 {
		return 0, fmt.Errorf("the certificate's subject cannot be read: %w", err)
	}
	var canonical []byte
	for _, rdn := range name {
		for i, a := range rdn {
			if text, ok := stringValue(a.Value); ok {
				rdn[i].Value = asn1.RawValue{Tag: asn1.TagUTF8String, Bytes: []byte(canonicalText(text))}
			} else {
				rdn[i].Value = asn1.RawValue{FullBytes: a.Value.FullBytes}
			}
		}
		der, err := asn1.Marshal(rdn)
		if err != nil {
			return 0, err
		}
		canonical = append(canonical, der...)
	}
	sum := sha1.Sum(canonical) // OpenSSL's choice; it is only used as a file name, not for authentication
	return binary.LittleEndian.Uint32(sum[:4]), nil
}

// stringValue decodes the string types that OpenSSL canonicalizes.
func stringValue(v asn1.RawValue) (string, bool) {
	if v.Class != asn1.ClassUniversal {
		return "", false
	}
	switch v.Tag {
	case asn1.TagUTF8String, asn1.TagPrintableString, asn1.TagIA5String, 26: // 26: VisibleString
		return string(v.Bytes), true
	case asn1.TagT61String: // read as Latin-1
		runes := make([]rune, len(v.Bytes))
		for i, b := range v.Bytes {
			runes[i] = rune(b)
		}
		return string(runes), true
	case asn1.TagBMPString:
		units := make([]uint16, len(v.Bytes)/2)
		for i := range units {
			units[i] = binary.BigEndian.Uint16(v.Bytes[2*i:])
		}
		return string(utf16.Decode(units)), true
	default:
		return "", false
	}
}

// canonicalText folds ASCII only, like OpenSSL: letters and white space beyond ASCII are kept.
func canonicalText(s string) string {
	words := bytes.FieldsFunc([]byte(s), func(r rune) bool {
		return strings.ContainsRune(" \t\n\v\f\r", r)
	})
	out := bytes.Join(words, []byte(" "))
	for i, c := range out {
		if 'A' <= c && c <= 'Z' {
			out[i] = c + 'a' - 'A'
		}
	}
	return string(out)
}
