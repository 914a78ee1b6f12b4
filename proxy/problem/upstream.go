package problem

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"syscall"

	"boxgate/internal/handshake"
	"boxgate/policy/name"
	"boxgate/proxy/scrub"
	"boxgate/relay"
	"boxgate/relay/h1"
	"boxgate/relay/h2"
)

// Upstream is the reason why an allowed destination could not be used, with a text for each of two audiences.
// [Upstream.Error] is for the log: it includes system errors, with addresses and ports of the host. [Upstream.shown] is for
// the box: it consists of the name that the box requested and of texts in this file.
type Upstream struct {
	Reason name.Reason // upstream_unresolved, upstream_unreachable, upstream_tls, upstream_http, unscrubbable or limit
	Name   name.Name
	Err    error
}

// Error returns the text for the log.
func (e *Upstream) Error() string {
	if e.Err == nil {
		return e.summary()
	}
	return e.summary() + ": " + e.Err.Error()
}

// Unwrap returns the cause.
func (e *Upstream) Unwrap() error { return e.Err }

func (e *Upstream) summary() string {
	what := e.Name.String()
	if what == "" {
		what = "upstream"
	}
	return fmt.Sprintf("%s: %s", what, e.Reason)
}

// shown returns the text for the box. For an unknown error it contains only the reason.
func (e *Upstream) shown() string {
	for _, text := range []func(error) string{ownFault, tlsFault, httpFault, netFault} {
		if e.Err == nil {
			break
		}
		if s := text(e.Err); s != "" {
			return e.summary() + ": " + s
		}
	}
	return e.summary()
}

// Fixed is an error of the gateway with a constant text that may be shown to a box.
type Fixed string

// Error returns the text.
func (f Fixed) Error() string { return string(f) }

// shownErrors are errors of other packages of the gateway that may be shown like [Fixed].
var shownErrors = []error{
	relay.ErrProtocol,
	h2.ErrServer, scrub.ErrCoding, scrub.ErrCompressed, scrub.ErrFrame,
	handshake.ErrKey, handshake.ErrAccept, handshake.ErrProtocol, handshake.ErrExtension,
}

func ownFault(err error) string {
	var fixed Fixed
	if errors.As(err, &fixed) {
		return fixed.Error()
	}
	for _, own := range shownErrors {
		if errors.Is(err, own) {
			return own.Error()
		}
	}
	return ""
}

// tlsFault explains an error of a handshake or a certificate.
func tlsFault(err error) string {
	var name x509.HostnameError
	var authority x509.UnknownAuthorityError
	var invalid x509.CertificateInvalidError
	var record tls.RecordHeaderError
	switch {
	case errors.As(err, &name) && name.Certificate != nil && len(name.Certificate.DNSNames)+len(name.Certificate.IPAddresses) == 0:
		return "the server's certificate has no subjectAltName: its common name (CN) is not used as a host name"
	case errors.As(err, &name):
		return "the server's certificate is not for this name"
	case errors.As(err, &authority):
		return "the server's certificate is signed by an unknown authority"
	case errors.As(err, &invalid) && invalid.Reason == x509.Expired:
		return "the server's certificate has expired or is not yet valid"
	case errors.As(err, &invalid):
		return "the server's certificate is not valid for a server"
	case errors.As(err, &record):
		return "the server does not speak TLS"
	}
	if s := alertFault(err); s != "" {
		return s
	}
	return libraryFault(err)
}

// httpFault explains an error in a response. The texts of h1 never quote the message.
func httpFault(err error) string {
	var malformed *h1.Error
	var reset *h2.StreamError
	var away *h2.GoAwayError
	switch {
	case errors.As(err, &malformed):
		return "the response is malformed: " + malformed.What
	case errors.As(err, &away):
		return "the server ended the connection by GOAWAY"
	case errors.As(err, &reset):
		return "the server reset the stream, or its answer was malformed"
	}
	return ""
}

// netFault explains a network error.
func netFault(err error) string {
	var slow net.Error
	var missing interface{ NotFound() bool }
	switch {
	case errors.As(err, &missing) && missing.NotFound():
		return "the name has no address"
	case errors.Is(err, syscall.ECONNREFUSED):
		return "connection refused"
	case errors.Is(err, syscall.ECONNRESET), errors.Is(err, syscall.EPIPE):
		return "connection reset"
	case errors.Is(err, syscall.EHOSTUNREACH), errors.Is(err, syscall.ENETUNREACH):
		return "no route to the host"
	case errors.Is(err, os.ErrDeadlineExceeded), errors.Is(err, context.DeadlineExceeded), errors.As(err, &slow) && slow.Timeout():
		return "timed out"
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		return "the server closed the connection"
	}
	return ""
}

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
