package ingress

import (
	"crypto/rand"
	"crypto/tls"
	"time"
)

const (
	// ticketKeyTime is how often a new key encrypts session tickets, and ticketKeys how many of them are accepted: a ticket
	// lasts for a day at most, and so does what a stolen key opens.
	ticketKeyTime = 8 * time.Hour
	ticketKeys    = 3
)

// tlsConfig is how visitors are spoken to: TLS 1.3, and of TLS 1.2 only what has forward secrecy and authenticates what it
// encrypts (RFC 9325, 4.2).
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

// keepTicketsFresh changes the key of session tickets until stop is called.
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
