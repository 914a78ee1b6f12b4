package host

import (
	"net"
	"net/http"
	"strings"

	"boxgate/api/access"
	"boxgate/api/server"
	"boxgate/api/stream"
	"boxgate/host/authlimit"
	"boxgate/ui"
	"boxgate/ui/session"
)

// withDashboard serves the dashboard next to the admin API, on TCP and if the configuration has it.
func (h *Host) withDashboard(admin *server.API) http.Handler {
	if !h.parts.cfg.Admin.UI {
		return admin
	}
	var pages *ui.UI
	sessions := session.New(session.Options{
		Find: h.turn.findKey, Still: h.turn.findHash, Hosts: access.NewHosts(h.parts.cfg.Admin.Hosts), Admitted: h.parts.keyed.Shown,
		Peer: func(r *http.Request) string { return authlimit.UserOf(r.Context()) },
		Render: func(w http.ResponseWriter, r *http.Request, status int, p session.Page) {
			pages.SignIn(w, r, status, p)
		},
		Record: admin.RecordSession, Issuer: h.parts.adminIssuer(),
	})
	pages = ui.New(ui.Options{API: admin, Sessions: sessions, Fleet: h.parts.fleet != nil, Log: h.parts.log})
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		local, overTCP := r.Context().Value(http.LocalAddrContextKey).(*net.TCPAddr)
		switch {
		case !overTCP:
			admin.ServeHTTP(w, r)
		case r.URL.Path == "/" && r.Method == http.MethodGet && stream.Accepts(r, "text/html"):
			http.Redirect(w, r, ui.Prefix, http.StatusSeeOther)
		case r.URL.Path+"/" == ui.Prefix:
			http.Redirect(w, r, ui.Prefix, http.StatusSeeOther)
		case !strings.HasPrefix(r.URL.Path, ui.Prefix):
			admin.ServeHTTP(w, r)
		case !local.IP.IsLoopback() && r.TLS == nil:
			http.Error(w, "The dashboard needs TLS beyond loopback, because a key is typed into it. Set admin.tls, or open it on the gateway's host, for example through ssh -L 8600:localhost:8600.", http.StatusForbidden)
		default:
			pages.ServeHTTP(w, r)
		}
	})
}
