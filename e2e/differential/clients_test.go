package differential

import (
	"bufio"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"strconv"
	"strings"
	"sync"
	"time"

	"boxgate/e2e/harness"
)

// seen is a client's view of a server's answer: the status with a few fields and the body, or a failure. An answer of
// the gateway itself is a failure.
type seen struct {
	fails bool
	what  string // the whole view, or the reason of the failure
}

func (s seen) String() string {
	if s.fails {
		return "fails"
	}
	return s.what
}

func failed(why any) seen { return seen{true, fmt.Sprint(why)} }

// ours is the content type of the gateway's answers.
const ours = "application/problem+json"

// answer returns the view of a response.
func answer(status int, contentType string, fields []string, size int, body string) seen {
	if strings.HasPrefix(contentType, ours) {
		return failed(fmt.Sprintf("%d %.600s", status, body))
	}
	return seen{what: fmt.Sprintf("%d %q %d bytes %.80q", status, fields, size, body)}
}

// compared are the fields of a response that clients report.
var compared = []string{"Location", "Etag", "X-Row", "Www-Authenticate"}

// way is a box that reaches servers in one of three ways.
type way struct {
	*harness.Intruder
	name  string
	file  string // path in the box of its trusted certificates
	roots *x509.CertPool
}

const (
	asks   = "ask() { name=$1; shift; curl -sS --max-time 300 --cacert $roots -o $name.body -w '%{http_code}\\n%{content_type}\\n%{size_download}\\nFIELDS' \"$@\" >$name.status 2>$name.error </dev/null; echo $? >$name.code; }\n"
	unit   = "\x1f"
	record = "\x1e"
	prints = "for name in *.code; do name=${name%.code}; for part in code error status; do cat $name.$part; printf '\\037'; done; [ ! -e $name.body ] || head -c 600 $name.body; printf '\\037%s\\036' $name; done\n"
)

// curl requests all rows with curl, eight at a time, and returns its views by row name.
func (w *way) curl(rows []row) map[string]seen {
	w.T.Helper()
	var script strings.Builder
	fmt.Fprintf(&script, "roots=%s\nmkdir /tmp/curl && cd /tmp/curl && head -c 1048576 /dev/zero >upload\n", w.file)
	var fields strings.Builder
	for _, name := range compared {
		fmt.Fprintf(&fields, "%%header{%s}\\n", strings.ToLower(name))
	}
	script.WriteString(strings.Replace(asks, "FIELDS", fields.String(), 1))
	for n, r := range rows {
		fmt.Fprintf(&script, "ask %s %s %s &\n", r.name, r.curlOptions(), r.url())
		if n%8 == 7 {
			script.WriteString("wait\n")
		}
	}
	script.WriteString("wait\n" + prints)
	out, heads := map[string]seen{}, map[string]bool{}
	for _, r := range rows {
		heads[r.name] = r.method == http.MethodHead // curl prints the fields instead of the body
	}
	text := w.MustSh(w.Box, script.String())
	for one := range strings.SplitSeq(strings.TrimSuffix(text, record), record) {
		parts := strings.Split(one, unit)
		if len(parts) != 5 {
			w.T.Fatalf("%s: curl: %q in %.2000q", w.name, one, text)
		}
		code, errors, status, body, name := strings.TrimSpace(parts[0]), parts[1], strings.Split(parts[2], "\n"), parts[3], parts[4]
		if code != "0" {
			out[name] = failed(code + " " + errors)
			continue
		}
		if heads[name] {
			body = ""
		}
		number, _ := strconv.Atoi(status[0])
		size, _ := strconv.Atoi(status[2])
		out[name] = answer(number, status[1], status[3:3+len(compared)], size, body)
	}
	return out
}

// curlOptions returns the curl options of a row, quoted for a shell.
func (r row) curlOptions() string {
	line := r.options
	switch {
	case r.method == http.MethodHead:
		line += " --head"
	case r.method != "":
		line += " -X " + r.method
	}
	if r.upload {
		line += " --data-binary @upload"
	}
	if r.header != "" {
		line += " -H '" + r.header + "'"
	}
	return line
}

// golang requests all rows with Go's client, and returns its views by row name.
func (w *way) golang(rows []row) map[string]seen {
	out := map[string]seen{}
	var mu sync.Mutex
	var wait sync.WaitGroup
	room := make(chan struct{}, 8)
	for _, r := range rows {
		room <- struct{}{}
		wait.Go(func() {
			defer func() { <-room }()
			saw := w.get(r)
			mu.Lock()
			defer mu.Unlock()
			out[r.name] = saw
		})
	}
	wait.Wait()
	return out
}

// get makes the request of a row with Go's client.
func (w *way) get(r row) seen {
	tr := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: w.roots}, ForceAttemptHTTP2: !r.http1, DialContext: w.dial}
	defer tr.CloseIdleConnections()
	client := &http.Client{Transport: tr, Timeout: 5 * time.Minute, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	saw := seen{}
	for _, field := range r.requests() {
		if saw = w.send(client, r, field); saw.fails {
			break
		}
	}
	return saw
}

// send makes one request, with an additional field unless it is empty.
func (w *way) send(client *http.Client, r row, field string) seen {
	var body io.Reader
	method := r.method
	if r.upload {
		body = strings.NewReader(strings.Repeat("\x00", 1<<20))
		if method == "" {
			method = http.MethodPost
		}
	}
	req, err := http.NewRequestWithContext(w.T.Context(), method, r.url(), body)
	if err != nil {
		return failed(err)
	}
	if name, value, ok := strings.Cut(field, ": "); ok {
		req.Header.Set(name, value)
		req.Host = req.Header.Get("Host") // empty: the URL's host
	}
	res, err := client.Do(req)
	if err != nil {
		return failed(err)
	}
	defer res.Body.Close()
	text, err := io.ReadAll(res.Body)
	if err != nil {
		return failed(err)
	}
	fields := make([]string, len(compared))
	for i, name := range compared {
		fields[i] = res.Header.Get(name)
	}
	if len(res.Trailer) > 0 {
		fields = append(fields, fmt.Sprint(res.Trailer))
	}
	return answer(res.StatusCode, res.Header.Get("Content-Type"), fields, len(text), string(text))
}

// sockets runs the exchanges of all rows, one after the other.
func (w *way) sockets(rows []row) map[string]seen {
	out := map[string]seen{}
	for _, r := range rows {
		out[r.name] = w.socket(r)
	}
	return out
}

// socket runs the exchange of a row on new connections.
func (w *way) socket(r row) seen {
	config := &tls.Config{ServerName: r.host(), RootCAs: w.roots, NextProtos: []string{"http/1.1"}, ClientSessionCache: tls.NewLRUClientSessionCache(1)}
	dial := func() (net.Conn, error) {
		c, err := w.dial(w.T.Context(), "tcp", net.JoinHostPort(r.host(), strconv.Itoa(int(r.port()))))
		if err != nil {
			return nil, err
		}
		_ = c.SetDeadline(time.Now().Add(harness.Patience))
		if r.plain {
			return c, nil
		}
		s := tls.Client(c, config)
		if err := s.HandshakeContext(w.T.Context()); err != nil {
			_ = c.Close()
			return nil, err
		}
		return s, nil
	}
	talks := r.talks
	if talks == nil {
		talks = func(dial func() (net.Conn, error)) (string, error) {
			c, err := dial()
			if err != nil {
				return "", err
			}
			defer c.Close()
			return r.talk(c)
		}
	}
	text, err := talks(dial)
	if err != nil {
		return failed(fmt.Sprintf("%v after %q", err, text))
	}
	return answer(0, "", nil, len(text), text)
}

// openssl connects to the servers with openssl s_client.
func (w *way) openssl(rows []row) map[string]seen {
	out := map[string]seen{}
	for _, r := range rows {
		at := net.JoinHostPort(r.host(), strconv.Itoa(int(r.port())))
		line := fmt.Sprintf(`printf 'GET /page HTTP/1.1\r\nHost: %s\r\nConnection: close\r\n\r\n' |
timeout 300 openssl s_client -ign_eof -quiet -verify_return_error -verify_quiet -CAfile %s -connect %s %s 2>&1`, at, w.file, at, r.options)
		text, _ := w.Sh(w.Box, line)
		res, err := http.ReadResponse(bufio.NewReader(strings.NewReader(text)), nil)
		if err != nil {
			out[r.name] = failed(text)
			continue
		}
		body, _ := io.ReadAll(res.Body)
		out[r.name] = answer(res.StatusCode, res.Header.Get("Content-Type"), nil, len(body), string(body))
	}
	return out
}

// dial connects to the first address of a name that accepts, like common clients.
func (w *way) dial(ctx context.Context, _, address string) (net.Conn, error) {
	host, port, err := net.SplitHostPort(address)
	if err != nil {
		return nil, err
	}
	number, err := strconv.ParseUint(port, 10, 16)
	if err != nil {
		return nil, err
	}
	addrs, err := w.lookup(ctx, host)
	for _, a := range addrs {
		var c net.Conn
		if c, err = w.Connect(netip.AddrPortFrom(a, uint16(number))); err == nil {
			return c, nil
		}
	}
	return nil, errors.Join(fmt.Errorf("%s has %v", host, addrs), err)
}

// lookup queries the box's DNS server for both families.
func (w *way) lookup(ctx context.Context, host string) (addrs []netip.Addr, err error) {
	resolver := net.Resolver{PreferGo: true, Dial: func(ctx context.Context, network, _ string) (c net.Conn, err error) {
		err = w.InNetNS(func() (err error) {
			c, err = new(net.Dialer).DialContext(ctx, network, w.DNS)
			return err
		})
		return c, err
	}}
	addrs, err = resolver.LookupNetIP(ctx, "ip", strings.TrimSuffix(host, ".")+".")
	for i := range addrs {
		addrs[i] = addrs[i].Unmap()
	}
	return addrs, err
}
