package attack

import (
	"crypto/tls"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"boxgate/api"
	"boxgate/config"
	"boxgate/internal/nightly"
)

// TestAttackTarpitsOfOneKey: a tenant gives 20 URLs 320 domains that resolve to a tarpit, and requests them all, so
// that the issuer is busy with them. Another tenant's domain gets its certificate before these have failed.
func TestAttackTarpitsOfOneKey(t *testing.T) {
	t.Parallel()
	v := newIssued(t, config.Domain{Suffix: "tarpit.example", Keys: []string{"mallory"}}, config.Domain{Suffix: "victim.example", Keys: []string{"alice"}})
	const tarpit = "198.51.100.66"
	for _, port := range []string{":80", ":443"} {
		v.ListenBeside(tarpit + port) // and does not accept
	}
	for name, at := range map[string]string{"*.tarpit.example": tarpit, "app.victim.example": gatewayIP} {
		if err := v.Net.SetRecords(name, name+". 60 IN A "+at); err != nil {
			t.Fatal(err)
		}
	}
	mallory, alice := newTenant(v.World, "mallory", "domains=1000"), newTenant(v.World, "alice")
	var hosts []string
	for url := range 20 {
		var names []string
		for i := range 16 {
			names = append(names, fmt.Sprintf("n%d-%d.tarpit.example", url, i))
		}
		err := mallory.client.Do(t.Context(), "POST", api.BoxPath(mallory.box, "preview"), map[string]any{"port": 8000 + url, "hostnames": names}, nil)
		if err != nil {
			t.Fatal(err)
		}
		hosts = append(hosts, names...)
	}
	if _, status, text := alice.asks("app.victim.example"); status != http.StatusCreated {
		t.Fatal(status, text)
	}
	var visiting sync.WaitGroup
	defer visiting.Wait()
	for _, host := range hosts {
		visiting.Go(func() { v.visits(host) })
	}
	v.Until("the issuer is busy with the tenant's domains", func() bool { return v.issuer.Orders() >= 4 })
	const most = 32 // number of the tenant's domains that may fail before the victim's turn
	ordered := func() bool {
		return strings.Contains(v.ReadLog(), `"msg":"obtaining certificate","identifier":"app.victim.example"`)
	}
	v.Until("the victim's turn comes", func() bool {
		v.visits("app.victim.example")
		return ordered() || v.failing() > most
	})
	if failed := v.failing(); !ordered() || failed > most {
		t.Fatalf("%d of the tenant's domains have failed, and the victim's was not ordered before", failed)
	}
	v.Until("the victim's domain has its certificate", func() bool {
		conn, err := v.connect("app.victim.example")
		return err == nil && conn.ConnectionState().PeerCertificates[0].VerifyHostname("app.victim.example") == nil
	})
	if nightly.Size(0, 1) > 0 { // the issuer takes a minute to refuse the maximum number of orders
		v.Until("further orders are refused", func() bool {
			return strings.Contains(v.ReadLog(), "have had as many certificates ordered as they may in an hour")
		})
	}
}

// failing returns the number of hosts without a certificate whose last attempt failed.
func (v *issued) failing() int {
	v.T.Helper()
	metrics, err := v.Net.Gateway().Run(v.T.Context(), "curl", "-sS", "--fail", "http://127.0.0.1:9600/metrics")
	if err != nil {
		v.T.Fatal(err)
	}
	_, after, _ := strings.Cut(metrics, "\nboxgate_certificates_failing ")
	count, _, _ := strings.Cut(after, "\n")
	n, err := strconv.Atoi(count)
	if err != nil {
		v.T.Fatal(err)
	}
	return n
}

// visits opens a host and leaves on a timeout of the gateway or the visitor.
func (v *issued) visits(host string) {
	tcp, err := v.Net.Internet().DialContext(v.T.Context(), "tcp", gatewayIP+":443")
	if err != nil {
		return
	}
	defer tcp.Close()
	_ = tcp.SetDeadline(time.Now().Add(time.Second))
	_ = tls.Client(tcp, &tls.Config{ServerName: host, RootCAs: v.roots}).Handshake()
}
