package doctor_test

import (
	"net/http"
	"strings"
	"testing"

	"boxgate/api"
	"boxgate/api/apitest"
	"boxgate/api/doctor"
)

// TestDiagnosis: the request is checked, with defaults, and mistakes are listed with their pointers.
func TestDiagnosis(t *testing.T) {
	t.Parallel()
	host := apitest.NewHost(t)
	f := apitest.Serve(t, host, (&doctor.Endpoints{Boxes: host, Host: host, Bodies: apitest.Bodies}).Routes())
	path := "/v2/box/" + host.Add(t, api.CreateRequest{Name: "web"}) + "/doctor"
	for body, want := range map[string]string{
		`{"host":"API.example.com"}`:                                        `"host":"api.example.com","port":443,"path":"/"`,
		`{"host":"a.example","port":8443,"path":"/a?b=c","idle_seconds":0}`: `"host":"a.example","port":8443,"path":"/a?b=c"`,
	} {
		if got := f.Call(t, "POST", path, body); got.StatusCode != http.StatusOK || !strings.Contains(got.Text, want) {
			t.Errorf("%s: %s %s", body, got.Status, got.Text)
		}
	}
	for body, pointer := range map[string]string{
		`{}`:                                      "/host",
		`{"host":"198.51.100.1"}`:                 "/host",
		`{"host":"https://a"}`:                    "/host",
		`{"host":"a.example","port":0}`:           "/port",
		`{"host":"a.example","port":65536}`:       "/port",
		`{"host":"a.example","path":"a"}`:         "/path",
		`{"host":"a.example","path":"/a b"}`:      "/path",
		`{"host":"a.example","path":"/\r\nX: y"}`: "/path",
		`{"host":"a.example","path":"/` + strings.Repeat("a", 2048) + `"}`: "/path",
		`{"host":"a.example","idle_seconds":11}`:                           "/idle_seconds",
		`{"host":"a.example","idle_seconds":-1}`:                           "/idle_seconds",
		`{"host":"a.example","method":"POST"}`:                             "/method",
	} {
		if got := f.Call(t, "POST", path, body); got.StatusCode != http.StatusUnprocessableEntity || !strings.Contains(got.Text, pointer) {
			t.Errorf("%.80s: %s %s, want %s", body, got.Status, got.Text, pointer)
		}
	}
	if got := f.Call(t, "POST", "/v2/box/none/doctor", `{"host":"a.example"}`); got.StatusCode != http.StatusNotFound {
		t.Errorf("of no box: %s", got.Status)
	}
}
