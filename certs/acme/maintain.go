package acme

import (
	"context"
	"crypto/x509"
	"encoding/pem"
	"maps"
	"path"
	"time"

	"github.com/caddyserver/certmagic"
	"go.uber.org/zap"
)

// cleanTime is the interval at which expired certificates are removed from the storage, and keepTime how long they stay
// after their expiry.
const cleanTime, keepTime = 24 * time.Hour, 14 * 24 * time.Hour

// Run serves the stored certificates, obtains the wildcard, and drops the certificates of removed URLs, until ctx ends;
// then it calls [Manager.Close]. Call it once the public URLs are known. Certmagic renews when a third of the lifetime
// is left, or when the issuer suggests (ARI, RFC 9773).
func (m *Manager) Run(ctx context.Context) {
	defer m.Close()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(m.ctx, cancel)()
	m.loadStored(ctx)
	tick := time.NewTicker(m.cfg.check)
	defer tick.Stop()
	for {
		_ = m.recoverPanic(func() error { return m.maintain(ctx) })
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
	}
}

// maintain is one round of maintenance.
func (m *Manager) maintain(ctx context.Context) error {
	m.forgetUnserved()
	if m.wildcard != "" && len(m.cache.AllMatchingCertificates(m.wildcard)) == 0 {
		_, _ = m.request(m.wildcard) // a failure has been logged
	}
	err := certmagic.CleanStorage(ctx, m.cfg.Storage, certmagic.CleanStorageOptions{
		Logger: m.cfg.Log.WithOptions(zap.IncreaseLevel(zap.WarnLevel)), Interval: cleanTime,
		OCSPStaples: true, ExpiredCerts: true, ExpiredCertGracePeriod: keepTime,
	})
	if err != nil {
		m.cfg.Log.Warn("expired certificates could not be removed", zap.Error(err))
	}
	return nil
}

// forgetUnserved drops the state of removed URLs. Their certificates stay in the storage until they expire, so
// recreating a URL soon needs no new order.
func (m *Manager) forgetUnserved() {
	m.mu.Lock()
	defer m.mu.Unlock()
	maps.DeleteFunc(m.failed, func(subject string, _ failure) bool { return !m.isServed(subject) })
	maps.DeleteFunc(m.loaded, func(subject string, _ bool) bool {
		gone := !m.isServed(subject)
		if gone {
			m.dropCached(subject)
		}
		return gone
	})
}

// loadStored loads the stored certificates of public URLs into memory, so that they are renewed before a visit.
func (m *Manager) loadStored(ctx context.Context) {
	for subject := range StoredExpiries(ctx, m.cfg.Storage) {
		if !m.isServed(subject) {
			continue
		}
		if _, err := m.configOf(subject).CacheManagedCertificate(ctx, subject); err != nil {
			m.cfg.Log.Warn("a stored certificate cannot be served", zap.String("subject", subject), zap.Error(err))
			continue
		}
		m.mu.Lock()
		m.loaded[subject] = true
		m.mu.Unlock()
	}
}

// Expiries returns the expiry time of each served certificate.
func (m *Manager) Expiries() []time.Time {
	var list []time.Time
	for _, subject := range m.subjects() {
		var last time.Time
		for _, cert := range m.cache.AllMatchingCertificates(subject) {
			if cert.Leaf != nil && cert.Leaf.NotAfter.After(last) {
				last = cert.Leaf.NotAfter
			}
		}
		if !last.IsZero() && m.isServed(subject) {
			list = append(list, last)
		}
	}
	return list
}

func (m *Manager) subjects() []string {
	m.mu.Lock()
	defer m.mu.Unlock()
	var list []string
	for subject := range m.loaded {
		list = append(list, subject)
	}
	return list
}

// Counts returns how often certificates were obtained, including renewals, and how often that failed with all issuers.
func (m *Manager) Counts() Counts {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.counts
}

// Failing returns the number of hosts without a certificate because the last attempt failed.
func (m *Manager) Failing() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	n := 0
	for subject := range m.failed {
		if m.isServed(subject) {
			n++
		}
	}
	return n
}

// StoredExpiries returns the expiry times of the certificates in a storage, by subject. With several issuers the latest counts.
// Files without a certificate are skipped.
func StoredExpiries(ctx context.Context, storage certmagic.Storage) map[string]time.Time {
	expiries := map[string]time.Time{}
	keys, _ := storage.List(ctx, "certificates", true)
	for _, key := range keys {
		if path.Ext(key) != ".crt" {
			continue
		}
		data, err := storage.Load(ctx, key)
		if err != nil {
			continue
		}
		block, _ := pem.Decode(data)
		if block == nil {
			continue
		}
		leaf, err := x509.ParseCertificate(block.Bytes)
		if err != nil || len(leaf.DNSNames) == 0 {
			continue
		}
		if subject := leaf.DNSNames[0]; leaf.NotAfter.After(expiries[subject]) {
			expiries[subject] = leaf.NotAfter
		}
	}
	return expiries
}
