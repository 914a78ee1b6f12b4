package host

import (
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"net"
	"net/http"

	gossh "golang.org/x/crypto/ssh"

	"boxgate/api"
	"boxgate/api/server"
	"boxgate/host/authlimit"
	"boxgate/host/boxdial"
	"boxgate/host/keys"
	"boxgate/host/sshaccess"
	"boxgate/host/usage"
	"boxgate/policy/name"
	quotas "boxgate/quota"
	"boxgate/sshd"
	"boxgate/store"
)

// openSSH makes the server of SSH, if ssh.listen is set. Its host key is made at the first start.
func (p *parts) openSSH(context.Context) error {
	if p.listeners.SSH == nil {
		return nil
	}
	signer, err := hostKey(p.store.Installation)
	if err != nil {
		return fmt.Errorf("the host key of SSH: %w", err)
	}
	if p.ssh, err = sshd.New(sshd.Config{HostKey: signer, Log: p.log}); err != nil {
		return err
	}
	return p.ssh.Register(p.metrics)
}

// hostKey returns the host key in the store, which it makes if there is none.
func hostKey(known store.Installation) (gossh.Signer, error) {
	text, err := known.SSHHostKey()
	if err == nil && text.Reveal() == "" {
		seed := make([]byte, ed25519.SeedSize)
		_, _ = rand.Read(seed) // never fails (crypto/rand)
		if err = known.SetSSHHostKeyOnce(name.NewSecret(base64.StdEncoding.EncodeToString(seed))); err == nil {
			text, err = known.SSHHostKey()
		}
	}
	if err != nil {
		return nil, err
	}
	seed, err := base64.StdEncoding.DecodeString(text.Reveal())
	if err != nil || len(seed) != ed25519.SeedSize {
		return nil, errors.New("its record is damaged")
	}
	return gossh.NewSignerFromSigner(ed25519.NewKeyFromSeed(seed))
}

// serveSSH starts the server of SSH.
func (h *Host) serveSSH(run func(string, func() error), admin *server.API) {
	p := h.parts
	if p.ssh == nil {
		return
	}
	gate, err := sshaccess.New(sshaccess.Config{
		API: admin, Boxes: sshBoxes{usage.NewListing(p.boxes, p.meter, p.models.Box), h.usage, p.reach}, Keys: sshKeys{h.turn, h.keys}, Quotas: p.quotas,
		Count: p.countSSH, Log: p.log, Enter: h.turn.enter,
	})
	if err != nil {
		run("SSH", func() error { return err })
		return
	}
	tried := tryable(p.listeners.SSH)
	strangers := p.shares.Keyless(tried)
	strangers.Keyed = p.keyed
	h.health.serving.add("ssh", tried, nil, func() (int, int) { return strangers.Held(), 0 })
	run("SSH", func() error { return p.ssh.Serve(strangers, gate) })
}

// countSSH counts a connection as one of an API key's, like those to the admin API.
func (p *parts) countSSH(conn net.Conn, h quotas.Holder) error {
	return p.keyed.Shown((&http.Request{}).WithContext(authlimit.ConnContext(context.Background(), conn)), h)
}

// sshBoxes implements [sshaccess.Boxes].
type sshBoxes struct {
	*usage.Listing
	*usage.Service
	*boxdial.Boxes
}

// sshKeys implements [sshaccess.Keys].
type sshKeys struct {
	*adminTurn
	*keys.Service
}

// Find implements [sshaccess.Keys].
func (k sshKeys) Find(hash [sha256.Size]byte) (api.Caller, bool) { return k.findHash(hash) }

// FindSSH implements [sshaccess.Keys].
func (k sshKeys) FindSSH(public []byte) (hash [sha256.Size]byte, ok bool) {
	_, hash, ok = k.LookUpSSH(public)
	return hash, ok
}
