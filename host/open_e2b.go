package host

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"

	"boxgate/api"
	"boxgate/api/e2b"
	"boxgate/api/e2b/token"
	"boxgate/api/server"
	"boxgate/config"
	"boxgate/host/keys"
	"boxgate/host/urls"
	"boxgate/policy"
	"boxgate/policy/name"
	"boxgate/store"
)

// e2b returns the configuration of the dialect of E2B's SDK; nil if it is off.
func (h *Host) e2b() (*server.E2B, error) {
	p := h.parts
	if !p.cfg.E2B.Enabled {
		return nil, nil
	}
	maker, err := boxTokens(p.store.Installation)
	if err != nil {
		return nil, fmt.Errorf("the key of access tokens: %w", err)
	}
	disk := p.cfg.Launcher.Disk
	return &server.E2B{
		Maker: maker, Keys: tokenKeys{h.turn, h.keys}, Domain: p.domainE2B(), PublicTraffic: p.cfg.E2B.PublicTraffic,
		Disks:  map[string]int64{"small": int64(disk.Small), "medium": int64(disk.Medium), "large": int64(disk.Large)},
		Images: slices.Sorted(maps.Keys(p.cfg.Launcher.AllImages())),
	}, nil
}

// boxTokens returns the maker of access tokens with the key in the store, which it makes if there is none.
func boxTokens(known store.Installation) (*token.Maker, error) {
	text, err := known.BoxTokenKey()
	if err == nil && text.Reveal() == "" {
		secret := make([]byte, token.SecretSize)
		_, _ = rand.Read(secret) // never fails (crypto/rand)
		if err = known.SetBoxTokenKeyOnce(name.NewSecret(base64.StdEncoding.EncodeToString(secret))); err == nil {
			text, err = known.BoxTokenKey()
		}
	}
	if err != nil {
		return nil, err
	}
	secret, err := base64.StdEncoding.DecodeString(text.Reveal())
	if err != nil {
		return nil, errors.New("its record is damaged")
	}
	return token.NewMaker(secret)
}

// trafficHeader is the request field in which clients of the dialect send the token of the ports of a box.
const trafficHeader = "E2b-Traffic-Access-Token"

// tokenFields are the request fields in which visitors may send the token of a public URL.
func (p *parts) tokenFields() []string {
	fields := p.cfg.Ingress.TokenHeaders
	if p.cfg.E2B.Enabled && !slices.ContainsFunc(fields, func(f string) bool { return strings.EqualFold(f, trafficHeader) }) {
		fields = append(slices.Clone(fields), trafficHeader)
	}
	return fields
}

// domainE2B returns the domain below which clients of the dialect find the ports of boxes, with a port unless that is 443.
func (p *parts) domainE2B() string {
	if port := p.listeners.PortOfHTTPS(); port != 0 && port != 443 {
		return net.JoinHostPort(p.cfg.Ingress.Domain, strconv.Itoa(int(port)))
	}
	return p.cfg.Ingress.Domain
}

// tokenKeys implements [token.Keys].
type tokenKeys struct {
	*adminTurn
	*keys.Service
}

// Find implements [token.Keys].
func (k tokenKeys) Find(hash [sha256.Size]byte) (api.Caller, bool) { return k.findHash(hash) }

// adminHosts returns the Host values of the admin API, besides loopback names and the listening address.
func (p *parts) adminHosts() []string {
	if !p.cfg.E2B.Enabled {
		return p.cfg.Admin.Hosts
	}
	return append(slices.Clone(p.cfg.Admin.Hosts), p.cfg.E2B.APIHost(p.cfg.Ingress.Domain))
}

// sandboxPort is the port at which clients of E2B's SDK expect the API of a sandbox (envd).
const sandboxPort = 49983

// dialectNames serves the dialect of E2B's SDK at names of public URLs, once the admin API exists: the control API at api.{domain}, and
// the API of sandboxes at port 49983 of every box, which boxes themselves cannot serve.
type dialectNames struct {
	turn  *adminTurn
	admin atomic.Pointer[server.API]
}

// serveIn makes a table lead the names here. isBox reports whether a box exists.
func (n *dialectNames) serveIn(t *urls.Table, isBox func(policy.BoxID) bool) {
	t.ServeName(config.E2BLabel, n.handle(e2b.IsControl, func(a *server.API, _ *http.Request) http.Handler { return a.Control() }))
	t.ServePort(sandboxPort, func(box policy.BoxID) (http.Handler, bool) {
		h := n.handle(e2b.IsSandbox, func(a *server.API, r *http.Request) http.Handler {
			// For a successor, which is asked by the admin API's own path and knows no host names of boxes there.
			r.Header.Set(e2b.SandboxHeader, string(box))
			r.Host = "localhost"
			return a.Sandbox(box)
		})
		return h, isBox(box)
	})
}

// handle returns a handler that finds its handler in the admin API, while it is this process's turn. A successor's whole API must not be
// reached here, so only paths of the dialect are forwarded to it; the handler refuses others.
func (n *dialectNames) handle(serves func(path string) bool, find func(*server.API, *http.Request) http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		admin := n.admin.Load()
		if admin == nil {
			w.Header().Set("Retry-After", "1")
			http.Error(w, "the gateway is starting; try again", http.StatusServiceUnavailable)
			return
		}
		h := find(admin, r)
		if serves(r.URL.Path) {
			h = n.turn.wrap(h)
		}
		h.ServeHTTP(w, r)
	})
}
