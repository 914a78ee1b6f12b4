package strict

import (
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"boxgate/quota"
)

// A body without available memory waits for other requests, two seconds in total, and is then refused.
func TestBodiesWaitForMemory(t *testing.T) {
	t.Parallel()
	const claim = copies * claimBytes
	for name, c := range map[string]struct {
		others   int           // requests of the key with the memory of one claim each
		ends     time.Duration // interval at which they end, one after the other; 0: never
		took     time.Duration
		isServed bool
	}{
		"there is memory":   {1, 0, 0, true},
		"others end":        {4, time.Second / 2, 3 * time.Second / 2, true},
		"they do not":       {4, 0, memoryTimeout, false},
		"they end too late": {4, time.Second, memoryTimeout, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				book := quota.New(quota.Config{Defaults: quota.Limits{quota.Memory: 5 * claim}})
				key := quota.Holder{Type: quota.APIKey, ID: "ci"}
				for i := range c.others {
					other, end := book.Open(key)
					defer end()
					if err := other.Acquire(quota.Memory, claim); err != nil {
						t.Fatal(err)
					}
					if c.ends > 0 {
						time.AfterFunc(time.Duration(i+1)*c.ends, end)
					}
				}
				s, end := book.Open(key)
				defer end()
				body := `"` + strings.Repeat("a", freeBytes+4*claimBytes-10) + `"` // four claims
				r := httptest.NewRequest(http.MethodPost, "/", strings.NewReader(body))
				begun := time.Now()
				_, err := Bodies{Most: 8 << 20}.Read(httptest.NewRecorder(), r.WithContext(quota.WithScope(r.Context(), s)))
				refused, isRefused := errors.AsType[*quota.Error](err)
				if took := time.Since(begun); took != c.took || (err == nil) != c.isServed || isRefused == c.isServed {
					t.Errorf("after %v: %v; want %v", took, err, c.took)
				} else if isRefused && refused.Kind != quota.Memory {
					t.Error(err)
				}
			})
		})
	}
}
