// Package cause names the properties of servers that make clients, spliced connections and intercepted ones differ, and
// detects them in received bytes. Each cause has a row in docs/doctor.md. The package does no input or output.
package cause

// ID identifies a cause. IDs are part of the API.
type ID string

// The causes, in the order in which they are reported.
const (
	Unresolved       ID = "name-unresolved"
	DeadAddress      ID = "address-dead"
	Unreachable      ID = "address-unreachable"
	NoTLS            ID = "no-tls"
	NoAnswer         ID = "no-answer"
	OldTLS           ID = "tls-old"
	LegacySuite      ID = "suite-legacy"
	UnsupportedSuite ID = "suite-unsupported"
	UnsupportedGroup ID = "group-unsupported"
	UnknownALPN      ID = "alpn-unknown"
	LargeHello       ID = "hello-large"
	ClientCert       ID = "client-certificate"
	HandshakeFails   ID = "handshake-fails"
	NegativeSerial   ID = "cert-serial"
	UnsupportedKey   ID = "cert-key"
	WeakKey          ID = "cert-weak-key"
	NoNames          ID = "cert-no-name"
	OtherName        ID = "cert-other-name"
	Expired          ID = "cert-expired"
	IncompleteChain  ID = "chain-incomplete"
	Untrusted        ID = "cert-untrusted"
	Purpose          ID = "cert-purpose"
	CrossSigned      ID = "chain-cross-signed"
	NotHTTP          ID = "not-http"
	NoResponse       ID = "no-response"
	LateResponse     ID = "response-late"
	UnaskedUpgrade   ID = "upgrade-unasked"
	Renegotiates     ID = "renegotiation"
	CutHead          ID = "head-cut"
	CutBody          ID = "body-cut"
	BareNewlines     ID = "bare-newlines"
	FoldedField      ID = "folded-field"
	FieldName        ID = "field-name"
	ControlByte      ID = "control-byte"
	ManyFields       ID = "fields-many"
	LargeFields      ID = "fields-large"
	LengthConflict   ID = "length-conflict"
	LengthInvalid    ID = "length-invalid"
	LengthRepeated   ID = "length-repeated"
	LengthAndChunked ID = "length-and-chunked"
	ChunkedTwice     ID = "chunked-twice"
	OldChunked       ID = "http10-chunked"
	UnusualCoding    ID = "coding-unusual"
	UnknownCoding    ID = "coding-unknown"
	PaddedChunks     ID = "chunk-padding"
	Trailers         ID = "trailers"
	ConnectionLogin  ID = "connection-login"
	SplicedFails     ID = "spliced-fails"
	Varies           ID = "content-varies"
	Differs          ID = "content-differs"
	Unknown          ID = "unknown"
)

// Option is a member of header rules that makes the gateway accept a server.
type Option string

// The options.
const (
	UpstreamTLS Option = "upstream_tls"
	Lenient     Option = "lenient"
)

// Cause describes a cause for people.
type Cause struct {
	ID   ID
	What string // the property of the server
	// Remedy is for hosts that need interception and fail because of the cause; "" if it does not make interception fail.
	Remedy string
	// Option makes interception work; may be empty.
	Option Option
	// Aside is for hosts that work when intercepted: which clients fail without the gateway or when spliced; may be empty.
	Aside string
}

// All lists the causes in the order of reports.
var All = []Cause{
	{ID: Unresolved, What: "the name has no address"},
	{ID: DeadAddress, What: "an address of the name accepts no connections", Aside: "the gateway tries the next address; clients that try only the first one, such as Java's, fail without it. Remove the address from DNS"},
	{ID: Unreachable, What: "no address of the name accepts connections on this port"},
	{ID: NoTLS, What: "the server does not speak TLS on this port", Aside: "header rules apply to TLS only. Remove the rule of this host and port, or use the port of HTTPS"},
	{ID: NoAnswer, What: "the server closes the connection in answer to a ClientHello"},
	{ID: OldTLS, What: "the server offers at most TLS 1.1 (deprecated by RFC 8996)", Remedy: "enable TLS 1.2 on the server"},
	{ID: LegacySuite, What: "the server offers only old cipher suites that the gateway offers under a rule", Remedy: "set upstream_tls: legacy in the rule", Option: UpstreamTLS},
	{ID: UnsupportedSuite, What: "the server offers only cipher suites that the gateway does not support", Remedy: "enable ECDHE with AES-GCM on the server"},
	{ID: UnsupportedGroup, What: "the server offers only groups for the key exchange that the gateway does not support", Remedy: "enable X25519 or a NIST curve on the server"},
	{ID: UnknownALPN, What: "the server refuses the protocols h2 and http/1.1 of ALPN", Remedy: "configure http/1.1 on the server"},
	{ID: LargeHello, What: "the server, or a firewall on the path, refuses ClientHellos that do not fit into one packet", Aside: "the gateway tries again with a small one; when spliced, configure clients without post-quantum key exchange (Go: GODEBUG=tlsmlkem=0)"},
	{ID: ClientCert, What: "the server requires a client certificate", Remedy: "set client_certificate in the rule, or give the box a certificate and no rule"},
	{ID: HandshakeFails, What: "the server refuses the TLS handshake", Remedy: "see the error of each way"},
	{ID: NegativeSerial, What: "the certificate has a negative serial number (RFC 5280, 4.1.2.2)", Remedy: "replace the certificate"},
	{ID: UnsupportedKey, What: "the certificate has an RSASSA-PSS key or one of another kind that Go does not support", Remedy: "replace the certificate"},
	{ID: WeakKey, What: "the certificate, or one that it depends on, has an RSA key of less than 2,048 bits", Remedy: "replace the certificate"},
	{ID: NoNames, What: "the certificate has no subjectAltName", Remedy: "replace the certificate"},
	{ID: OtherName, What: "the certificate is not for this name", Remedy: "replace the certificate, or use a name that it is for"},
	{ID: Expired, What: "the certificate, or one that it depends on, has expired or is not yet valid", Remedy: "replace the certificate, and check the clock"},
	{ID: IncompleteChain, What: "the server does not send the intermediate certificate", Remedy: "add it on the server"},
	{ID: Untrusted, What: "the certificate is signed by an unknown authority", Remedy: "add the authority to proxy.upstream_ca_files"},
	{ID: Purpose, What: "the certificate is not valid for servers", Remedy: "replace the certificate"},
	{ID: CrossSigned, What: "the server sends an intermediate certificate twice, by different issuers", Aside: "the gateway tries both; OpenSSL, and so curl, Node and Python, only the first. Remove the untrusted one on the server"},
	{ID: NotHTTP, What: "the answer to a request is not HTTP", Remedy: "remove the rules of this host and port: only HTTP can be intercepted"},
	{ID: NoResponse, What: "the server closes the connection without a response"},
	{ID: LateResponse, What: "the whole response to a GET does not arrive within 6 seconds", Remedy: "diagnose another path (--path); the server may wait for more than a GET"},
	{ID: UnaskedUpgrade, What: "the server answers a plain GET by 101 Switching Protocols (RFC 9110, 15.2.2)", Remedy: "diagnose another path (--path): a WebSocket client asks for the upgrade, which the gateway then allows"},
	{ID: Renegotiates, What: "the server asks for another handshake after the request, as IIS does for client certificates", Remedy: "the gateway answers it once, in HTTP/1.1 and TLS 1.2, without a certificate. If it needs one, make the server ask in the first handshake and set client_certificate in the rule"},
	{ID: CutHead, What: "the response ends in its head", Remedy: "repair the server"},
	{ID: CutBody, What: "the response ends before its content does", Remedy: "repair the server"},
	{ID: BareNewlines, What: "lines of the response's head end with LF alone (RFC 9112, 2.2)", Remedy: "repair the server, or set lenient in the rule", Option: Lenient},
	{ID: FoldedField, What: "a field of the response continues on the next line (RFC 9112, 5.2)", Remedy: "repair the server, or set lenient in the rule", Option: Lenient},
	{ID: FieldName, What: "a field of the response has an invalid name, or white space before the colon (RFC 9112, 5.1)", Remedy: "repair the server, or set lenient in the rule", Option: Lenient},
	{ID: ControlByte, What: "a field of the response has a control byte (RFC 9110, 5.5)", Remedy: "repair the server"},
	{ID: ManyFields, What: "the response has more than 128 fields", Remedy: "reduce them on the server, or set lenient in the rule", Option: Lenient},
	{ID: LargeFields, What: "the response has more than 64 KiB of fields", Remedy: "reduce them on the server"},
	{ID: LengthConflict, What: "the response has two different Content-Lengths (RFC 9112, 6.3)", Remedy: "repair the server"},
	{ID: LengthInvalid, What: "the Content-Length is not a number (RFC 9110, 8.6)", Remedy: "repair the server"},
	{ID: LengthRepeated, What: "the response repeats its Content-Length", Aside: "the gateway sends it once; Node refuses it repeated, Go and Java as a list"},
	{ID: LengthAndChunked, What: "the response has Content-Length and Transfer-Encoding (RFC 9112, 6.3)", Remedy: "repair the server, or set lenient in the rule", Option: Lenient},
	{ID: ChunkedTwice, What: "the response is chunked twice (RFC 9112, 6.1)", Remedy: "repair the server, or set lenient in the rule", Option: Lenient},
	{ID: OldChunked, What: "the response is HTTP/1.0 and chunked (RFC 9112, 6.1)", Remedy: "repair the server, or set lenient in the rule", Option: Lenient},
	{ID: UnusualCoding, What: "Transfer-Encoding has identity, or an empty element", Aside: "the gateway rewrites it; Go and other strict clients fail without it"},
	{ID: UnknownCoding, What: "Transfer-Encoding is neither chunked nor identity", Remedy: "repair the server: use Content-Encoding"},
	{ID: PaddedChunks, What: "chunk sizes are followed by blanks", Aside: "the gateway rewrites them; Go and Node fail without it, if an extension follows"},
	{ID: Trailers, What: "the response has trailers", Aside: "Java 17 fails at trailers of HTTP/1.1"},
	{ID: ConnectionLogin, What: "the server asks for NTLM or Negotiate, which log a connection in", Aside: "intercepted, they need HTTP/1.1: configure clients for it (curl: --http1.1), and do not set lenient"},
	{ID: SplicedFails, What: "the host works directly, but not when spliced", Remedy: "see the error of the way, and proxy.upstream or the box's upstream_proxy"},
	{ID: Varies, What: "the content is different for each request, and was not compared"},
	{ID: Differs, What: "the response arrives changed when intercepted"},
	{ID: Unknown, What: "the ways differ, and no known property of the server explains it", Remedy: "see the error of each way; without header and request rules the host is spliced"},
}

var byID = func() map[ID]Cause {
	out := map[ID]Cause{}
	for _, c := range All {
		out[c.ID] = c
	}
	return out
}()

// Of returns the description of a cause.
func Of(id ID) Cause { return byID[id] }
