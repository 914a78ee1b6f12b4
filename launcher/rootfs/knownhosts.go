package rootfs

import (
	"bytes"
	"crypto/x509"
	"errors"
	"fmt"
	"io/fs"

	gossh "golang.org/x/crypto/ssh"
)

// knownHostsPath is OpenSSH's system-wide file of host keys.
const knownHostsPath = "/etc/ssh/ssh_known_hosts"

// KnownHosts returns the lines of ssh_known_hosts for a box that trusts a CA, given in PEM. With them, the box accepts its gateway
// as any host.
func KnownHosts(ca []byte) ([]byte, error) {
	certs, err := parseCA(ca)
	if err != nil {
		return nil, err
	}
	return knownHosts(certs)
}

func knownHosts(certs []*x509.Certificate) ([]byte, error) {
	var out bytes.Buffer
	for _, c := range certs {
		key, err := gossh.NewPublicKey(c.PublicKey)
		if err != nil {
			return nil, fmt.Errorf("the box's CA has no key for SSH: %w", err)
		}
		fmt.Fprintf(&out, "* %s %s\n", bytes.TrimSpace(gossh.MarshalAuthorizedKey(key)), c.Subject.CommonName)
	}
	return out.Bytes(), nil
}

// writeKnownHosts makes SSH clients in the box accept the gateway as any host. It removes the key of an earlier box with these
// files.
func (b *Root) writeKnownHosts(certs []*x509.Certificate) error {
	lines, err := knownHosts(certs)
	if err != nil {
		return err
	}
	old, err := b.read(knownHostsPath)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	var out bytes.Buffer
	for line := range bytes.Lines(old) {
		if !bytes.Contains(line, []byte(" "+boxCAName)) {
			out.Write(line)
		}
	}
	if n := out.Len(); n > 0 && out.Bytes()[n-1] != '\n' {
		out.WriteByte('\n')
	}
	out.Write(lines)
	return b.write(knownHostsPath, out.Bytes(), 0o644)
}
