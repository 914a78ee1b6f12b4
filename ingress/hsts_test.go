package ingress

import (
	"bufio"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"
)

// year is the MaxAge of the tests' gateways.
const year = "max-age=31536000; includeSubDomains"

func sendsHSTS(c *Config) { c.HSTS = HSTS{MaxAge: 8760 * time.Hour, IncludeSubdomains: true} }

// Every response over HTTPS contains only the gateway's Strict-Transport-Security; responses over plain HTTP contain no such
// field.
func TestHSTSOnEveryResponse(t *testing.T) {
	t.Parallel()
	f := start(t, sendsHSTS)
	own := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Add("Strict-Transport-Security", "max-age=0; includeSubDomains")
		w.Header().Add("strict-transport-security", "max-age=9")
	}))
	t.Cleanup(own.Close)
	f.expose("open", own, Auth{Open: true})
	f.expose("closed", own, Auth{Bearer: digest(BearerDigest("tok"))})
	f.script(t, "gone", func(net.Conn, *bufio.Reader) {})
	for host, status := range map[string]int{"open": 200, "closed": 401, "none": 404, "gone": 502} {
		for _, h2 := range []bool{false, true} {
			resp, _ := get(t, f.client(t, h2), "https://"+host+domain+"/", nil)
			if got := resp.Header["Strict-Transport-Security"]; resp.StatusCode != status || !slices.Equal(got, []string{year}) {
				t.Errorf("%s, h2 %v: %s, %q", host, h2, resp.Status, got)
			}
		}
		resp := f.raw(t, "GET / HTTP/1.1\r\nHost: "+host+domain+"\r\n\r\n")
		if got := resp.Header["Strict-Transport-Security"]; resp.StatusCode != status || got != nil {
			t.Errorf("%s, plain: %s, %q", host, resp.Status, got)
		}
	}
	c := f.connectTo(t, "open"+domain)
	_, _ = io.WriteString(c, "GET / HTTP/1.1\r\nHost : open"+domain+"\r\n\r\n")
	resp, err := http.ReadResponse(bufio.NewReader(c), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if got := resp.Header["Strict-Transport-Security"]; resp.StatusCode != 400 || !slices.Equal(got, []string{year}) {
		t.Errorf("a malformed request: %s, %q", resp.Status, got)
	}
}

// A WebSocket's handshake contains it too.
func TestHSTSOnWebSockets(t *testing.T) {
	t.Parallel()
	f := start(t, sendsHSTS)
	f.expose("one", echoServer(t), Auth{Bearer: digest(BearerDigest("tok"))})
	c, resp, err := dialWebSocket(t, f, "one", "tok")
	if err != nil {
		t.Fatal(err)
	}
	defer c.CloseNow()
	if got := resp.Header["Strict-Transport-Security"]; !slices.Equal(got, []string{year}) {
		t.Errorf("%q", got)
	}
}

// An application's own Strict-Transport-Security passes in no part of a response and in no spelling, even if the gateway sends
// none.
func TestHSTSIsTheGateways(t *testing.T) {
	t.Parallel()
	own := "Strict-Transport-Security: max-age=0\r\nSTRICT-TRANSPORT-SECURITY: max-age=9; includeSubDomains; preload\r\n"
	text := "HTTP/1.1 103 Early Hints\r\n" + own + "\r\nHTTP/1.1 200 OK\r\n" + own +
		"Trailer: x\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n" + own + "\r\n"
	for name, change := range map[string]func(*Config){"": nil, year: sendsHSTS} {
		f := start(t, change)
		f.script(t, "one", answersAll(text))
		v := f.frames(t, "one")
		r := v.answer(v.ask(true, to("GET", "one", "/")...))
		if len(r.heads) != 2 { // trailers without remaining fields are not sent
			t.Fatalf("%+v", r)
		}
		var got []string
		for i, head := range r.heads {
			for _, h := range head.Fields {
				if h.Name == hstsName {
					got = append(got, h.Value)
					if i != 1 {
						t.Errorf("part %d: %s", i, h.Value)
					}
				}
			}
		}
		if strings.Join(got, "|") != name {
			t.Errorf("HTTP/2: %q, want %q", got, name)
		}
		c := f.connectTo(t, "one"+domain)
		_, _ = io.WriteString(c, "GET / HTTP/1.1\r\nHost: one"+domain+"\r\nConnection: close\r\n\r\n")
		all, err := io.ReadAll(c)
		if err != nil {
			t.Fatal(err)
		}
		sent := strings.ToLower(string(all))
		if want := min(len(name), 1); strings.Count(sent, hstsName) != want || name != "" && !strings.Contains(string(all), ": "+name+"\r\n") {
			t.Errorf("HTTP/1.1: %s", all)
		}
	}
}

func TestHSTSValue(t *testing.T) {
	t.Parallel()
	for want, h := range map[string]HSTS{
		"":                             {},
		"max-age=60":                   {MaxAge: time.Minute},
		"max-age=1; includeSubDomains": {MaxAge: 1900 * time.Millisecond, IncludeSubdomains: true},
	} {
		if got := h.value(); got != want {
			t.Errorf("%+v: %q, want %q", h, got, want)
		}
	}
	if got := (HSTS{IncludeSubdomains: true}).value(); got != "" {
		t.Errorf("without a time: %q", got)
	}
}
