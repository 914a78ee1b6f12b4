package host

import (
	"boxgate/host/box"

	"boxgate/host/usage"

	"boxgate/host/rules"

	"boxgate/host/urls"

	"context"
	"crypto/x509"
	"errors"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"

	"boxgate/api/history"
	"boxgate/audit"
	"boxgate/audit/export"
	"boxgate/audit/lines"
	"boxgate/audit/past"
	"boxgate/certs"
	"boxgate/certs/acme"
	"boxgate/config"
	"boxgate/dns"
	"boxgate/firewall"
	"boxgate/host/apart"
	"boxgate/host/enforce"
	"boxgate/host/handover"
	"boxgate/host/keyless"
	"boxgate/host/keys"
	"boxgate/host/meter"
	"boxgate/host/reach"
	"boxgate/host/share"
	"boxgate/host/snapshots"
	"boxgate/host/state"
	"boxgate/ingress"
	"boxgate/internal/fault"
	"boxgate/internal/memory"
	"boxgate/launcher"
	"boxgate/proxy"
	quotas "boxgate/quota"
	"boxgate/secrets"
	"boxgate/secrets/identity"
	"boxgate/store"
)

// parts are what a gateway is built from, in the order in which they are opened.
type parts struct {
	cfg       config.Config
	log       *zap.Logger
	lines     *lines.Writer // of the decisions; nil: none
	addrs     config.Addresses
	listeners *Listeners
	apart     *apart.Net // nil: boxes are in the gateway's own namespace
	takesOver bool       // from another process, which still runs commands in boxes:
	before    *handover.Predecessor
	metrics   *prometheus.Registry
	shares    share.Descriptors // of file descriptors
	memory    *memory.Budget    // which boxes share
	quotas    *quotas.Book      // of API keys
	keyed     *keyless.Keyed    // connections that have shown one

	boxes     *state.Table
	connected *enforce.Registry
	urlTable  *urls.Table
	domains   *urls.Domains
	orders    *urls.Orders
	ownURLs   *urls.Own
	reach     *reach.Boxes
	visits    *usage.Visits
	minter    *certs.Minter
	history   *history.History
	roots     *x509.CertPool // trusted for upstreams
	added     []byte         // those of roots that the configuration adds, in PEM; launched boxes trust them too

	store     *store.DB
	trail     *auditTrail
	past      *past.Store   // nil: none is kept
	kept      *lines.Writer // of past; nil: none
	audit     *audit.Log
	exporters export.Exporters // of decisions; none: they are not exported
	exports   []audit.Export   // the same
	secrets   *secrets.Secrets
	tokens    *identity.Issuer
	dns       *dns.Server
	proxy     *proxy.Proxy
	ingress   *ingress.Ingress
	urlCA     *certs.Authority // nil unless the internal CA signs public URLs
	acme      *acme.Manager    // nil unless issuers do

	certificates certificates // of the public URLs

	launcher    *launcher.Launcher
	shelf       *snapshots.Shelf
	holdings    *keys.Holdings // of API keys
	provisioner *box.Provisioner
	net         *enforce.Enforcer // of policies
	shared      *rules.Shared     // by the policies of all boxes
	firewall    *firewall.Firewall
	meter       *meter.Meter
}

// close closes the parts that are open.
func (p *parts) close() error {
	var errs []error
	if p.firewall != nil {
		errs = append(errs, p.firewall.Close(), fault.At(context.Background(), "stop: kernel rules let go"))
	}
	p.flushExports()
	if p.past != nil {
		_ = p.kept.Sync() // what is lost is counted
		errs = append(errs, p.past.Close())
	}
	if p.trail != nil && p.trail.trail != nil {
		errs = append(errs, p.trail.trail.Close())
	}
	if p.acme != nil {
		p.acme.Close()
	}
	if p.shelf != nil {
		p.shelf.Close()
	}
	if p.launcher != nil {
		if len(p.boxes.All()) == 0 {
			forgetRun(p.launcher.RunDir())
		}
		errs = append(errs, p.launcher.Close())
	}
	p.secrets.Close()
	if p.store != nil {
		errs = append(errs, p.store.Close())
	}
	return errors.Join(errs...)
}
