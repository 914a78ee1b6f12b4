package boxes

import (
	"maps"
	"net/url"
	"testing"

	"boxgate/api"
)

// TestMetadataOfQueries: pairs are read as [api.SelectionPath] writes them, and a key that is given twice is refused.
func TestMetadataOfQueries(t *testing.T) {
	t.Parallel()
	for _, entries := range []map[string]string{{"a": "b"}, {"user": "42", "stage": "te st&x=1"}, {"ünï": "日本", "=": "="}, {"a": ""}} {
		u, err := url.Parse(api.SelectionPath("x", entries))
		if err != nil {
			t.Fatal(err)
		}
		got, err := metadataOf(u.Query().Get("metadata"))
		if err != nil || !maps.Equal(got, entries) || u.Query().Get("label") != "x" {
			t.Errorf("%v became %v, %v", entries, got, err)
		}
		has := maps.Clone(entries)
		has["more"] = "x"
		filter := api.BoxFilter{Metadata: got}
		if !filter.Selects(api.Box{Metadata: has}) || filter.Selects(api.Box{}) || filter.Selects(api.Box{Metadata: map[string]string{"more": "x"}}) {
			t.Errorf("%v selects other boxes", got)
		}
	}
	for _, bad := range []string{"a=1&a=2", "a=%zz", "a;b"} {
		if got, err := metadataOf(bad); err == nil {
			t.Errorf("%s: %v", bad, got)
		}
	}
}
