package probe

import (
	"bytes"
	"context"
	"crypto/sha256"
	"crypto/tls"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"slices"
	"strings"
	"time"

	"boxgate/doctor/cause"
	"boxgate/proxy/offer"
)

// comparedFields are the fields of a response that are compared besides its status and content.
var comparedFields = []string{"Content-Type", "Content-Encoding", "Location", "Www-Authenticate"}

// ask makes the requests of both clients.
func (r *prober) ask() {
	lenient := Client{Name: Lenient}
	if r.Plain {
		r.plain(&lenient)
		r.report.Clients = append(r.report.Clients, lenient)
		return
	}
	conn, asked, err := r.handshake()
	switch {
	case err != nil && !asked && r.speaksPlain(err):
		r.plain(&lenient)
		r.report.Clients = append(r.report.Clients, lenient)
		return
	case err != nil && asked:
		r.note(cause.ClientCert)
		lenient.Error = clip(reasonOf(err))
	case err != nil:
		lenient.Error = clip(reasonOf(err))
		r.scan(err)
	default:
		r.overTLS(&lenient, conn, asked)
	}
	sessions := tls.NewLRUClientSessionCache(1)
	strict := r.strict(sessions)
	if strict.Error == "" && r.Addrs != nil { // directly: does the content depend on request or session?
		if again := r.strict(sessions); again.Error == "" && again.Digest != strict.Digest {
			r.note(cause.Varies)
		}
	}
	r.report.Clients = append(r.report.Clients, strict, lenient)
}

// refusedByAll are properties of certificates that every verifying client refuses.
var refusedByAll = []cause.ID{cause.OtherName, cause.Expired, cause.IncompleteChain, cause.Untrusted, cause.Purpose}

// overTLS makes the request of the lenient client.
func (r *prober) overTLS(c *Client, conn *tls.Conn, asked bool) {
	defer conn.Close()
	state := conn.ConnectionState()
	c.describe(state)
	r.chain = state.PeerCertificates
	r.note(cause.OfParameters(state.Version, state.CipherSuite, state.CurveID))
	if id := cause.OfParameters(state.Version, state.CipherSuite, 0); id != "" {
		r.report.Offer = tls.VersionName(state.Version) + " " + offer.SuiteName(state.CipherSuite)
	}
	r.note(cause.OfChain(r.chain, r.Host, r.roots, time.Now())...)
	if len(r.chain) > 0 {
		r.report.Subject = clip(fmt.Sprintf("%s, by %s", r.chain[0].Subject.CommonName, r.chain[0].Issuer.CommonName))
	}
	if state.NegotiatedProtocol == "h2" {
		c.Error = "the server speaks HTTP/2 only"
		return
	}
	r.exchange(c, conn)
	if i := slices.IndexFunc(r.report.Causes, func(id cause.ID) bool { return slices.Contains(refusedByAll, id) }); i >= 0 && c.Error == "" {
		c.Error = "refused by every client that verifies: " + cause.Of(r.report.Causes[i]).What
	}
	if asked && c.Status == 0 { // an alert of TLS 1.3 comes after the handshake
		r.note(cause.ClientCert)
		r.report.Causes = slices.DeleteFunc(r.report.Causes, func(id cause.ID) bool { return id == cause.NoResponse })
	}
}

// speaksPlain reports whether a server speaks something else than TLS. failed is the error of the handshake.
func (r *prober) speaksPlain(failed error) bool {
	if record := (tls.RecordHeaderError{}); errors.As(failed, &record) {
		return true
	}
	if answered(failed) {
		return false
	}
	conn, err := r.dial()
	if err != nil {
		return false
	}
	defer conn.Close()
	var c Client
	trial := prober{Plan: r.Plan}
	trial.exchange(&c, conn)
	return c.Status != 0 || trial.report.Plain != ""
}

// plain asks a server that does not speak TLS.
func (r *prober) plain(c *Client) {
	r.note(cause.NoTLS)
	conn, err := r.dial()
	if err != nil {
		c.Error = clip(reasonOf(err))
		return
	}
	defer conn.Close()
	r.exchange(c, conn)
}

// exchange makes one request on a connection and reads the response as leniently as possible.
func (r *prober) exchange(c *Client, conn net.Conn) {
	_, err := fmt.Fprintf(conn, "GET %s HTTP/1.1\r\nHost: %s\r\nUser-Agent: boxgate-doctor\r\nAccept: */*\r\n\r\n", r.Path, r.authority())
	if err != nil {
		c.Error = clip(reasonOf(err))
	}
	var raw []byte
	var res cause.Response
	buf := make([]byte, 64<<10)
	for {
		n, err := conn.Read(buf)
		raw = append(raw, buf[:n]...)
		ended := err != nil && !errors.Is(err, os.ErrDeadlineExceeded)
		res = cause.Parse(raw, ended)
		if len(res.Content) > maxContent {
			res.Complete = true
		}
		if err != nil || res.Complete || len(raw) > maxRead {
			if err != nil && !res.Complete {
				c.Error = clip(reasonOf(err))
			}
			if errors.Is(err, os.ErrDeadlineExceeded) && !res.Complete {
				r.note(cause.LateResponse)
			}
			break
		}
	}
	r.note(res.Causes...)
	if slices.Contains(res.Causes, cause.NotHTTP) {
		r.report.Plain = clip(string(raw))
		c.Error = "the answer is not HTTP"
	}
	c.take(res)
	if res.Reusable && r.Idle > 0 {
		r.report.Idle = r.idle(conn)
	} else if res.Complete {
		r.report.Idle = "closed with the response"
	}
}

// take records a response.
func (c *Client) take(res cause.Response) {
	c.Proto, c.Status = clip(res.Proto), res.Status
	c.Framing = res.Framing()
	c.Fields = map[string]string{}
	for _, name := range comparedFields {
		if v := res.Get(name); v != "" {
			c.Fields[name] = clip(v)
		}
	}
	c.content(res.Content, res.Get("Content-Type"))
}

// content records the content of a response, and the gateway's refusal if it is one.
func (c *Client) content(data []byte, kind string) {
	data = data[:min(len(data), maxContent)]
	sum := sha256.Sum256(data)
	c.Bytes, c.Digest = len(data), hex.EncodeToString(sum[:8])
	var refusal struct{ Type, Detail, Reason string }
	if strings.HasPrefix(kind, "application/problem+json") && json.Unmarshal(data, &refusal) == nil && refusal.Reason != "" {
		c.Refusal = clip(refusal.Reason + ": " + refusal.Detail)
	}
}

// idle watches a connection after its response.
func (r *prober) idle(conn net.Conn) string {
	start := time.Now()
	_ = conn.SetReadDeadline(start.Add(r.Idle))
	_, err := conn.Read(make([]byte, 1))
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return fmt.Sprintf("open after %s", r.Idle)
	}
	return fmt.Sprintf("closed after %.1f s", time.Since(start).Seconds())
}

// refusedRenegotiation reports whether a connection ended because the server asked for another handshake. crypto/tls sends the alert
// no_renegotiation then (RFC 5246, 7.2.2).
func refusedRenegotiation(err error) bool {
	const noRenegotiation tls.AlertError = 100
	var op *net.OpError
	return errors.As(err, &op) && op.Op == "local error" && op.Err != nil && op.Err.Error() == noRenegotiation.Error()
}

// strict makes the request of the strict client.
func (r *prober) strict(sessions tls.ClientSessionCache) Client {
	c := Client{Name: Strict}
	config := &tls.Config{RootCAs: r.roots, ClientSessionCache: sessions}
	tr := &http.Transport{
		TLSClientConfig: config, ForceAttemptHTTP2: true, DisableCompression: true, MaxResponseHeaderBytes: maxRead,
		DialContext: func(context.Context, string, string) (net.Conn, error) { return r.dial() },
	}
	defer tr.CloseIdleConnections()
	req, err := http.NewRequestWithContext(r.ctx, http.MethodGet, "https://"+r.authority()+r.Path, nil)
	if err != nil {
		c.Error = clip(err.Error())
		return c
	}
	if !strings.HasPrefix(r.Path, "//") { // net/url would take that for a host
		req.URL.Opaque, req.URL.RawQuery = r.Path, "" // without encoding it again
	}
	req.Header.Set("User-Agent", "boxgate-doctor")
	req.Header.Set("Accept", "*/*")
	res, err := tr.RoundTrip(req)
	if err != nil {
		if c.Error = clip(reasonOf(err)); refusedRenegotiation(err) {
			r.note(cause.Renegotiates)
		}
		return c
	}
	defer res.Body.Close()
	if res.TLS != nil {
		c.describe(*res.TLS)
	}
	c.Proto, c.Status, c.Fields = res.Proto, res.StatusCode, map[string]string{}
	for _, name := range comparedFields {
		if v := res.Header.Get(name); v != "" {
			c.Fields[name] = clip(v)
		}
	}
	var data bytes.Buffer
	if _, err := io.Copy(&data, io.LimitReader(res.Body, maxContent)); err != nil {
		c.Error = clip(reasonOf(err))
	}
	c.content(data.Bytes(), res.Header.Get("Content-Type"))
	return c
}
