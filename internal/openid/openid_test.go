package openid

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"reflect"
	"testing"
)

// claimed is a token with these claims.
type claimed string

func (c claimed) Claims(v any) error { return json.Unmarshal([]byte(c), v) }

func TestClaims(t *testing.T) {
	t.Parallel()
	p := New(Config{Groups: "roles"})
	for text, want := range map[string]Identity{
		`{"email":"a@b","email_verified":true,"roles":["x",1,"y"],"groups":["z"]}`: {Email: "a@b", Verified: true, Groups: []string{"x", "y"}},
		`{"email":"a@b","email_verified":"true"}`:                                  {Email: "a@b", Verified: true},
		`{"email":"a@b","email_verified":"yes"}`:                                   {Email: "a@b"},
		`{"email":"a@b","email_verified":1,"roles":"x"}`:                           {Email: "a@b"},
		`{"email":["a@b"],"email_verified":null}`:                                  {},
		`{}`: {},
	} {
		if got, err := p.claims(claimed(text)); err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("%s: %+v, %v", text, got, err)
		}
	}
}

// A caller that stops waiting for the provider returns immediately, and does not affect the others.
func TestDiscoveryWaitsForNobody(t *testing.T) {
	t.Parallel()
	hold := make(chan struct{})
	var srv *httptest.Server
	srv = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		<-hold
		_, _ = w.Write([]byte(`{"issuer":"` + srv.URL + `","authorization_endpoint":"` + srv.URL + `/a"}`))
	}))
	defer srv.Close()
	p := New(Config{Issuer: srv.URL})
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := p.discover(gone); !errors.Is(err, ErrDown) || !errors.Is(err, context.Canceled) {
		t.Errorf("%v", err)
	}
	close(hold)
	if known, err := p.discover(t.Context()); err != nil || known.Endpoint().AuthURL != srv.URL+"/a" {
		t.Errorf("%v, %v", known, err)
	}
}

// A ticket is accepted once until it expires, however many other tickets are used.
func TestOnce(t *testing.T) {
	t.Parallel()
	var o Once
	if !o.First([]byte("a"), 10, 1) || o.First([]byte("a"), 10, 9) || !o.First([]byte("b"), 10, 9) || o.First(nil, 10, 9) {
		t.Error("not the first")
	}
	for i := range onceMost + 100 {
		if !o.First([]byte(fmt.Sprint(i)), 20, 10) {
			t.Fatalf("%d is taken", i)
		}
	}
	if n := len(o.taken); n != onceMost {
		t.Errorf("%d are remembered", n)
	}
	o.First([]byte("c"), 40, 30)
	if n := len(o.taken); n != 1 {
		t.Errorf("%d are remembered although they have expired", n)
	}
}
