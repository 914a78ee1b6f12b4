package clients

import (
	"bytes"
	"crypto/sha512"
	"encoding/base64"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"strings"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	"github.com/google/go-containerregistry/pkg/v1/random"
	"github.com/google/go-containerregistry/pkg/v1/remote"
)

// npm serves a package to clients with the token, and accepts new ones.
func (v *vendors) npm() {
	pack := tarball(v.t, entry{"package/package.json", `{"name":"@acme/private","version":"1.0.0"}`}, entry{"package/index.js", "module.exports='welcome'\n"})
	sum := sha512.Sum512(pack)
	document := asJSON(v.t, map[string]any{
		"name": "@acme/private", "dist-tags": map[string]string{"latest": "1.0.0"},
		"versions": map[string]any{"1.0.0": map[string]any{
			"name": "@acme/private", "version": "1.0.0",
			"dist": map[string]string{"tarball": "https://registry.npmjs.org/@acme/private/-/private-1.0.0.tgz", "integrity": "sha512-" + base64.StdEncoding.EncodeToString(sum[:])},
		}},
	})
	v.bearer("registry.npmjs.org", "npm", http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.Method + " " + strings.ToLower(r.URL.EscapedPath()) {
		case "GET /-/whoami":
			answering(`{"username": "welcome"}`)(w, r)
		case "GET /@acme%2fprivate":
			answering(string(document))(w, r)
		case "GET /@acme/private/-/private-1.0.0.tgz":
			_, _ = w.Write(pack)
		case "PUT /@acme%2fmine":
			answering(`{"success": true}`)(w, r)
		default:
			http.NotFound(w, r)
		}
	}))
}

func (v *vendors) pyPI() {
	v.hosts["upload.pypi.org"] = v.accept("upload.pypi.org", "Authorization", basic("__token__", v.credential("pypi")),
		http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			f, head, err := r.FormFile("content")
			var got bytes.Buffer
			if err == nil {
				_, err = got.ReadFrom(f)
			}
			if err != nil || head.Filename != wheelName || !bytes.Equal(got.Bytes(), wheel(v.t)) || r.URL.Path != "/legacy/" {
				http.Error(w, "the upload is damaged", http.StatusBadRequest)
			}
		}))
}

// docker serves an image to clients with a token of its token server, whose password is in 1Password.
func (v *vendors) docker() {
	images := registry.New(registry.Logger(log.New(io.Discard, "", 0)))
	v.push(images)
	const token = "registry-token"
	v.hosts["auth.docker.io"] = v.accept("auth.docker.io", "Authorization", basic("acme", v.credential("docker")), answering(`{"token": "`+token+`", "expires_in": 300}`))
	v.hosts["registry-1.docker.io"] = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Authorization") != "Bearer "+token {
			w.Header().Set("WWW-Authenticate", `Bearer realm="https://auth.docker.io/token",service="registry.docker.io",scope="repository:acme/private:pull"`)
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		images.ServeHTTP(w, r)
	})
	connect := func(r *http.Request) bool { return r.Header.Get("Authorization") == "Bearer "+v.credential("connect") }
	v.hosts["gateway:8080"] = pages(map[string]http.Handler{
		"GET /v1/vaults/infra/items/docker-hub": v.issue(connect, map[string]any{"fields": []map[string]string{{"id": "token", "value": v.credential("docker")}}}),
	})
}

// push uploads an image to a registry.
func (v *vendors) push(images http.Handler) {
	s := httptest.NewServer(images)
	defer s.Close()
	image, err := random.Image(1000, 2)
	if err != nil {
		v.t.Fatal(err)
	}
	ref, err := name.ParseReference(strings.TrimPrefix(s.URL, "http://") + "/acme/private:latest")
	if err == nil {
		err = remote.Write(ref, image)
	}
	if err != nil {
		v.t.Fatal(err)
	}
}
