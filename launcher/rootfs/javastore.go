package rootfs

import (
	"bytes"
	"crypto/sha1"
	"encoding/binary"
	"encoding/pem"
	"fmt"
	"path"
	"strings"
	"time"
	"unicode/utf16"
)

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
		if err := b.writeAt(p, store, 0o644); err != nil {
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
