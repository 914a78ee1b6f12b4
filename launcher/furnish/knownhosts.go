package furnish

import (
	"bytes"
	"crypto/x509"
	"errors"
	"fmt"
	"io/fs"

	gossh "golang.org/x/crypto/ssh"
)

// knownHostsPath is where OpenSSH looks for the keys of hosts, for all users.
const knownHostsPath = "/etc/ssh/ssh_known_hosts"

// KnownHosts returns the lines of ssh_known_hosts by which a box that trusts a CA, given in PEM, knows its gateway, whichever
// host it believes to talk to.
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

// knowHosts makes the clients of SSH in the box take the gateway for any host. The key of a box whose files these were goes.
func (b *Root) knowHosts(certs []*x509.Certificate) error {
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
