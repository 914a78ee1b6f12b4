package host

import (
	"crypto/x509"
	"os"
	"slices"

	"boxgate/audit"
	"boxgate/audit/export"
	"boxgate/config"
	"boxgate/internal/buildinfo"
)

// openExports makes what sends decisions to the operator's collectors. Nothing is sent yet.
func (p *parts) openExports() error {
	c := p.cfg.Log.Export
	if !c.On() {
		return nil
	}
	roots, err := exportRoots(p.cfg)
	if err != nil {
		return err
	}
	host, err := p.store.HostID()
	if err != nil {
		return err
	}
	name, _ := os.Hostname()
	common := export.Options{Roots: roots, Secret: p.secrets.Secret, Log: p.log, Origin: func() export.Origin {
		return export.Origin{Host: host, Name: name, Run: p.audit.ID(), Version: buildinfo.Get().Version}
	}}
	if o := common; c.OTLP.Endpoint != "" {
		o.Kind, o.URL, o.Headers = export.OTLP, c.OTLP.LogsURL(), c.OTLP.Headers
		p.addExport(o, c.OTLP.Denied())
	}
	if o := common; c.Webhook.URL != "" {
		o.Kind, o.URL, o.Headers, o.Key = export.Webhook, c.Webhook.URL, c.Webhook.Headers, c.Webhook.Secret
		p.addExport(o, c.Webhook.Denied())
	}
	return p.metrics.Register(p.exporters)
}

func (p *parts) addExport(o export.Options, denied bool) {
	x := export.New(o)
	p.exporters = append(p.exporters, x)
	p.exports = append(p.exports, audit.Export{Lines: x.Lines(), Denied: denied})
}

// flushExports sends what is left to be sent, of all decisions so far. Secrets must still be open.
func (p *parts) flushExports() {
	if p.audit != nil {
		p.audit.Flush()
	}
	p.exporters.Close()
}

// exportKey is the key of the roots that are trusted for collectors alone.
const exportKey = "log.export.ca_files"

// exportRoots returns the roots that are trusted for collectors.
func exportRoots(cfg config.Config) (*x509.CertPool, error) {
	return rootsWith(exportKey, slices.Concat(cfg.Proxy.UpstreamCAFiles, cfg.Log.Export.CAFiles))
}
