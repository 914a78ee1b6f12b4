package server

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"boxgate/api"
	"boxgate/policy"
)

func TestAttachIsReadBackAndDetached(t *testing.T) {
	t.Parallel()
	f := serve(t)
	made := f.call(t, "POST", "/v2/box/attach", `{"netns":"/run/netns/guest","name":"guest","labels":["x"],
		"network_policy":{"mode":"deny-all"},"attach_headers":{"api.example.com":{"X-Key":"sk-attach"}}}`)
	if made.StatusCode != 201 || strings.Contains(made.text, "sk-attach") {
		t.Fatalf("%d %s", made.StatusCode, made.text)
	}
	box := made.json(t)
	attached, _ := box["attached"].(map[string]any)
	if attached["kind"] != "netns" || attached["ref"] != "/run/netns/guest" || box["name"] != "guest" {
		t.Errorf("%v", box)
	}
	for body, ref := range map[string]string{"": "/run/netns/guest", `{}`: "/run/netns/guest", `{"container":"other"}`: "other"} {
		a := f.call(t, "POST", "/v2/box/guest/reattach", body)
		if attached, _ := a.json(t)["attached"].(map[string]any); a.StatusCode != 200 || body != "" && body != `{}` && attached["ref"] != ref {
			t.Errorf("reattach %s: %d %s", body, a.StatusCode, a.text)
		}
	}
	if a := f.call(t, "POST", "/v2/box/guest/reattach", `{"container":"a","pid":1}`); a.StatusCode != 422 {
		t.Errorf("reattach to two: %d %s", a.StatusCode, a.text)
	}
	if a := f.call(t, "POST", "/v2/box/guest/detach", ""); a.StatusCode != 200 {
		t.Errorf("detach: %d %s", a.StatusCode, a.text)
	}
	if a := f.call(t, "GET", "/v2/box/guest", ""); a.StatusCode != 404 {
		t.Errorf("after detach: %d", a.StatusCode)
	}
	id := f.create(t, `{}`)
	if a := f.call(t, "POST", "/v2/box/"+id+"/reattach", ""); a.StatusCode != 409 {
		t.Errorf("reattaching a launched box: %d %s", a.StatusCode, a.text)
	}
	if a := f.call(t, "POST", "/v2/box/"+id+"/detach", ""); a.StatusCode != 409 {
		t.Errorf("detaching a launched box: %d %s", a.StatusCode, a.text)
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
		a := f.call(t, "POST", "/v2/box/attach", body)
		if a.StatusCode != 422 || !strings.Contains(a.text, `"pointer":"`+pointer) {
			t.Errorf("%s: %d %s, want the pointer %q", body, a.StatusCode, a.text, pointer)
		}
	}
}

func (h *memoryHost) AttachBox(_ context.Context, req api.AttachRequest) (api.Box, error) {
	leave, err := h.enter()
	defer leave()
	if err != nil {
		return api.Box{}, err
	}
	id := policy.BoxID(fmt.Sprintf("attached%d", len(h.boxes)))
	box := api.Box{ID: id, Name: req.Name, Labels: req.Labels, Status: api.StatusIdle, Attached: &req.Attached, Policy: api.PolicyState{Spec: req.Policy, Version: 1}}
	h.boxes[id] = &memoryBox{Box: box, headers: api.HeaderState{Rules: req.Headers, Version: 1}, urls: map[uint16]api.URL{}}
	return box, nil
}

func (h *memoryHost) ReattachBox(_ context.Context, id policy.BoxID, to *api.Attached) (api.Box, error) {
	b, leave, err := h.box(id)
	defer leave()
	switch {
	case err != nil:
		return api.Box{}, err
	case b.Attached == nil:
		return api.Box{}, api.Errorf(api.ErrConflict, "launched here")
	case to != nil:
		b.Attached = to
	}
	return b.Box, nil
}

func (h *memoryHost) DetachBox(_ context.Context, id policy.BoxID) error {
	b, leave, err := h.box(id)
	defer leave()
	if err == nil && b.Attached == nil {
		err = api.Errorf(api.ErrConflict, "launched here")
	}
	if err == nil {
		delete(h.boxes, id)
	}
	return err
}
