package server

import (
	"strings"
	"testing"
)

func TestAttachIsReadBackAndDetached(t *testing.T) {
	t.Parallel()
	f := serve(t)
	made := f.Call(t, "POST", "/v2/box/attach", `{"netns":"/run/netns/guest","name":"guest","labels":["x"],
		"network_policy":{"mode":"deny-all"},"attach_headers":{"api.example.com":{"X-Key":"sk-attach"}}}`)
	if made.StatusCode != 201 || strings.Contains(made.Text, "sk-attach") {
		t.Fatalf("%d %s", made.StatusCode, made.Text)
	}
	box := made.JSON(t)
	attached, _ := box["attached"].(map[string]any)
	if attached["kind"] != "netns" || attached["ref"] != "/run/netns/guest" || box["name"] != "guest" {
		t.Errorf("%v", box)
	}
	for body, ref := range map[string]string{"": "/run/netns/guest", `{}`: "/run/netns/guest", `{"container":"other"}`: "other"} {
		a := f.Call(t, "POST", "/v2/box/guest/reattach", body)
		if attached, _ := a.JSON(t)["attached"].(map[string]any); a.StatusCode != 200 || body != "" && body != `{}` && attached["ref"] != ref {
			t.Errorf("reattach %s: %d %s", body, a.StatusCode, a.Text)
		}
	}
	if a := f.Call(t, "POST", "/v2/box/guest/reattach", `{"container":"a","pid":1}`); a.StatusCode != 422 {
		t.Errorf("reattach to two: %d %s", a.StatusCode, a.Text)
	}
	if a := f.Call(t, "POST", "/v2/box/guest/detach", ""); a.StatusCode != 200 {
		t.Errorf("detach: %d %s", a.StatusCode, a.Text)
	}
	if a := f.Call(t, "GET", "/v2/box/guest", ""); a.StatusCode != 404 {
		t.Errorf("after detach: %d", a.StatusCode)
	}
	id := f.create(t, `{}`)
	if a := f.Call(t, "POST", "/v2/box/"+id+"/reattach", ""); a.StatusCode != 409 {
		t.Errorf("reattaching a launched box: %d %s", a.StatusCode, a.Text)
	}
	if a := f.Call(t, "POST", "/v2/box/"+id+"/detach", ""); a.StatusCode != 409 {
		t.Errorf("detaching a launched box: %d %s", a.StatusCode, a.Text)
	}
}

func TestAttachRefusesMistakes(t *testing.T) {
	t.Parallel()
	f := serve(t)
	for body, pointer := range map[string]string{
		`{}`: "", `{"pid":1,"netns":"/x"}`: "", `{"netns":"x"}`: "/netns", `{"netns":"/x/../y"}`: "/netns", `{"netns":"/x\n"}`: "/netns",
		`{"pid":-1}`: "/pid", `{"pid":99999999}`: "/pid", `{"container":"a/b"}`: "/container", `{"container":"-x"}`: "/container",
		`{"pid":1,"network_policy":{"mode":"custom","allowed_domains":["a*.b"]}}`: "/network_policy/allowed_domains/0",
		`{"pid":1,"env_vars":{"A":"b"}}`:                                          "/env_vars", `{"interface":"veth0"}`: "/interface",
		`{"pid":1,"name":"-"}`: "/name", `{"pid":1,"attach_headers":{"*":{"A":"b"}}}`: "/attach_headers",
	} {
		a := f.Call(t, "POST", "/v2/box/attach", body)
		if a.StatusCode != 422 || !strings.Contains(a.Text, `"pointer":"`+pointer) {
			t.Errorf("%s: %d %s, want the pointer %q", body, a.StatusCode, a.Text, pointer)
		}
	}
}
