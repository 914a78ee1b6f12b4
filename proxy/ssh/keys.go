package ssh

import (
	"bytes"
	"crypto/rsa"
	"errors"
	"fmt"
	"net"
	"slices"

	gossh "golang.org/x/crypto/ssh"

	"boxgate/policy/name"
	sshrule "boxgate/rule/ssh"
)

// Errors of private keys. Their texts do not contain the key.
var (
	errPassphrase = errors.New("the private key is protected by a passphrase; store it without one")
	errKeyForm    = errors.New("the secret is not a private key in OpenSSH or PEM format")
	errKeyKind    = errors.New("unsupported private key: use Ed25519, ECDSA, or RSA of at least 2048 bits")
)

// minRSA is the smallest accepted length of an RSA key in bits.
const minRSA = 2048

// ParseKey reads a private key.
func ParseKey(secret name.Secret) (gossh.Signer, error) {
	signer, err := gossh.ParsePrivateKey([]byte(secret.Reveal() + "\n"))
	var locked *gossh.PassphraseMissingError
	switch {
	case errors.As(err, &locked):
		return nil, errPassphrase
	case err != nil:
		return nil, errKeyForm
	}
	return withoutSHA1(signer)
}

// withoutSHA1 restricts a signer to signature algorithms without SHA-1.
func withoutSHA1(signer gossh.Signer) (gossh.Signer, error) {
	public, ok := signer.PublicKey().(gossh.CryptoPublicKey)
	algorithms, can := signer.(gossh.AlgorithmSigner)
	if !ok || !can {
		return nil, errKeyKind
	}
	switch kind := signer.PublicKey().Type(); kind {
	case gossh.KeyAlgoED25519, gossh.KeyAlgoECDSA256, gossh.KeyAlgoECDSA384, gossh.KeyAlgoECDSA521:
		return gossh.NewSignerWithAlgorithms(algorithms, []string{kind})
	case gossh.KeyAlgoRSA:
		if key, ok := public.CryptoPublicKey().(*rsa.PublicKey); ok && key.N.BitLen() >= minRSA {
			return gossh.NewSignerWithAlgorithms(algorithms, []string{gossh.KeyAlgoRSASHA512, gossh.KeyAlgoRSASHA256})
		}
	}
	return nil, errKeyKind
}

// errHostKey reports that the server is not the one of the rule.
var errHostKey = errors.New("the server's host key is not in the rule")

// hostKeys are the keys that identify a server: its own, and certificate authorities.
type hostKeys struct {
	own, authorities []gossh.PublicKey
}

// parseHostKeys parses the host keys of a rule. A rule without host keys is an error: it would accept any server.
func parseHostKeys(list []sshrule.HostKey) (k hostKeys, err error) {
	for _, key := range list {
		public, err := gossh.ParsePublicKey([]byte(key.Blob))
		if err != nil {
			return hostKeys{}, fmt.Errorf("a host key of the rule is not valid: %w", err)
		}
		if key.Authority {
			k.authorities = append(k.authorities, public)
		} else {
			k.own = append(k.own, public)
		}
	}
	if len(list) == 0 {
		return hostKeys{}, errHostKey
	}
	return k, nil
}

// algorithms returns the host key algorithms to offer, so that the server presents a key that can match.
func (k hostKeys) algorithms() (out []string) {
	if len(k.authorities) > 0 {
		out = append(out, gossh.CertAlgoED25519v01, gossh.CertAlgoECDSA256v01, gossh.CertAlgoECDSA384v01, gossh.CertAlgoECDSA521v01,
			gossh.CertAlgoRSASHA512v01, gossh.CertAlgoRSASHA256v01)
	}
	for _, key := range k.own {
		if kind := key.Type(); kind == gossh.KeyAlgoRSA {
			out = append(out, gossh.KeyAlgoRSASHA512, gossh.KeyAlgoRSASHA256)
		} else {
			out = append(out, kind)
		}
	}
	slices.Sort(out[len(out)-min(len(out), len(k.own)):])
	return slices.Compact(out)
}

// check implements [gossh.HostKeyCallback].
func (k hostKeys) check(addr string, remote net.Addr, key gossh.PublicKey) error {
	checker := gossh.CertChecker{
		IsHostAuthority: func(authority gossh.PublicKey, _ string) bool { return containsKey(k.authorities, authority) },
		HostKeyFallback: func(_ string, _ net.Addr, key gossh.PublicKey) error {
			if containsKey(k.own, key) {
				return nil
			}
			return errHostKey
		},
	}
	if err := checker.CheckHostKey(addr, remote, key); err != nil {
		return fmt.Errorf("%w (it has %s)", errHostKey, gossh.FingerprintSHA256(key))
	}
	return nil
}

func containsKey(keys []gossh.PublicKey, key gossh.PublicKey) bool {
	blob := key.Marshal()
	return slices.ContainsFunc(keys, func(k gossh.PublicKey) bool { return bytes.Equal(k.Marshal(), blob) })
}
