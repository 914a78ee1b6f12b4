package api

import (
	"bytes"
	"net/http"
	"strconv"
)

// urlBody asks for a public URL.
type urlBody struct {
	Port        *int64 `json:"port"`
	BearerToken bool   `json:"bearer_token,omitempty" doc:"create a bearer token for it"`
	BasicAuth   bool   `json:"basic_auth,omitempty" doc:"create a user name and password for it"`
}

// urlView is a public URL. Token, username and password are only in the answer that created them.
type urlView struct {
	URL         string `json:"url"`
	Port        uint16 `json:"port"`
	BearerToken bool   `json:"bearer_token"`
	BasicAuth   bool   `json:"basic_auth"`
	Token       string `json:"token,omitempty"`
	Username    string `json:"username,omitempty"`
	Password    string `json:"password,omitempty"`
	CreatedAt   int64  `json:"created_at,omitempty"`
}

// urlsView is the answer of a list of public URLs.
type urlsView struct {
	Previews []urlView `json:"previews"`
}

func viewURL(u URL) urlView {
	return urlView{URL: u.URL, Port: u.Port, BearerToken: u.Bearer, BasicAuth: u.Basic, CreatedAt: unix(u.CreatedAt)}
}

func (a *API) createURL(w http.ResponseWriter, r *http.Request) (reply, error) {
	box, err := a.box(r)
	if err != nil {
		return reply{}, err
	}
	var body urlBody
	if err := a.decode(w, r, &body); err != nil {
		return reply{}, err
	}
	if body.Port == nil || *body.Port < 1 || *body.Port > 65535 {
		return reply{}, invalid("/port", "must be between 1 and 65535")
	}
	u, err := a.Host.CreateURL(r.Context(), box.ID, URLRequest{Port: uint16(*body.Port), Bearer: body.BearerToken, Basic: body.BasicAuth})
	if err != nil {
		return reply{}, err
	}
	a.history.log(box.ID, "info", "user", "public URL of port %d made", u.Port)
	view := viewURL(u)
	// The only place where credentials are shown: the caller has to learn them once.
	view.Token, view.Username, view.Password = u.Token.Reveal(), u.Username.Reveal(), u.Password.Reveal()
	return reply{status: http.StatusCreated, body: view}, nil
}

func (a *API) listURLs(_ http.ResponseWriter, r *http.Request) (reply, error) {
	box, err := a.box(r)
	if err != nil {
		return reply{}, err
	}
	urls, err := a.Host.URLs(r.Context(), box.ID)
	if err != nil {
		return reply{}, err
	}
	view := urlsView{Previews: []urlView{}}
	for _, u := range urls {
		view.Previews = append(view.Previews, viewURL(u))
	}
	return reply{body: view}, nil
}

func (a *API) deleteURL(_ http.ResponseWriter, r *http.Request) (reply, error) {
	box, err := a.box(r)
	if err != nil {
		return reply{}, err
	}
	port, err := strconv.ParseUint(r.PathValue("port"), 10, 16)
	if err != nil || port == 0 {
		return reply{}, Errorf(ErrNotFound, "%q is not a port", clip(r.PathValue("port")))
	}
	if err := a.Host.DeleteURL(r.Context(), box.ID, uint16(port)); err != nil {
		return reply{}, err
	}
	a.history.log(box.ID, "info", "user", "public URL of port %d deleted", port)
	return reply{body: okView{true}}, nil
}

func (a *API) boxCA(w http.ResponseWriter, r *http.Request) (reply, error) {
	box, err := a.box(r)
	if err != nil {
		return reply{}, err
	}
	pem, err := a.Host.CA(r.Context(), box.ID)
	return writePEM(w, pem, err)
}

func (a *API) ingressCA(w http.ResponseWriter, r *http.Request) (reply, error) {
	pem, err := a.Host.IngressCA(r.Context())
	return writePEM(w, pem, err)
}

func writePEM(w http.ResponseWriter, pem []byte, err error) (reply, error) {
	if err != nil {
		return reply{}, err
	}
	if bytes.Contains(pem, []byte("PRIVATE KEY")) {
		return reply{}, errPrivateKey
	}
	w.Header().Set("Content-Type", "application/x-pem-file")
	w.WriteHeader(http.StatusOK)
	_, _ = w.Write(pem)
	return reply{written: true}, nil
}
