package host

import (
	"context"
	"crypto/tls"
	"fmt"

	"go.uber.org/zap"

	"boxgate/api/server"
	"boxgate/certs"
	"boxgate/config"
	"boxgate/host/box"
	"boxgate/host/handover"
	"boxgate/policy"
	"boxgate/remote"
)

// openRemote makes the server of remote boxes, if remote.listen is set.
func (p *parts) openRemote(context.Context) error {
	if p.listeners.Remote == nil {
		return nil
	}
	secured, err := remoteTLS(p.cfg.Remote.TLS, func(err error) {
		p.log.Error("the new certificate of the remote boxes does not load; the old one stays", zap.Error(err))
	})
	if err != nil {
		return err
	}
	l := p.cfg.Limits
	p.remote, err = remote.New(remote.Config{
		TLS: secured, Proxy: p.proxy, Tokens: box.NewTokens(p.boxes), Log: p.log, Most: p.shares.Remote(),
		Connections: l.Connections, Send: int64(l.Send), Receive: int64(l.Receive),
	})
	return err
}

// remoteTLS returns the TLS configuration of remote.listen. It follows its files.
func remoteTLS(c config.RemoteTLS, failed func(error)) (*tls.Config, error) {
	files, err := certs.NewFiles(c.Cert, c.Key, failed)
	if err != nil {
		return nil, fmt.Errorf("remote.tls: %w", err)
	}
	return &tls.Config{MinVersion: tls.VersionTLS12, GetCertificate: files.GetCertificate}, nil
}

// CheckRemoteTLS checks the files of remote.tls.
func CheckRemoteTLS(cfg config.Config) error {
	if cfg.Remote.Listen == "" {
		return nil
	}
	_, err := remoteTLS(cfg.Remote.TLS, nil)
	return err
}

// cutRemote cuts the connections of a remote box whose token was replaced or revoked: in this process, and in one that is still
// draining, which does not know the new token.
func (p *parts) cutRemote(id policy.BoxID) {
	p.remote.Cut(id)
	p.before.SendOrder(handover.Message{Kind: handover.Cut, Box: id})
}

// serveElsewhere starts the servers of remote boxes, and of SSH for people elsewhere.
func (h *Host) serveElsewhere(run func(string, func() error), admin *server.API) {
	h.serveRemote(run)
	h.serveSSH(run, admin)
}

// serveRemote starts the server of remote boxes.
func (h *Host) serveRemote(run func(string, func() error)) {
	p := h.parts
	if p.remote == nil {
		return
	}
	tried := tryable(p.listeners.Remote)
	strangers := p.shares.Keyless(tried)
	h.health.serving.add("remote", tried, nil, func() (int, int) { return p.remote.Open(), p.shares.Remote() })
	run("remote boxes", func() error { return p.remote.Serve(strangers) })
}
