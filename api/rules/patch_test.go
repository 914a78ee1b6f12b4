package rules_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"testing"

	"boxgate/api"
	"boxgate/api/apitest"
	"boxgate/api/rules"
	"boxgate/policy"
)

// busyHost is a Host whose header rules another client changes each time they are read.
type busyHost struct {
	*apitest.Host
	others int
}

func (h *busyHost) Headers(ctx context.Context, id policy.BoxID) (api.HeaderState, error) {
	state, err := h.Host.Headers(ctx, id)
	if h.others > 0 {
		h.others--
		if _, err := h.SetHeaders(ctx, id, state.Rules, nil); err != nil {
			return state, err
		}
	}
	return state, err
}

// TestPatchGoesThroughUnderContention: 412 is only for clients that sent If-Match.
func TestPatchGoesThroughUnderContention(t *testing.T) {
	t.Parallel()
	f := serve(t)
	id := f.create(t, api.CreateRequest{})
	path := "/v2/box/" + id + "/config/attach-headers"
	f.Expect(t, 200, "PUT", path, `{"a.test":{"X":"a"}}`)
	busy := &busyHost{Host: f.host, others: 50}
	s := apitest.Serve(t, f.host, (&rules.Endpoints{Boxes: busy, Host: busy, History: f.history, Bodies: apitest.Bodies}).Routes())
	patch := func(edit ...func(*http.Request)) int {
		return s.Call(t, "PATCH", path, `{"b.test":{"X":"b"}}`, edit...).StatusCode
	}
	if got := patch(); got != 200 || busy.others > 0 {
		t.Errorf("without If-Match: %d, and %d changes were left", got, busy.others)
	}
	busy.others = 1
	if got := patch(apitest.IfMatch(`"1"`)); got != 412 {
		t.Errorf("with If-Match: %d", got)
	}
	state, err := f.host.Headers(t.Context(), policy.BoxID(id))
	if err != nil || len(state.Rules) != 2 {
		t.Errorf("%+v %v", state, err)
	}
}

// TestPatchesAddUp: many small changes have no more hosts and placeholders than one large one.
func TestPatchesAddUp(t *testing.T) {
	t.Parallel()
	f := serve(t)
	for _, path := range []string{"/v2/box/" + f.create(t, api.CreateRequest{}) + "/config/attach-headers", "/v2/box/settings/attach-headers"} {
		hosts := func(from, to int, rule func(i int) any) string {
			entries := map[string]any{}
			for i := from; i < to; i++ {
				entries[fmt.Sprintf("h%d.test", i)] = rule(i)
			}
			data, err := json.Marshal(entries)
			if err != nil {
				t.Fatal(err)
			}
			return string(data)
		}
		const each = 64
		placeholders := func(i int) any {
			vars := map[string]string{}
			for j := range each {
				vars[fmt.Sprintf("V%d_%d", i, j)] = "v"
			}
			return map[string]any{"placeholders": vars}
		}
		f.Expect(t, 200, "PATCH", path, hosts(0, policy.MaxPlaceholders/each, placeholders))
		f.Expect(t, 422, "PATCH", path, `{"more.test":{"placeholders":{"MORE":"v"}}}`, "placeholders; the limit is")
		f.Expect(t, 200, "PATCH", path, hosts(policy.MaxPlaceholders/each, policy.MaxHeaderHosts, func(int) any { return map[string]string{"X": "v"} }))
		f.Expect(t, 422, "PATCH", path, `{"more.test":{"X":"v"}}`, "hosts; the limit is")
		f.Expect(t, 200, "PATCH", path, `{"h0.test":null,"more.test":{"X":"v"}}`)
	}
}
