package proxy

import (
	"crypto/tls"
	"errors"
	"io"
	"strings"
	"syscall"

	"boxgate/proxy/problem"
)

// errUntrusted is the error of a handshake that a client ended because of the gateway's certificate.
type errUntrusted struct {
	how string
	err error
}

// Error returns the text for the log, including the remedy.
func (e *errUntrusted) Error() string {
	return "the client does not trust the box's CA, or pins a certificate: it " + e.how +
		"; add the CA to its trust store (gateway ca), or remove the rules for the host so that its TLS is not terminated (" + e.err.Error() + ")"
}

// Unwrap returns the cause.
func (e *errUntrusted) Unwrap() error { return e.err }

// errRequestless is the error of a connection that the client closed right after the handshake. Some clients verify the
// certificate only then.
var errRequestless = errors.New("the connection ended without a request: perhaps the client, like wget, does not trust the box's CA (gateway ca)")

// certificateSent is the minimum number of bytes that the gateway has sent if its certificate was among them. Shorter
// flights are a HelloRetryRequest or a resumed session.
const certificateSent = 512

// handshakeFault explains a failed handshake with a client, after sent bytes were sent to it.
func handshakeFault(err error, sent int64) error {
	switch alert, received := problem.AlertOf(err); {
	case received && problem.AboutCertificate(alert):
		return &errUntrusted{"sent the alert " + strings.TrimPrefix(alert.Error(), "tls: "), err}
	case received || sent < certificateSent:
		return err
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF), errors.Is(err, syscall.ECONNRESET), errors.Is(err, syscall.EPIPE):
		return &errUntrusted{"closed the connection after it had received the certificate", err}
	}
	// Some clients send their alert unencrypted after both sides have keys, so its MAC is invalid.
	var record tls.RecordHeaderError
	if errors.As(err, &record) || strings.HasSuffix(err.Error(), "tls: bad record MAC") {
		return &errUntrusted{"sent unencrypted data after it had received the certificate, perhaps an alert", err}
	}
	return err
}
