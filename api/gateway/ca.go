package gateway

import (
	"bytes"
	"errors"
	"net/http"

	"boxgate/api/rest"
)

// errPrivateKey aborts a response that would contain a private key.
var errPrivateKey = errors.New("api: the Host returned a private key instead of a certificate")

func (e *Endpoints) boxCA(w http.ResponseWriter, r *http.Request) (rest.Reply, error) {
	box, err := rest.Box(r, e.Boxes)
	if err != nil {
		return rest.Reply{}, err
	}
	pem, err := e.Authorities.CA(r.Context(), box.ID)
	return writePEM(w, pem, err)
}

func (e *Endpoints) ingressCA(w http.ResponseWriter, r *http.Request) (rest.Reply, error) {
	pem, err := e.Authorities.IngressCA(r.Context())
	return writePEM(w, pem, err)
}

// writePEM responds with certificates. It refuses data that contains a private key.
func writePEM(w http.ResponseWriter, pem []byte, err error) (rest.Reply, error) {
	if err != nil {
		return rest.Reply{}, err
	}
	if bytes.Contains(pem, []byte("PRIVATE KEY")) {
		return rest.Reply{}, errPrivateKey
	}
	w.Header().Set("Content-Type", "application/x-pem-file")
	w.WriteHeader(http.StatusOK)
	_, _ = w.Write(pem)
	return rest.Reply{Written: true}, nil
}
