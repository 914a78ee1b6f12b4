package attack

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"boxgate/api"
	"boxgate/config"
	"boxgate/e2e/harness"
)

// tenant is a holder of a key that creates boxes, with a box.
type tenant struct {
	*harness.World
	client   *api.Client
	key, box string
}

// ownURL is a public URL as the API shows it.
type ownURL struct {
	Hostnames []string
	Pending   []struct{ Hostname, Record, Value string } `json:"pending_hostnames"`
}

// newTenant creates a key with a name, and a box with the key.
func newTenant(w *harness.World, name string, quotas ...string) *tenant {
	w.T.Helper()
	args := []string{"api-key", "create", "--name", name, "--role", "box-creator"}
	for _, q := range quotas {
		args = append(args, "--quota", q)
	}
	made := strings.Fields(w.Run(0, nil, "", args...))
	n := &tenant{World: w, key: made[len(made)-1]}
	n.client = api.NewClient(w.Socket, n.key)
	var box struct{ ID string }
	if err := n.client.Do(w.T.Context(), "POST", "/v2/box", map[string]any{"network_policy": map[string]any{"mode": "deny-all"}}, &box); err != nil {
		w.T.Fatal(err)
	}
	n.box = box.ID
	return n
}

// asks creates the URL of port 8000 with names, and returns it with the status and text of the answer.
func (n *tenant) asks(names ...string) (u ownURL, status int, text string) {
	n.T.Helper()
	err := n.client.Do(n.T.Context(), "POST", api.BoxPath(n.box, "preview"), map[string]any{"port": 8000, "hostnames": append([]string{}, names...)}, &u)
	if refused, ok := errors.AsType[*api.ResponseError](err); ok {
		return u, refused.Status, refused.Error()
	}
	if err != nil {
		n.T.Fatal(err)
	}
	return u, http.StatusCreated, ""
}

// deletes deletes the URL.
func (n *tenant) deletes() {
	n.T.Helper()
	if err := n.client.Do(n.T.Context(), "DELETE", api.BoxPath(n.box, "preview", "8000"), nil, nil); err != nil {
		n.T.Fatal(err)
	}
}

// lists returns the URL as a list shows it.
func (n *tenant) lists() ownURL {
	n.T.Helper()
	var list struct{ Previews []ownURL }
	if err := n.client.Get(n.T.Context(), api.BoxPath(n.box, "preview"), &list); err != nil || len(list.Previews) != 1 {
		n.T.Fatalf("%+v, %v", list, err)
	}
	return list.Previews[0]
}

// publishes sets the TXT record that the gateway requires.
func (n *tenant) publishes(record, value string) {
	n.T.Helper()
	if err := n.Net.SetRecords(record, fmt.Sprintf("%s. 60 IN TXT %q", record, value)); err != nil {
		n.T.Fatal(err)
	}
}

// serves reports whether the gateway presents a certificate for a name to a visitor.
func serves(w *harness.World, name string) bool {
	w.T.Helper()
	tcp, err := w.Net.Gateway().DialContext(w.T.Context(), "tcp", "127.0.0.1:443")
	if err != nil {
		w.T.Fatal(err)
	}
	defer tcp.Close()
	_ = tcp.SetDeadline(time.Now().Add(harness.Patience))
	roots := x509.NewCertPool()
	var pem []byte
	if err := w.Client.Get(w.T.Context(), "/v2/ca", &pem); err != nil {
		w.T.Fatal(err)
	}
	roots.AppendCertsFromPEM(pem)
	return tls.Client(tcp, &tls.Config{ServerName: name, RootCAs: roots}).Handshake() == nil
}

// TestAttackForeignDomain: a tenant claims a name of another owner, whose DNS points to this gateway. The name is not
// served and gets no certificate until it has a TXT record with the token of this tenant's key for this name; records
// of other keys or at other names do not count. An unproven name does not block other claims.
func TestAttackForeignDomain(t *testing.T) {
	t.Parallel()
	w := harness.NewWorld(t, nil)
	mallory, alice := newTenant(w, "mallory"), newTenant(w, "alice")
	const name = "app.example.org"
	claimed, status, _ := mallory.asks(name)
	if status != 201 || len(claimed.Hostnames) != 0 || len(claimed.Pending) != 1 || claimed.Pending[0].Hostname != name ||
		claimed.Pending[0].Record != "_boxgate-challenge."+name || claimed.Pending[0].Value == "" {
		t.Fatalf("a name that somebody claims: %d %+v", status, claimed)
	}
	owned, status, _ := alice.asks(name, "www.example.org")
	if status != 201 || len(owned.Pending) != 2 {
		t.Fatalf("its owner: %d %+v", status, owned)
	}
	if owned.Pending[0].Value == claimed.Pending[0].Value || owned.Pending[0].Value == owned.Pending[1].Value {
		t.Error("one token for two keys or names")
	}
	// The record of the other owner, of another name of mallory's, and one below the name itself.
	alice.publishes(owned.Pending[1].Record, owned.Pending[1].Value)
	mallory.publishes(name, claimed.Pending[0].Value)
	mallory.publishes("_boxgate-challenge.www.example.org", claimed.Pending[0].Value)
	alice.publishes("_boxgate-challenge."+name, owned.Pending[0].Value)
	alice.Until("the owner's name is in service", func() bool { return slices.Contains(alice.lists().Hostnames, name) })
	if !serves(w, name) {
		t.Error("the owner's name is not served")
	}
	if now := mallory.lists(); len(now.Hostnames) != 0 || len(now.Pending) != 1 {
		t.Errorf("mallory has %+v", now)
	}
	if serves(w, "www.example.org") {
		t.Error("a name is served by the token of another")
	}
	if _, status, _ := mallory.asks(name); status != 409 {
		t.Errorf("a name that is in use: %d", status)
	}
	out := w.Run(0, []string{"BOXGATE_API_KEY=" + mallory.key}, "", "url", "create", mallory.box, "8001", "--hostname", "other.example.net")
	if !strings.Contains(out, "_boxgate-challenge.other.example.net.") || !strings.Contains(out, "TXT") || !strings.Contains(out, `"boxgate-key=`) {
		t.Errorf("what is to be published is not printed: %s", out)
	}
	if err := mallory.client.Do(t.Context(), "DELETE", api.BoxPath(mallory.box, "preview", "8001"), nil, nil); err != nil {
		t.Fatal(err)
	}
	// The control: with its own record a key gets a name, including one whose URL was created before a restart.
	own, _, _ := mallory.asks("mine.example.net")
	if err := w.Stop(); err != nil {
		t.Fatal(err)
	}
	if err := w.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	if serves(w, "mine.example.net") {
		t.Error("a restart has put a name into service")
	}
	mallory.publishes(own.Pending[0].Record, own.Pending[0].Value)
	w.Until("mallory's own name is served", func() bool { return serves(w, "mine.example.net") })
	if out, code := w.GatewayCommand("url", "create", mallory.box, "8000", "--hostname", "operators.example.net"); code != 0 || strings.Contains(out, "TXT") || !serves(w, "operators.example.net") {
		t.Errorf("the operator has to prove a name: %d %s", code, out)
	}
}

// TestAttackFreedDomain: a tenant takes a name that another has just released, while DNS still points to this gateway.
// It gets it neither with its own record nor after a restart. The previous key can take it back without another proof,
// and an admin can take it.
func TestAttackFreedDomain(t *testing.T) {
	t.Parallel()
	w := harness.NewWorld(t, nil)
	mallory, alice := newTenant(w, "mallory"), newTenant(w, "alice")
	const name = "app.example.org"
	owned, _, _ := alice.asks(name)
	claimed, _, _ := mallory.asks(name)
	record := owned.Pending[0].Record
	alice.publishes(record, owned.Pending[0].Value)
	alice.Until("the name is served", func() bool { return serves(w, name) })
	if err := w.Net.SetRecords(record, fmt.Sprintf("%s. 60 IN TXT %q", record, owned.Pending[0].Value), fmt.Sprintf("%s. 60 IN TXT %q", record, claimed.Pending[0].Value)); err != nil {
		t.Fatal(err)
	}
	alice.deletes()
	if serves(w, name) {
		t.Error("a name without a URL is served")
	}
	refused := func(when string) {
		t.Helper()
		if _, status, text := mallory.asks(name); status != 409 || !strings.Contains(text, "is reserved for it until") {
			t.Errorf("%s: another key asks for a freed name: %d %s", when, status, text)
		}
	}
	refused("deleted")
	if err := w.Net.SetRecords(record, fmt.Sprintf("%s. 60 IN TXT %q", record, claimed.Pending[0].Value)); err != nil {
		t.Fatal(err)
	}
	if _, status, text := alice.asks(name); status != 201 || !serves(w, name) {
		t.Errorf("its own key asks: %d %s", status, text)
	}
	if _, status, _ := alice.asks(); status != 201 {
		t.Error(status)
	}
	refused("its URL made anew without it")
	if err := w.Stop(); err != nil {
		t.Fatal(err)
	}
	if err := w.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	refused("after a restart")
	alice.asks(name)
	if err := alice.client.Do(t.Context(), "DELETE", api.BoxPath(alice.box), nil, nil); err != nil {
		t.Fatal(err)
	}
	refused("its box deleted")
	if out, code := w.GatewayCommand("url", "create", mallory.box, "8000", "--hostname", name); code != 0 || !serves(w, name) {
		t.Errorf("an admin asks: %d %s", code, out)
	}
}

// TestAttackReservedDomain: a key claims a name that the operator reserves for other keys. The listed keys need no
// proof.
func TestAttackReservedDomain(t *testing.T) {
	t.Parallel()
	w := harness.NewWorld(t, func(c *config.Config) {
		c.Ingress.Domains = config.Domains{{Suffix: "corp.example", Keys: []string{"alice"}}, {Suffix: "secret.corp.example"}}
	})
	mallory, alice := newTenant(w, "mallory"), newTenant(w, "alice")
	const name = "app.corp.example"
	if u, status, text := mallory.asks("mine.example.net", name); status != 403 || !strings.Contains(text, "ingress.domains") {
		t.Errorf("a key that is not listed: %d %s %+v", status, text, u)
	}
	if u, status, text := alice.asks(name, "corp.example"); status != 201 || len(u.Pending) != 0 || !serves(w, name) {
		t.Errorf("a key that is listed: %d %s %+v", status, text, u)
	}
	if _, status, _ := alice.asks(name, "x.secret.corp.example"); status != 403 {
		t.Errorf("a domain for admins alone: %d", status)
	}
	if u, status, _ := alice.asks("notcorp.example"); status != 201 || len(u.Pending) != 1 {
		t.Errorf("a name that merely ends alike: %d %+v", status, u)
	}
}
