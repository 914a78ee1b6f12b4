package differential

import (
	"bufio"
	"compress/gzip"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"time"

	"boxgate/e2e/harness"
	"boxgate/internal/nightly"
)

// row is a server and the request to it. With only a name and a server, the request is a GET of /page.
type row struct {
	name    string // of the server; the first label of its host name
	server  server
	refused string                         // clients that fail without the gateway too, separated by spaces
	cert    func(*certSpec)                // edits the certificate, for servers that use it
	method  string                         // instead of GET
	header  string                         // additional header field
	upload  bool                           // send a MiB
	options string                         // additional options of curl, or of openssl s_client
	alone   string                         // the only clients that make requests, separated by spaces
	talk    func(net.Conn) (string, error) // instead of an HTTP client; returns the received data
	plain   bool                           // without TLS
	only    string                         // "ip4", "ip6": the family of its only address
	dead    string                         // another address of its name, without a listener
	nightly bool                           // takes long
	rooted  bool                           // the name in its URL ends in the root's dot
	http1   bool                           // Go's client has no HTTP/2
	option  string                         // member of the header rule besides headers, as "key: value"

	// talks is talk for several connections.
	talks func(dial func() (net.Conn, error)) (string, error)

	// authorizations are sent by clients other than curl, one per request on the same connection; for an empty one the
	// request has none. Only the last answer counts.
	authorizations []string
}

func (r row) host() string { return r.name + "." + domain }

func (r row) port() uint16 {
	switch {
	case r.server.port != 0:
		return r.server.port
	case r.plain:
		return 80
	}
	return 443
}

func (r row) url() string {
	scheme := "https"
	if r.plain {
		scheme = "http"
	}
	host := r.host()
	if r.rooted {
		host += "."
	}
	return fmt.Sprintf("%s://%s:%d/page", scheme, host, r.port())
}

// suits reports whether the client makes requests to the server.
func (r row) suits(client string) bool {
	if r.alone != "" {
		return slices.Contains(strings.Fields(r.alone), client)
	}
	return (client == "socket") == (r.talk != nil || r.talks != nil) && client != "openssl"
}

// requests returns the additional fields, one list for each request.
func (r row) requests() (fields []string) {
	if len(r.authorizations) == 0 {
		return []string{r.header}
	}
	for _, value := range r.authorizations {
		if value != "" {
			value = "Authorization: " + value
		}
		fields = append(fields, value)
	}
	return fields
}

func (r row) refuses(client string) bool {
	return slices.Contains(strings.Fields(r.refused), client)
}

// table has every server. Each group begins with an ordinary one.
var table = slices.Concat(framing, statuses, bodies, versions, keys, chains, handshakes, hellos, programs, javas, addresses, exchanges, logins, plainText, lenient, legacy)

// framing are HTTP/1.1 responses with unusual heads or lengths.
var framing = []row{
	{name: "length", server: fine("Content-Length: 2\r\n", "ok")},
	{name: "chunked", server: fine("Transfer-Encoding: chunked\r\n", "1\r\no\r\n1\r\nk\r\n0\r\n\r\n")},
	{name: "chunk-extensions", server: fine("Transfer-Encoding: chunked\r\n", "2;a=b\r\nok\r\n0;c\r\n\r\n")},
	{name: "chunk-upper-case", server: fine("transfer-encoding: Chunked\r\n", "000A\r\n0123456789\r\n0\r\n\r\n")},
	{name: "trailers", server: fine("Transfer-Encoding: chunked\r\nTrailer: X-End\r\n", "2\r\nok\r\n0\r\nX-End: yes\r\n\r\n")},
	{name: "to-the-end", server: fine("X-Row: a\r\n", "ok")},
	{name: "http10", server: respondsWith("HTTP/1.0 200 OK\r\n\r\nok")},
	{name: "http10-kept", server: respondsWith("HTTP/1.0 200 OK\r\nConnection: keep-alive\r\nContent-Length: 2\r\n\r\nok")},
	{name: "http10-chunked", server: respondsWith("HTTP/1.0 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n")},
	{name: "chunk-padded", server: fine("Transfer-Encoding: chunked\r\n", "2   \r\nok\r\n0   \r\n\r\n")},
	{name: "chunk-padded-extension", server: fine("Transfer-Encoding: chunked\r\n", "2 ;a=b\r\nok\r\n0\t;c\r\n\r\n"), refused: "Go"},
	{name: "length-twice", server: fine("Content-Length: 2\r\nContent-Length: 2\r\n", "ok")},
	{name: "length-list", server: fine("Content-Length: 2, 2\r\nConnection: close\r\n", "ok"), refused: "Go"},
	{name: "lengths-that-differ", server: fine("Content-Length: 2\r\nContent-Length: 3\r\nConnection: close\r\n", "ok"), refused: "curl Go"},
	{name: "length-negative", server: fine("Content-Length: -2\r\nConnection: close\r\n", "ok"), refused: "curl Go"},
	{name: "length-with-plus", server: fine("Content-Length: +2\r\nConnection: close\r\n", "ok"), refused: "Go"},
	{name: "identity", server: fine("Transfer-Encoding: identity\r\nContent-Length: 2\r\nConnection: close\r\n", "ok"), refused: "Go"},
	{name: "identity-to-the-end", server: fine("Transfer-Encoding: identity\r\n", "ok"), refused: "Go"},
	{name: "encoding-comma", server: fine("Transfer-Encoding: chunked,\r\n", "2\r\nok\r\n0\r\n\r\n"), refused: "Go"},
	{name: "chunked-twice", server: fine("Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n", "2\r\nok\r\n0\r\n\r\n"), refused: "Go"},
	{name: "length-and-chunked", server: fine("Content-Length: 2\r\nTransfer-Encoding: chunked\r\n", "2\r\nok\r\n0\r\n\r\n")},
	{name: "folded-field", server: fine("X-Row: a\r\n b\r\nContent-Length: 2\r\n", "ok")},
	{name: "blank-before-colon", server: fine("Connection: close\r\nX-Row : a\r\nContent-Length: 2\r\n", "ok")},
	{name: "bare-newlines", server: respondsWith("HTTP/1.1 200 OK\nX-Row: a\nContent-Length: 2\n\nok")},
	{name: "parenthesis-in-name", server: fine("X(Row): a\r\nContent-Length: 2\r\n", "ok"), refused: "Go"},
	{name: "blank-in-name", server: fine("Connection: close\r\nX Row: a\r\nContent-Length: 2\r\n", "ok")},
	{name: "at-in-name", server: fine("X@Row: a\r\nContent-Length: 2\r\n", "ok"), refused: "Go"},
	{name: "control-byte", server: fine("X-Row: a\x01b\r\nContent-Length: 2\r\n", "ok"), refused: "Go"},
	{name: "latin-1", server: fine("X-Row: caf\xe9\r\nContent-Length: 2\r\n", "ok")},
	{name: "utf-8", server: fine("X-Row: caf\xc3\xa9\r\nContent-Length: 2\r\n", "ok")},
	{name: "no-reason", server: respondsWith("HTTP/1.1 200 \r\nContent-Length: 2\r\n\r\nok")},
	{name: "no-reason-no-blank", server: respondsWith("HTTP/1.1 200\r\nContent-Length: 2\r\n\r\nok")},
	{name: "fields-100", server: fine(strings.Repeat("X-Many: a\r\n", 97)+"Content-Length: 2\r\n", "ok")},
	{name: "fields-130", server: fine(strings.Repeat("X-Many: a\r\n", 129)+"Content-Length: 2\r\n", "ok")},
	{name: "fields-200", server: fine(strings.Repeat("X-Many: a\r\n", 199)+"Content-Length: 2\r\n", "ok")},
	{name: "field-60k", server: fine("X-Big: "+strings.Repeat("b", 60<<10)+"\r\nContent-Length: 2\r\n", "ok")},
	{name: "field-90k", server: fine("X-Big: "+strings.Repeat("b", 90<<10)+"\r\nContent-Length: 2\r\n", "ok")},
	{name: "cookies-50", server: fine(strings.Repeat("Set-Cookie: a=b; Path=/\r\n", 50)+"Content-Length: 2\r\n", "ok")},
	{name: "field-of-connection", server: fine("Connection: X-Own\r\nX-Own: a\r\nContent-Length: 2\r\n", "ok")},
	{name: "not-http", server: respondsWith("SSH-2.0-OpenSSH_9.2\r\n"), refused: "curl Go"},
	{name: "no-answer", server: respondsWith(""), refused: "curl Go"},
	{name: "ends-in-head", server: respondsWith("HTTP/1.1 200 OK\r\nContent-Le"), refused: "Go"},
	{name: "ends-in-body", server: fine("Content-Length: 10\r\nConnection: close\r\n", "ok"), refused: "curl Go"},
	{name: "ends-in-chunk", server: fine("Transfer-Encoding: chunked\r\n", "8\r\nok"), refused: "curl Go"},
	{name: "ends-between-chunks", server: fine("Transfer-Encoding: chunked\r\n", "2\r\nok\r\n"), refused: "curl Go"},
}

// lenient are malformed responses under rules with lenient.
var lenient = under("lenient", "lenient: true", framing, "length", "http10-chunked", "chunked-twice", "length-and-chunked", "folded-field", "blank-before-colon",
	"bare-newlines", "parenthesis-in-name", "blank-in-name", "at-in-name", "fields-200", "trailers")

// legacy are servers and clients of old TLS under rules for them.
var legacy = slices.Concat(
	under("legacy", "upstream_tls: legacy", versions, "tls13", "tls12-rsa-exchange", "tls12-cbc-sha256", "tls12-cbc-sha384"),
	under("legacy", "client_tls: legacy", hellos, "client-rsa-tls12", "client-rsa-exchange"),
)

// under returns the rows of a table with these names, with an option of their rules and a prefix.
func under(prefix, option string, table []row, names ...string) (rows []row) {
	for _, r := range table {
		if slices.Contains(names, r.name) {
			r.name, r.option = prefix+"-"+r.name, option
			rows = append(rows, r)
		}
	}
	return rows
}

// statuses are responses whose status or method determines the framing.
var statuses = []row{
	{name: "continue-unasked", server: respondsWith("HTTP/1.1 100 Continue\r\n\r\n" + okay)},
	{name: "processing", server: respondsWith("HTTP/1.1 102 Processing\r\n\r\nHTTP/1.1 102 Processing\r\n\r\n" + okay)},
	{name: "early-hints", server: respondsWith("HTTP/1.1 103 Early Hints\r\nLink: </a.css>; rel=preload\r\n\r\n" + okay)},
	{name: "no-content", server: respondsWith("HTTP/1.1 204 No Content\r\nConnection: close\r\n\r\n")},
	{name: "no-content-length-0", server: respondsWith("HTTP/1.1 204 No Content\r\nContent-Length: 0\r\n\r\n")},
	{name: "reset-content", server: respondsWith("HTTP/1.1 205 Reset Content\r\nContent-Length: 0\r\n\r\n")},
	{name: "partial-content", server: respondsWith("HTTP/1.1 206 Partial Content\r\nContent-Range: bytes 0-1/9\r\nContent-Length: 2\r\n\r\nok"), header: "Range: bytes=0-1"},
	{name: "moved", server: respondsWith("HTTP/1.1 302 Found\r\nLocation: /caf\xc3\xa9?a=b\r\nContent-Length: 0\r\n\r\n")},
	{name: "not-modified", server: respondsWith("HTTP/1.1 304 Not Modified\r\nEtag: \"v1\"\r\nContent-Length: 12345\r\n\r\n"), header: `If-None-Match: "v1"`},
	{name: "unauthorized", server: respondsWith("HTTP/1.1 401 Unauthorized\r\nWWW-Authenticate: Basic realm=\"r\"\r\nContent-Length: 2\r\n\r\nno")},
	{name: "legal-reasons", server: respondsWith("HTTP/1.1 451 Unavailable For Legal Reasons\r\nContent-Length: 2\r\n\r\nno")},
	{name: "bad-gateway", server: respondsWith("HTTP/1.1 502 Bad Gateway\r\nContent-Length: 2\r\n\r\nno")},
	{name: "status-999", server: respondsWith("HTTP/1.1 999 Request denied\r\nContent-Length: 2\r\n\r\nno")},
	{name: "head", server: respondsWith("HTTP/1.1 200 OK\r\nX-Row: a\r\nContent-Length: 1234\r\n\r\n"), method: http.MethodHead},
	{name: "head-chunked", server: respondsWith("HTTP/1.1 200 OK\r\nX-Row: a\r\nTransfer-Encoding: chunked\r\n\r\n"), method: http.MethodHead},
	{name: "options", server: fine("Allow: GET\r\nContent-Length: 0\r\n", ""), method: http.MethodOptions},
	{name: "delete", server: fine("Content-Length: 2\r\n", "ok"), method: http.MethodDelete},
	{name: "odd-method", server: fine("Content-Length: 2\r\n", "ok"), method: "PROPFIND"},
}

// bodies are servers of both versions with special content or timing.
var bodies = []row{
	{name: "http2", server: handles(func(w http.ResponseWriter, r *http.Request) { fmt.Fprint(w, r.ProtoMajor > 0) })},
	{name: "http2-alone", server: handles(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "ok") }, "h2")},
	{name: "http2-trailers", server: handles(func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprint(w, "ok")
		w.Header().Set(http.TrailerPrefix+"X-End", "yes")
	})},
	{name: "http2-early-hints", server: handles(func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusEarlyHints)
		fmt.Fprint(w, "ok")
	})},
	{name: "http2-field-60k", server: handles(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("X-Big", strings.Repeat("b", 60<<10))
		fmt.Fprint(w, "ok")
	})},
	{name: "http2-fields-130", server: handles(fields(130))},
	{name: "http2-fields-200", server: handles(fields(200))},
	{name: "http2-ends-in-body", server: handles(func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprint(w, "ok")
		_ = http.NewResponseController(w).Flush()
		panic(http.ErrAbortHandler)
	}), refused: "curl Go"},
	{name: "gzip", server: handles(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Encoding", "gzip")
		z := gzip.NewWriter(w)
		_, _ = io.WriteString(z, "ok")
		_ = z.Close()
	}), options: "--compressed"},
	{name: "upload", server: handles(count), upload: true},
	{name: "upload-http1", server: handles(count, "http/1.1"), upload: true},
	{name: "upload-expected", server: handles(count, "http/1.1"), upload: true, header: "Expect: 100-continue"},
	{name: "upload-refused", server: handles(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Connection", "close")
		w.WriteHeader(http.StatusUnauthorized)
	}, "http/1.1"), upload: true, header: "Expect: 100-continue", options: "--expect100-timeout 60", alone: "curl"},
	{name: "big", server: handles(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, strings.Repeat("x", 4<<20)) })},
	{name: "slow-first-byte", server: handles(func(w http.ResponseWriter, _ *http.Request) {
		time.Sleep(nightly.Size(200*time.Millisecond, 2*time.Second))
		fmt.Fprint(w, "ok")
	})},
	{name: "drips", server: handles(func(w http.ResponseWriter, _ *http.Request) {
		for range 5 {
			fmt.Fprint(w, "drip")
			_ = http.NewResponseController(w).Flush()
			time.Sleep(nightly.Size(10*time.Millisecond, time.Second))
		}
	})},
}

// fields returns a server that answers with a number of fields.
func fields(number int) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		for n := range number {
			w.Header().Set(fmt.Sprint("X-Many-", n), "a")
		}
		fmt.Fprint(w, "ok")
	}
}

// count answers with the number of received bytes.
func count(w http.ResponseWriter, r *http.Request) {
	n, err := io.Copy(io.Discard, r.Body)
	fmt.Fprint(w, n, err)
}

// versions are TLS versions with their suites and groups.
var versions = []row{
	{name: "tls13", server: speaks(&tls.Config{MinVersion: tls.VersionTLS13})},
	{name: "tls12", server: speaks(&tls.Config{MaxVersion: tls.VersionTLS12})},
	{name: "tls11", server: openssl("-tls1_1 -cipher ALL:@SECLEVEL=0"), refused: "Go", options: "--tlsv1.0 --ciphers DEFAULT@SECLEVEL=0"},
	{name: "tls12-chacha20", server: openssl("-tls1_2 -cipher ECDHE-RSA-CHACHA20-POLY1305")},
	{name: "tls12-aes128-gcm", server: openssl("-tls1_2 -cipher ECDHE-RSA-AES128-GCM-SHA256")},
	{name: "tls12-cbc-sha1", server: openssl("-tls1_2 -cipher ECDHE-RSA-AES128-SHA")},
	{name: "tls12-cbc-sha256", server: openssl("-tls1_2 -cipher ECDHE-RSA-AES256-SHA384:ECDHE-RSA-AES128-SHA256"), refused: "Go"},
	{name: "tls12-cbc-sha384", server: openssl("-tls1_2 -cipher ECDHE-RSA-AES256-SHA384"), refused: "Go"},
	{name: "tls12-dhe", server: openssl("-tls1_2 -cipher DHE-RSA-AES256-GCM-SHA384:DHE-RSA-AES128-GCM-SHA256"), refused: "Go"},
	{name: "tls12-rsa-exchange", server: openssl("-tls1_2 -cipher AES256-GCM-SHA384:AES128-GCM-SHA256"), refused: "Go"},
	{name: "tls13-chacha20", server: openssl("-tls1_3 -ciphersuites TLS_CHACHA20_POLY1305_SHA256")},
	{name: "tls13-aes256", server: openssl("-tls1_3 -ciphersuites TLS_AES_256_GCM_SHA384")},
	{name: "group-x25519", server: openssl("-groups X25519")},
	{name: "group-p256", server: openssl("-groups P-256")},
	{name: "group-p384", server: openssl("-groups P-384")}, // by a HelloRetryRequest
	{name: "group-p521", server: speaks(&tls.Config{CurvePreferences: []tls.CurveID{tls.CurveP521}})},
	{name: "group-x448", server: openssl("-groups X448"), refused: "Go"},
	{name: "group-ffdhe2048", server: openssl("-tls1_3 -groups ffdhe2048"), refused: "Go"},
	{name: "tls12-group-p384", server: openssl("-tls1_2 -groups P-384")},
}

// keys are kinds of certificate keys.
var keys = []row{
	{name: "key-p256", server: shows(key("p256"))},
	{name: "key-p384", server: shows(key("p384"))},
	{name: "key-p521", server: shows(key("p521"))},
	{name: "key-ed25519", server: shows(key("ed25519"))},
	{name: "key-rsa2048", server: shows(key("rsa2048"))},
	{name: "key-rsa3072", server: shows(key("rsa3072"))},
	{name: "key-rsa4096", server: shows(key("rsa4096"))},
	{name: "key-rsa1024", server: openssl("-cipher DEFAULT@SECLEVEL=0"), cert: key("rsa1024"), refused: "curl"},
	{name: "key-rsa1024-above", server: shows(weakAuthority), refused: "curl"},
	{name: "key-rsa-pss", server: odd("-newkey rsa-pss -pkeyopt rsa_keygen_bits:2048", ""), refused: "Go"},
}

// chains are certificate chains sent by servers.
var chains = []row{
	{name: "chain-with-root", server: shows(whole)},
	{name: "chain-out-of-order", server: shows(odder)},
	{name: "chain-missing", server: shows(bare), refused: "curl Go"},
	{name: "chain-of-one", server: shows(byTheRoot)},
	{name: "chain-cross-signed", server: shows(crossSigned), refused: "curl"},
	{name: "chain-root-cross-signed", server: shows(crossSignedRoot)},
	{name: "chain-expired", server: shows(expiredIntermediate), refused: "curl Go"},
	{name: "cert-expired", server: shows(expired), refused: "curl Go"},
	{name: "cert-not-yet-valid", server: shows(notYetValid), refused: "curl Go"},
	{name: "cert-of-another", server: shows(otherName), refused: "curl Go"},
	{name: "cert-self-signed", server: shows(selfSigned), refused: "curl Go"},
	{name: "cert-untrusted", server: shows(untrusted), refused: "curl Go"},
	{name: "cert-for-clients", server: shows(clientsAlone), refused: "curl Go"},
	{name: "cert-wildcard", server: shows(wildcard)},
	{name: "cert-wildcard-too-high", server: shows(wildcardTwoLabels), refused: "curl Go"},
	{name: "cert-500-names", server: shows(manyNames)},
	{name: "cert-common-name", server: shows(noName), refused: "Go"},
	{name: "cert-negative-serial", server: odd("-newkey rsa:2048", "-set_serial -77"), refused: "Go"},
}

// handshakes are other peculiarities of servers before the first request.
var handshakes = []row{
	{name: "alpn-none", server: speaks(&tls.Config{})},
	{name: "alpn-unknown", server: speaks(&tls.Config{NextProtos: []string{"acme-tls/1"}}), refused: "curl Go"},
	{name: "client-certificate-asked", server: speaks(&tls.Config{ClientAuth: tls.RequestClientCert})},
	{name: "client-certificate-asked-tls12", server: openssl("-tls1_2 -verify 1")},
	{name: "client-certificate-needed", server: speaks(&tls.Config{ClientAuth: tls.RequireAnyClientCert}), refused: "curl Go"},
	{name: "client-certificate-needed-tls12", server: openssl("-tls1_2 -Verify 1"), refused: "curl Go"},
	{name: "no-tickets", server: speaks(&tls.Config{SessionTicketsDisabled: true})},
	{name: "many-tickets", server: openssl("-num_tickets 10")},
	{name: "no-tickets-tls12", server: openssl("-tls1_2 -no_ticket")},
	{name: "small-records", server: openssl("-max_send_frag 512 -split_send_frag 512")},
	{name: "padded-records", server: openssl("-tls1_3 -record_padding 4096")},
	{name: "own-preference", server: openssl("-serverpref -prioritize_chacha")},
	{name: "small-hellos", server: smallHello(), refused: "Go"},
	{name: "renegotiation", server: renegotiates(), alone: "curl Node Python"},
	{name: "closes-at-once", server: conns(nil, func(net.Conn) {}), refused: "curl Go"},
	{name: "closes-after-hello", server: conns(nil, func(c net.Conn) { _, _ = c.Read(make([]byte, 512)) }), refused: "curl Go"},
	{name: "not-tls", server: conns(nil, func(c net.Conn) { _, _ = io.WriteString(c, okay) }), refused: "curl Go"},
	{name: "no-close-notify", server: conns(http1, withoutNotice("Content-Length: 2\r\n"))},
	{name: "no-close-notify-to-the-end", server: conns(http1, withoutNotice("X-Row: a\r\n"))},
}

// withoutNotice answers, and closes the connection without a TLS close_notify.
func withoutNotice(fields string) func(net.Conn) {
	return func(c net.Conn) {
		if _, err := http.ReadRequest(bufio.NewReader(c)); err != nil {
			return
		}
		_, _ = io.WriteString(c, "HTTP/1.1 200 OK\r\n"+fields+"\r\nok")
		_ = c.(*tls.Conn).NetConn().Close()
	}
}

// hellos are ordinary servers with unusual clients.
var hellos = []row{
	{name: "client-rsa-tls12", server: speaks(http1), cert: key("rsa2048"), options: "--tls-max 1.2 --ciphers ECDHE-RSA-AES128-GCM-SHA256", alone: "curl"},
	{name: "client-rsa-tls13", server: speaks(http1), cert: key("rsa2048"), options: "-sigalgs rsa_pss_rsae_sha256:RSA+SHA256", alone: "openssl"},
	{name: "client-rsa-exchange", server: openssl(""), options: "--tls-max 1.2 --ciphers AES128-GCM-SHA256", alone: "curl"},
	{name: "client-dhe", server: openssl(""), options: "--tls-max 1.2 --ciphers DHE-RSA-AES128-GCM-SHA256", alone: "curl"},
	{name: "server-name-rooted", server: openssl(""), options: "-servername server-name-rooted." + domain + ".", alone: "openssl"},
	{name: "url-rooted", server: respondsWith(okay), rooted: true},
	{name: "plain-url-rooted", server: conns(nil, answering(okay)), rooted: true, plain: true},
	{name: "host-rooted", server: respondsWith(okay), header: "Host: host-rooted." + domain + "."},
	{name: "host-rooted-http2", server: handles(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "ok") }), header: "Host: host-rooted-http2." + domain + "."},
	{name: "resumption", server: resumes(http1), talks: twice("resumption." + domain)},
	{name: "resumption-tls12", server: resumes(&tls.Config{NextProtos: http1.NextProtos, MaxVersion: tls.VersionTLS12}), talks: twice("resumption-tls12." + domain)},
}

// programs are servers as packaged by distributions.
var programs = []row{
	{name: "openssl", server: openssl("")},
	{name: "python", server: python("http11")},
	{name: "python-http10", server: python("http10")},
	{name: "python-chunks", server: python("chunks")},
	{name: "python-error", server: python("error")},
}

// javas are servers of the JDK.
var javas = []row{
	{name: "java", server: java("https")},
	{name: "java-rsa", server: java("https"), cert: key("rsa2048")},
	{name: "java-tls12", server: java("https tls12")},
	{name: "java-tls13", server: java("https tls13")},
	{name: "java-chunks", server: java("https chunks")},
	{name: "java-error", server: java("https error")},
	{name: "java-upload", server: java("https"), upload: true},
	{name: "java-kept", server: java("https"), talk: keeps(atProgram("java-kept"))},
	{name: "java-client-certificate-asked", server: java("https certificate")},
	{name: "java-socket", server: java("socket")},
	{name: "java-socket-tls12", server: java("socket tls12")},
	{name: "java-resumption", server: java("socket resumption"), talks: twice(atProgram("java-resumption"))},
	{name: "java-resumption-tls12", server: java("socket resumption tls12"), talks: twice(atProgram("java-resumption-tls12"))},
}

// addresses are names with unusual addresses.
var addresses = []row{
	{name: "ip4-alone", server: respondsWith(okay), only: "ip4"},
	{name: "ip6-alone", server: respondsWith(okay), only: "ip6"},
	{name: "ip4-dead-first", server: respondsWith(okay).at(programPort), only: "ip4", dead: "192.0.2.101"},
	{name: "ip6-dead-ip4-alive", server: respondsWith(okay).at(programPort), only: "ip4", dead: "2001:db8:2::101"},
	{name: "ip4-dead-ip6-alive", server: respondsWith(okay).at(programPort), only: "ip6", dead: "192.0.2.102"},
}

// exchanges are done by clients other than HTTP clients.
var exchanges = []row{
	{name: "websocket", server: conns(http1, webSocket("websocket")), talk: upgrading("websocket", harness.UpgradeHead)},
	{name: "upgrade-unknown", server: conns(http1, webSocket("own")), talk: upgrading("upgrade-unknown", "Connection: Upgrade\r\nUpgrade: own\r\n\r\n")},
	{name: "pipelined", server: fine("Content-Length: 2\r\n", "ok"), talk: func(c net.Conn) (string, error) {
		_, err := io.WriteString(c, strings.Repeat("GET / HTTP/1.1\r\nHost: pipelined."+domain+"\r\n\r\n", 3))
		in := bufio.NewReader(c)
		var all string
		for range 3 {
			if err != nil {
				break
			}
			var text string
			text, err = bodyFrom(in)
			all += text
		}
		return all, err
	}},
	{name: "kept", server: fine("Content-Length: 2\r\n", "ok"), talk: keeps("kept." + domain)},
	{name: "old-client", server: fine("Transfer-Encoding: chunked\r\n", "2\r\nok\r\n0\r\n\r\n"), talk: func(c net.Conn) (string, error) {
		_, err := io.WriteString(c, "GET / HTTP/1.0\r\nHost: old-client."+domain+"\r\n\r\n")
		return bodyOf(c, err)
	}},
	{name: "answers-at-the-end", server: conns(http1, atTheEnd), talk: ending("answers-at-the-end", true)},
	{name: "answers-at-the-notice", server: conns(http1, atTheEnd), talk: ending("answers-at-the-notice", false)},
	{name: "gives-up-at-the-end", server: conns(http1, givesUp), talk: ending("gives-up-at-the-end", true), refused: "socket"},
	{name: "banner", server: conns(nil, banner).at(2525), talk: greeted, plain: true},
	{name: "banner-dead-first", server: conns(nil, banner).at(2525), talk: greeted, plain: true, only: "ip4", dead: "192.0.2.103"},
}

// plainText are servers without TLS.
var plainText = []row{
	{name: "plain", server: conns(nil, answering(okay)), plain: true},
	{name: "plain-length-twice", server: conns(nil, answering("HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Length: 2\r\n\r\nok")), plain: true},
	{name: "plain-chunk-padded", server: conns(nil, answering("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2  \r\nok\r\n0  \r\n\r\n")), plain: true},
	{name: "plain-http10", server: conns(nil, answering("HTTP/1.0 200 OK\r\n\r\nok")), plain: true},
	{name: "plain-answers-at-the-end", server: conns(nil, atTheEnd), plain: true, talk: ending("plain-answers-at-the-end", true)},
	{name: "plain-dead-first", server: conns(nil, answering(okay)).at(8088), plain: true, only: "ip4", dead: "192.0.2.104"},
}

// bodyOf reads one response.
func bodyOf(c net.Conn, err error) (string, error) {
	if err != nil {
		return "", err
	}
	return bodyFrom(bufio.NewReader(c))
}

func bodyFrom(in *bufio.Reader) (string, error) {
	res, err := http.ReadResponse(in, nil)
	if err != nil {
		return "", err
	}
	defer res.Body.Close()
	text, err := io.ReadAll(res.Body)
	if strings.HasPrefix(res.Header.Get("Content-Type"), ours) {
		err = fmt.Errorf("%s: %.300s", res.Status, text)
	}
	return fmt.Sprintf("%d %s", res.StatusCode, text), err
}

// atTheEnd answers when the client has closed its side.
func atTheEnd(c net.Conn) {
	if _, err := io.Copy(io.Discard, c); err == nil {
		_, _ = io.WriteString(c, okay)
	}
}

// givesUp drops the request when the client closes its side.
func givesUp(c net.Conn) { _, _ = io.Copy(io.Discard, c) }

// ending sends a request, closes its side (only of TLS, unless all is set) and waits for the response.
func ending(name string, all bool) func(net.Conn) (string, error) {
	return func(c net.Conn) (string, error) {
		_, err := io.WriteString(c, "GET / HTTP/1.1\r\nHost: "+name+"."+domain+"\r\n\r\n")
		if s, ok := c.(*tls.Conn); ok {
			err, c = errors.Join(err, s.CloseWrite()), s.NetConn()
			if all {
				err = errors.Join(err, c.(*net.TCPConn).CloseWrite())
			}
			return bodyOf(s, err)
		}
		return bodyOf(c, errors.Join(err, c.(*net.TCPConn).CloseWrite()))
	}
}

// atProgram returns the authority of a program.
func atProgram(name string) string { return fmt.Sprintf("%s.%s:%d", name, domain, programPort) }

// keeps makes three requests on one connection.
func keeps(authority string) func(net.Conn) (string, error) {
	return func(c net.Conn) (all string, err error) {
		in := bufio.NewReader(c)
		for range 3 {
			if _, err = io.WriteString(c, "GET / HTTP/1.1\r\nHost: "+authority+"\r\n\r\n"); err != nil {
				return all, err
			}
			text, err := bodyFrom(in)
			if all += text; err != nil {
				return all, err
			}
		}
		return all, nil
	}
}

// webSocket accepts an upgrade and echoes.
func webSocket(protocol string) func(net.Conn) {
	return func(c net.Conn) {
		in := bufio.NewReader(c)
		if _, err := http.ReadRequest(in); err != nil {
			return
		}
		_, _ = io.WriteString(c, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: "+protocol+"\r\nSec-WebSocket-Accept: "+accepted+"\r\n\r\n")
		if _, err := io.ReadFull(in, make([]byte, len(frame))); err == nil {
			_, _ = io.WriteString(c, echo)
		}
	}
}

// accepted is the Sec-WebSocket-Accept for the key of [harness.UpgradeHead].
const accepted = "BACScCJPNqyz+UBoqMH89VmURoA="

// frame is a text message of one byte as sent by a WebSocket client, masked with zeros; echo as sent by a server.
const frame, echo = "\x81\x81\x00\x00\x00\x00x", "\x81\x01x"

// upgrading requests another protocol and uses it.
func upgrading(name, head string) func(net.Conn) (string, error) {
	return func(c net.Conn) (string, error) {
		if _, err := io.WriteString(c, "GET / HTTP/1.1\r\nHost: "+name+"."+domain+"\r\n"+head); err != nil {
			return "", err
		}
		in := bufio.NewReader(c)
		res, err := http.ReadResponse(in, nil)
		if err != nil {
			return "", err
		}
		if res.StatusCode != http.StatusSwitchingProtocols {
			return "", errors.New(res.Status)
		}
		if _, err := io.WriteString(c, frame); err != nil {
			return "", err
		}
		back := make([]byte, len(echo))
		_, err = io.ReadFull(in, back)
		return "101 " + string(back), err
	}
}

// banner speaks first, like mail and SSH servers.
func banner(c net.Conn) {
	if _, err := io.WriteString(c, "220 ready\r\n"); err != nil {
		return
	}
	line, err := bufio.NewReader(c).ReadString('\n')
	if err == nil {
		_, _ = io.WriteString(c, "250 "+line)
	}
}

func greeted(c net.Conn) (string, error) {
	in := bufio.NewReader(c)
	first, err := in.ReadString('\n')
	if err != nil {
		return first, err
	}
	if _, err := io.WriteString(c, "EHLO\r\n"); err != nil {
		return first, err
	}
	second, err := in.ReadString('\n')
	return first + second, err
}
