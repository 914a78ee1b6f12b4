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
