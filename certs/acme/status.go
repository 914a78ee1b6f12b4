package acme

import (
	"context"
	"crypto/x509"
	"encoding/pem"
	"path"
	"time"

	"github.com/caddyserver/certmagic"
)

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
