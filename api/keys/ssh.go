package keys

import (
	"bytes"
	"crypto/rsa"
	"net/http"
	"slices"
	"strings"

	"golang.org/x/crypto/ssh"

	"boxgate/api"
	"boxgate/api/problem"
	"boxgate/api/rest"
)

// addSSHKeyBody is a public key to add.
type addSSHKeyBody struct {
	PublicKey string `json:"public_key" doc:"one line as in OpenSSH's .pub files: ed25519, ecdsa, RSA of 2048 bits or more, or a key of a security token; without options"`
	Name      string `json:"name,omitempty" doc:"what the key is called; absent: the comment of the line"`
}

const sshKeyExample = `{"public_key":"ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIBNXzuTZOjOeDXP13WLLxXD+iAxRlhTVtM4/ShdJi1CQ ada@laptop"}`

// sshKeyView is a public key.
type sshKeyView struct {
	ID          string `json:"id" example:"ssh_a6ccf34f1cce4f65"`
	Name        string `json:"name,omitempty"`
	Type        string `json:"type" example:"ssh-ed25519"`
	Fingerprint string `json:"fingerprint" doc:"SHA-256, as ssh-keygen -l shows it"`
	AddedAt     string `json:"added_at" format:"date-time"`
}

type sshKeysView struct {
	Keys []sshKeyView `json:"ssh_keys" doc:"in the order in which they were added"`
}

func viewSSHKey(k api.SSHKey) sshKeyView {
	v := sshKeyView{ID: k.ID, Name: k.Name, AddedAt: formatTime(k.AddedAt)}
	if public, err := ssh.ParsePublicKey(k.Key); err == nil {
		v.Type, v.Fingerprint = public.Type(), ssh.FingerprintSHA256(public)
	}
	return v
}

// maxSSHKey and maxSSHName are the maximum lengths of a line with a public key, and of the name of one, in bytes.
const (
	maxSSHKey  = 16 << 10
	maxSSHName = 128
)

// parseSSHKey parses a line with a public key. It returns the key in the wire format of RFC 4253, section 6.6, and its comment.
func parseSSHKey(line string) (public []byte, comment, wrong string) {
	const form = "must be one line of a .pub file of OpenSSH, such as ssh-ed25519 AAAA…"
	if len(line) > maxSSHKey || strings.ContainsAny(strings.TrimSpace(line), "\r\n\x00") {
		return nil, "", form
	}
	key, comment, options, rest, err := ssh.ParseAuthorizedKey([]byte(line))
	switch {
	case strings.Contains(line, "PRIVATE KEY"):
		return nil, "", "is a private key: give the file that ends in .pub"
	case err != nil || len(bytes.TrimSpace(rest)) > 0:
		return nil, "", form
	case len(options) > 0:
		return nil, "", "has options of authorized_keys, which are not supported: the API key's role and quotas limit the key"
	}
	return key.Marshal(), comment, weakness(key)
}

// weakness returns why a key cannot be used, or "".
func weakness(key ssh.PublicKey) string {
	allowed := []string{ssh.KeyAlgoED25519, ssh.KeyAlgoSKED25519, ssh.KeyAlgoSKECDSA256, ssh.KeyAlgoECDSA256, ssh.KeyAlgoECDSA384, ssh.KeyAlgoECDSA521, ssh.KeyAlgoRSA}
	if !slices.Contains(allowed, key.Type()) {
		return "has the type " + problem.Clip(key.Type()) + ", which cannot log in; use ed25519, ecdsa or RSA"
	}
	if c, ok := key.(ssh.CryptoPublicKey); ok {
		if r, ok := c.CryptoPublicKey().(*rsa.PublicKey); ok && r.N.BitLen() < 2048 {
			return "is an RSA key of less than 2048 bits"
		}
	}
	return ""
}

// isSSHName reports whether a text can be the name of a public key: printable ASCII.
func isSSHName(text string) bool {
	return len(text) <= maxSSHName && !strings.ContainsFunc(text, func(r rune) bool { return r < ' ' || r > '~' })
}

func (e *Endpoints) addSSHKey(w http.ResponseWriter, r *http.Request) (rest.Reply, error) {
	var body addSSHKeyBody
	if err := e.Bodies.Decode(w, r, &body); err != nil {
		return rest.Reply{}, err
	}
	var p problem.List
	public, comment, wrong := parseSSHKey(body.PublicKey)
	if wrong != "" {
		p.Add("/public_key", "%s", wrong)
	}
	if !isSSHName(body.Name) {
		p.Add("/name", "must be at most %d printable ASCII characters", maxSSHName)
	}
	if body.Name == "" && isSSHName(comment) {
		body.Name = comment
	}
	if err := p.Err(); err != nil {
		return rest.Reply{}, err
	}
	k, err := e.Host.AddSSHKey(r.Context(), r.PathValue("api_key"), body.Name, public)
	if err != nil {
		return rest.Reply{}, err
	}
	i := slices.IndexFunc(k.SSHKeys, func(s api.SSHKey) bool { return bytes.Equal(s.Key, public) })
	if i < 0 { // removed since
		return rest.Reply{}, api.ErrNotFound
	}
	v := viewSSHKey(k.SSHKeys[i])
	return rest.Reply{Status: http.StatusCreated, Body: v, Change: changedSSHKey("added", k, v)}, nil
}

// changedSSHKey describes a change of the public keys of a key for the audit trail.
func changedSSHKey(how string, k api.Key, v sshKeyView) *rest.Change {
	return &rest.Change{Box: k.Box, What: map[string]any{"ssh_key_" + how: v, "api_key": map[string]string{"id": k.Key, "name": k.Name}}}
}

// keyOf returns a key by its ID, or else by its name.
func (e *Endpoints) keyOf(r *http.Request) (api.Key, error) {
	all, err := e.Host.APIKeys(r.Context())
	if err != nil {
		return api.Key{}, err
	}
	slices.Reverse(all) // of a key and the one that it replaced, the newer
	asked := r.PathValue("api_key")
	for _, is := range []func(api.Key) bool{func(k api.Key) bool { return k.Key == asked }, func(k api.Key) bool { return k.Name == asked }} {
		if i := slices.IndexFunc(all, is); i >= 0 {
			return all[i], nil
		}
	}
	return api.Key{}, api.Errorf(api.ErrNotFound, "there is no API key with this ID or name")
}

func (e *Endpoints) listSSHKeys(_ http.ResponseWriter, r *http.Request) (rest.Reply, error) {
	k, err := e.keyOf(r)
	if err != nil {
		return rest.Reply{}, err
	}
	view := sshKeysView{Keys: []sshKeyView{}}
	for _, s := range k.SSHKeys {
		view.Keys = append(view.Keys, viewSSHKey(s))
	}
	return rest.Reply{Body: view}, nil
}

func (e *Endpoints) deleteSSHKey(_ http.ResponseWriter, r *http.Request) (rest.Reply, error) {
	k, err := e.keyOf(r)
	if err != nil {
		return rest.Reply{}, err
	}
	id := r.PathValue("ssh_key")
	i := slices.IndexFunc(k.SSHKeys, func(s api.SSHKey) bool { return s.ID == id })
	if i < 0 {
		return rest.Reply{}, api.Errorf(api.ErrNotFound, "the API key %s has no public key with this ID; see gateway api-key ssh-key list", k.Name)
	}
	v := viewSSHKey(k.SSHKeys[i])
	if k, err = e.Host.RemoveSSHKey(r.Context(), k.Key, id); err != nil {
		return rest.Reply{}, err
	}
	return rest.Reply{Body: v, Change: changedSSHKey("removed", k, v)}, nil
}
