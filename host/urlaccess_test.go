package host

import (
	"slices"
	"testing"

	"boxgate/api"
	"boxgate/ingress/link"
)

// What the API accepts as methods of a link, links can say.
func TestLinkMethods(t *testing.T) {
	t.Parallel()
	if !slices.Equal(api.LinkMethods, link.Methods) {
		t.Errorf("the API has %v, links have %v", api.LinkMethods, link.Methods)
	}
}
