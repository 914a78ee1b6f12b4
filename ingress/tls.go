package ingress

import (
	"crypto/rand"
	"crypto/tls"
	"time"
)

const (
	// A new key encrypts session tickets every ticketKeyTime, and ticketKeys keys are accepted. So a ticket is valid for a day
	// at most, as is a stolen key.
	ticketKeyTime = 8 * time.Hour
	ticketKeys    = 3
)

// tlsConfig returns the TLS settings for visitors: TLS 1.3, and TLS 1.2 only with forward secrecy and authenticated encryption
// (RFC 9325, 4.2).
func tlsConfig(certificate func(*tls.ClientHelloInfo) (*tls.Certificate, error)) *tls.Config {
	return &tls.Config{
		MinVersion: tls.VersionTLS12,
		CipherSuites: []uint16{
			tls.TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256, tls.TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256,
			tls.TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384, tls.TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384,
			tls.TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256, tls.TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256,
		},
		GetCertificate: certificate,
		NextProtos:     []string{"h2", "http/1.1"},
	}
}

// keepTicketsFresh rotates the keys of session tickets until stop is called.
func keepTicketsFresh(c *tls.Config) (stop func()) {
	var keys [][32]byte
	renew := func() {
		var key [32]byte
		_, _ = rand.Read(key[:]) // never fails
		keys = append([][32]byte{key}, keys[:min(len(keys), ticketKeys-1)]...)
		c.SetSessionTicketKeys(keys)
	}
	renew()
	ended := make(chan struct{})
	go func() {
		next := time.NewTicker(ticketKeyTime)
		defer next.Stop()
		for {
			select {
			case <-next.C:
				renew()
			case <-ended:
				return
			}
		}
	}()
	return func() { close(ended) }
}
