package api

import (
	"errors"
	"net"
	"net/http"
	"net/netip"
	"path"
	"runtime/debug"
	"slices"
	"strings"

	"go.uber.org/zap"
)

// isHealth reports whether a route is for probes, which have no key and may use any Host.
func isHealth(pattern string) bool {
	return pattern == "GET /healthz" || pattern == "GET /readyz"
}

// admit refuses a request that a web page of another site may have caused (Host and Origin) and one without a valid
// key, in this order, so that a page cannot even learn whether a key is right.
func (a *API) admit(w http.ResponseWriter, r *http.Request) error {
	if !a.knownHost(r) {
		return refuse(http.StatusMisdirectedRequest, "Host %q is not a name of this API; use its address or localhost", clip(r.Host))
	}
	if !sameOrigin(r) {
		return refuse(http.StatusForbidden, "requests from web pages of another origin are refused")
	}
	if key, ok := keyOf(r); !ok || !a.CheckKey(key) {
		w.Header().Set("WWW-Authenticate", `Bearer realm="boxgate"`)
		return refuse(http.StatusUnauthorized, "a valid API key is required, in X-Box-Api-Key or as Authorization: Bearer")
	}
	return nil
}

// keyOf returns the key of a request; two different ones count as none.
func keyOf(r *http.Request) (string, bool) {
	keys := slices.Clone(r.Header.Values("X-Box-Api-Key"))
	for _, v := range r.Header.Values("Authorization") {
		scheme, token, _ := strings.Cut(v, " ")
		if !strings.EqualFold(scheme, "Bearer") {
			return "", false
		}
		keys = append(keys, strings.TrimSpace(token))
	}
	keys = slices.Compact(keys)
	if len(keys) != 1 || keys[0] == "" || len(keys[0]) > 512 {
		return "", false
	}
	return keys[0], true
}

func allowedHosts(extra []string) map[string]bool {
	hosts := map[string]bool{"localhost": true, "127.0.0.1": true, "::1": true}
	for _, h := range extra {
		hosts[strings.ToLower(strings.TrimSuffix(h, "."))] = true
	}
	return hosts
}

// knownHost reports whether the Host header names this API: a loopback name, the address the connection came in on, or
// a configured name. Anything else may be a name that its owner pointed here (DNS rebinding).
func (a *API) knownHost(r *http.Request) bool {
	if r.URL.IsAbs() {
		return false // an absolute-form target replaces the Host header
	}
	host := bareHost(r.Host)
	if a.hosts[host] {
		return true
	}
	asked, err := netip.ParseAddr(host)
	if err != nil {
		return false
	}
	local, ok := r.Context().Value(http.LocalAddrContextKey).(*net.TCPAddr)
	return ok && local.AddrPort().Addr().Unmap() == asked.Unmap()
}

func bareHost(hostport string) string {
	host := hostport
	if h, _, err := net.SplitHostPort(hostport); err == nil {
		host = h
	}
	host = strings.TrimSuffix(strings.TrimPrefix(host, "["), "]")
	return strings.ToLower(strings.TrimSuffix(host, "."))
}

// sameOrigin reports whether a request was not sent by a web page, or by one of this origin (Fetch, Origin header).
func sameOrigin(r *http.Request) bool {
	switch r.Header.Get("Sec-Fetch-Site") {
	case "", "none", "same-origin":
	default:
		return false
	}
	origins := r.Header.Values("Origin")
	if len(origins) == 0 {
		return true
	}
	scheme := "http://"
	if r.TLS != nil {
		scheme = "https://"
	}
	return len(origins) == 1 && strings.EqualFold(origins[0], scheme+r.Host)
}

// noRoute answers requests for a path or method that is not in the table, in JSON and with Allow where the path exists.
func (a *API) noRoute(w http.ResponseWriter, r *http.Request) error {
	var allowed []string
	if r.URL.Path == cleanPath(r.URL.Path) {
		for _, m := range []string{http.MethodGet, http.MethodPost, http.MethodPut, http.MethodPatch, http.MethodDelete} {
			probe := &http.Request{Method: m, URL: r.URL, Host: r.Host}
			if _, pattern := a.mux.Handler(probe); pattern != "" {
				allowed = append(allowed, m)
			}
		}
	}
	if len(allowed) == 0 {
		return refuse(http.StatusNotFound, "no such path: %s; see /openapi.json", clip(r.URL.Path))
	}
	w.Header().Set("Allow", strings.Join(allowed, ", "))
	return refuse(http.StatusMethodNotAllowed, "%s is not allowed here; use %s", clip(r.Method), strings.Join(allowed, " or "))
}

// cleanPath is the form that the mux would redirect to. A redirect would lose the body, so other forms are refused.
func cleanPath(p string) string {
	clean := path.Clean("/" + p)
	if strings.HasSuffix(p, "/") && clean != "/" {
		clean += "/"
	}
	return clean
}

// clip shortens what a client sent before it is sent back.
func clip(s string) string {
	if len(s) > 100 {
		return s[:100] + "…"
	}
	return s
}

// recoverPanic turns a panic into a 500 without detail; if the answer has begun the connection is closed instead.
func (a *API) recoverPanic(w *writer, r *http.Request) {
	p := recover()
	if p == nil {
		return
	}
	if err, _ := p.(error); errors.Is(err, http.ErrAbortHandler) {
		panic(p)
	}
	// The panic's value may contain parts of the request, so only the stack is logged.
	a.Log.Error("panic in the admin API", zap.String("method", r.Method), zap.String("path", r.URL.Path),
		zap.ByteString("stack", debug.Stack()))
	if w.started {
		panic(http.ErrAbortHandler)
	}
	writeJSON(w, http.StatusInternalServerError, errorBody{Error: "internal error; the gateway's log has the details"})
}
