package problem

import (
	"crypto/tls"
	"errors"
	"net"
	"strings"
)

// Alerts from servers with a known explanation (RFC 8446, 6).
const (
	handshakeFailure       tls.AlertError = 40
	badCertificate         tls.AlertError = 42
	unsupportedCertificate tls.AlertError = 43
	certificateRevoked     tls.AlertError = 44
	certificateExpired     tls.AlertError = 45
	certificateUnknown     tls.AlertError = 46
	unknownCA              tls.AlertError = 48
	accessDenied           tls.AlertError = 49
	protocolVersion        tls.AlertError = 70
	insufficientSecurity   tls.AlertError = 71
	unrecognizedName       tls.AlertError = 112
	certificateRequired    tls.AlertError = 116
	noApplicationProtocol  tls.AlertError = 120
)

// alertFault explains a server's fatal alert. It returns "" if there was none.
func alertFault(err error) string {
	alert, received := AlertOf(err)
	if !received {
		return ""
	}
	switch alert {
	case certificateRequired:
		return "the server asks for a client certificate"
	case badCertificate, unsupportedCertificate, certificateRevoked, certificateExpired, certificateUnknown, unknownCA:
		return "the server does not accept the client certificate, or that there is none"
	case protocolVersion:
		return "the server does not speak TLS 1.2 or 1.3"
	case handshakeFailure, insufficientSecurity:
		return "the server and the gateway have no way to encrypt in common, or it asks for a client certificate"
	case unrecognizedName:
		return "the server does not know this name"
	case noApplicationProtocol:
		return "the server does not speak the protocol of the request"
	case accessDenied:
		return "the server denies access by a TLS alert"
	}
	return "the server refused the TLS handshake"
}

// AboutCertificate reports whether an alert rejects the peer's certificate.
func AboutCertificate(alert tls.AlertError) bool {
	switch alert {
	case badCertificate, unsupportedCertificate, certificateRevoked, certificateExpired, certificateUnknown, unknownCA:
		return true
	}
	return false
}

// NothingInCommon reports whether a handshake failed because client and server share no version, cipher suite or group.
// This is a guess: the alert has other meanings as well. Errors that crypto/tls itself detects are untyped, so they are
// compared by text.
func NothingInCommon(err error) bool {
	alert, received := AlertOf(err)
	if received {
		return alert == handshakeFailure || alert == protocolVersion || alert == insufficientSecurity
	}
	return strings.HasPrefix(innermost(err).Error(), "tls: server selected unsupported protocol version")
}

// innermost returns the last error of a chain of errors that each wrap one other.
func innermost(err error) error {
	for {
		next := errors.Unwrap(err)
		if next == nil {
			return err
		}
		err = next
	}
}

// libraryFaults explains errors of crypto/tls and crypto/x509 about certificates, by text because they are untyped.
var libraryFaults = []struct{ text, means string }{
	{"x509: negative serial number", "the server's certificate has a negative serial number, which RFC 5280 forbids"},
	{"tls: server's certificate contains an unsupported type of public key", "the server's certificate has an unsupported type of key (RSA, ECDSA and Ed25519 are supported)"},
	{"tls: server sent certificate containing RSA key larger than", "the server's certificate has an RSA key of more than 8,192 bits"},
	{"tls: failed to parse certificate from server", "the server's certificate is malformed"},
	{"tls: server selected unsupported protocol version", "the server does not speak TLS 1.2 or 1.3"},
	{"tls: server selected unsupported", "the server and the gateway have no way to encrypt in common"},
	{"tls: server chose an unconfigured cipher suite", "the server and the gateway have no way to encrypt in common"},
	{"tls: server's identity changed during renegotiation", "the server's certificate changed when it asked for another handshake"},
}

// libraryFault explains an error in libraryFaults. It returns "" for others.
func libraryFault(err error) string {
	text := innermost(err).Error()
	for _, known := range libraryFaults {
		if strings.HasPrefix(text, known.text) || strings.HasPrefix(text, "tls: ") && strings.HasSuffix(text, ": "+known.text) {
			return known.means
		}
	}
	return ""
}

// AlertOf returns the fatal alert of a TLS peer. crypto/tls returns it in a [net.OpError], as an
// unexported type with the texts of [tls.AlertError], which it uses for QUIC only.
func AlertOf(err error) (alert tls.AlertError, received bool) {
	var op *net.OpError
	if errors.As(err, &alert) {
		return alert, true
	}
	if !errors.As(err, &op) || op.Op != "remote error" || op.Err == nil {
		return 0, false
	}
	text := op.Err.Error()
	for n := range 256 {
		if alert = tls.AlertError(n); alert.Error() == text {
			return alert, true
		}
	}
	return 0, true
}
