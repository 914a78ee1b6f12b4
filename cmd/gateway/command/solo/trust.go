package solo

import (
	"bytes"
	"encoding/pem"
	"fmt"
	"net/netip"
	"os"
	"strings"

	"boxgate/enclosure/inside"
	"boxgate/launcher"
)

// bundlePath is the file with the public roots and the gateway's CA, as the command sees it.
const bundlePath = inside.Private + "/ca-bundle.pem"

// bundle returns the root certificates for the command: the host's, the ones in the caller's environment variables, the
// ones configured for upstreams, and the gateway's interception CA.
func bundle(env, upstreams []string, ca []byte) ([]byte, error) {
	out, err := launcher.PublicRoots()
	if err != nil {
		return nil, err
	}
	for _, file := range append(callersRoots(env), upstreams...) {
		data, err := os.ReadFile(file)
		if err != nil {
			continue // the command could not read the file either
		}
		out = append(out, certificates(data)...)
	}
	return append(out, ca...), nil
}

// callersRoots returns the files in the caller's trust variables.
func callersRoots(env []string) []string {
	var out []string
	for _, kv := range env {
		name, value, _ := strings.Cut(kv, "=")
		for _, known := range launcher.TrustVariables() {
			if name == known && value != "" {
				out = append(out, value)
			}
		}
	}
	return out
}

// certificates returns only the certificates of a PEM file.
func certificates(data []byte) []byte {
	var out bytes.Buffer
	for {
		var block *pem.Block
		if block, data = pem.Decode(data); block == nil {
			return out.Bytes()
		}
		if block.Type == "CERTIFICATE" {
			_ = pem.Encode(&out, &pem.Block{Type: block.Type, Bytes: block.Bytes}) // writes to a buffer do not fail
		}
	}
}

// systemBundles lists the places where programs look for the host's roots.
var systemBundles = []string{
	"/etc/ssl/certs/ca-certificates.crt", "/etc/ssl/cert.pem", "/etc/pki/tls/certs/ca-bundle.crt",
	"/etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem", "/etc/ssl/ca-bundle.pem", "/var/lib/ca-certificates/ca-bundle.pem",
}

// files returns the files that replace the host's files in the command's view.
func files(roots []byte, resolvers []netip.Addr) []inside.File {
	var conf strings.Builder
	for _, a := range resolvers {
		fmt.Fprintf(&conf, "nameserver %s\n", a)
	}
	out := []inside.File{
		{Path: bundlePath, Content: roots, Always: true},
		{Path: "/etc/resolv.conf", Content: []byte(conf.String())},
	}
	for _, path := range systemBundles {
		out = append(out, inside.File{Path: path, Content: roots})
	}
	return out
}

// withVariables sets variables in an environment and removes others.
func withVariables(env []string, set map[string]string, remove map[string]bool) []string {
	var out []string
	for _, kv := range env {
		name, _, _ := strings.Cut(kv, "=")
		if _, ours := set[name]; !ours && !remove[name] {
			out = append(out, kv)
		}
	}
	for name, value := range set {
		out = append(out, name+"="+value)
	}
	return out
}
